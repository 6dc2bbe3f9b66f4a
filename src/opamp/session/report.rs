//! The parts of a message → the record, each replaced whole (CMP-03).

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{effects::Changed, failed};
use crate::opamp::{
    capabilities::AgentCapabilities,
    messages::{
        AgentCapabilities as Bit, AgentDescription, AgentToServer, AvailableComponents, ComponentHealth,
        ConnectionSettingsStatus, CustomCapabilities, EffectiveConfig, RemoteConfigStatus,
    },
    normalise::{self, EffectiveConfigText},
    record::{AgentRecord, ComponentsSummary, FailedOffer, OfferReport, OfferState},
};

/// Bytes of a hash that an agent made or echoes.
const HASH_LIMIT: usize = 64;
/// Bytes of the reason why a configuration or connection settings failed.
const ERROR_LIMIT: usize = 512;
/// Custom capabilities that are kept, and bytes of each.
const CUSTOM_LIMIT: usize = 32;
const CUSTOM_LENGTH_LIMIT: usize = 128;

/// The parts of a report that can be asked for with `ReportFullState`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Parts(u8);

impl Parts {
    pub(super) const DESCRIPTION: Self = Self(1);
    const HEALTH: Self = Self(2);
    const EFFECTIVE_CONFIG: Self = Self(4);
    pub(super) const REMOTE_CONFIG_STATUS: Self = Self(8);
    /// Never promised: an agent that was never offered settings has no status of any.
    pub(super) const CONNECTION_SETTINGS_STATUS: Self = Self(16);

    /// Those in a message.
    pub(super) fn of(message: &AgentToServer) -> Self {
        Self::union([
            (message.agent_description.is_some(), Self::DESCRIPTION),
            (message.health.is_some(), Self::HEALTH),
            (message.effective_config.is_some(), Self::EFFECTIVE_CONFIG),
            (message.remote_config_status.is_some(), Self::REMOTE_CONFIG_STATUS),
            (message.connection_settings_status.is_some(), Self::CONNECTION_SETTINGS_STATUS),
        ])
    }

    /// Those that a complete report of such an agent has (AMB-01). Package statuses are not among them: this server
    /// does not accept them, so an agent must not send them (INT-03).
    pub(super) fn promised_by(capabilities: AgentCapabilities) -> Self {
        Self::union([
            (true, Self::DESCRIPTION),
            (capabilities.has(Bit::ReportsHealth), Self::HEALTH),
            (capabilities.has(Bit::ReportsEffectiveConfig), Self::EFFECTIVE_CONFIG),
            (capabilities.has(Bit::ReportsRemoteConfig), Self::REMOTE_CONFIG_STATUS),
        ])
    }

    pub(super) fn contains(self, all: Self) -> bool {
        self.0 & all.0 == all.0
    }

    pub(super) fn add(&mut self, more: Self) {
        self.0 |= more.0;
    }

    /// Those that are there.
    fn union<const N: usize>(parts: [(bool, Self); N]) -> Self {
        let mut union = Self::default();
        parts.into_iter().filter(|(is_there, _)| *is_there).for_each(|(_, part)| union.add(part));
        union
    }
}

/// What a report brought.
#[derive(Debug, Default)]
pub(super) struct Brought {
    pub(super) changed: Changed,
    pub(super) effective_config: Option<EffectiveConfigText>,
    pub(super) novelties: Novelties,
}

/// What of a report has consequences for the conversation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Novelties {
    pub(super) capabilities: Novelty,
    pub(super) attributes: Novelty,
    pub(super) components: Novelty,
}

/// Whether something is other than before.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Novelty {
    #[default]
    AsBefore,
    New,
}

/// Puts what the message says into the record. Parts that are absent stay as they are (CMP-01).
pub(super) fn apply(record: &mut AgentRecord, message: AgentToServer, now: Timestamp) -> Brought {
    let mut brought = Brought::default();
    let AgentToServer {
        instance_uid: _,
        sequence_num: _,
        agent_description,
        capabilities,
        health,
        effective_config,
        remote_config_status,
        package_statuses: _,
        agent_disconnect: _,
        flags: _,
        connection_settings_request: _,
        custom_capabilities,
        custom_message: _,
        available_components,
        connection_settings_status,
    } = message;
    if let Some(description) = agent_description {
        brought.description(record, &description);
    }
    brought.capabilities(record, capabilities);
    if let Some(health) = health {
        brought.health(record, &health);
    }
    if let Some(config) = effective_config {
        brought.effective_config(record, config);
    }
    if let Some(status) = remote_config_status {
        brought.remote_config(record, &status, now);
    }
    if let Some(status) = connection_settings_status {
        brought.connection_settings(record, &status, now);
    }
    if let Some(custom) = custom_capabilities {
        brought.set(&mut record.custom_capabilities, custom_names(&custom), Changed::Details, |_| {});
    }
    if let Some(components) = available_components {
        brought.components(record, &components);
    }
    brought
}

