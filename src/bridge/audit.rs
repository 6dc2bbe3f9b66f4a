//! The audit lines about who may take part: one for each decision, of a shape that does not change. Nothing in one was
//! taken from what an agent says of itself, its uid aside.

use std::net::SocketAddr;

use crate::{
    opamp::{InstanceUid, identity::Identity},
    server::Connection,
};

/// How an access decision went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Decision {
    /// The agent takes part.
    Granted,
    /// It waits for a person's approval.
    Held,
    /// It does not.
    Refused,
    /// It has to use another uid.
    Renamed,
    /// It took part, and does not any more.
    Ended,
}

impl Decision {
    fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Held => "held",
            Self::Refused => "refused",
            Self::Renamed => "renamed",
            Self::Ended => "ended",
        }
    }
}

/// Whom a decision is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who<'a> {
    pub(super) uid: InstanceUid,
    pub(super) identity: &'a Identity,
    pub(super) remote: SocketAddr,
}

impl<'a> Who<'a> {
    /// The agent of this uid that speaks through this connection.
    pub(super) fn behind(connection: &'a Connection, uid: InstanceUid) -> Self {
        Self { uid, identity: &connection.principal.identity, remote: connection.remote }
    }
}

/// The fleet that takes the agent; empty if none does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FleetName<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// Writes a decision about an agent down, with one fixed word that says why.
pub(super) fn record(decision: Decision, who: Who<'_>, fleet: FleetName<'_>, reason: &'static str) {
    let FleetName { namespace, name } = fleet;
    let Who { uid, identity, remote } = who;
    tracing::info!(
        target: "opamp_operator::audit",
        outcome = decision.word(),
        method = identity.method(),
        %identity,
        namespace,
        fleet = name,
        %uid,
        %remote,
        reason,
        count = 1,
        "access"
    );
}
