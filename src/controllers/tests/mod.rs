//! The leader between watches that tests feed and an API server that answers as they wish.

mod settings;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use kube::{Client, client::Body, core::DeserializeGuard, runtime::watcher::Event};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    Context,
    leader::{AT_ONCE, Leader, now},
    watches::Seen,
};
use crate::{
    agents::index::AgentIndex,
    api::remote_config::RemoteConfig,
    catalog::{CatalogHandle, Policy},
    credentials::{
        self,
        certificates::Certificates,
        registrar::{Findings, RegistrarSettings},
        trust::Trust,
    },
    effective_configs::{Metrics, Store},
    events::Publisher,
    kubernetes::Scope,
    revisions::inputs::InputEvent,
    status::budget::{Budget, BudgetLimits},
};

/// What the API server does with a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Answer {
    /// It takes it.
    Take,
    /// It asks for a rest of 7 s.
    Refuse,
}

/// What was asked of the API server: method and path.
type Requests = Arc<Mutex<Vec<String>>>;

struct World {
    leader: Leader,
    requests: Requests,
}

impl World {
    /// A leader that has listed these RemoteConfigs, and nothing else.
    fn with(remote_configs: impl IntoIterator<Item = RemoteConfig>, answer: Answer) -> Self {
        let requests = Requests::default();
        let client = client(Arc::clone(&requests), answer);
        let budget = Arc::new(Mutex::new(Budget::new(BudgetLimits::default(), now())));
        let context = Context {
            client: client.clone(),
            watch_client: client.clone().into(),
            scope: Scope::All,
            namespace: "opamp-system".into(),
            replica: "replica-0".into(),
            policy: Policy::default(),
            agents: AgentIndex::holding([]),
            catalog: CatalogHandle::fixed(Vec::new(), Policy::default()),
            texts: Store::new(Scope::All, Arc::clone(&budget), Metrics::default()),
            metrics: super::Metrics::default(),
            certificates: Certificates::new(&Scope::All),
            trust: Trust::new(),
            unusable_cas: watch::channel(BTreeMap::new()).1,
            registrar: RegistrarSettings { namespace: "opamp-system".into(), cluster: None, server_names: None },
            certificate_metrics: credentials::metrics::Metrics::default(),
            budget,
        };
        let mut leader =
            Leader::new(Arc::new(context), Publisher::new(client, "replica-0"), watch::channel(Findings::default()).1);
        let remote_config = |event| Seen::Input(None, InputEvent::RemoteConfig(event));
        leader.see(remote_config(Event::Init));
        remote_configs.into_iter().for_each(|object| leader.see(remote_config(Event::InitApply(guarded(object)))));
        leader.see(remote_config(Event::InitDone));
        list_nothing_else(&mut leader);
        Self { leader, requests }
    }

    /// Lets the leader do what is due until this much time has passed; gives the most tasks that were under way.
    async fn run_for(&mut self, time: Duration) -> usize {
        let end = now() + time;
        let mut most = 0;
        loop {
            self.leader.hand_out();
            most = most.max(self.leader.tasks.len());
            let next: Instant = self.leader.next_time().map_or(end, |next| next.min(end));
            tokio::select! {
                Some(done) = self.leader.tasks.join_next() => self.leader.finish(done.expect("no task breaks")),
                () = tokio::time::sleep_until(next.into()) => {}
            }
            if now() >= end {
                return most;
            }
        }
    }

    /// The objects whose status was patched, each with how often.
    fn patched(&self) -> BTreeMap<String, usize> {
        let mut patched = BTreeMap::new();
        for request in &*self.requests.lock().expect("no holder panics") {
            if let Some(path) = request.strip_prefix("PATCH ").and_then(|path| path.strip_suffix("/status")) {
                *patched.entry(path.rsplit('/').next().unwrap_or_default().to_owned()).or_default() += 1;
            }
        }
        patched
    }
}

/// Everything is listed, and nothing is there.
fn list_nothing(leader: &mut Leader) {
    for event in [Event::Init, Event::InitDone] {
        leader.see(Seen::Input(None, InputEvent::RemoteConfig(event)));
    }
    list_nothing_else(leader);
}

