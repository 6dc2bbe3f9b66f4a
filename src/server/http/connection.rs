//! Drives hyper on one connection.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Instant,
};

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{sleep_until, timeout},
};

use super::{
    super::{
        admission::Slot,
        connection::Transport,
        pacing::{TokenBucket, tokens},
        peer::Peer,
        proxies::CertificateHeader,
        shared::{Shared, now},
        stream::{Rewound, Stream, first_bytes, linger},
    },
    opening::{self, Handshake},
    router::Router,
};

/// The most that the head of a request may have, and what hyper buffers of a body: several times the largest of the
/// usual tokens, and no less than hyper asks for.
const HEAD_BYTES: usize = 16 << 10;

/// Headers of a request; browsers and proxies send about thirty.
const HEADERS: usize = 64;

/// Serves a connection until it ends or becomes a WebSocket, which then has a task of its own.
pub async fn serve<S: Stream>(
    mut stream: S,
    peer: Peer,
    certificate_header: CertificateHeader,
    slot: Slot,
    shared: Arc<Shared>,
) {
    let (open, remote) = (shared.metrics.open(Transport::Http), peer.address);
    let progress = Arc::new(Progress::new(&shared, now().instant));
    let first = match timeout(shared.limits.head_timeout, first_bytes(&mut stream)).await {
        Ok(first) if !first.is_empty() => first,
        Ok(_) => return,
        Err(_) => {
            shared.metrics.timeouts.inc();
            return;
        }
    };
    let (standing, peer) = (slot.standing, Arc::new(peer));
    let router =
        Router { shared: Arc::clone(&shared), peer, certificate_header, standing, progress: Arc::clone(&progress) };
    let stream = Rewound::new(first, stream);
    let watched = Watched { stream, progress: Arc::clone(&progress), shared: Arc::clone(&shared) };
    let mut connection = builder().serve_connection(TokioIo::new(watched), router);
    let outcome = drive(&mut connection, &progress, &shared).await;
    let parts = connection.into_parts();
    let stream = parts.io.into_inner().stream.into_stream();
    drop(open);
    match outcome {
        Outcome::Handshake(handshake) => {
            let opening = opening::open(stream, parts.read_buf, handshake, slot, Arc::clone(&shared));
            shared.tasks.spawn(opening);
        }
        Outcome::TimedOut => {
            shared.metrics.timeouts.inc();
            tracing::debug!(%remote, "an HTTP connection was silent for too long");
        }
        Outcome::Done(result) => {
            if let Err(error) = result {
                tracing::debug!(%remote, %error, "an HTTP connection failed");
            }
            end(stream, &shared).await;
        }
    }
}

fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // Its only time limit does not tell an idle connection from a half request.
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        // Who has said all may still want the answer.
        .half_close(true);
    builder
}

/// Ends a connection in order. Whoever does not follow in time is cut off.
async fn end<S: Stream>(mut stream: S, shared: &Shared) {
    let _ = timeout(shared.limits.close_timeout, linger(&mut stream)).await;
}

/// How hyper's part ended.
enum Outcome {
    Done(hyper::Result<()>),
    Handshake(Handshake),
    TimedOut,
}

async fn drive<S: Stream>(
    connection: &mut http1::Connection<TokioIo<Watched<S>>, Router>,
    progress: &Progress,
    shared: &Shared,
) -> Outcome {
    let mut drain = pin!(shared.drain.started());
    let mut timer = pin!(sleep_until(now().instant.into()));
    let mut draining = false;
    poll_fn(|context| {
        if !draining && drain.as_mut().poll(context).is_ready() {
            draining = true;
            Pin::new(&mut *connection).graceful_shutdown();
        }
        if let Poll::Ready(result) = connection.poll_without_shutdown(context) {
            return Poll::Ready(Outcome::Done(result));
        }
        if let Some(handshake) = progress.take_handshake() {
            return Poll::Ready(Outcome::Handshake(handshake));
        }
        let Some(deadline) = progress.deadline() else { return Poll::Pending };
        if timer.deadline().into_std() != deadline {
            timer.as_mut().reset(deadline.into());
        }
        timer.as_mut().poll(context).map(|()| Outcome::TimedOut)
    })
    .await
}

