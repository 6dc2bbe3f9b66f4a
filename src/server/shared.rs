//! What all connections of a listener have in common.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::request::Parts;
use jiff::Timestamp;
use rand::RngExt;
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};
use tokio_util::task::TaskTracker;

use super::{
    admission::Admission,
    agents::{Agents, Refusal},
    connection::{Connection, Transport},
    drain::Drain,
    endpoint::Endpoint,
    http::coding::CODERS,
    limits::Limits,
    metrics::Metrics,
    peer::Peer,
    proxies::Proxies,
    room::Stored,
    tls::Tls,
};
use crate::opamp::{identity::Principal, now::Now, session::ConnectionId};

/// One listener, as its connections see it.
pub struct Shared {
    pub limits: Limits,
    /// Where OpAMP is served; without a trailing slash.
    pub path: String,
    pub tls: Option<Tls>,
    pub proxies: Proxies,
    pub agents: Arc<dyn Agents>,
    pub metrics: Metrics,
    pub admission: Admission,
    pub drain: Drain,
    /// Room for unfinished messages, in bytes.
    pub room: Arc<Semaphore>,
    /// Large bodies that may be compressed or decompressed at the same time.
    pub coders: Semaphore,
    /// Moves when every agent may have something new to be told.
    pub generation: watch::Receiver<u64>,
    pub tasks: TaskTracker,
    connections: AtomicU64,
}

impl Shared {
    pub fn new(
        endpoint: Endpoint,
        limits: Limits,
        agents: Arc<dyn Agents>,
        generation: watch::Receiver<u64>,
        metrics: Metrics,
    ) -> Self {
        let Endpoint { address: _, path, tls, proxies } = endpoint;
        Self {
            path: path.trim_end_matches('/').to_owned(),
            tls,
            proxies,
            agents,
            metrics,
            admission: Admission::new(&limits),
            drain: Drain::new(limits.drains_per_second),
            // The largest message must fit, or it would wait for ever.
            room: Arc::new(Semaphore::new(
                limits.unfinished_bytes.max(limits.message_bytes).min(Semaphore::MAX_PERMITS),
            )),
            coders: Semaphore::new(CODERS),
            generation,
            tasks: TaskTracker::new(),
            connections: AtomicU64::new(0),
            limits,
        }
    }

    /// A connection with a number of its own.
    pub fn connection(&self, transport: Transport, principal: Arc<Principal>, peer: &Peer) -> Arc<Connection> {
        let id = ConnectionId::new(self.connections.fetch_add(1, Ordering::Relaxed));
        Arc::new(Connection::new(id, transport, principal, peer.address, peer.protection))
    }

    /// Who this is, within the time for it (AUTH-02).
    pub async fn authenticate(&self, request: &Parts, peer: &Peer) -> Result<Arc<Principal>, Refusal> {
        timeout(self.limits.authentication_timeout, self.agents.authenticate(request, peer))
            .await
            .unwrap_or(Err(Refusal::Unavailable { message: "it could not be found out in time who this is" }))
    }

    /// A place for so many bytes at most, out of [`Self::room`].
    pub fn stored(&self, limit: usize) -> Stored {
        Stored::new(&self.room, limit)
    }

    /// The value of `Retry-After`, in whole seconds (THR-05).
    pub fn retry_after(&self) -> u64 {
        let jitter = rand::rng().random_range(Duration::ZERO..=self.limits.retry_jitter);
        (self.limits.retry_after + jitter).as_millis().div_ceil(1_000).try_into().unwrap_or(u64::MAX)
    }
}

/// Both clocks; deadlines by the runtime's, which tests move by hand.
#[must_use]
pub fn now() -> Now {
    let instant = tokio::time::Instant::now().into_std();
    Now { instant, wall: wall(instant) }
}

#[cfg(not(test))]
fn wall(_: Instant) -> Timestamp {
    Timestamp::now()
}

/// People's clock moves along with the runtime's.
#[cfg(test)]
fn wall(instant: Instant) -> Timestamp {
    thread_local! {
        static BEGIN: (Instant, Timestamp) = (Instant::now(), Timestamp::now());
    }
    let (begin, wall) = BEGIN.with(|begin| *begin);
    wall.checked_add(instant.saturating_duration_since(begin)).unwrap_or(wall)
}
