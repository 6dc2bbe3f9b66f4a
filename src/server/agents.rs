//! What the server asks of the rest of the operator.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;

use super::{
    connection::{CloseReason, Connection},
    peer::Peer,
};
use crate::opamp::{InstanceUid, identity::Principal, now::Now, session::Outbound, violation::Violation};

/// The agents behind the sockets. No call may block: each runs on the task of its connection. Only
/// [`Self::authenticate`] may wait.
///
/// Calls for one connection never overlap. HTTP requests are connections of their own (CONN-06), one [`Self::receive`]
/// each, without [`Self::closed`]: whether an agent that polls is still there is not the socket's to say.
pub trait Agents: Send + Sync + 'static {
    /// Who this is; asked before a WebSocket is opened and for every HTTP request (AUTH-02).
    ///
    /// What has not answered after [`super::Limits::authentication_timeout`] is dropped, and so is what the peer does not
    /// wait for.
    fn authenticate<'a>(
        &'a self,
        request: &'a http::request::Parts,
        peer: &'a Peer,
    ) -> BoxFuture<'a, Result<Arc<Principal>, Refusal>>;

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

/// Why somebody may not connect. What it says goes to the peer: nothing secret belongs into it, and nothing that tells
/// which part of a credential was wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Status 401: there is no credential, or none that counts (AUTH-03).
    #[error("{message}")]
    Unauthorized {
        /// The value of `WWW-Authenticate`, such as `Bearer realm="opamp"` (RFC 9110 §11.6.1).
        challenge: &'static str,
        /// What the peer is told.
        message: &'static str,
    },
    /// Status 403: it is known who this is, and it may not connect with any credential of this kind.
    #[error("{message}")]
    Forbidden {
        /// What the peer is told.
        message: &'static str,
    },
    /// Status 429: credentials were guessed from this address.
    #[error("too many failed attempts, come back later")]
    TooManyFailures {
        /// The value of `Retry-After`, rounded up to whole seconds.
        retry_after: Duration,
    },
    /// Status 503: it cannot be found out now. `Retry-After` is as for every overload (THR-05).
    #[error("{message}")]
    Unavailable {
        /// What the peer is told.
        message: &'static str,
    },
}
