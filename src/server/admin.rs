//! `/healthz`, `/readyz`, `/metrics` and `/crl`, on a port of their own.

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::Full;
use hyper::{Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinHandle},
    time::sleep,
};

use super::listener::BindError;

/// Connections at a time: probes and a few scrapers. Of more the oldest is closed: else whoever keeps so many open would
/// have the probes fail, and the operator restarted.
const CONNECTIONS: usize = 64;

/// How long an idle connection and the head of a request may take: more than the usual intervals of probes and scrapes
/// would only keep connections that nobody uses.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);

/// How long accepting rests after an error.
const ACCEPT_REST: Duration = Duration::from_millis(100);

type Reply = Response<Full<bytes::Bytes>>;

/// What the operator still waits for before it is ready. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<RwLock<BTreeSet<&'static str>>>);

impl Readiness {
    /// Not ready as long as this is missing; a word or two for people, such as `fleets`.
    pub fn missing(&self, what: &'static str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(what);
    }

    /// This is there now.
    pub fn obtained(&self, what: &'static str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(what);
    }

    /// Whether nothing is missing.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn reply(&self) -> Reply {
        let missing = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if missing.is_empty() {
            return plain(StatusCode::OK, "ready\n".into());
        }
        let names: Vec<_> = missing.iter().copied().collect();
        plain(StatusCode::SERVICE_UNAVAILABLE, format!("not ready, missing: {}\n", names.join(", ")))
    }
}

/// What is shown.
pub struct Pages {
    /// Under `/readyz`.
    pub readiness: Readiness,
    /// Under `/metrics`.
    pub registry: Registry,
    /// Under `/crl`: the certificates that were taken back, in PEM; `None` while there is no list.
    pub revocations: Box<dyn Fn() -> Option<String> + Send + Sync>,
}

/// The admin port; it serves until it is dropped, also while the operator drains.
#[derive(Debug)]
pub struct Admin {
    local: SocketAddr,
    acceptor: JoinHandle<()>,
}

impl Admin {
    /// Listens on `address`.
    pub async fn bind(address: SocketAddr, pages: Pages) -> Result<Self, BindError> {
        let failed = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let acceptor = tokio::spawn(accept(listener, Arc::new(pages)));
        Ok(Self { local, acceptor })
    }

    /// Where it listens; tells the port if it was to be any.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn accept(listener: TcpListener, pages: Arc<Pages>) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= CONNECTIONS
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                let pages = Arc::clone(&pages);
                open.push_back(tokio::spawn(async move { serve(stream, &pages).await }).abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to the admin port could not be accepted");
                sleep(ACCEPT_REST).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, pages: &Pages) {
    let service = service_fn(|request: Request<Incoming>| {
        let reply = answer(request.method(), request.uri().path(), pages);
        async { Ok::<_, Infallible>(reply) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the admin port failed");
    }
}

fn answer(method: &Method, path: &str, pages: &Pages) -> Reply {
    if method != Method::GET && method != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n".into());
    }
    match path {
        // That this is answered at all shows that the runtime turns.
        "/healthz" => plain(StatusCode::OK, "ok\n".into()),
        "/readyz" => pages.readiness.reply(),
        "/metrics" => metrics(&pages.registry),
        "/crl" => revocations((pages.revocations)()),
        _ => plain(StatusCode::NOT_FOUND, "there are /healthz, /readyz, /metrics and /crl\n".into()),
    }
}

fn metrics(registry: &Registry) -> Reply {
    let mut text = String::new();
    if encode(&mut text, registry).is_err() {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be encoded\n".into());
    }
    let mut reply = plain(StatusCode::OK, text);
    let content_type = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    reply.headers_mut().insert(header::CONTENT_TYPE, content_type);
    reply
}

/// As RFC 2585 §4.2 has it, in the text form that people and proxies read.
fn revocations(list: Option<String>) -> Reply {
    let Some(list) = list else { return plain(StatusCode::NOT_FOUND, "no list has been published yet\n".into()) };
    let mut reply = plain(StatusCode::OK, list);
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-pem-file"));
    reply
}

fn plain(status: StatusCode, text: String) -> Reply {
    let mut reply = Response::new(Full::from(text));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    reply
}
