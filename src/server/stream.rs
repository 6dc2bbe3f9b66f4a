//! What carries a connection.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A TCP connection, or something on top of one.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

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
