//! A handshake that waits to be known and for its turn, and then becomes a WebSocket.
//!
//! Thousands may wait at the same time, therefore without hyper: its buffers are 12 kB a connection, and freed memory in
//! small pieces does not go back to the system. So the answer, 101 or 503, is written here.

use std::{
    future::poll_fn,
    mem::MaybeUninit,
    pin::Pin,
    sync::Arc,
    task::{Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Collected};
use tokio::{
    io::{AsyncWriteExt, ReadBuf},
    time::{sleep_until, timeout},
};

use super::{
    super::{
        admission::{Slot, Unreported},
        connection::{Connection, Transport},
        metrics::HandshakeOutcome,
        peer::Peer,
        shared::{Shared, now},
        stream::{Stream, linger},
        websocket::{self, Conversation, Opened},
    },
    rejection::{Overload, Rejection},
    router::{Reply, text},
};

/// What a client may send before its 101, though it should not. More stays in its socket.
const EARLY_BYTES: usize = 16 << 10;

/// A request that opens a WebSocket, if whoever it comes from may.
pub struct Handshake {
    /// The value of `Sec-WebSocket-Accept`.
    pub accept: HeaderValue,
    pub request: Box<Parts>,
    pub peer: Arc<Peer>,
}

/// What a handshake gets that is answered with 101.
struct Admitted {
    connection: Arc<Connection>,
    unreported: Unreported,
}

/// Finds out who it is, waits for the turn, answers, and serves the WebSocket to its end.
pub async fn open<S: Stream>(mut stream: S, early: Bytes, handshake: Handshake, slot: Slot, shared: Arc<Shared>) {
    let Handshake { accept, request, peer } = handshake;
    let mut early = BytesMut::from(early);
    let admitted = tokio::select! {
        biased;
        admitted = admit(request, peer, &shared) => admitted,
        // Whoever does not wait leaves nothing behind.
        () = leaves(&mut stream, &mut early) => return,
    };
    let Admitted { connection, unreported } = match admitted {
        Ok(admitted) => admitted,
        Err(rejection) => return refuse(stream, &rejection, &shared).await,
    };
    shared.metrics.handshake(HandshakeOutcome::Opened);
    if !write(&mut stream, switching(accept), &shared).await {
        return;
    }
    // Boxed: a future keeps a place for each move of what it owns.
    let conversation = Box::new(Conversation::new(Arc::clone(&shared), Arc::clone(&connection), unreported, now()));
    websocket::serve(Opened { stream, early: early.freeze(), conversation, connection, slot }, shared).await;
}

/// Admits whoever may open a WebSocket, when there is room for it (AUTH-02, THR-04).
async fn admit(request: Box<Parts>, peer: Arc<Peer>, shared: &Shared) -> Result<Admitted, Rejection> {
    let principal = tokio::select! {
        biased;
        () = shared.drain.started() => return Err(Overload::Draining.into()),
        principal = shared.authenticate(&request, &peer) => principal?,
    };
    drop(request);
    if shared.admission.is_crowded() {
        return Err(Overload::Unreported.into());
    }
    let turn = shared.admission.turn(now().instant).ok_or(Overload::Handshakes)?;
    let _waiting = shared.metrics.wait();
    let unreported = tokio::select! {
        biased;
        () = shared.drain.started() => return Err(Overload::Draining.into()),
        () = sleep_until(turn.at.into()) => shared.admission.unreported().ok_or(Overload::Unreported)?,
    };
    Ok(Admitted { connection: shared.connection(Transport::WebSocket, principal, &peer), unreported })
}

/// Answers whoever is not admitted, and ends the connection.
async fn refuse<S: Stream>(mut stream: S, rejection: &Rejection, shared: &Shared) {
    tracing::debug!(status = rejection.status().as_u16(), %rejection, "handshake rejected");
    shared.metrics.handshake(rejection.outcome());
    let mut reply = rejection.reply(shared.retry_after());
    reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    if write(&mut stream, reply, shared).await {
        // Whoever does not end in time is cut off.
        let _ = timeout(shared.limits.close_timeout, linger(&mut stream)).await;
    }
}

/// Waits until the client ends the connection.
async fn leaves<S: Stream>(stream: &mut S, early: &mut BytesMut) {
    poll_fn(|context| {
        while early.len() < EARLY_BYTES {
            let mut storage = [const { MaybeUninit::uninit() }; 512];
            let mut buffer = ReadBuf::uninit(&mut storage);
            let read = ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
            early.extend_from_slice(buffer.filled());
        }
        Poll::Pending
    })
    .await;
}

/// The answer that opens a WebSocket (RFC 6455 §4.2.2). No subprotocol is chosen (WS-08).
fn switching(accept: HeaderValue) -> Reply {
    let mut reply = Response::new(text(String::new()));
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = reply.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    reply
}

/// Whether the whole reply could be written.
async fn write<S: Stream>(stream: &mut S, reply: Reply, shared: &Shared) -> bool {
    shared.metrics.responded(reply.status().as_u16());
    let mut bytes = encode(reply).await;
    let written = async {
        stream.write_all_buf(&mut bytes).await?;
        stream.flush().await
    };
    matches!(timeout(shared.limits.write_timeout, written).await, Ok(Ok(())))
}

/// A response as HTTP/1.1 has it on the wire.
async fn encode(reply: Reply) -> Bytes {
    let (parts, body) = reply.into_parts();
    let Ok(body) = body.collect().await.map(Collected::to_bytes);
    let mut bytes = BytesMut::new();
    let reason = parts.status.canonical_reason().unwrap_or_default();
    bytes.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", parts.status.as_u16()).as_bytes());
    for (name, value) in &parts.headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            bytes.extend_from_slice(part);
        }
    }
    if body.has_remaining() {
        bytes.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&body);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{
            Limits,
            tests::{Harness, peer},
        },
        *,
    };

    #[tokio::test]
    async fn replies_are_written_as_http_has_them() {
        let accept = HeaderValue::from_static("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        for (reply, expected) in [
            (
                switching(accept),
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
                 sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            ),
            (
                Rejection::from(Overload::Unreported).reply(42),
                "HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 42\r\n\
                 connection: close\r\ncontent-length: 48\r\n\r\ntoo many connections that have not reported yet\n",
            ),
        ] {
            assert_eq!(encode(reply).await, expected);
        }
    }

    #[tokio::test]
    async fn a_websocket_costs_little_while_it_waits_and_while_it_is_idle() {
        let harness = Harness::new(Limits::default());
        let slot = harness.shared.admission.slot().await.unwrap();
        let (stream, _peer) = tokio::io::duplex(1);
        let (request, ()) = http::Request::new(()).into_parts();
        let handshake =
            Handshake { accept: HeaderValue::from_static(""), request: Box::new(request), peer: Arc::new(peer()) };
        let task = open(stream, Bytes::new(), handshake, slot, Arc::clone(&harness.shared));
        let bytes = size_of_val(&task) + size_of::<Conversation>() + size_of::<Connection>();
        assert!(bytes < 2_500, "{bytes}");
    }
}
