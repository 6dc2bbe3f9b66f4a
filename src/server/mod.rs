//! Sockets: WebSocket and plain HTTP, limits, admission, drain.
//!
//! The listener accepts connections within [`Limits`], speaks HTTP/1.1 on each, and hands the OpAMP payloads that arrive,
//! by either transport, to one [`Agents`]. It knows frames, headers and deadlines; what a message means it does not know.

mod agents;
mod connection;
mod limits;

pub use agents::{Agents, Exchange, Refusal, Then};
pub use connection::{CloseReason, Connection, Transport};
pub use limits::Limits;
