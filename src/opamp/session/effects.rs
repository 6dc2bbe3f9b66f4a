//! What follows from a message, a deadline or a change of the offer.

use bytes::Bytes;

use super::{
    channel::{Channel, ConnectionId},
    reply::Outbound,
};
use crate::opamp::{InstanceUid, normalise::EffectiveConfigText, violation::Violation};

/// What the transport and the owner of the record have to do, in this order.
#[derive(Debug, Default)]
#[must_use]
pub struct Effects {
    /// To be sent. After a message exactly one goes back to its channel; others may be pushed elsewhere. For
    /// [`Channel::Http`] there is only ever the reply to the request at hand.
    pub send: Vec<(Channel, Outbound)>,
    /// Sockets that have to prove that they are alive; answered by [`super::Session::pong`] (AMB-14).
    pub ping: Option<ConnectionId>,
    /// This socket no longer speaks for the agent: it is dead. Close it if it speaks for no other (AMB-15).
    pub release: Option<ConnectionId>,
    /// What has changed in the record or in the connection.
    pub changed: Changed,
    /// The configuration that the agent runs, if it was reported just now.
    pub effective_config: Option<EffectiveConfigText>,
    /// New uids that were given out, and where; the agent will speak under it from now on (AMB-13).
    pub reidentified: Vec<(Channel, InstanceUid)>,
    /// The agent asks for a certificate: the request as it came, at most
    /// [`CERTIFICATE_REQUEST_LIMIT`](super::CERTIFICATE_REQUEST_LIMIT) bytes, unread (CSR-01). It comes again with each
    /// retransmission. It was acknowledged; what is decided later is an offer or
    /// [`Session::refuse_certificate`](super::Session::refuse_certificate) (AMB-29).
    pub certificate_request: Option<Bytes>,
    /// The message breaks a rule, and its reply says so; what else it says was taken.
    pub violation: Option<Violation>,
    /// Something that only people can judge.
    pub suspicion: Option<Suspicion>,
}

/// What a change is about, the most urgent last.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Changed {
    /// Nothing that anybody would want to see; heartbeats end here.
    #[default]
    Nothing,
    /// Attributes, capabilities, health, components.
    Details,
    /// It came, went, or speaks over another channel.
    Connection,
    /// What became of its configuration or its connection settings, or what it runs.
    Configuration,
    /// It was never seen before.
    FirstSight,
    /// It became unhealthy, or a configuration or connection settings failed.
    Failure,
}

/// Signs of several agents behind one uid that prove nothing (DUP-02, AMB-14).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Suspicion {
    /// Two sequences of numbers take turns over HTTP.
    CountersAlternate,
    /// Two sets of identifying attributes take turns over HTTP.
    IdentitiesAlternate,
}
