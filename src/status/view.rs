//! What a session's owner shows of one agent when its turn to be written comes.
//!
//! These types know neither sessions nor fleets as objects, so that rendering stays a function from values to values.

use std::{net::SocketAddr, sync::Arc};

use jiff::Timestamp;

use crate::{
    agents::summary::Acceptance,
    api::agent::{NotStored, Transport},
    opamp::{
        InstanceUid,
        identity::Identity,
        offer::{ConfigHash, ConnectionSettingsHash},
        record::AgentRecord,
    },
};

/// All that is known of one agent in this process.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentView {
    /// Whose this is.
    pub uid: InstanceUid,
    /// Where its object is to live. Unlike the object's present place, it is moved.
    pub namespace: String,
    /// Which session of this process speaks: another number is another claim on the status, with the next epoch. To claim
    /// again what another replica has claimed meanwhile, change the number.
    pub session: u64,
    /// What the agent has reported to this process.
    pub record: AgentRecord,
    /// Which fleet takes it, and what it is given.
    pub assignment: AssignmentView,
    /// Whether it may take part.
    pub acceptance: Acceptance,
    /// The certificate with which it connects, if that was issued to it.
    pub certificate: Option<CertificateInUse>,
    /// What it is offered of its fleet's connection settings.
    pub connection_settings: SettingsView,
    /// What an agent that reports no status of settings has presumably taken.
    pub settings_taken: Option<ConnectionSettingsHash>,
    /// The certificate that its fleet's settings ask for.
    pub issued: IssuedView,
    /// How it speaks, and whether it still does.
    pub connection: ConnectionView,
    /// What is shown of its effective configuration.
    pub effective_config: EffectiveConfigView,
    /// The last wish for a re-offer that was granted; written before the re-offer is sent.
    pub reoffer_granted: Option<Timestamp>,
}

/// Which fleet takes an agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AssignmentView {
    /// None: nothing is offered, and nothing is withdrawn.
    Unmatched(UnmatchedBecause),
    /// This one.
    Matched(FleetView),
}

/// Why no fleet takes an agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UnmatchedBecause {
    /// No fleet that admits it selects its attributes.
    NoFleetSelects,
    /// It has not described itself.
    DescriptionMissing,
    /// A person keeps it out.
    KeptOut,
}

/// The fleet that takes an agent, and what it gives.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FleetView {
    /// The fleet's name.
    pub name: String,
    /// The fleet's own uid.
    pub uid: String,
    /// What the agent is given.
    pub given: GivenView,
}

/// What a fleet gives an agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum GivenView {
    /// The fleet has no revision yet.
    NoRevision,
    /// This.
    Offer {
        /// By which revision.
        revision: RevisionView,
        /// The hash of its configuration; `None`: the revision has nothing for this agent.
        remote_config: Option<ConfigHash>,
    },
    /// A template fails for the agent's attributes; it keeps what it has.
    TemplateFailed {
        /// By which revision.
        revision: RevisionView,
        /// Where and why.
        message: String,
    },
}

/// A revision as `status.revision` shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RevisionView {
    /// The first 10 hex digits of its hash.
    pub hash: String,
    /// The fleet's epoch that gave it.
    pub epoch: i64,
}

/// A certificate that was issued to the agent, and that it was seen to use.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificateInUse {
    /// Its serial number, in hex digits.
    pub serial: String,
    /// When it ends.
    pub not_after: Timestamp,
    /// Since when it was seen in use by this process.
    pub since: Timestamp,
}

/// What an agent is offered of its fleet's connection settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SettingsView {
    /// Nobody can say now: what the status says stays.
    Unsettled,
    /// Nothing.
    Nothing,
    /// The settings with this hash.
    Offered(ConnectionSettingsHash),
    /// Nothing for now, because of this.
    Withheld(String),
}

/// The certificate of an agent whose fleet's settings ask for one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum IssuedView {
    /// They do not, nobody can say now, or the agent can have none.
    NotIssued,
    /// It has one that counts.
    Valid(IssuedCertificate),
    /// It is being made.
    Pending,
    /// Its request was refused, because of this.
    Refused(String),
    /// The last one has ended.
    Expired(Timestamp),
}

