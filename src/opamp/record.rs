//! What one agent has reported, part by part, normalised and cut at receipt.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::capabilities::AgentCapabilities;

/// The agent's true state as far as it has told; each part is replaced whole by a newer one (CMP-03).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentRecord {
    /// Who it is; `None` until it has said so.
    pub description: Option<Attributes>,
    /// What it is able to do.
    pub capabilities: AgentCapabilities,
    /// How it is.
    pub health: Option<Health>,
    /// What became of the configuration it last spoke of.
    pub remote_config: Option<OfferReport>,
    /// The configuration that it reported FAILED; only APPLIED of the same hash clears it.
    pub failed_config: Option<FailedOffer>,
    /// What became of the connection settings it last spoke of. Most agents never speak of any, hence the box.
    pub connection_settings: Option<Box<OfferReport>>,
    /// The connection settings that it reported FAILED; only APPLIED of the same hash clears it.
    pub failed_connection_settings: Option<Box<FailedOffer>>,
    /// What it runs.
    pub effective_config: Option<EffectiveConfigSummary>,
    /// What it could run.
    pub available_components: Option<ComponentsSummary>,
    /// What it understands beyond the specification.
    pub custom_capabilities: Vec<String>,
}

/// Attributes as text: strings as they are, other kinds as JSON. Bounded at receipt (rules 4.10).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Attributes {
    /// They identify the agent in its telemetry.
    pub identifying: BTreeMap<String, String>,
    /// Where and on what it runs.
    pub non_identifying: BTreeMap<String, String>,
}

impl Attributes {
    /// The value of an attribute; an identifying one wins over a non-identifying one of the same key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.identifying.get(key).or_else(|| self.non_identifying.get(key)).map(String::as_str)
    }
}

/// The health of an agent, flattened for people.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// The agent's own verdict.
    pub healthy: bool,
    /// In its own words.
    pub status: String,
    /// Why it is not healthy.
    pub last_error: String,
    /// When it started; `None` if it does not run.
    pub started_at: Option<Timestamp>,
    /// The components that are not healthy, capped.
    pub unhealthy_components: Vec<UnhealthyComponent>,
    /// How many more there were.
    pub unhealthy_left_out: usize,
}

/// One component that is not well.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct UnhealthyComponent {
    /// Its place in the tree: `pipeline:traces/exporter:otlp`.
    pub path: String,
    /// In its own words.
    pub status: String,
    /// Why.
    pub last_error: String,
}

/// States of what was offered, at the agent: of a configuration (CFG-07) and of connection settings (CON-07) they are the
/// same, down to their numbers. An unknown number is kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OfferState {
    /// It has not said.
    Unset,
    /// In force. Of connection settings some clients say so before they have reconnected.
    Applied,
    /// Being put in force.
    Applying,
    /// Refused or broken; the agent keeps what it had.
    Failed,
    /// A number that this version does not know.
    Unknown(i32),
}

impl OfferState {
    /// The state with this number on the wire.
    #[must_use]
    pub const fn from_wire(number: i32) -> Self {
        match number {
            0 => Self::Unset,
            1 => Self::Applied,
            2 => Self::Applying,
            3 => Self::Failed,
            other => Self::Unknown(other),
        }
    }
}

/// The last word on what was offered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OfferReport {
    /// The hash that the agent echoes; empty if it never had one. At most 64 bytes are kept.
    pub hash: Vec<u8>,
    /// What became of it.
    pub state: OfferState,
    /// Why it failed; at most 512 bytes.
    pub error: String,
    /// Since when this hash is in this state.
    pub since: Timestamp,
}

/// What must not be sent again to this agent by itself, because it failed there (AMB-24, CON-07).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FailedOffer {
    /// Its hash.
    pub hash: Vec<u8>,
    /// What the agent said.
    pub error: String,
    /// When it said so.
    pub at: Timestamp,
}

/// What is kept of the configuration that an agent reports as running.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EffectiveConfigSummary {
    /// SHA-256 over the files in the order of their names.
    pub hash: [u8; 32],
    /// Bytes of all bodies.
    pub size: usize,
}

/// What is kept of the components that an agent could run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ComponentsSummary {
    /// Made by the agent; at most 64 bytes are kept.
    pub hash: Vec<u8>,
    /// Leaves and inner nodes; `None` until the agent has sent the map for this hash.
    pub count: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opamp::messages::{ConnectionSettingsStatuses as Settings, RemoteConfigStatuses as Config};

    #[test]
    fn a_configuration_and_settings_have_the_same_states_under_the_same_numbers() {
        for (config, settings, expected) in [
            (Config::Unset, Settings::Unset, OfferState::Unset),
            (Config::Applied, Settings::Applied, OfferState::Applied),
            (Config::Applying, Settings::Applying, OfferState::Applying),
            (Config::Failed, Settings::Failed, OfferState::Failed),
        ] {
            assert_eq!([config as i32, settings as i32].map(OfferState::from_wire), [expected; 2]);
        }
        for unknown in [-1, 4] {
            assert_eq!(OfferState::from_wire(unknown), OfferState::Unknown(unknown));
        }
    }
}
