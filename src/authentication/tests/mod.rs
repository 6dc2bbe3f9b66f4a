//! The whole against an API server in memory.

mod api_server;
mod attacks;
mod certificates;
mod reviews;
mod sessions;

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber},
};

use self::api_server::ApiServer;
use super::{Authenticator, Metrics, Surroundings, claims::tests::token as jwt};
use crate::{
    api::agent_fleet::AgentFleet,
    catalog::{AnonymousNamespaces, CatalogHandle, FleetEntry, Policy, fleet::Offering},
    credentials::{certificates::Certificates, trust::Trust},
    events::Publisher,
    kubernetes::Scope,
    opamp::{identity::Principal, now::Now},
    server::{self, Peer, Protection, Refusal},
};

const UID: &str = "0190a5c4-7e2f-7cc0-8000-000000000001";
const TOKEN: &str = "token-of-the-edge-fleet";

fn fleet(namespace: &str, name: &str, enrollment: &Value) -> Arc<FleetEntry> {
    let spec = json!({"selector": {}, "enrollment": enrollment});
    let mut fleet = AgentFleet::new(name, serde_json::from_value(spec).unwrap());
    fleet.metadata.namespace = Some(namespace.into());
    fleet.metadata.uid = Some(format!("uid-of-{name}"));
    Arc::new(FleetEntry::new(&fleet, Offering::NoRevision).unwrap())
}

fn token_secret(namespace: &str, name: &str, fleet: Option<&str>, data: &Value) -> Value {
    let labels = fleet.map_or_else(|| json!({}), |fleet| json!({"opamp.dev/fleet": fleet}));
    secret(namespace, name, "opamp.dev/enrollment-token", &labels, data)
}

fn secret(namespace: &str, name: &str, kind: &str, labels: &Value, data: &Value) -> Value {
    let encode = |(key, value): (&String, &Value)| (key.clone(), json!(STANDARD.encode(value.as_str().unwrap())));
    let data: serde_json::Map<_, _> = data.as_object().unwrap().iter().map(encode).collect();
    json!({"apiVersion": "v1", "kind": "Secret", "type": kind, "data": data,
        "metadata": {"namespace": namespace, "name": name, "labels": labels}})
}

/// An authenticator at work.
struct Bench {
    server: ApiServer,
    authenticator: Arc<Authenticator>,
    catalog: Arc<CatalogHandle>,
    trust: Trust,
    _stop: DropGuard,
}

impl Bench {
    /// With these fleets and Secrets; anonymous agents are permitted in the namespace `open`.
    async fn new(fleets: Vec<Arc<FleetEntry>>, secrets: Vec<Value>) -> Self {
        let server = ApiServer::new();
        secrets.into_iter().for_each(|secret| server.put(secret));
        let anonymous = AnonymousNamespaces::from_iter(["open".to_owned()]);
        let catalog = CatalogHandle::fixed(fleets, Policy { anonymous, ..Policy::default() });
        let trust = Trust::new();
        let surroundings = Surroundings {
            client: server.client(),
            catalog: Arc::clone(&catalog),
            trust: trust.clone(),
            certificates: Certificates::new(&Scope::All),
            scope: Scope::All,
        };
        let (authenticator, feed) = Authenticator::new(surroundings, Metrics::default());
        let stop = CancellationToken::new();
        let publisher = Publisher::new(server.client(), "replica");
        tokio::spawn(feed.run(server.client().into(), publisher, stop.clone()));
        authenticator.synced().wait_for(|synced| *synced).await.unwrap();
        Self { server, authenticator, catalog, trust, _stop: stop.drop_guard() }
    }

    async fn principal(&self, visitor: &Visitor) -> Result<Arc<Principal>, Refusal> {
        self.authenticator.authenticate(&visitor.headers, &visitor.peer, now()).await
    }

    /// The identity, or the status code of the refusal.
    async fn enter(&self, visitor: &Visitor) -> String {
        match self.principal(visitor).await {
            Ok(principal) => principal.identity.to_string(),
            Err(refusal) => code(&refusal).into(),
        }
    }

    /// Waits until somebody is answered so.
    async fn until(&self, visitor: &Visitor, expected: &str) {
        let wait = async {
            while self.enter(visitor).await != expected {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("never {expected}"));
    }
}

fn code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Unauthorized { .. } => "401",
        Refusal::Forbidden { .. } => "403",
        Refusal::TooManyFailures { .. } => "429",
        Refusal::Unavailable { .. } => "503",
    }
}

/// On the clock of the runtime, which stands still unless everybody waits.
fn now() -> Now {
    Now { instant: super::clock(), wall: server::now().wall }
}

/// Somebody who wants in.
#[derive(Clone)]
struct Visitor {
    headers: HeaderMap,
    peer: Peer,
}

impl Visitor {
    fn from(address: [u8; 4]) -> Self {
        let peer = Peer { address: (address, 4711).into(), protection: Protection::Tls, certificates: None };
        Self { headers: HeaderMap::new(), peer }
    }

    fn showing(mut self, authorization: &str) -> Self {
        self.headers.append(AUTHORIZATION, HeaderValue::from_bytes(authorization.as_bytes()).unwrap());
        self
    }

    fn with(mut self, certificates: &[CertificateDer<'static>]) -> Self {
        self.peer.certificates = Some(certificates.into());
        self
    }
}

fn visitor() -> Visitor {
    Visitor::from([192, 0, 2, 1])
}

fn bearer(token: &str) -> Visitor {
    visitor().showing(&format!("Bearer {token}"))
}

fn basic(pair: &str) -> Visitor {
    visitor().showing(&format!("Basic {}", STANDARD.encode(pair)))
}

/// A token of a `ServiceAccount` for this audience, which counts for an hour.
fn account_token(namespace: &str, name: &str, audience: &str) -> String {
    let expires = server::now().wall.as_second() + 3_600;
    let user = format!("system:serviceaccount:{namespace}:{name}");
    jwt(&json!({"alg": "RS256", "kid": "k"}), &json!({"sub": user, "aud": [audience], "exp": expires}))
}

/// A CA of no importance.
pub(super) fn authority_pem() -> String {
    certificates::Ca::new("corporate").pem
}

/// The log of a test.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

/// Somebody listens to this thread.
pub(crate) struct Listening {
    _here: DefaultGuard,
    /// With a single listener in the process, a line that another thread writes first is switched off for good, because
    /// nobody listens there.
    _nowhere: Dispatch,
}

impl Lines {
    /// What is logged on this thread from now on. What libraries say at debug level, the texts of the API server among it,
    /// nobody asks for by default.
    pub(crate) fn listen() -> (Self, Listening) {
        let lines = Self::default();
        let written = lines.clone();
        let nowhere = Dispatch::new(NoSubscriber::new());
        let listener = tracing_subscriber::fmt().with_env_filter("info,opamp_operator=trace").json().without_time();
        let here = tracing::subscriber::set_default(listener.with_writer(move || written.clone()).finish());
        (lines, Listening { _here: here, _nowhere: nowhere })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// All lines, as values.
    pub(crate) fn all(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Of each audit line so far, and not before, these fields with a space between.
    pub(crate) fn audited(&self, fields: &[&str]) -> Vec<String> {
        let lines = self.all().into_iter().filter(|line| line["target"] == "opamp_operator::audit");
        let told =
            lines.map(|line| fields.iter().map(|it| line["fields"][it].to_string()).collect::<Vec<_>>().join(" "));
        let told = told.map(|line| line.replace('"', "")).collect();
        self.0.lock().unwrap().clear();
        told
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
