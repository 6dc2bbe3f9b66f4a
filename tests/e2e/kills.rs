//! Worlds in which the operator is killed around one of its writes, and started again whenever it has ended; and what must
//! hold in the end, whichever write that was.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    ResourceExt as _,
    api::{Api, ListParams},
};

use super::enrollment::{TOKEN, renewed};
use crate::harness::{
    Kind, Operator, Scenario,
    api_proxy::{ApiProxy, Counted},
    swarm::{AgentIdentity, Agents, Swarm, agents},
    wait_for,
};

/// Two kills cost two starts, an agent backs off meanwhile, and other worlds use the machine as well.
pub(super) const AT_LAST: Duration = Duration::from_secs(150);
/// Worlds at the same time. Each waits most of its time, for Leases to end or for certificates to near their end.
pub(super) const WORLDS: usize = 4;
/// The certificate before the one that a Secret holds, until that was seen in use.
const FORMER: &str = "former.crt";

/// One operator and one agent, and a proxy that ends the operator.
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) proxy: ApiProxy,
    kill_around: Option<usize>,
}

impl World {
    /// A world whose operator is ended around the write with this number, if there is one.
    pub(super) async fn new(scenario: Scenario, kill_around: Option<usize>) -> Self {
        let proxy = scenario.api_proxy().await;
        Self { scenario, proxy, kill_around }
    }

    /// Starts the operator, and again whenever it has ended, until this story is told.
    pub(super) async fn live<T>(&self, story: impl AsyncFnOnce(&Self, &str) -> T) -> T {
        let operator = self.scenario.tls_replica_behind(&self.proxy, "replica-0");
        self.proxy.follow(operator.pid());
        let endpoint = operator.websocket();
        tokio::select! {
            told = story(self, &endpoint) => told,
            () = self.revive(operator) => unreachable!("it is revived for ever"),
        }
    }

    /// From now on these writes count, also to end the operator around one of them.
    pub(super) fn count(&self, counted: Counted) {
        match self.kill_around {
            Some(number) => self.proxy.kill_around(number, counted),
            None => self.proxy.count(counted),
        }
    }

    async fn revive(&self, mut operator: Operator) {
        loop {
            operator.ended().await;
            operator = operator.relaunch();
            self.proxy.follow(operator.pid());
        }
    }

    /// An agent that joins by the fleet's token.
    pub(super) async fn enrol(&self, endpoint: &str, kind: impl FnOnce(Agents) -> Agents) -> Swarm {
        let ca = wait_for("the CA is published", AT_LAST, async || self.scenario.try_ca()).await;
        let agents = agents(1, "edge").trusting(&ca).header("Authorization", &format!("Bearer {TOKEN}"));
        kind(agents).start(endpoint)
    }

    /// Who the agent is once it uses a certificate.
    pub(super) async fn certified(&self, swarm: &Swarm) -> AgentIdentity {
        self.another_in_use(swarm, "").await
    }

    /// Who the agent is once it uses another certificate than it did. The former must count until then.
    pub(super) async fn renewed_in_time(&self, swarm: &Swarm, former: &AgentIdentity) -> AgentIdentity {
        let renewed = self.another_in_use(swarm, &former.serial).await;
        let end: Timestamp = former.not_after.parse().expect("a time");
        let left = end - Timestamp::now();
        assert!(left.is_positive(), "the former certificate had ended before another was in use: {left}");
        renewed
    }

    async fn another_in_use(&self, swarm: &Swarm, former: &str) -> AgentIdentity {
        let uid = swarm.uids().await.remove(0);
        renewed(&self.scenario, swarm, &uid, former, AT_LAST).await;
        swarm.identity(0).await
    }

    /// All Secrets in the namespace of the fleet, or those of one type.
    async fn secrets(&self, parameters: &ListParams) -> Vec<Secret> {
        let secrets: Api<Secret> = Api::namespaced(self.scenario.client.clone(), &self.scenario.namespace);
        secrets.list(parameters).await.expect("the API server lists").items
    }