impl Brought {
    fn set<T: PartialEq>(&mut self, place: &mut T, value: T, changed: Changed, note: impl FnOnce(&mut Novelties)) {
        if *place != value {
            *place = value;
            self.changed = self.changed.max(changed);
            note(&mut self.novelties);
        }
    }

    fn description(&mut self, record: &mut AgentRecord, description: &AgentDescription) {
        let attributes = normalise::attributes(description);
        self.set(&mut record.description, Some(attributes), Changed::Details, |novelties| {
            novelties.attributes = Novelty::New;
        });
    }

    /// Zero is no lawful set of capabilities: it means that they were left out (AMB-08).
    fn capabilities(&mut self, record: &mut AgentRecord, capabilities: u64) {
        if capabilities != 0 {
            let capabilities = AgentCapabilities::from_bits(capabilities);
            self.set(&mut record.capabilities, capabilities, Changed::Details, |novelties| {
                novelties.capabilities = Novelty::New;
            });
        }
    }

    fn health(&mut self, record: &mut AgentRecord, health: &ComponentHealth) {
        let was_unhealthy = record.health.as_ref().is_some_and(|health| !health.healthy);
        let changed = if health.healthy || was_unhealthy { Changed::Details } else { Changed::Failure };
        self.set(&mut record.health, Some(normalise::health(health)), changed, |_| {});
    }

    fn effective_config(&mut self, record: &mut AgentRecord, config: EffectiveConfig) {
        let text = EffectiveConfigText { files: config.config_map.unwrap_or_default().config_map };
        let summary = normalise::summarise(&text);
        self.set(&mut record.effective_config, Some(summary), Changed::Configuration, |_| {});
        self.effective_config = Some(text);
    }

    fn remote_config(&mut self, record: &mut AgentRecord, status: &RemoteConfigStatus, now: Timestamp) {
        let RemoteConfigStatus { last_remote_config_hash: hash, status, error_message } = status;
        let report = last_word(record.remote_config.as_ref(), hash, *status, error_message, now);
        let failed = failed::after(&report, record.failed_config.clone(), now);
        self.set(&mut record.failed_config, failed.clone(), changed_by(failed.as_ref()), |_| {});
        self.set(&mut record.remote_config, Some(report), Changed::Configuration, |_| {});
    }

    fn connection_settings(&mut self, record: &mut AgentRecord, status: &ConnectionSettingsStatus, now: Timestamp) {
        let ConnectionSettingsStatus { last_connection_settings_hash: hash, status, error_message } = status;
        let report = last_word(record.connection_settings.as_deref(), hash, *status, error_message, now);
        let failed = failed::after(&report, record.failed_connection_settings.as_deref().cloned(), now);
        let changed = changed_by(failed.as_ref());
        self.set(&mut record.failed_connection_settings, failed.map(Box::new), changed, |_| {});
        self.set(&mut record.connection_settings, Some(Box::new(report)), Changed::Configuration, |_| {});
    }

    /// A hash alone keeps the count that belongs to it; a new one drops it (CMPN-02, CMPN-05).
    fn components(&mut self, record: &mut AgentRecord, reported: &AvailableComponents) {
        let hash = components_hash(&reported.hash);
        let count = if reported.components.is_empty() {
            record.available_components.as_ref().filter(|former| former.hash == hash).and_then(|former| former.count)
        } else {
            Some(normalise::count(&reported.components))
        };
        if hash.is_empty() && count.is_none() {
            return;
        }
        let is_new = record.available_components.as_ref().is_none_or(|former| former.hash != hash);
        let summary = ComponentsSummary { hash, count };
        self.set(&mut record.available_components, Some(summary), Changed::Details, |novelties| {
            novelties.components = if is_new { Novelty::New } else { Novelty::AsBefore };
        });
    }
}

/// What the agent says of an offer, and since when it says so.
fn last_word(former: Option<&OfferReport>, hash: &[u8], status: i32, error: &str, now: Timestamp) -> OfferReport {
    let hash = hash.iter().copied().take(HASH_LIMIT).collect();
    let state = OfferState::from_wire(status);
    let same = former.filter(|former| (&former.hash, former.state) == (&hash, state));
    let since = same.map_or(now, |former| former.since);
    OfferReport { hash, state, error: normalise::shorten(error, ERROR_LIMIT), since }
}

/// What it is if this is what counts as failed from now on, and did not before.
fn changed_by(failed: Option<&FailedOffer>) -> Changed {
    if failed.is_some() { Changed::Failure } else { Changed::Configuration }
}

/// An endless hash is kept as its own digest: cut, two of them could look the same (CMPN-01).
fn components_hash(hash: &[u8]) -> Vec<u8> {
    if hash.len() <= HASH_LIMIT { hash.to_vec() } else { Sha256::digest(hash).to_vec() }
}

fn custom_names(custom: &CustomCapabilities) -> Vec<String> {
    let names = custom.capabilities.iter().take(CUSTOM_LIMIT);
    names.map(|name| normalise::shorten(name, CUSTOM_LENGTH_LIMIT)).collect()
}
