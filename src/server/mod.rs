//! Sockets: WebSocket and plain HTTP, limits, admission, drain.
//!
//! A [`Server`] accepts connections within [`Limits`], speaks HTTP/1.1 on each, and hands the OpAMP payloads that arrive,
//! by either transport, to one [`Agents`]. It knows frames, headers and deadlines; what a message means it does not know.
//!
//! | module | its work |
//! |---|---|
//! | [`agents`](Agents) | what the server asks of the rest of the operator |
//! | `listener` | accepts, and drains |
//! | `http` | requests and responses, and the opening of WebSockets |
//! | `websocket` | frames, and the life of one WebSocket |
//! | `admission`, `pacing`, `limits`, `room`, `drain` | who may connect, when, for how long, how much |
//! | [`admin`] | `/healthz`, `/readyz`, `/metrics`, on a port of their own |
//!
//! Each connection is one task without channels: others reach it by the marks on its [`Connection`].

pub mod admin;
mod admission;
mod agents;
mod connection;
mod descriptors;
mod drain;
mod http;
mod limits;
mod listener;
mod metrics;
mod pacing;
mod peer;
mod room;
mod shared;
mod stream;
mod websocket;

pub use agents::{Agents, Exchange, Refusal, Then};
pub use connection::{CloseReason, Connection, Transport};
pub use descriptors::{DescriptorError, raise_descriptor_limit};
pub use limits::Limits;
pub use listener::{BindError, Drained, Server};
pub use metrics::Metrics;
pub use peer::{Peer, Protection};
pub use shared::now;

#[cfg(test)]
mod tests;
