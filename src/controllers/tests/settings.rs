//! Credentials from their Secrets to the fleet's, with the order and number of all writes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Client, Resource,
    client::Body,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::watcher::Event,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    agents::index::AgentIndex,
    api::agent_fleet::AgentFleet,
    catalog::{
        CatalogHandle, FleetEntry, LoadedRevision, Policy, Revision, SecretContent,
        fleet::{NamedRevisions, Offering, Revisions},
    },
    controllers::{
        Context, Metrics,
        leader::{Leader, now},
        watches::Seen,
    },
    credentials::{
        self,
        certificates::Certificates,
        registrar::{Findings, RegistrarSettings},
        trust::Trust,
    },
    effective_configs::{Metrics as TextMetrics, Store},
    events::Publisher,
    kubernetes::Scope,
    revisions::inputs::InputEvent,
    status::budget::{Budget, BudgetLimits},
};

const UID: &str = "0c1d2e3f-0000-0000-0000-000000000000";
const CREDENTIALS: &str = "/api/v1/namespaces/telemetry/secrets/opamp-credentials-0c1d2e3f";
const FLEET: &str = "/apis/opamp.dev/v1alpha1/namespaces/telemetry/agentfleets/edge";
const SETTINGS: &str = "/apis/opamp.dev/v1alpha1/namespaces/telemetry/connectionsettings/edge";
const TOKEN: &str = "/api/v1/namespaces/telemetry/secrets/edge-token";

/// An API server that keeps objects by their paths, and notes every write.
#[derive(Default)]
struct Kept {
    objects: BTreeMap<String, Value>,
    version: u64,
    /// Method, path and body of each write, in their order.
    writes: Vec<(Method, String, Value)>,
    /// What the watches have still to show: the path, and the object unless it was deleted.
    unseen: Vec<(String, Value, Presence)>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Presence {
    There,
    Deleted,
}

impl Kept {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.into(), object.clone());
        self.unseen.push((path.into(), object.clone(), Presence::There));
        object
    }

    fn delete(&mut self, path: &str) -> Option<Value> {
        let object = self.objects.remove(path)?;
        self.unseen.push((path.into(), object.clone(), Presence::Deleted));
        Some(object)
    }

    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        if *method != Method::GET {
            self.writes.push((method.clone(), path.into(), body.clone()));
        }
        if path.contains("/events") {
            return (201, body);
        }
        let path = path.trim_end_matches("/status");
        match *method {
            Method::GET => {
                self.objects.get(path).cloned().map_or_else(|| failure(404, "NotFound"), |object| (200, object))
            }
            Method::POST => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().expect("a name"));
                if self.objects.contains_key(&path) {
                    failure(409, "AlreadyExists")
                } else {
                    (201, self.put(&path, body))
                }
            }
            Method::PUT => {
                let seen = &body["metadata"]["resourceVersion"];
                let is_as_seen =
                    self.objects.get(path).is_some_and(|found| found["metadata"]["resourceVersion"] == *seen);
                if is_as_seen { (200, self.put(path, body)) } else { failure(409, "Conflict") }
            }
            Method::PATCH => {
                let mut object = self.objects[path].clone();
                merge(&mut object["status"], &body["status"]);
                (200, self.put(path, object))
            }
            _ => self.delete(path).map_or_else(|| failure(404, "NotFound"), |object| (200, object)),
        }
    }
}

/// The algorithm of RFC 7386 section 2.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().expect("an object").remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "message": "", "reason": reason, "code": code}))
}

fn client(kept: Arc<Mutex<Kept>>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let kept = Arc::clone(&kept);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            tokio::time::sleep(Duration::from_millis(5)).await;
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (code, reply) = kept.lock().expect("no holder panics").answer(&parts.method, parts.uri.path(), body);
            Response::builder().status(code).body(Full::new(Bytes::from(reply.to_string())))
        }
    });
    Client::new(service, "default")
}

struct World {
    leader: Leader,
    kept: Arc<Mutex<Kept>>,
    catalog: Arc<CatalogHandle>,
}

