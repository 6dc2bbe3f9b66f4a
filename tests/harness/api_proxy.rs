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

#[derive(Default)]
struct State {
    /// What was written, as method and path.
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
    Passes,
    Dies,
    PassesAndDies,
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

    /// Counts writes anew, and ends nobody.
    pub fn count(&self) {
        *self.shared.lock() = State::default();
    }

    /// Counts anew, and ends this process at the write with this number, counted from 1: the API server never sees it.
    /// The one that is started in its stead is ended when it repeats the write: the API server has carried it out, and
    /// nobody sees the answer.
    pub fn kill_around(&self, number: usize, victim: u32) {
        *self.shared.lock() = State { kill: Kill::Before(number), victim: Some(victim), ..State::default() };
    }

    /// This process was started in the stead of the one that was ended.
    pub fn follow(&self, victim: u32) {
        self.shared.lock().victim = Some(victim);
    }

    /// What was written since the count began, Leases and events aside.
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

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fate(&self, method: &Method, path: &str) -> Fate {
        let counts = !matches!(*method, Method::GET | Method::HEAD)
            && ["/leases", "/events", "/tokenreviews"].iter().all(|left_out| !path.contains(left_out));
        if !counts {
            return Fate::Passes;
        }
        let mut state = self.lock();
        let line = format!("{method} {path}");
        state.writes.push(line.clone());
        let is_there = state.victim.is_some();
        match &state.kill {
            Kill::Before(at) if *at == state.writes.len() => {
                state.kill = Kill::After(line);
                Fate::Dies
            }
            Kill::After(awaited) if is_there && *awaited == line => {
                state.kill = Kill::Never;
                Fate::PassesAndDies
            }
            Kill::Never | Kill::Before(_) | Kill::After(_) => Fate::Passes,
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
    let fate = shared.fate(request.method(), request.uri().path());
    if let Fate::Dies = fate {
        shared.strike();
        return Ok(unavailable());
    }
    let (mut parts, body) = request.into_parts();
    for name in [header::AUTHORIZATION, header::HOST, header::CONTENT_LENGTH, header::CONNECTION] {
        parts.headers.remove(name);
    }
    let body = body.collect().await.map(|collected| collected.to_bytes().to_vec()).unwrap_or_default();
    let answer = shared.client.send(Request::from_parts(parts, Body::from(body))).await;
    if let Fate::PassesAndDies = fate {
        shared.strike();
        return Ok(unavailable());
    }
    Ok(answer.unwrap_or_else(|_| unavailable()))
}

fn unavailable() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}
