//! One test's world: namespaces, a client, and what it starts.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use kube::{
    Client, Config,
    api::{Api, DynamicObject, ListParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::{
    ControlPlane,
    api_proxy::ApiProxy,
    operator::{Operator, Protection, Started},
    resources::{Condition, Kind},
    roles::{self, Right, Roles},
    wait_for,
};

/// Measured times mean something only if one test runs at a time; the machine has few cores.
static TURN: Mutex<()> = Mutex::const_new(());
/// Where tests wait that have not begun: at most one of them is ahead of a test that goes on.
static QUEUE: Mutex<()> = Mutex::const_new(());

/// One test's world. It begins when no other test runs, and ends with the test.
pub struct Scenario {
    /// The cluster.
    pub cluster: Arc<ControlPlane>,
    /// A cluster administrator's client.
    pub client: Client,
    /// Where the fleets and agents of this test live.
    pub namespace: String,
    /// The operator's own namespace.
    pub system: String,
    /// Logs and other files; removed at the end.
    pub folder: PathBuf,
    roles: Roles,
    turn: Option<MutexGuard<'static, ()>>,
}

impl Scenario {
    /// Begins on the cluster that tests share. An operator that serves all namespaces has one for itself.
    pub async fn begin(name: &str) -> Self {
        match Roles::asked_for() {
            Roles::Namespaced => Self::on(name, ControlPlane::shared).await,
            Roles::ClusterWide => Self::begin_alone(name).await,
        }
    }

    /// Begins on a control plane of its own, which it may disturb.
    pub async fn begin_alone(name: &str) -> Self {
        Self::on(name, ControlPlane::private).await
    }

    /// Another world beside this one, for a test that waits more than it computes. Two operators in a cluster are
    /// possible only if each keeps to its own namespaces.
    pub async fn beside(&self, name: &str) -> Self {
        Self::new(name, Arc::clone(&self.cluster), Roles::Namespaced, None).await
    }

    async fn on(name: &str, cluster: fn() -> Arc<ControlPlane>) -> Self {
        let turn = {
            let _place = QUEUE.lock().await;
            TURN.lock().await
        };
        let cluster = tokio::task::spawn_blocking(cluster).await.expect("there is a control plane");
        Self::new(name, cluster, Roles::asked_for(), Some(turn)).await
    }

    async fn new(name: &str, cluster: Arc<ControlPlane>, roles: Roles, turn: Option<MutexGuard<'static, ()>>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Unique on a cluster where former runs left theirs behind: a namespace takes its time to go.
        let unique = format!("{:x}-{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("opamp-test-{name}-{unique}"));
        std::fs::create_dir_all(&folder).expect("a folder for logs");
        let client = cluster.client().await;
        let (namespace, system) = (format!("{name}-{unique}"), format!("{name}-{unique}-system"));
        let scenario = Self { cluster, client, namespace, system, folder, roles, turn };
        scenario.prepare();
        scenario
    }

    /// Lets other tests run while this one waits for something that takes its time. It goes on once the one that runs then
    /// has ended, and perhaps one more.
    pub async fn aside(&mut self, waiting: impl Future<Output = ()>) {
        self.turn = None;
        waiting.await;
        self.turn = Some(TURN.lock().await);
    }

    fn prepare(&self) {
        for namespace in [&self.namespace, &self.system] {
            self.cluster.kubectl(&["create", "namespace", namespace], "");
        }
        roles::apply(&self.cluster, self.roles.file(), &self.system, &self.namespace);
    }

    /// Gives the operator more rights.
    pub fn grant(&self, right: Right) {
        roles::apply(&self.cluster, right.file(), &self.system, &self.namespace);
    }

    /// Starts the operator, with the rights that it is meant to have and no others, and waits until it is ready.
    pub async fn operator(&self) -> Operator {
        self.operator_with(&[]).await
    }

    /// The same with more flags.
    pub async fn operator_with(&self, flags: &[&str]) -> Operator {
        self.replica("replica-0", flags).await
    }

    /// Starts one of several replicas.
    pub async fn replica(&self, name: &str, flags: &[&str]) -> Operator {
        self.start(name, Protection::Plaintext, flags).await
    }

    /// Starts one of several replicas that serve over TLS, with a certificate of the operator's own CA.
    pub async fn tls_replica(&self, name: &str, flags: &[&str]) -> Operator {
        self.start(name, Protection::Tls, flags).await
    }

    /// Starts one that serves over TLS and reaches the API server through a proxy. It is killed as soon as the proxy has
    /// met the write that it is told of: what happens before is part of the count.
    pub fn tls_replica_behind(&self, proxy: &ApiProxy, name: &str) -> Operator {
        let mut started = self.started(name, Protection::Tls, &[]);
        started.kubeconfig = self.folder.join("proxy.kubeconfig");
        let view = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": format!("http://{}", proxy.address)}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
            "users": [{"name": "proxy", "user": {}}],
        });
        std::fs::write(&started.kubeconfig, view.to_string()).expect("the kubeconfig is written");
        Operator::launch(started)
    }

    /// A proxy before the API server with the operator's own rights.
    pub async fn api_proxy(&self) -> ApiProxy {
        let kubeconfig = Kubeconfig::read_from(self.operator_kubeconfig()).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let mut config = config.expect("it names a cluster");
        config.default_retry = false;
        config.read_timeout = None;
        ApiProxy::start(Client::try_from(config).expect("a client")).await
    }

    /// A file with the certificate of the operator's own CA, by which agents know the server.
    pub async fn ca(&self) -> PathBuf {
        wait_for("the CA is published", Duration::from_secs(30), async || self.try_ca()).await
    }

    /// The same, if it is there.
    pub fn try_ca(&self) -> Result<PathBuf, String> {
        let arguments = ["-n", &self.system, "get", "configmap", "opamp-ca", "-o", r"jsonpath={.data.ca\.crt}"];
        let certificate = self.cluster.try_kubectl(&arguments, "")?;
        if !certificate.contains("BEGIN CERTIFICATE") {
            return Err("no certificate".to_owned());
        }
        let path = self.folder.join("ca.crt");
        std::fs::write(&path, certificate).expect("the CA's certificate is written");
        Ok(path)
    }

    async fn start(&self, name: &str, protection: Protection, flags: &[&str]) -> Operator {
        Operator::start(self.started(name, protection, flags)).await
    }

    fn started(&self, name: &str, protection: Protection, flags: &[&str]) -> Started {
        Started {
            kubeconfig: self.operator_kubeconfig(),
            protection,
            namespace: self.system.clone(),
            fleets: self.namespace.clone(),
            roles: self.roles,
            replica: name.to_owned(),
            log: self.folder.join(format!("{name}.log")),
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
        }
    }

    /// A kubeconfig of the operator's service account.
    fn operator_kubeconfig(&self) -> PathBuf {
        let token =
            self.cluster.kubectl(&["-n", &self.system, "create", "token", "opamp-operator", "--duration=3h"], "");
        let view = self.cluster.kubectl(&["config", "view", "--raw", "--minify", "--flatten", "-o", "json"], "");
        let mut view: Value = serde_json::from_str(&view).expect("kubectl prints JSON");
        view["users"][0]["user"] = json!({"token": token.trim()});
        let path = self.folder.join("operator.kubeconfig");
        std::fs::write(&path, view.to_string()).expect("the kubeconfig is written");
        path
    }

    /// Applies objects in this test's namespace.
    pub fn apply(&self, objects: &[Value]) {
        let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
        let arguments = ["-n", &self.namespace, "apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.cluster.kubectl(&arguments, &documents.join("\n---\n"));
    }

    /// Applies a ConfigMap with one key.
    pub fn apply_config_map(&self, name: &str, key: &str, body: &str) {
        self.apply(&[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {key: body}}),
        ]);
    }

    /// Applies a Secret with one key.
    pub fn apply_secret(&self, name: &str, key: &str, body: &str) {
        self.apply(&[json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: body},
        })]);
    }

    /// All objects of a kind in this test's namespace.
    pub async fn list(&self, kind: Kind) -> Vec<Value> {
        let listed = self.api(kind).list(&ListParams::default()).await.expect("the API server lists");
        listed.items.into_iter().map(|object| serde_json::to_value(object).expect("an object is JSON")).collect()
    }

    /// One object; `None` if it is not there.
    pub async fn get(&self, kind: Kind, name: &str) -> Option<Value> {
        let found = self.api(kind).get_opt(name).await.expect("the API server answers");
        found.map(|object| serde_json::to_value(object).expect("an object is JSON"))
    }

    /// Changes an object by a merge patch.
    pub async fn patch(&self, kind: Kind, name: &str, change: Value) {
        let api = self.api(kind);
        api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.expect("the API server takes the change");
    }

    /// Access to a kind in this test's namespace.
    pub fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind.resource())
    }

    /// Waits for a condition of an object and returns it.
    pub async fn condition(&self, object: (Kind, &str), condition: (&str, &str, &str), limit: Duration) -> Condition {
        let ((kind, name), (condition, status, reason)) = (object, condition);
        wait_for(&format!("{kind:?} {name} has {condition}={status}, {reason}"), limit, || async move {
            let object = self.get(kind, name).await.ok_or("no such object")?;
            let found = Condition::of(&object, condition);
            let current = object.pointer("/status/observedGeneration") == object.pointer("/metadata/generation");
            if current && found.is(status, reason) { Ok(found) } else { Err(object["status"].to_string()) }
        })
        .await
    }

    /// Waits until so many Agents say that they have applied what they were offered, each one of these hashes.
    pub async fn agents_applied(&self, count: usize, hashes: &[&str], limit: Duration) {
        wait_for(&format!("{count} Agents say that they applied {hashes:?}"), limit, async || {
            let objects = self.list(Kind::Agent).await;
            let lagging: Vec<&Value> = objects.iter().filter(|agent| !has_applied(agent, hashes)).collect();
            match lagging.first() {
                None if objects.len() == count => Ok(()),
                None => Err(format!("{} Agents", objects.len())),
                Some(agent) => Err(format!("{} do not, one of them: {}", lagging.len(), agent["status"])),
            }
        })
        .await;
    }

    /// Waits until the fleet counts so many agents in each of these fields of `status.agents`.
    pub async fn fleet_counts(&self, fleet: &str, expected: &[(&str, usize)], limit: Duration) {
        wait_for(&format!("fleet {fleet} counts {expected:?}"), limit, || async move {
            let object = self.get(Kind::Fleet, fleet).await.ok_or("no such fleet")?;
            let agents = &object["status"]["agents"];
            let reached = expected.iter().all(|&(field, count)| agents[field] == json!(count));
            if reached { Ok(()) } else { Err(object["status"].to_string()) }
        })
        .await;
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("logs are kept in {}", self.folder.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.folder); // a leftover in the folder for temporary files does no harm
        }
        // Not waited for: a namespace takes seconds to go.
        for namespace in [&self.namespace, &self.system] {
            let _ = self.cluster.try_kubectl(&["delete", "namespace", "--wait=false", namespace], "");
        }
        roles::revoke(&self.cluster, &self.system);
    }
}

fn has_applied(agent: &Value, hashes: &[&str]) -> bool {
    let config = &agent["status"]["remoteConfig"];
    let reported = config["lastReported"].as_str().unwrap_or_default();
    hashes.contains(&reported)
        && config["offered"] == reported
        && config["status"] == "Applied"
        && Condition::of(agent, "ConfigApplied").is("True", "Applied")
}
