//! Moves the bytes of one WebSocket, from its upgrade to its end.

use std::{
    future::{pending, poll_fn},
    io,
    mem::MaybeUninit,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncWriteExt, ReadBuf},
    sync::{AcquireError, OwnedSemaphorePermit, watch},
    time::{sleep_until, timeout},
};

use super::{
    super::{
        admission::Slot,
        connection::{CloseReason, Connection, Transport},
        shared::{Shared, now},
        stream::{Stream, linger},
    },
    conversation::{Conversation, Ending, Unheard},
    decoder::{Decoder, Event},
    encoder::Outgoing,
};

/// Bytes read at once, onto the stack: a TLS record.
const READ_BYTES: usize = 16 << 10;

/// A connection on which 101 was sent.
pub struct Opened<S> {
    pub stream: S,
    /// What the peer sent right behind its request.
    pub early: Bytes,
    pub conversation: Box<Conversation>,
    pub connection: Arc<Connection>,
    pub slot: Slot,
}

/// Serves a WebSocket to its end.
pub async fn serve<S: Stream>(opened: Opened<S>, shared: Arc<Shared>) {
    let Opened { mut stream, early, mut conversation, connection, slot } = opened;
    let open = shared.metrics.open(Transport::WebSocket);
    conversation.hear(&early, now());
    drop(early);
    let ending = converse(&mut stream, &mut conversation, &connection, &shared).await;
    shared.metrics.closed(ending.cause());
    tracing::debug!(remote = %connection.remote, cause = ending.cause(), "a WebSocket ends");
    let unheard = conversation.take_unheard();
    // Before the closing handshake: its agents are gone from now on.
    drop(conversation);
    if timeout(shared.limits.close_timeout, close(&mut stream, ending, unheard, &shared)).await.is_err() {
        tracing::debug!(remote = %connection.remote, "the peer did not end the closing handshake");
    }
    drop((slot, open));
}

impl Ending {
    /// The label of the metric.
    fn cause(self) -> &'static str {
        match self {
            Self::Ours(reason) | Self::Cut(reason) => reason.label(),
            Self::Theirs(_) => "peer",
            Self::Lost => "lost",
        }
    }
}

async fn converse<S: Stream>(
    stream: &mut S,
    conversation: &mut Conversation,
    connection: &Connection,
    shared: &Shared,
) -> Ending {
    let mut generation = shared.generation.clone();
    generation.mark_unchanged();
    let mut draining = Draining::No;
    loop {
        if let Err(ending) = flush(stream, conversation, connection, shared).await {
            return ending;
        }
        if let Some(ending) = conversation.ending() {
            return ending;
        }
        let deadline = conversation.deadline();
        let wanted = conversation.wanted_room();
        tokio::select! {
            () = connection.marked() => conversation.marked(now()),
            () = moved(&mut generation) => conversation.due(now()),
            () = shared.drain.started(), if draining == Draining::No => {
                draining = Draining::Yes;
                conversation.close_at(shared.drain.turn(now().instant));
            }
            () = sleep(deadline) => conversation.expire(now()),
            permit = room(shared, wanted) => match permit {
                Ok(permit) => conversation.grant(permit, now()),
                Err(_) => conversation.end(Ending::Lost),
            },
            heard = poll_fn(|context| poll_hear(stream, conversation, context)) => {
                if let Err(error) = heard {
                    tracing::debug!(remote = %connection.remote, %error, "a WebSocket broke");
                    conversation.end(Ending::Lost);
                }
            }
        }
    }
}

/// Whether the connection has its turn in the drain.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Draining {
    No,
    Yes,
}

async fn sleep(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => pending().await,
    }
}

async fn moved(generation: &mut watch::Receiver<u64>) {
    if generation.changed().await.is_err() {
        // Whoever moved it is gone: it stays where it is.
        pending::<()>().await;
    }
}

async fn room(shared: &Shared, wanted: Option<usize>) -> Result<OwnedSemaphorePermit, AcquireError> {
    match wanted {
        Some(bytes) => {
            let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
            Arc::clone(&shared.room).acquire_many_owned(permits).await
        }
        None => pending().await,
    }
}

