//! The listener in process: scripted clients on streams in memory, with a clock that moves by itself when all wait.

mod admin;
mod admission;
mod authentication;
mod authorities;
pub(super) mod client;
mod drain;
mod hostile;
mod http;
mod proxies;
mod tls;
mod websocket;

use std::{
    future::{pending, ready},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use ::http::HeaderMap;
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use tokio::{
    io::{DuplexStream, duplex},
    sync::{mpsc, watch},
};

use self::client::Client;
use super::{
    Agents, Connection, Endpoint, Exchange, Limits, Metrics, Peer, Protection, Proxies, Refusal, Then,
    reception::serve, shared::Shared,
};
use crate::opamp::{InstanceUid, identity::Principal, now::Now, session::Outbound, violation::Violation};

const UID: &str = "0190a0b0-c0d0-7000-8000-00000000abcd";

/// What the agents were asked, in order.
#[derive(Debug)]
enum Seen {
    Received(Arc<Connection>, Bytes),
    Violated(&'static str),
    Due,
    Pong,
    Closed,
}

/// Agents that echo: `hello` is answered by `re: hello` and a shared tail.
struct Echo {
    seen: mpsc::UnboundedSender<Seen>,
    tail: Mutex<Option<Bytes>>,
    /// Who was to be known, and by what.
    asked: Mutex<Vec<(Peer, HeaderMap)>>,
}

impl Echo {
    fn new(seen: mpsc::UnboundedSender<Seen>) -> Self {
        Self { seen, tail: Mutex::default(), asked: Mutex::default() }
    }

    fn say(&self, seen: Seen) {
        // A test that has seen enough does not listen any more.
        let _ = self.seen.send(seen);
    }

    fn exchange(&self, text: &[u8]) -> Exchange {
        let outbound = Outbound { head: Bytes::copy_from_slice(text), tail: self.tail.lock().unwrap().clone() };
        Exchange { send: vec![outbound], ..Exchange::default() }
    }
}

impl Agents for Echo {
    fn authenticate<'a>(
        &'a self,
        request: &'a ::http::request::Parts,
        peer: &'a Peer,
    ) -> BoxFuture<'a, Result<Arc<Principal>, Refusal>> {
        self.asked.lock().unwrap().push((peer.clone(), request.headers.clone()));
        let credential = request.headers.get("authorization").map(|value| value.to_str().unwrap());
        let refusal = match credential {
            None => return ready(Ok(Arc::new(Principal::anonymous()))).boxed(),
            Some("Bearer slow") => return pending().boxed(),
            Some("Bearer forbidden") => Refusal::Forbidden { message: "not with this" },
            Some("Bearer guessed") => Refusal::TooManyFailures { retry_after: Duration::from_millis(89_001) },
            Some("Bearer away") => Refusal::Unavailable { message: "the API server is away" },
            Some(_) => {
                let challenge = "Bearer realm=\"opamp\"";
                Refusal::Unauthorized { challenge, message: "no credential is known" }
            }
        };
        ready(Err(refusal)).boxed()
    }

    fn receive(&self, connection: &Arc<Connection>, payload: Bytes, _: Now) -> Exchange {
        self.say(Seen::Received(Arc::clone(connection), payload.clone()));
        if payload.starts_with(b"undecodable") {
            let violation = Violation::Undecodable { detail: "a test".into() };
            return Exchange { violation: Some(violation), ..self.exchange(b"BAD_REQUEST") };
        }
        let reply = [b"re: ", &payload[..payload.len().min(100)]].concat();
        Exchange { speaker: InstanceUid::from_name(UID), ..self.exchange(&reply) }
    }

    fn violated(&self, _: &Arc<Connection>, violation: &Violation, _: Now) -> Exchange {
        self.say(Seen::Violated(violation.rule()));
        self.exchange(b"BAD_REQUEST")
    }

    fn due(&self, _: &Arc<Connection>, _: Now) -> Exchange {
        self.say(Seen::Due);
        self.exchange(b"push")
    }

    fn pong(&self, _: &Arc<Connection>, _: Now) -> Exchange {
        self.say(Seen::Pong);
        Exchange { then: Then::Continue, ..Exchange::default() }
    }

    fn closed(&self, _: &Arc<Connection>, _: Now) {
        self.say(Seen::Closed);
    }
}

/// A listener without a port.
pub(super) struct Harness {
    pub(super) shared: Arc<Shared>,
    agents: Arc<Echo>,
    seen: mpsc::UnboundedReceiver<Seen>,
    generation: watch::Sender<u64>,
}

impl Harness {
    pub(super) fn new(limits: Limits) -> Self {
        Self::at(endpoint(), limits)
    }

    /// The same, with something before it.
    fn at(endpoint: Endpoint, limits: Limits) -> Self {
        let (sender, seen) = mpsc::unbounded_channel();
        let agents = Arc::new(Echo::new(sender));
        let generation = watch::Sender::new(0);
        let shared = Shared::new(
            endpoint,
            limits,
            Arc::clone(&agents) as Arc<dyn Agents>,
            generation.subscribe(),
            Metrics::default(),
        );
        Self { shared: Arc::new(shared), agents, seen, generation }
    }

    /// A client on a connection that was just accepted.
    async fn dial(&self) -> Client<DuplexStream> {
        Client::new(self.connect(peer().address).await)
    }

    /// The other end of a connection that was just accepted.
    async fn connect(&self, remote: SocketAddr) -> DuplexStream {
        let (ours, theirs) = duplex(64 << 10);
        let slot = self.shared.admission.slot().await.unwrap();
        self.shared.tasks.spawn(serve(theirs, remote, slot, Arc::clone(&self.shared)));
        ours
    }

    /// Whoever was asked about since the last time.
    fn asked(&self) -> Vec<(Peer, HeaderMap)> {
        std::mem::take(&mut self.agents.asked.lock().unwrap())
    }

    /// Waits until nobody is connected any more; the clock moves meanwhile.
    async fn emptied_in_time(&self) {
        while !self.shared.tasks.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until nobody is connected any more, without the clock moving.
    async fn emptied(&self) {
        while !self.shared.tasks.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    /// A client on a WebSocket that has not reported.
    async fn open(&self) -> Client<DuplexStream> {
        let mut client = self.dial().await;
        client.upgrade().await;
        client
    }

    /// A client on a WebSocket that has reported, and its connection.
    async fn reported(&mut self) -> (Client<DuplexStream>, Arc<Connection>) {
        let mut client = self.open().await;
        client.send(b"report").await;
        assert!(client.message().await.starts_with(b"re: report"));
        let Some(Seen::Received(connection, _)) = self.seen.recv().await else { panic!("received comes first") };
        (client, connection)
    }

    async fn next(&mut self) -> Seen {
        self.seen.recv().await.unwrap()
    }
}

/// Any port of the host itself, in plain text.
pub(super) fn endpoint() -> Endpoint {
    let address = ([127, 0, 0, 1], 0).into();
    Endpoint { address, path: "/v1/opamp".into(), tls: None, proxies: Proxies::default() }
}

/// A peer from somewhere.
pub(super) fn peer() -> Peer {
    Peer { address: ([192, 0, 2, 1], 40_000).into(), protection: Protection::Plain, certificates: None }
}

/// How much the clock moved since.
fn passed(since: tokio::time::Instant) -> Duration {
    since.elapsed()
}
