//! One handshake, and what else may come to a port with TLS.

use std::{io, net::SocketAddr};

use rustls::{Error, HandshakeKind, ServerConnection};
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsAcceptor;

use super::{
    super::{
        metrics::TlsOutcome,
        stream::{Rewound, Stream},
    },
    acceptor::Tls,
    clients::REMOTE,
    protected::{Endless, Metered, Protected},
};

/// The first byte of a TLS record with a `ClientHello` (RFC 8446 §5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// Bytes that wait, encrypted, to be taken by the peer: one record. The peer of a connection that has more is slower than
/// what it is sent, and 15,000 of them are not to fill the memory.
const UNSENT_BYTES: usize = 16 << 10;

/// What a client is told that does not speak TLS.
const TLS_REQUIRED: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\
    content-length: 35\r\n\r\nthis port speaks TLS: use https://\n";

/// A handshake that led to nothing.
pub struct Failure<S> {
    /// Why.
    pub outcome: TlsOutcome,
    /// What is left, if the peer may still be told something: an alert is on its way.
    pub rest: Option<Rewound<S>>,
}

/// Does the handshake with this peer on a stream that has begun with something.
pub async fn shake_hands<S: Stream>(
    tls: &Tls,
    remote: SocketAddr,
    mut stream: Rewound<S>,
) -> Result<(Protected<S>, TlsOutcome), Failure<S>> {
    match stream.first() {
        Some(&HANDSHAKE_RECORD) => {}
        // No method of HTTP begins otherwise.
        Some(b'A'..=b'Z') => {
            let told = stream.write_all(TLS_REQUIRED).await.is_ok();
            return Err(Failure { outcome: TlsOutcome::PlainHttp, rest: told.then_some(stream) });
        }
        Some(_) => return Err(Failure { outcome: TlsOutcome::Malformed, rest: None }),
        None => return Err(Failure { outcome: TlsOutcome::Lost, rest: None }),
    }
    let config = tls.config().map_err(|_| Failure { outcome: TlsOutcome::Unprepared, rest: None })?;
    let limit = |connection: &mut ServerConnection| connection.set_buffer_limit(Some(UNSENT_BYTES));
    let handshake = TlsAcceptor::from(config).accept_with(Metered::new(stream), limit).into_fallible();
    match REMOTE.scope(remote, handshake).await {
        Ok(stream) => {
            let outcome = match stream.get_ref().1.handshake_kind() {
                Some(HandshakeKind::Resumed) => TlsOutcome::Resumed,
                Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest) | None => TlsOutcome::Full,
            };
            Ok((Protected::new(stream), outcome))
        }
        Err((error, stream)) => Err(Failure { outcome: outcome(&error), rest: Some(stream.into_stream()) }),
    }
}

fn outcome(error: &io::Error) -> TlsOutcome {
    match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
        None if is_endless(error) => TlsOutcome::Malformed,
        None => TlsOutcome::Lost,
        Some(Error::InvalidCertificate(_)) => TlsOutcome::CertificateRefused,
        Some(Error::AlertReceived(_)) => TlsOutcome::RefusedByPeer,
        Some(Error::PeerIncompatible(_)) => TlsOutcome::Incompatible,
        Some(_) => TlsOutcome::Malformed,
    }
}

/// Whether the peer sent much, and nothing came of it.
fn is_endless(error: &io::Error) -> bool {
    error.get_ref().and_then(|error| error.downcast_ref::<Endless>()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_in_plain_text_has_the_length_that_it_says() {
        let text = std::str::from_utf8(TLS_REQUIRED).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head} {}", body.len());
    }
}
