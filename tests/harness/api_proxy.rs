//! A proxy before the API server that counts the operator's writes, and ends the operator at the one that a test names.
//!
//! It speaks plain HTTP to the operator and goes to the API server with the operator's own credentials, so that the
//! operator's rights stay what they are.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinHandle};

use super::system::{self, Signal};

/// The proxy. Dropped, it ends.
pub struct ApiProxy {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    client: Client,
    state: Mutex<State>,
}

/// What kinds of writes count.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Counted {
    /// All, Leases and events aside.
    #[default]
    Everything,
    /// Those of the Secrets of agents' certificates, of requests to issuers, of the list of revoked certificates, and of
    /// what holds a revoked Agent.
    Certificates,
}

impl Counted {
    fn includes(self, write: &str) -> bool {
        match self {
            Self::Everything => {
                ["/leases", "/events", "/tokenreviews"].iter().all(|left_out| !write.contains(left_out))
            }
            Self::Certificates => [
                CERTIFICATE_TYPE,
                "/secrets/opamp-cert-",
                "/certificaterequests",
                "/certificatesigningrequests",
                "/configmaps/opamp-crl",
                FINALIZERS,
            ]
            .iter()
            .any(|part| write.contains(part)),
        }
    }
}

/// The type of Secrets with the certificates of agents. It stands in the body: a new object has no name in its path.
const CERTIFICATE_TYPE: &str = "opamp.dev/agent-certificate";
/// What stands behind the path of a write of finalizers.
const FINALIZERS: &str = "(finalizers)";

#[derive(Default)]
struct State {
    counted: Counted,
    /// What was written, as method and path, and of the body what tells writes of one path apart.
    writes: Vec<String>,
    kill: Kill,
    victim: Option<u32>,
    kills: usize,
}

/// When the operator is ended next.
#[derive(Default)]
enum Kill {
    #[default]
    Never,
    /// Before the write with this number, counted from 1.
    Before(usize),
    /// After this write, which is that before which it was ended, once it runs again.
    After(String),
}

/// What becomes of a request.
enum Fate {
    /// It does not count.
    Passes,
    /// It counts, as this, unless somebody else was faster.
    Counts(String),
    /// The operator ends before the API server has seen it.
    Dies,
    /// The operator ends when the API server has carried it out; this one, unless somebody else was faster.
    PassesAndDies(String),
}

impl ApiProxy {
    /// Passes on what comes, with these credentials.
    pub async fn start(client: Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let shared = Arc::new(Shared { client, state: Mutex::default() });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, task }
    }

    /// Counts these writes anew, and ends nobody.
    pub fn count(&self, counted: Counted) {
        self.shared.lock().begin(counted, Kill::Never);
    }

    /// Counts anew, and ends the operator at the write with this number, counted from 1: the API server never sees it.
    /// The one that is started in its stead is ended when it repeats the write: the API server has carried it out, and
    /// nobody sees the answer.
    pub fn kill_around(&self, number: usize, counted: Counted) {
        self.shared.lock().begin(counted, Kill::Before(number));
    }

    /// This is the operator's process, from now on.
    pub fn follow(&self, victim: u32) {
        self.shared.lock().victim = Some(victim);
    }

    /// What was written since the count began, but for what the API server refused because somebody else was faster.
    pub fn writes(&self) -> Vec<String> {
        self.shared.lock().writes.clone()
    }

    /// How often the operator was ended.
    pub fn kills(&self) -> usize {
        self.shared.lock().kills
    }
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn begin(&mut self, counted: Counted, kill: Kill) {
        *self = Self { counted, kill, victim: self.victim, ..Self::default() };
    }
}

/// A write as it is counted; the same write has the same words, also if it is for another key.
fn in_words(method: &Method, path: &str, body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let is_new_secret = *method == Method::POST && path.ends_with("/secrets");
    let kind = body["type"].as_str().filter(|_| is_new_secret).map(|kind| format!(" ({kind})"));
    let held = body["metadata"]["finalizers"].is_array().then(|| format!(" {FINALIZERS}"));
    format!("{method} {path}{}{}", kind.unwrap_or_default(), held.unwrap_or_default())
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fate(&self, method: &Method, path: &str, body: &[u8]) -> Fate {
        let mut state = self.lock();
        let line = in_words(method, path, body);
        if matches!(*method, Method::GET | Method::HEAD) || !state.counted.includes(&line) {
            return Fate::Passes;
        }
        state.writes.push(line.clone());
        let is_there = state.victim.is_some();
        match &state.kill {
            Kill::Before(at) if *at == state.writes.len() => {
                state.kill = Kill::After(line);
                Fate::Dies
            }
            Kill::After(awaited) if is_there && *awaited == line => {
                state.kill = Kill::Never;
                Fate::PassesAndDies(line)
            }
            Kill::Never | Kill::Before(_) | Kill::After(_) => Fate::Counts(line),
        }
    }

    /// The API server has not carried out a write, because the object was another one by then.
    fn forget(&self, line: &str) {
        let mut state = self.lock();
        if let Some(at) = state.writes.iter().rposition(|write| write == line) {
            state.writes.remove(at);
        }
    }

    fn strike(&self) {
        let mut state = self.lock();
        if let Some(victim) = state.victim.take() {
            state.kills += 1;
            system::signal(victim, Signal::Kill);
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| pass(request, Arc::clone(&shared)));
            // The operator that was ended leaves its connections broken.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn pass(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Body>, Infallible> {
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await.map(|collected| collected.to_bytes().to_vec()).unwrap_or_default();
    let fate = shared.fate(&parts.method, parts.uri.path(), &body);
    if let Fate::Dies = fate {
        shared.strike();
        return Ok(unavailable());
    }
    for name in [header::AUTHORIZATION, header::HOST, header::CONTENT_LENGTH, header::CONNECTION] {
        parts.headers.remove(name);
    }
    let answer = shared.client.send(Request::from_parts(parts, Body::from(body))).await;
    let is_in_vain = answer.as_ref().is_ok_and(|answer| answer.status() == StatusCode::CONFLICT);
    match fate {
        Fate::Counts(line) if is_in_vain => shared.forget(&line),
        Fate::PassesAndDies(line) if is_in_vain => {
            shared.forget(&line);
            shared.lock().kill = Kill::After(line);
        }
        Fate::PassesAndDies(_) => {
            shared.strike();
            return Ok(unavailable());
        }
        Fate::Passes | Fate::Counts(_) | Fate::Dies => {}
    }
    Ok(answer.unwrap_or_else(|_| unavailable()))
}

fn unavailable() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}