/// A certificate that was issued to an agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IssuedCertificate {
    /// Its serial number, in hex digits.
    pub serial: String,
    /// When it ends.
    pub not_after: Timestamp,
    /// The name of the Secret that holds it.
    pub secret: String,
}

/// How an agent speaks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConnectionView {
    /// Over what.
    pub transport: Transport,
    /// Who it is.
    pub identity: Identity,
    /// Where it connects from.
    pub remote_address: SocketAddr,
    /// When the session began.
    pub since: Timestamp,
    /// Whether it still speaks.
    pub liveness: LivenessView,
}

/// Whether an agent still speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LivenessView {
    /// It does.
    Connected,
    /// It does not. When this is acknowledged, the status is handed over to the leader.
    Disconnected {
        /// Since when.
        since: Timestamp,
        /// How it went.
        how: Departure,
    },
}

/// How an agent went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Departure {
    /// It said goodbye.
    Goodbye,
    /// Its connection was closed.
    ConnectionClosed,
    /// It was silent for too long.
    Silent,
}

/// What is shown of an effective configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EffectiveConfigView {
    /// Nothing.
    None,
    /// Its hash and size.
    Hash,
    /// What became of its text, too.
    Stored(TextView),
}

/// What became of the text of an effective configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TextView {
    /// This process does not know yet: what the status says of the same configuration stays.
    Unknown,
    /// It is kept.
    Kept {
        /// The name of the Secret.
        secret: Arc<str>,
    },
    /// It is not kept.
    Not(NotStored),
}

impl AgentView {
    /// The fleet that takes the agent.
    #[must_use]
    pub fn fleet(&self) -> Option<&FleetView> {
        match &self.assignment {
            AssignmentView::Matched(fleet) => Some(fleet),
            AssignmentView::Unmatched(_) => None,
        }
    }

    /// Whether the agent still speaks.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.liveness == LivenessView::Connected
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::opamp::{capabilities::AgentCapabilities, messages::AgentCapabilities as Bit, record::Attributes};

    pub(in crate::status) const MORNING: Timestamp = Timestamp::constant(1_800_000_000, 0);

    pub(in crate::status) fn offered() -> ConfigHash {
        ConfigHash::of(b"what the fleet offers")
    }

    pub(in crate::status) fn capabilities(bits: &[Bit]) -> AgentCapabilities {
        AgentCapabilities::from_bits(bits.iter().fold(0, |all, bit| all | *bit as u64))
    }

    pub(in crate::status) fn given(given: GivenView) -> AssignmentView {
        AssignmentView::Matched(FleetView { name: "edge".into(), uid: "fleet-uid".into(), given })
    }

    pub(in crate::status) fn revision() -> RevisionView {
        RevisionView { hash: "3f9a1c2b07".into(), epoch: 12 }
    }

    /// A collector of fleet `edge` that is connected and has told little.
    pub(in crate::status) fn view() -> AgentView {
        let identifying = [("service.name", "otelcol"), ("service.version", "0.140.0")];
        let non_identifying = [("os.type", "linux"), ("host.name", "node 1")];
        let owned =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        AgentView {
            uid: InstanceUid::from_name("01900000-0000-7000-8000-000000000001").expect("a uid"),
            acceptance: Acceptance::Admitted,
            certificate: None,
            connection_settings: SettingsView::Nothing,
            settings_taken: None,
            issued: IssuedView::NotIssued,
            namespace: "telemetry".into(),
            session: 1,
            record: AgentRecord {
                description: Some(Attributes {
                    identifying: owned(&identifying),
                    non_identifying: owned(&non_identifying),
                }),
                capabilities: capabilities(&[Bit::ReportsStatus, Bit::AcceptsRemoteConfig, Bit::ReportsRemoteConfig]),
                ..AgentRecord::default()
            },
            assignment: given(GivenView::Offer { revision: revision(), remote_config: Some(offered()) }),
            connection: ConnectionView {
                transport: Transport::WebSocket,
                identity: Identity::Anonymous,
                remote_address: SocketAddr::from(([10, 0, 0, 7], 40_000)),
                since: MORNING,
                liveness: LivenessView::Connected,
            },
            effective_config: EffectiveConfigView::Hash,
            reoffer_granted: None,
        }
    }
}
