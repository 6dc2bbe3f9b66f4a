//! The loader against an API server in this process that knows three requests: list, watch, get.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{Request, Response, StatusCode, body::Frame, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::Config;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::broadcast};

use super::*;
use crate::{
    api::remote_config::{ConfigFormat, TemplateMode},
    catalog::{
        credentials::{Credential, CredentialKind, Credentials},
        fleet::{AnonymousNamespaces, Offering, SecretContent},
        revision::{Origin, RevisionEntry, RevisionFile},
        settings::CredentialReference,
        stored::InputsDigest,
    },
};

struct ApiServer {
    state: Mutex<State>,
    watchers: broadcast::Sender<String>,
    credential_watchers: broadcast::Sender<String>,
}

#[derive(Default)]
struct State {
    version: u64,
    fleets: BTreeMap<String, Value>,
    secrets: BTreeMap<String, Value>,
}

impl ApiServer {
    async fn start() -> (Arc<Self>, WatchClient, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = Arc::new(Self {
            state: Mutex::default(),
            watchers: broadcast::Sender::new(16),
            credential_watchers: broadcast::Sender::new(16),
        });
        let (serving, power) = (Arc::clone(&server), CancellationToken::new());
        tokio::spawn(power.clone().run_until_cancelled_owned(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let server = Arc::clone(&serving);
                let service = service_fn(move |request| {
                    let response = server.answer(&request);
                    async move { Ok::<_, Infallible>(response) }
                });
                connections.spawn(async move {
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(socket), service)
                        .await;
                });
            }
        }));
        let config = Config::new(address.parse().unwrap());
        (server, WatchClient::new(&config).unwrap(), power)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a fleet that offers this revision, if it is to have one, and tells the watchers.
    fn apply_fleet(&self, name: &str, revision: Option<&Revision>) {
        let event = {
            let mut state = self.state();
            state.version += 1;
            let status = revision.map(|revision| {
                let hash = revision.hash().short();
                json!({"currentRevision": hash, "updateRevision": hash,
                    "rollout": {"phase": "Completed", "epoch": 1, "threshold": "All"}})
            });
            let fleet = json!({
                "apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleet",
                "metadata": {"name": name, "namespace": "telemetry", "uid": format!("uid-of-{name}"),
                    "resourceVersion": state.version.to_string()},
                "spec": {"selector": {}, "enrollment": {"methods": ["Anonymous"]}}, "status": status,
            });
            state.fleets.insert(name.into(), fleet.clone());
            json!({"type": "MODIFIED", "object": fleet})
        };
        let _ = self.watchers.send(event.to_string());
    }

    fn delete_fleet(&self, name: &str) {
        let fleet = self.state().fleets.remove(name).unwrap();
        let _ = self.watchers.send(json!({"type": "DELETED", "object": fleet}).to_string());
    }

    fn store(&self, fleet: &str, revision: &Revision) {
        let owner: AgentFleet = serde_json::from_value(self.state().fleets[fleet].clone()).unwrap();
        let secret = revision.pack().unwrap().to_secret(&owner, InputsDigest::from_digest([0; 32]));
        let name = secret.metadata.name.clone().unwrap();
        self.state().secrets.insert(name, serde_json::to_value(secret).unwrap());
    }

    /// Stores these values as the credentials of a fleet, and tells the watchers.
    fn store_credentials(&self, fleet: &str, value: &'static str) {
        let mut state = self.state();
        state.version += 1;
        let owner: AgentFleet = serde_json::from_value(state.fleets[fleet].clone()).unwrap();
        let references = BTreeSet::from([token()]);
        let value = Credential { kind: CredentialKind::Value, value: Bytes::from_static(value.as_bytes()) };
        let credentials = Credentials::new(owner.metadata.uid.as_deref().unwrap(), &BTreeMap::from([(token(), value)]));
        let mut secret = credentials.to_secret(&owner, &references);
        secret.metadata.resource_version = Some(state.version.to_string());
        let name = secret.metadata.name.clone().unwrap();
        let secret = serde_json::to_value(secret).unwrap();
        let _ = self.credential_watchers.send(json!({"type": "MODIFIED", "object": secret}).to_string());
        state.secrets.insert(name, secret);
    }

    /// A list or a watch of the Secrets of a type: nothing else may be asked for.
    fn answer_about_credentials(&self, query: &str) -> Response<BoxBody<Bytes, Infallible>> {
        assert!(query.contains("fieldSelector=type%3Dopamp.dev%2Fcredentials"), "{query}");
        if query.contains("watch=true") {
            return watch(&self.credential_watchers);
        }
        let state = self.state();
        let items: Vec<_> = state.secrets.values().filter(|it| it["type"] == CREDENTIALS_TYPE).collect();
        found(Some(&json!({"apiVersion": "v1", "kind": "SecretList",
            "metadata": {"resourceVersion": state.version.to_string()}, "items": items})))
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<BoxBody<Bytes, Infallible>> {
        let path = request.uri().path();
        if let Some(name) = path.strip_prefix("/api/v1/namespaces/telemetry/secrets/") {
            return found(self.state().secrets.get(name));
        }
        if let Some(name) = path.strip_prefix("/apis/opamp.dev/v1alpha1/namespaces/telemetry/agentfleets/") {
            return found(self.state().fleets.get(name));
        }
        let query = request.uri().query().unwrap_or_default();
        if path == "/api/v1/secrets" {
            return self.answer_about_credentials(query);
        }
        if !query.contains("watch=true") {
            let state = self.state();
            let items: Vec<_> = state.fleets.values().collect();
            return found(Some(&json!({"apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleetList",
                "metadata": {"resourceVersion": state.version.to_string()}, "items": items})));
        }
        watch(&self.watchers)
    }
}