/// Reads once. The buffer is on the stack, so that an idle connection has none.
fn poll_hear<S: Stream>(
    stream: &mut S,
    conversation: &mut Conversation,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    if !conversation.listens() {
        return Poll::Pending;
    }
    let mut storage = [const { MaybeUninit::uninit() }; READ_BYTES];
    let mut buffer = ReadBuf::uninit(&mut storage);
    ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
    match buffer.filled() {
        [] => conversation.end(Ending::Lost),
        bytes => conversation.hear(bytes, now()),
    }
    Poll::Ready(Ok(()))
}

/// Writes all that is outgoing, and what comes of the messages that were put off meanwhile.
async fn flush<S: Stream>(
    stream: &mut S,
    conversation: &mut Conversation,
    connection: &Connection,
    shared: &Shared,
) -> Result<(), Ending> {
    let mut overdue = pin!(overdue(connection, shared));
    while let Some(outgoing) = conversation.next_outgoing() {
        tokio::select! {
            biased;
            written = write(stream, outgoing, shared) => written?,
            reason = &mut overdue => return Err(Ending::Cut(reason)),
        }
        if !conversation.has_outgoing() {
            conversation.resume(now());
        }
    }
    Ok(())
}

/// Waits until a connection that is to be closed has had its time to read what is still for it.
async fn overdue(connection: &Connection, shared: &Shared) -> CloseReason {
    let reason = connection.closing().await;
    tokio::time::sleep(shared.limits.close_timeout).await;
    reason
}

/// Writes one frame. The time limit is for progress, not for the whole.
async fn write<S: Stream>(stream: &mut S, outgoing: Outgoing, shared: &Shared) -> Result<(), Ending> {
    if let Outgoing::Message(_) = outgoing {
        shared.metrics.message_sent(Transport::WebSocket);
    }
    let mut buffer = outgoing.into_buffer();
    shared.metrics.sent(Transport::WebSocket, buffer.remaining());
    while buffer.has_remaining() {
        match timeout(shared.limits.write_timeout, stream.write_buf(&mut buffer)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) => return Err(Ending::Lost),
            Err(_) => return Err(Ending::Cut(CloseReason::NotReading)),
        }
    }
    // TLS takes more than it can pass on.
    match timeout(shared.limits.write_timeout, stream.flush()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Ending::Lost),
        Err(_) => Err(Ending::Cut(CloseReason::NotReading)),
    }
}

/// The closing handshake (RFC 6455 §7.1, CONN-04, CONN-05).
async fn close<S: Stream>(stream: &mut S, ending: Ending, unheard: Unheard, shared: &Shared) {
    let farewell = match ending {
        Ending::Lost | Ending::Cut(_) => return,
        Ending::Ours(reason) => Outgoing::Close(reason),
        Ending::Theirs(code) => Outgoing::CloseReply(code),
    };
    if write(stream, farewell, shared).await.is_err() {
        return;
    }
    match ending {
        Ending::Ours(_) => await_close(stream, unheard).await,
        Ending::Theirs(_) | Ending::Cut(_) | Ending::Lost => {}
    }
    linger(stream).await;
}

/// Reads on until the peer's Close frame, or whatever else ends the frames.
async fn await_close<S: Stream>(stream: &mut S, unheard: Unheard) {
    let Unheard { mut decoder, unread } = unheard;
    if ends(&mut decoder, &unread) {
        return;
    }
    drop(unread);
    poll_fn(|context| {
        loop {
            let mut storage = [const { MaybeUninit::uninit() }; 512];
            let mut buffer = ReadBuf::uninit(&mut storage);
            let read = ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() || ends(&mut decoder, buffer.filled()) {
                return Poll::Ready(());
            }
        }
    })
    .await;
}

/// Whether the peer has nothing more to say; a message too large to be stored on the side counts as that.
fn ends(decoder: &mut Decoder, mut bytes: &[u8]) -> bool {
    loop {
        match decoder.decode(&mut bytes) {
            Ok(None) => return false,
            Ok(Some(Event::Close(_) | Event::Reserve(_))) | Err(_) => return true,
            Ok(Some(Event::Binary(_) | Event::Text | Event::Ping(_) | Event::Pong(_))) => {}
        }
    }
}
