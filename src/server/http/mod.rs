//! HTTP/1.1: plain OpAMP messages, and the requests that open a WebSocket.
//!
//! | module | its work |
//! |---|---|
//! | [`connection`] | drives hyper on one connection: time limits, drain, and what follows an upgrade |
//! | [`router`] | request → response, or the right to a WebSocket |
//! | [`opening`] | the wait of a handshake for its turn, and its answer |
//! | [`body`] | the body of a request, within limits |
//! | [`coding`] | gzip in both directions |
//! | [`rejection`] | every answer that is no OpAMP message |

mod body;
pub(super) mod coding;
mod connection;
mod opening;
mod rejection;
mod router;

pub(super) use connection::serve;