/// How far the requests of a connection are; known to the stream, to the router, and to the task that drives both.
pub struct Progress(Mutex<State>);

struct State {
    phase: Phase,
    bucket: TokenBucket,
    handshake: Option<Handshake>,
}

/// What the connection does, and until when it may.
enum Phase {
    /// The head of a request arrives.
    Head(Instant),
    /// A request is being answered, within time limits of its own.
    Busy,
    /// The response is written, and the next request awaited.
    Idle(Instant),
    /// The same, but the peer does not read.
    Stalled { until: Instant, idle_until: Instant },
}

impl Progress {
    fn new(shared: &Shared, now: Instant) -> Self {
        let limits = &shared.limits;
        Self(Mutex::new(State {
            phase: Phase::Head(now + limits.head_timeout),
            bucket: TokenBucket::new(limits.messages_per_second, limits.message_burst, now),
            handshake: None,
        }))
    }

    /// A request has its head.
    pub fn begin(&self) {
        self.state().phase = Phase::Busy;
    }

    /// It has its response; the next may take until then.
    pub fn finish(&self, until: Instant) {
        self.state().phase = Phase::Idle(until);
    }

    /// When the next request may be taken, if that is later than now.
    pub fn pace(&self, now: Instant) -> Option<Instant> {
        self.state().bucket.take(tokens(0), now)
    }

    /// The request brought a message of so many bytes; the next one waits for it.
    pub fn charge(&self, bytes: usize, now: Instant) {
        let _ = self.state().bucket.take(tokens(bytes) - tokens(0), now);
    }

    /// The request opens a WebSocket: hyper has no part in it any more.
    pub fn open(&self, handshake: Handshake) {
        self.state().handshake = Some(handshake);
    }

    fn take_handshake(&self) -> Option<Handshake> {
        self.state().handshake.take()
    }

    /// Bytes have arrived: if they are the first of a request, the rest of its head has until then.
    fn heard(&self, until: Instant) {
        let mut state = self.state();
        match state.phase {
            Phase::Idle(_) => state.phase = Phase::Head(until),
            Phase::Head(_) | Phase::Busy | Phase::Stalled { .. } => {}
        }
    }

    /// The peer takes nothing more of a response before it has read; it has until then.
    fn blocked(&self, until: Instant) {
        let mut state = self.state();
        match state.phase {
            Phase::Idle(idle_until) => state.phase = Phase::Stalled { until, idle_until },
            Phase::Head(_) | Phase::Busy | Phase::Stalled { .. } => {}
        }
    }

    /// The peer has taken some of it.
    fn wrote(&self) {
        let mut state = self.state();
        match state.phase {
            Phase::Stalled { idle_until, .. } => state.phase = Phase::Idle(idle_until),
            Phase::Head(_) | Phase::Busy | Phase::Idle(_) => {}
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.state().phase {
            Phase::Head(until) | Phase::Idle(until) => Some(until),
            Phase::Stalled { until, idle_until } => Some(until.min(idle_until)),
            Phase::Busy => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that tells when something arrives, and when nothing leaves.
struct Watched<S> {
    stream: Rewound<S>,
    progress: Arc<Progress>,
    shared: Arc<Shared>,
}

impl<S> Watched<S> {
    fn note<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(_) => self.progress.wrote(),
            Poll::Pending => self.progress.blocked(now().instant + self.shared.limits.write_timeout),
        }
        written
    }
}

impl<S: Stream> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.progress.heard(now().instant + self.shared.limits.head_timeout);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS takes more than it can pass on.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.note(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