impl World {
    /// A fleet with settings whose header comes from a Secret, after everything was done for it.
    async fn settled() -> Self {
        let mut world = Self::listed();
        world.apply(TOKEN, token("Bearer first-canary"));
        world.apply(SETTINGS, settings());
        world.apply(FLEET, fleet(1, Some("edge")));
        world.run_for(Duration::from_secs(5)).await;
        world
    }

    /// A leader that has listed everything, which is nothing.
    fn listed() -> Self {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let client = client(Arc::clone(&kept));
        let budget = Arc::new(Mutex::new(Budget::new(BudgetLimits::default(), now())));
        let policy = Policy { secrets: SecretContent::Offered, ..Policy::default() };
        let catalog = CatalogHandle::fixed(Vec::new(), policy.clone());
        let context = Context {
            client: client.clone(),
            watch_client: client.clone().into(),
            scope: Scope::All,
            namespace: "opamp-system".into(),
            replica: "replica-0".into(),
            policy,
            agents: AgentIndex::holding([]),
            catalog: Arc::clone(&catalog),
            texts: Store::new(Scope::All, Arc::clone(&budget), TextMetrics::default()),
            metrics: Metrics::default(),
            certificates: Certificates::new(&Scope::All),
            trust: Trust::new(),
            unusable_cas: watch::channel(BTreeMap::new()).1,
            registrar: RegistrarSettings { namespace: "opamp-system".into(), cluster: None, server_names: None },
            certificate_metrics: credentials::metrics::Metrics::default(),
            budget,
        };
        let mut leader =
            Leader::new(Arc::new(context), Publisher::new(client, "replica-0"), watch::channel(Findings::default()).1);
        super::list_nothing(&mut leader);
        Self { leader, kept, catalog }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no holder panics")
    }

    fn apply(&mut self, path: &str, object: Value) {
        self.kept().put(path, object);
    }

    /// Lets the leader do what is due, with the watches and the catalog close behind, and gives the writes: the method and
    /// the end of the path of each.
    async fn run_for(&mut self, time: Duration) -> Vec<String> {
        let end = now() + time;
        while now() < end {
            self.show();
            self.leader.hand_out();
            let next = self.leader.next_time().map_or(end, |next| next.min(end));
            tokio::select! {
                Some(done) = self.leader.tasks.join_next() => self.leader.finish(done.expect("no task breaks")),
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
        let writes = self.kept().writes.clone();
        writes.iter().map(|(method, path, body)| short(method, path, body)).collect()
    }

    /// The writes of this time alone.
    async fn writes_of(&mut self, time: Duration) -> Vec<String> {
        let before = self.kept().writes.len();
        self.run_for(time).await.split_off(before)
    }

    /// What the watches show, and what the replica's loader makes of it.
    fn show(&mut self) {
        let unseen = std::mem::take(&mut self.kept().unseen);
        for (path, object, presence) in unseen {
            if path.contains("/secrets/") {
                self.leader.see(Seen::Input(None, InputEvent::Secret(event(metadata(&object), presence))));
            } else if path == SETTINGS {
                let object = DeserializeGuard(Ok(serde_json::from_value(object).expect("ConnectionSettings")));
                self.leader.see(Seen::Input(None, InputEvent::ConnectionSettings(event(object, presence))));
            } else if path == FLEET {
                let fleet: AgentFleet = serde_json::from_value(object).expect("a fleet");
                self.load(&fleet);
                self.leader.see(Seen::Fleet(None, event(DeserializeGuard(Ok(fleet)), presence)));
            }
        }
    }

    fn load(&mut self, fleet: &AgentFleet) {
        let NamedRevisions { current, update: _, threshold, epoch } = NamedRevisions::of(fleet).expect("a threshold");
        let Some(name) = current else { return };
        let secret = self.kept().objects
            [&format!("/api/v1/namespaces/telemetry/secrets/opamp-revision-0c1d2e3f-{name}")]
            .clone();
        let secret: Secret = serde_json::from_value(secret).expect("a Secret");
        let (hash, revision) = Revision::from_secret(&secret).expect("a revision");
        let current = Some(Arc::new(LoadedRevision::new(hash, revision)));
        let offering = Offering::Revisions(Revisions { update: current.clone(), current, threshold, epoch });
        self.catalog.publish(vec![Arc::new(FleetEntry::new(fleet, offering).expect("a fleet"))]);
        self.leader.catalog_moved();
    }

    fn conditions(&self, path: &str) -> Vec<String> {
        let object = self.kept().objects[path].clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions
            .iter()
            .map(|it| format!("{}={} {}", text(&it["type"]), text(&it["status"]), text(&it["reason"])))
            .collect()
    }

    /// The only value of the fleet's credentials.
    fn value(&self) -> Option<String> {
        let data = self.kept().objects.get(CREDENTIALS)?["data"].clone();
        let value = data.as_object()?.values().next()?.as_str()?.to_owned();
        Some(String::from_utf8(STANDARD.decode(value).ok()?).expect("text"))
    }
}

fn event<K: Resource>(object: K, presence: Presence) -> Event<K> {
    match presence {
        Presence::There => Event::Apply(object),
        Presence::Deleted => Event::Delete(object),
    }
}

fn metadata(object: &Value) -> PartialObjectMeta<Secret> {
    serde_json::from_value(json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"],
    }))
    .expect("metadata")
}

