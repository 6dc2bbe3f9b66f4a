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

/// When the operator is ended, around the write with this number, counted from 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kill {
    /// The API server never sees the write.
    Before(usize),
    /// The API server has carried it out, and the operator never sees the answer.
    After(usize),
}

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
    kill: Option<Kill>,
    victim: Option<u32>,
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

    /// Ends this process at a write; the count begins anew.
    pub fn arm(&self, victim: u32, kill: Kill) {
        *self.shared.lock() = State { writes: Vec::new(), kill: Some(kill), victim: Some(victim) };
    }

    /// What was written since the count began, Leases and events aside.
    pub fn writes(&self) -> Vec<String> {
        self.shared.lock().writes.clone()
    }

    /// Whether the operator was ended.
    pub fn has_killed(&self) -> bool {
        let state = self.shared.lock();
        state.victim.is_some() && state.kill.is_none()
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
        state.writes.push(format!("{method} {path}"));
        let number = state.writes.len();
        match state.kill {
            Some(Kill::Before(at)) if at == number => Fate::Dies,
            Some(Kill::After(at)) if at == number => Fate::PassesAndDies,
            Some(Kill::Before(_) | Kill::After(_)) | None => Fate::Passes,
        }
    }

    fn strike(&self) {
        let mut state = self.lock();
        state.kill = None;
        if let Some(victim) = state.victim {
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
