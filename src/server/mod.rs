//! Sockets: TLS, WebSocket and plain HTTP, limits, admission, drain.
//!
//! A [`Server`] accepts connections at an [`Endpoint`] within [`Limits`], speaks HTTP/1.1 on each, and hands the OpAMP payloads that arrive,
//! by either transport, to one [`Agents`]. It knows frames, headers and deadlines; what a message means it does not know.
//!
//! | module | its work |
//! |---|---|
//! | [`agents`](Agents) | what the server asks of the rest of the operator |
//! | `listener` | accepts, and drains |
//! | `reception`, `proxies`, `tls` | who is at the other end: what a proxy says, what TLS shows |
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
mod endpoint;
mod http;
mod limits;
mod listener;
mod metrics;
mod pacing;
mod peer;
mod proxies;
mod reception;
mod room;
mod shared;
mod stream;
mod tls;
mod websocket;

pub use agents::{Agents, Exchange, Refusal, Then};
pub use connection::{CloseReason, Connection, Transport};
pub use descriptors::{DescriptorError, raise_descriptor_limit};
pub use endpoint::Endpoint;
pub use limits::Limits;
pub use listener::{BindError, Drained, Server};
pub use metrics::Metrics;
pub use peer::{Peer, Protection};
pub use proxies::{CertificateHeader, Cidr, CidrError, Proxies, ProxyProtocol};
pub use shared::now;
pub use tls::{CertificateFault, ClientCertificates, ServerCertificate, ServerCertificateError, Tls, TlsError};

#[cfg(test)]
mod tests;
