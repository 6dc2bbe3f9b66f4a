//! What carries a connection.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// What is read at first: most requests fit, and most first messages of TLS.
const FIRST_BYTES: usize = 2 << 10;

/// A TCP connection, or something on top of one.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// Waits for the first bytes; none mean that the peer has ended the connection. Whoever says nothing costs no buffers.
pub async fn first_bytes<S: Stream>(stream: &mut S) -> Bytes {
    poll_fn(|context| {
        let mut storage = [const { MaybeUninit::uninit() }; FIRST_BYTES];
        let mut buffer = ReadBuf::uninit(&mut storage);
        let read = ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer));
        Poll::Ready(read.map_or_else(|_| Bytes::new(), |()| Bytes::copy_from_slice(buffer.filled())))
    })
    .await
}

/// Ends a stream in order: says that nothing more comes, then reads on until the peer has said the same.
///
/// A socket that is dropped while something unread lies in it is reset, and the reset may overtake what was sent last.
pub async fn linger<S: Stream>(stream: &mut S) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut discarded = [0; 512];
    while let Ok(1..) = stream.read(&mut discarded).await {}
}

/// A stream of which something was read already; it comes once more, before everything else.
#[derive(Debug)]
pub struct Rewound<S> {
    first: Bytes,
    stream: S,
}

impl<S> Rewound<S> {
    pub fn new(first: Bytes, stream: S) -> Self {
        Self { first, stream }
    }

    /// The first byte that comes once more.
    pub fn first(&self) -> Option<&u8> {
        self.first.first()
    }

    /// The stream alone; what was not read a second time is lost.
    pub fn into_stream(self) -> S {
        self.stream
    }
}

impl<S: Stream> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for Rewound<S> {
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
