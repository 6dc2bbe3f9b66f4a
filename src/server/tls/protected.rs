//! A connection protected by TLS.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::super::stream::{Rewound, Stream};

/// Bytes that a peer may send without anything coming of them: TLS keeps what is no whole record or no whole handshake
/// message yet, up to 64 KiB, and 15,000 peers that begin and do not end are not to fill the memory. The largest record has
/// 18,437 bytes (RFC 5246 §6.2.3), and a `ClientHello`, or a client's certificate with its chain, a few thousand.
const ALLOWANCE: usize = 20 << 10;

/// A connection whose handshake is done. Boxed: its state has two kilobytes, and a future keeps a place for each move of it.
pub struct Protected<S>(Box<TlsStream<Metered<Rewound<S>>>>);

impl<S: Stream> Protected<S> {
    pub(super) fn new(stream: TlsStream<Metered<Rewound<S>>>) -> Self {
        let mut stream = Box::new(stream);
        stream.get_mut().0.renew();
        Self(stream)
    }

    /// The certificates that the client showed, now or in the handshake of the session that it resumes.
    pub fn certificates(&self) -> Option<Arc<[CertificateDer<'static>]>> {
        let chain = self.0.get_ref().1.peer_certificates()?;
        Some(chain.iter().map(|certificate| certificate.clone().into_owned()).collect())
    }
}

impl<S: Stream> AsyncRead for Protected<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut *self.0).poll_read(context, buffer))?;
        self.0.get_mut().0.renew();
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for Protected<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

/// The peer sent much, and nothing came of it.
#[derive(Debug, thiserror::Error)]
#[error("more than {ALLOWANCE} bytes have come of which nothing is whole")]
pub struct Endless;

/// A stream of which only so much is read as TLS may keep.
pub struct Metered<S> {
    stream: S,
    left: usize,
}

impl<S> Metered<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, left: ALLOWANCE }
    }

    /// What was read has been put to use.
    fn renew(&mut self) {
        self.left = ALLOWANCE;
    }

    pub fn into_stream(self) -> S {
        self.stream
    }
}

impl<S: Stream> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, Endless)));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.left = self.left.saturating_sub(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn what_leads_to_nothing_is_read_up_to_the_allowance() {
        let (mut ours, theirs) = tokio::io::duplex(64 << 10);
        ours.write_all(&vec![7; 60 << 10]).await.unwrap();
        let mut metered = Metered::new(theirs);
        let mut read = vec![0; ALLOWANCE];
        metered.read_exact(&mut read).await.unwrap();
        assert_eq!(metered.read(&mut read).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        metered.renew();
        metered.read_exact(&mut read).await.unwrap();
        assert!(metered.read(&mut read).await.is_err());
    }

    #[test]
    fn the_largest_record_is_within_the_allowance() {
        // RFC 5246 §6.2.3: 2^14 + 2,048 bytes behind a head of five. TLS 1.3 has less (RFC 8446 §5.2).
        const { assert!(ALLOWANCE > 16_384 + 2_048 + 5) }
    }
}
