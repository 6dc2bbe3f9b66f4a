//! The audit lines about who may take part: one for each decision.

use std::net::SocketAddr;

use crate::{
    authentication::audit::{self, Access, Outcome},
    opamp::{InstanceUid, identity::Identity},
    server::Connection,
};

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
pub(super) fn record(outcome: Outcome, who: Who<'_>, fleet: FleetName<'_>, reason: &'static str) {
    audit::record(&access(outcome, who, fleet, reason));
}

/// The same decision, for those who do not write each down.
pub(super) fn access(outcome: Outcome, who: Who<'_>, fleet: FleetName<'_>, reason: &'static str) -> Access {
    let FleetName { namespace, name } = fleet;
    Access {
        outcome,
        method: who.identity.method(),
        identity: Some(who.identity.clone()),
        fleet: (!name.is_empty()).then(|| (namespace.into(), name.into())),
        uid: Some(who.uid),
        remote: who.remote,
        reason,
    }
}