fn short(method: &Method, path: &str, body: &Value) -> String {
    let path = path.rsplit("/telemetry/").next().unwrap_or_default();
    let created = if *method == Method::POST { body["metadata"]["name"].as_str().unwrap_or_default() } else { "" };
    let created: String = created.chars().take_while(|letter| !letter.is_ascii_digit()).collect();
    if path.contains("events") { "event".into() } else { format!("{method} {path} {created}").trim().to_owned() }
}

fn token(value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"header": STANDARD.encode(value)},
        "metadata": {"name": "edge-token", "namespace": "telemetry"}})
}

fn settings() -> Value {
    let header =
        json!({"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "edge-token", "key": "header"}}});
    json!({"apiVersion": "opamp.dev/v1alpha1", "kind": "ConnectionSettings",
        "metadata": {"name": "edge", "namespace": "telemetry", "uid": "of-settings", "generation": 1},
        "spec": {"opamp": {"endpoint": "wss://a", "headers": [header]}}, "status": {"observedGeneration": -1}})
}

fn fleet(generation: i64, settings: Option<&str>) -> Value {
    json!({"apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleet",
        "metadata": {"name": "edge", "namespace": "telemetry", "uid": UID, "generation": generation},
        "spec": {"selector": {}, "connectionSettings": settings.map(|name| json!({"name": name})),
            "enrollment": {"methods": []}},
        "status": {"observedGeneration": -1}})
}

#[tokio::test(start_paused = true)]
async fn a_value_is_kept_before_a_revision_refers_to_it_and_that_before_it_is_offered() {
    let world = World::settled().await;
    let writes = world.kept().writes.clone();
    let writes: Vec<_> = writes.iter().map(|(method, path, body)| short(method, path, body)).collect();
    let of_fleet: Vec<&str> =
        writes.iter().map(String::as_str).filter(|it| !it.contains("connectionsettings")).collect();
    let order =
        ["POST secrets opamp-credentials-", "POST secrets opamp-revision-", "PATCH agentfleets/edge/status", "event"];
    assert_eq!(of_fleet, order);
    assert_eq!(world.value().as_deref(), Some("Bearer first-canary"));
    assert_eq!(world.conditions(SETTINGS), ["Ready=True Valid"]);
    assert_eq!(world.conditions(FLEET), ["Ready=True Completed"]);
    assert_eq!(world.kept().objects[SETTINGS]["status"]["fleets"], json!(["edge"]));
}

#[tokio::test(start_paused = true)]
async fn a_rotated_value_is_kept_within_seconds_and_nothing_else_is_written() {
    let mut world = World::settled().await;
    world.apply(TOKEN, token("Bearer second-canary"));
    assert_eq!(world.writes_of(Duration::from_secs(2)).await, ["PUT secrets/opamp-credentials-0c1d2e3f"]);
    assert_eq!(world.value().as_deref(), Some("Bearer second-canary"));
    assert_eq!(world.writes_of(Duration::from_secs(60)).await, [""; 0], "it comes to rest");
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_spoilt_is_told_of_and_the_last_good_one_stays() {
    let mut world = World::settled().await;
    world.apply(TOKEN, token("Bearer\ncanary"));
    world.run_for(Duration::from_secs(5)).await;
    assert_eq!(world.value().as_deref(), Some("Bearer first-canary"));
    assert_eq!(world.conditions(SETTINGS), ["Ready=False InvalidReference", "Reconciling=True InvalidReference"]);
    let expected = ["Ready=False ConnectionSettingsNotReady", "Reconciling=True ConnectionSettingsNotReady"];
    assert_eq!(world.conditions(FLEET), expected);
    world.apply(TOKEN, token("Bearer third-canary"));
    world.run_for(Duration::from_secs(5)).await;
    assert_eq!(world.value().as_deref(), Some("Bearer third-canary"));
    assert_eq!((world.conditions(SETTINGS).len(), world.conditions(FLEET).len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_value_whose_secret_is_deleted_is_kept_no_longer() {
    let mut world = World::settled().await;
    world.kept().delete(TOKEN);
    world.run_for(Duration::from_secs(5)).await;
    assert_eq!(world.value(), None);
    assert_eq!(world.conditions(SETTINGS), ["Ready=False ReferenceNotFound", "Reconciling=True ReferenceNotFound"]);
}

#[tokio::test(start_paused = true)]
async fn a_value_rotates_although_the_settings_are_gone_that_referred_to_it() {
    let mut world = World::settled().await;
    world.kept().delete(SETTINGS);
    world.run_for(Duration::from_secs(5)).await;
    let expected = ["Ready=False ConnectionSettingsNotFound", "Reconciling=True ConnectionSettingsNotFound"];
    assert_eq!(world.conditions(FLEET), expected);
    world.apply(TOKEN, token("Bearer second-canary"));
    assert_eq!(world.writes_of(Duration::from_secs(3)).await, ["PUT secrets/opamp-credentials-0c1d2e3f"]);
    assert_eq!(world.value().as_deref(), Some("Bearer second-canary"));
}

#[tokio::test(start_paused = true)]
async fn credentials_that_no_revision_refers_to_go_after_the_last_that_did() {
    let mut world = World::settled().await;
    let status = world.kept().objects[FLEET]["status"].clone();
    let mut without = fleet(2, None);
    without["status"] = status;
    world.apply(FLEET, without);
    let writes = world.writes_of(Duration::from_secs(6)).await;
    let of_fleet: Vec<&str> =
        writes.iter().map(String::as_str).filter(|it| !it.contains("connectionsettings")).collect();
    let revision = ["POST secrets opamp-revision-", "PATCH agentfleets/edge/status", "event"];
    assert_eq!(of_fleet, [&revision[..], &["DELETE secrets/opamp-credentials-0c1d2e3f"]].concat());
}

#[tokio::test(start_paused = true)]
async fn what_somebody_has_altered_is_put_right() {
    let mut world = World::settled().await;
    let mut altered = world.kept().objects[CREDENTIALS].clone();
    altered["data"] = json!({});
    world.apply(CREDENTIALS, altered);
    world.run_for(Duration::from_secs(3)).await;
    assert_eq!(world.value().as_deref(), Some("Bearer first-canary"));
    world.kept().delete(CREDENTIALS);
    world.run_for(Duration::from_secs(3)).await;
    assert_eq!(world.value().as_deref(), Some("Bearer first-canary"));
}

#[tokio::test(start_paused = true)]
async fn no_value_is_written_anywhere_but_into_the_secret_for_it() {
    let mut world = World::settled().await;
    for value in ["Bearer second-canary", "Bearer\ncanary", ""] {
        world.apply(TOKEN, token(value));
        world.run_for(Duration::from_secs(5)).await;
    }
    let kept = world.kept();
    let own = |path: &str, body: &Value| path == CREDENTIALS || body["type"] == "opamp.dev/credentials";
    for (_, path, body) in kept.writes.iter().filter(|(_, path, body)| !own(path, body)) {
        let text = body.to_string();
        let hidden = STANDARD.encode("Bearer second-canary");
        assert!(!text.contains("canary") && !text.contains(&hidden), "{path}: {text}");
    }
    assert!(kept.writes.iter().any(|(_, path, _)| path.contains("events")), "events were looked at, too");
}