fn list_nothing_else(leader: &mut Leader) {
    for nothing in [
        [Seen::Fleet(None, Event::Init), Seen::Fleet(None, Event::InitDone)],
        [Event::Init, Event::InitDone].map(|event| Seen::Input(None, InputEvent::ConnectionSettings(event))),
        [Event::Init, Event::InitDone].map(|event| Seen::Input(None, InputEvent::ConfigMap(event))),
        [Event::Init, Event::InitDone].map(|event| Seen::Input(None, InputEvent::Secret(event))),
        [Event::Init, Event::InitDone].map(Seen::Lease),
    ] {
        nothing.into_iter().for_each(|seen| leader.see(seen));
    }
}

fn client(requests: Requests, answer: Answer) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let requests = Arc::clone(&requests);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            requests.lock().expect("no holder panics").push(format!("{} {}", parts.method, parts.uri.path()));
            // A healthy API server takes its time, too.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let (code, reply) = match answer {
                Answer::Take => (200, taken(parts.uri.path(), &body)),
                Answer::Refuse => (
                    429,
                    json!({"kind": "Status", "status": "Failure", "message": "busy",
                    "reason": "TooManyRequests", "code": 429, "details": {"retryAfterSeconds": 7}}),
                ),
            };
            Response::builder().status(code).body(Full::new(Bytes::from(reply.to_string())))
        }
    });
    Client::new(service, "default")
}

/// The object at this path as it is after a patch of an empty status.
fn taken(path: &str, body: &Value) -> Value {
    let name = path.trim_end_matches("/status").rsplit('/').next().unwrap_or_default();
    let mut object = json!(remote_config(name, 2));
    object["status"] = body["status"].clone();
    object
}

fn remote_config(name: &str, version: u32) -> RemoteConfig {
    serde_json::from_value(json!({
        "apiVersion": "opamp.dev/v1alpha1", "kind": "RemoteConfig",
        "metadata": {"name": name, "namespace": "telemetry", "generation": 1, "resourceVersion": version.to_string()},
        "spec": {"files": [{"name": "a", "body": "b"}]},
    }))
    .expect("a RemoteConfig")
}

fn guarded(object: RemoteConfig) -> DeserializeGuard<RemoteConfig> {
    DeserializeGuard(Ok(object))
}

fn crowd(size: usize) -> impl Iterator<Item = RemoteConfig> {
    (0..size).map(|number| remote_config(&format!("config-{number}"), 1))
}

#[tokio::test(start_paused = true)]
async fn however_much_is_due_only_so_many_requests_are_under_way() {
    let mut world = World::with(crowd(200), Answer::Take);
    let most = world.run_for(Duration::from_secs(3)).await;
    assert_eq!(most, AT_ONCE);
    assert_eq!(world.patched().len(), 200, "none is forgotten");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_begun_while_the_api_server_wants_a_rest() {
    let mut world = World::with(crowd(200), Answer::Refuse);
    world.run_for(Duration::from_secs(7)).await;
    let asked = world.patched().values().sum::<usize>();
    assert!(asked <= AT_ONCE, "{asked} requests, and none after the first refusals");
    world.run_for(Duration::from_secs(3)).await;
    assert!(world.patched().values().sum::<usize>() > asked, "it goes on afterwards");
}

#[tokio::test(start_paused = true)]
async fn a_status_that_somebody_else_has_written_is_put_right() {
    let mut world = World::with(crowd(1), Answer::Take);
    world.run_for(Duration::from_secs(3)).await;
    assert_eq!(world.patched(), BTreeMap::from([("config-0".into(), 1)]));
    let mut altered = remote_config("config-0", 9);
    altered.status = serde_json::from_value(json!({"observedGeneration": 99})).expect("a status");
    world.leader.see(Seen::Input(None, InputEvent::RemoteConfig(Event::Apply(guarded(altered)))));
    world.run_for(Duration::from_secs(3)).await;
    assert_eq!(world.patched(), BTreeMap::from([("config-0".into(), 2)]));
}
