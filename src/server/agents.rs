//! What the server asks of the rest of the operator.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;

use super::connection::{CloseReason, Connection};
use crate::opamp::{InstanceUid, identity::Identity, now::Now, session::Outbound, violation::Violation};

/// The agents behind the sockets. No call may block: each runs on the task of its connection.
///
/// Calls for one connection never overlap. HTTP requests are connections of their own (CONN-06), one [`Self::receive`]
/// each, without [`Self::closed`]: whether an agent that polls is still there is not the socket's to say.
pub trait Agents: Send + Sync + 'static {
    /// Who this is; asked before a WebSocket is opened and for every HTTP request (AUTH-02).
    fn authenticate(&self, request: &http::request::Parts, remote: SocketAddr) -> Result<Identity, Refusal>;

    /// Takes one OpAMP payload: WebSocket header already stripped, gzip already undone. Replies go out in the order in
    /// which messages came in. Over HTTP the first of [`Exchange::send`] is the response.
    fn receive(&self, connection: &Arc<Connection>, payload: Bytes, now: Now) -> Exchange;

    /// Answers what is no OpAMP message at all: a text message, a wrong header.
    fn violated(&self, connection: &Arc<Connection>, violation: &Violation, now: Now) -> Exchange;

    /// What is to be said unprompted: called when the catalog's generation has moved, and after [`Connection::wake`].
    fn due(&self, connection: &Arc<Connection>, now: Now) -> Exchange;

    /// The peer answered a ping that [`Connection::ping`] asked for (AMB-14). Answers to the pings with which the server
    /// looks after its connections, and pongs that nobody asked for, are not reported.
    fn pong(&self, connection: &Arc<Connection>, now: Now) -> Exchange;

    /// The WebSocket takes no further message. Called once, however it ended.
    fn closed(&self, connection: &Arc<Connection>, now: Now);
}

/// What is to be done with a connection.
#[derive(Debug, Default)]
#[must_use]
pub struct Exchange {
    /// Messages for this connection, in this order.
    pub send: Vec<Outbound>,
    /// Who spoke, as the message itself says. `None` if nothing was received or it could not be told.
    pub speaker: Option<InstanceUid>,
    /// The rule that the message broke. Counted by rule, and as an offence of the connection.
    pub violation: Option<Violation>,
    /// Whether the connection goes on after that.
    pub then: Then,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Then {
    /// It stays open.
    #[default]
    Continue,
    /// It is closed once everything before has been sent. Over HTTP it has no meaning.
    Close(CloseReason),
}

/// Why somebody may not connect; told with status 401 (AUTH-03). Nothing secret belongs into it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The value of `WWW-Authenticate`, such as `Bearer realm="opamp"` (RFC 9110 §11.6.1).
    pub challenge: &'static str,
    /// What the peer is told.
    pub message: &'static str,
}