    /// The Secrets of the certificates of agents.
    pub(super) async fn certificates(&self) -> Vec<Secret> {
        self.secrets(&ListParams::default().fields("type=opamp.dev/agent-certificate")).await
    }

    /// Waits until the certificate in use is all that is stored of the agent, and looks for what nobody needs.
    pub(super) async fn assert_one_certificate(&self, swarm: &Swarm) {
        let AgentIdentity { serial, new_uid, .. } = swarm.identity(0).await;
        assert_eq!(new_uid, "", "the agent kept its uid");
        wait_for("there is one Secret for the one certificate", AT_LAST, async || {
            let found = self.certificates().await;
            let told = |secret: &Secret| {
                let keys: Vec<_> = secret.data.iter().flat_map(|data| data.keys()).cloned().collect();
                (secret.annotations().get("opamp.dev/serial").cloned(), keys)
            };
            let told: Vec<_> = found.iter().map(told).collect();
            match &told[..] {
                [(Some(only), keys)] if *only == serial && !keys.iter().any(|key| key == FORMER) => Ok(()),
                _ => Err(format!("{serial} is in use, {told:?} are stored")),
            }
        })
        .await;
        self.assert_no_orphan().await;
        let uid = swarm.uids().await.remove(0);
        self.scenario.condition((Kind::Agent, &uid), ("Connected", "True", "SessionOpen"), AT_LAST).await;
        assert_eq!(self.scenario.list(Kind::Agent).await.len(), 1, "one Agent");
    }

    /// Every Secret is one that people or the fleet need.
    pub(super) async fn assert_no_orphan(&self) {
        for secret in self.secrets(&ListParams::default()).await {
            let (name, kind) = (secret.name_any(), secret.type_.unwrap_or_default());
            let known = [
                "opamp.dev/agent-certificate",
                "opamp.dev/enrollment-token",
                "opamp.dev/revision",
                "opamp.dev/credentials",
                // The CA of an issuer that people have set up.
                "kubernetes.io/tls",
            ];
            assert!(known.contains(&kind.as_str()), "{name} of type {kind} is nobody's");
        }
    }
}

/// Tells a story in which the operator makes these writes about certificates, in this order or nearly so: once undisturbed,
/// and for each write in a world where the operator is killed before it, and again after it. The writes are named by method
/// and kind.
pub(super) async fn killed_around_each(
    base: &Scenario,
    name: &str,
    writes: &[&str],
    story: impl AsyncFn(&World, &str),
) {
    let began = Instant::now();
    let numbers = std::iter::once(None).chain((1..=writes.len()).map(Some));
    let worlds = stream::iter(numbers).map(async |kill_around| {
        let scenario = base.beside(&format!("{name}-{}", kill_around.unwrap_or(0))).await;
        let world = World::new(scenario, kill_around).await;
        world.live(&story).await;
        (kill_around, world.proxy.writes(), world.proxy.kills())
    });
    for (kill_around, written, kills) in worlds.buffer_unordered(writes.len() + 1).collect::<Vec<_>>().await {
        match kill_around {
            None => assert_are(&written, writes),
            Some(number) => assert_eq!(kills, 2, "{name}: before and after write {number}: {written:#?}"),
        }
    }
    println!("{name}: killed before and after each of {writes:?}; {:.0?} for all", began.elapsed());
}

/// Two of them may change places where neither waits for the other.
fn assert_are(written: &[String], expected: &[&str]) {
    let mut kinds: Vec<String> = written.iter().map(|write| in_short(write)).collect();
    let mut expected: Vec<String> = expected.iter().map(|&write| write.to_owned()).collect();
    kinds.sort();
    expected.sort();
    assert_eq!(kinds, expected, "{written:#?}");
}

/// A write by its method and the kind of its object: `PATCH secrets`.
fn in_short(write: &str) -> String {
    let mut words = write.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut parts = path.split('/').skip_while(|part| *part != "namespaces").skip(2);
    let cluster_wide = || path.split('/').nth(4);
    format!("{method} {}", parts.next().or_else(cluster_wide).unwrap_or_default())
}
