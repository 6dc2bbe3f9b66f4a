//! Accepts connections, and ends them all.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    agents::Agents,
    endpoint::Endpoint,
    limits::Limits,
    metrics::Metrics,
    reception,
    shared::{Shared, now},
};

/// Connections that the kernel keeps until they are accepted: a few seconds' worth of handshakes.
const BACKLOG: u32 = 4_096;

/// How long accepting rests after an error that is not one connection's own, such as want of descriptors. An accept
/// that fails this way leaves the connection in the backlog and would fail again at once.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// A listener that runs.
pub struct Server {
    shared: Arc<Shared>,
    local: SocketAddr,
    acceptor: JoinHandle<()>,
}

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct BindError {
    /// Where it was to be.
    pub address: SocketAddr,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Drained {
    /// Every connection has ended.
    Completely,
    /// So many connections were left when the time was over. They end with the process.
    Partly(usize),
}

impl Server {
    /// Serves OpAMP at this place, from now on.
    ///
    /// Whenever `generation` moves, every WebSocket asks [`Agents::due`].
    pub fn bind(
        endpoint: Endpoint,
        limits: Limits,
        agents: Arc<dyn Agents>,
        generation: watch::Receiver<u64>,
        metrics: Metrics,
    ) -> Result<Self, BindError> {
        let address = endpoint.address;
        let failed = |source| BindError { address, source };
        let listener = listen(address).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        metrics.listener_tls.set(endpoint.tls.is_some().into());
        let shared = Arc::new(Shared::new(endpoint, limits, agents, generation, metrics));
        let acceptor = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { shared, local, acceptor })
    }

    /// Where it listens; tells the port if it was to be any.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Ends in order: no new connections, WebSockets closed with 1001 one after the other, HTTP requests answered that
    /// have begun. Returns when all is done, or after `limit`, within which each has its turn.
    pub async fn drain(self, limit: Duration) -> Drained {
        let Self { shared, local: _, acceptor } = self;
        let within = limit.saturating_sub(shared.limits.close_timeout);
        shared.drain.start(shared.tasks.len(), within, now().instant);
        shared.tasks.close();
        let all = async {
            // It ends by itself, and a panic in it would have shown before.
            let _ = acceptor.await;
            shared.tasks.wait().await;
        };
        match timeout(limit, all).await {
            Ok(()) => Drained::Completely,
            Err(_) => Drained::Partly(shared.tasks.len()),
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted operator must not wait for the last connections of its predecessor.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.drain.started() => return,
            accepted = next(&listener, &shared) => accepted,
        };
        if let Err(error) = accepted {
            shared.metrics.accept_errors.inc();
            tracing::warn!(%error, "a connection could not be accepted");
            if concerns_all(&error) {
                sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// Accepts one connection, once it may be open.
async fn next(listener: &TcpListener, shared: &Arc<Shared>) -> io::Result<()> {
    let Some(slot) = shared.admission.slot().await else { return Ok(()) };
    let (stream, remote) = listener.accept().await?;
    let slot = shared.admission.review(slot);
    // Replies are whole messages: waiting for more to send only delays them.
    stream.set_nodelay(true)?;
    shared.tasks.spawn(reception::serve(stream, remote, slot, Arc::clone(shared)));
    Ok(())
}

/// Whether the next attempt is likely to fail as well.
fn concerns_all(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::NotConnected
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepting_rests_only_if_the_next_attempt_would_fail_as_well() {
        const ECONNABORTED: i32 = 103;
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        for (errno, rests) in [(ECONNABORTED, false), (ENFILE, true), (EMFILE, true)] {
            assert_eq!(concerns_all(&io::Error::from_raw_os_error(errno)), rests, "errno {errno}");
        }
    }
}