fn watch(watchers: &broadcast::Sender<String>) -> Response<BoxBody<Bytes, Infallible>> {
    let events = stream::unfold(watchers.subscribe(), async |mut events| {
        let line = events.recv().await.ok()? + "\n";
        Some((Ok(Frame::data(line.into())), events))
    });
    Response::new(BodyExt::boxed(StreamBody::new(events)))
}

fn token() -> CredentialReference {
    CredentialReference::secret("edge-token", "header")
}

fn found(object: Option<&Value>) -> Response<BoxBody<Bytes, Infallible>> {
    let missing = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": ""});
    let body = Full::from(object.unwrap_or(&missing).to_string()).boxed();
    let mut response = Response::new(body);
    if object.is_none() {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response
}

fn revision(body: &'static str) -> Revision {
    let file = RevisionFile {
        name: "a".into(),
        content_type: String::new(),
        origin: Origin::Inline,
        body: Bytes::from_static(body.as_bytes()),
    };
    Revision {
        entries: vec![RevisionEntry {
            name: "base".into(),
            selector: None,
            template: TemplateMode::Disabled,
            format: ConfigFormat::Opaque,
            files: vec![file],
        }],
        ..Revision::default()
    }
}

fn load(watches: WatchClient) -> (Arc<CatalogHandle>, tokio_util::sync::DropGuard) {
    let policy = Policy { anonymous: AnonymousNamespaces::All, secrets: SecretContent::Offered };
    let (loader, handle) = Loader::new(watches, Scope::All, policy, Metrics::default());
    let stop = CancellationToken::new();
    tokio::spawn(loader.run(stop.clone()));
    (handle, stop.drop_guard())
}

/// What the fleet offers, short: `-` without a revision, `?` with one that is not loaded.
fn offered(handle: &CatalogHandle, fleet: &str) -> Option<String> {
    handle.load().fleet("telemetry", fleet).map(|fleet| match &fleet.offering {
        Offering::NoRevision => "-".into(),
        Offering::NotLoaded => "?".into(),
        Offering::Revisions(revisions) => revisions.current.as_ref().unwrap().hash().short(),
    })
}

/// Waits for a snapshot in which a fleet offers this.
async fn until(handle: &CatalogHandle, fleet: &str, expected: Option<&str>) {
    let mut generation = handle.generation();
    let wait = async {
        while offered(handle, fleet).as_deref() != expected {
            generation.changed().await.unwrap();
        }
    };
    let waited = timeout(Duration::from_secs(20), wait).await;
    assert!(waited.is_ok(), "{fleet} offers {:?} instead of {expected:?}", offered(handle, fleet));
}

async fn synced(handle: &CatalogHandle) {
    let mut synced = handle.synced();
    timeout(Duration::from_secs(20), synced.wait_for(|synced| *synced)).await.expect("never synced").unwrap();
}

#[tokio::test]
async fn the_catalog_follows_the_fleets() {
    let (server, watches, _power) = ApiServer::start().await;
    let (one, two) = (revision("one"), revision("two"));
    server.apply_fleet("edge", Some(&one));
    server.store("edge", &one);
    let (handle, _stop) = load(watches);
    synced(&handle).await;
    assert_eq!(offered(&handle, "edge"), Some(one.hash().short()));

    server.store("edge", &two);
    server.apply_fleet("edge", Some(&two));
    until(&handle, "edge", Some(&two.hash().short())).await;

    server.apply_fleet("core", None);
    until(&handle, "core", Some("-")).await;
    let generation = handle.load().generation();
    server.apply_fleet("edge", Some(&two));
    server.delete_fleet("core");
    until(&handle, "core", None).await;
    assert_eq!(handle.load().generation(), generation + 1, "a status that changes nothing makes no snapshot");
}

#[tokio::test]
async fn a_revision_that_cannot_be_read_holds_up_nothing_and_is_tried_again() {
    let (server, watches, _power) = ApiServer::start().await;
    let one = revision("one");
    server.apply_fleet("edge", Some(&one));
    let (handle, _stop) = load(watches);
    synced(&handle).await;
    assert_eq!(offered(&handle, "edge").as_deref(), Some("?"));
    server.store("edge", &one);
    until(&handle, "edge", Some(&one.hash().short())).await;
}

#[tokio::test]
async fn a_fleet_is_read_anew_on_request_and_served_without_the_api_server() {
    let (server, watches, power) = ApiServer::start().await;
    let (one, two) = (revision("one"), revision("two"));
    server.apply_fleet("edge", Some(&one));
    server.store("edge", &one);
    let (handle, _stop) = load(watches);
    synced(&handle).await;

    server.store("edge", &two);
    let hash = two.hash().short();
    {
        let mut state = server.state();
        let fleet = state.fleets.get_mut("edge").unwrap();
        fleet["status"]["currentRevision"] = json!(hash);
        fleet["status"]["updateRevision"] = json!(hash);
        fleet["metadata"]["resourceVersion"] = json!("9");
    }
    handle.reread("telemetry", "edge");
    until(&handle, "edge", Some(&hash)).await;

    power.cancel();
    let mut generation = handle.generation();
    generation.mark_unchanged();
    assert!(
        timeout(Duration::from_millis(300), generation.changed()).await.is_err(),
        "nothing is known to have changed"
    );
    assert_eq!(offered(&handle, "edge"), Some(hash));
    assert!(*handle.synced().borrow(), "what is served does not depend on the API server");
}

#[test]
fn a_revision_that_stays_away_is_asked_for_ever_more_seldom() {
    let mut pauses = Pauses::default();
    let waits: Vec<Duration> = (0..30).map(|_| pauses.next()).collect();
    assert!(waits[..20].iter().all(|wait| *wait <= Duration::from_secs(1)), "{waits:?}");
    assert!(waits[20..].iter().all(|wait| *wait >= Duration::from_secs(7)), "{waits:?}");
}

/// The token that a fleet's members are offered.
fn token_of(handle: &CatalogHandle, fleet: &str) -> Option<Bytes> {
    handle.load().fleet("telemetry", fleet)?.credentials.as_ref()?.get(&token()).cloned()
}

#[tokio::test]
async fn credentials_are_there_from_the_beginning_and_rotate_by_themselves() {
    let (server, watches, _power) = ApiServer::start().await;
    let one = revision("one");
    server.apply_fleet("edge", Some(&one));
    server.store("edge", &one);
    server.store_credentials("edge", "first-canary");
    let (handle, _stop) = load(watches);
    synced(&handle).await;
    assert_eq!(token_of(&handle, "edge").as_deref(), Some(&b"first-canary"[..]));
    let epoch = |handle: &CatalogHandle| match &handle.load().fleet("telemetry", "edge").unwrap().offering {
        Offering::Revisions(revisions) => revisions.epoch,
        Offering::NoRevision | Offering::NotLoaded => panic!("it has a revision"),
    };
    let before = epoch(&handle);

    let mut generation = handle.generation();
    generation.mark_unchanged();
    server.store_credentials("edge", "second-canary");
    timeout(Duration::from_secs(20), generation.changed()).await.expect("nothing moved").unwrap();
    assert_eq!(token_of(&handle, "edge").as_deref(), Some(&b"second-canary"[..]));
    assert_eq!(epoch(&handle), before, "a rotated value is no decision about revisions");
}
