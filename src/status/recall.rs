//! What an earlier process, or another replica, knew of an agent: read from its status.

use jiff::Timestamp;

use crate::{
    agents::written,
    api::agent::{AgentStatus, HealthStatus},
    opamp::{
        messages::AgentCapabilities as Capability,
        offer::ConnectionSettingsHash,
        record::{
            AgentRecord, Attributes, ComponentsSummary, EffectiveConfigSummary, FailedOffer, Health, OfferReport,
            OfferState, UnhealthyComponent,
        },
    },
};

/// Reads a status back. What cannot be read is left out, and so are the capabilities, which every message of an agent
/// tells: the agent will tell the rest as well.
#[must_use]
pub fn recall(status: &AgentStatus) -> AgentRecord {
    AgentRecord {
        description: status.attributes.as_ref().map(|attributes| Attributes {
            identifying: attributes.identifying.clone(),
            non_identifying: attributes.non_identifying.clone(),
        }),
        health: status.health.as_ref().map(health),
        remote_config: remote_config(status),
        failed_config: failed_config(status),
        connection_settings: connection_settings(status).map(Box::new),
        failed_connection_settings: failed_connection_settings(status).map(Box::new),
        effective_config: effective_config(status),
        available_components: available_components(status),
        custom_capabilities: status.custom_capabilities.clone(),
        ..AgentRecord::default()
    }
}

/// The connection settings that an agent which reports no status of them has presumably taken. Of one that reports, those
/// that it was to have: its own word decides.
#[must_use]
pub fn settings_taken(status: &AgentStatus) -> Option<ConnectionSettingsHash> {
    let offered = status.connection_settings.as_ref()?.offered.as_deref()?;
    Some(ConnectionSettingsHash::from_digest(bytes(offered)?.try_into().ok()?))
}

/// The record of this process, and what an earlier one knew of the parts that the agent is able to report and has not
/// reported to this process yet. So a restarted operator does not blank what is about to be told again.
///
/// What failed is not filled in: the session knows whether it counts.
pub(super) fn filled(record: &AgentRecord, former: &AgentStatus) -> AgentRecord {
    let able = |capability| record.capabilities.has(capability);
    let former = recall(former);
    let mut filled = record.clone();
    if filled.description.is_none() {
        filled.description = former.description;
        if filled.custom_capabilities.is_empty() {
            filled.custom_capabilities = former.custom_capabilities;
        }
    }
    if filled.health.is_none() && able(Capability::ReportsHealth) {
        filled.health = former.health;
    }
    if filled.remote_config.is_none() && able(Capability::ReportsRemoteConfig) {
        filled.remote_config = former.remote_config;
    }
    if filled.connection_settings.is_none() && able(Capability::ReportsConnectionSettingsStatus) {
        filled.connection_settings = former.connection_settings;
    }
    if filled.effective_config.is_none() && able(Capability::ReportsEffectiveConfig) {
        filled.effective_config = former.effective_config;
    }
    if filled.available_components.is_none() && able(Capability::ReportsAvailableComponents) {
        filled.available_components = former.available_components;
    }
    filled
}

fn health(health: &HealthStatus) -> Health {
    Health {
        healthy: health.healthy,
        status: health.status.clone(),
        last_error: health.last_error.clone(),
        started_at: health.started_at.as_ref().map(|time| time.0),
        unhealthy_components: health
            .unhealthy_components
            .iter()
            .map(|component| UnhealthyComponent {
                path: component.path.clone(),
                status: component.status.clone(),
                last_error: component.last_error.clone(),
            })
            .collect(),
        unhealthy_left_out: health.unhealthy_left_out.and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
    }
}

fn remote_config(status: &AgentStatus) -> Option<OfferReport> {
    let reported = status.remote_config.as_ref()?;
    Some(OfferReport {
        hash: reported.last_reported.as_deref().map_or_else(|| Some(Vec::new()), bytes)?,
        state: reported.status.as_deref().and_then(written::read_state).unwrap_or(OfferState::Unset),
        error: reported.error.clone(),
        since: reported.since.as_ref()?.0,
    })
}

fn failed_config(status: &AgentStatus) -> Option<FailedOffer> {
    let failed = status.remote_config.as_ref()?.failed.as_ref()?;
    Some(FailedOffer { hash: bytes(&failed.hash)?, error: failed.error.clone(), at: failed.at.0 })
}

/// Since when is not told, and nobody asks.
fn connection_settings(status: &AgentStatus) -> Option<OfferReport> {
    let reported = status.connection_settings.as_ref()?;
    let state = reported.status.as_deref()?;
    Some(OfferReport {
        hash: reported.last_reported.as_deref().map_or_else(|| Some(Vec::new()), bytes)?,
        state: written::read_state(state).unwrap_or(OfferState::Unset),
        error: reported.error.clone(),
        since: Timestamp::UNIX_EPOCH,
    })
}

fn failed_connection_settings(status: &AgentStatus) -> Option<FailedOffer> {
    let failed = status.connection_settings.as_ref()?.failed.as_ref()?;
    Some(FailedOffer { hash: bytes(&failed.hash)?, error: failed.error.clone(), at: failed.at.0 })
}

fn effective_config(status: &AgentStatus) -> Option<EffectiveConfigSummary> {
    let reported = status.effective_config.as_ref()?;
    Some(EffectiveConfigSummary {
        hash: bytes(&reported.hash)?.try_into().ok()?,
        size: usize::try_from(reported.size).ok()?,
    })
}

fn available_components(status: &AgentStatus) -> Option<ComponentsSummary> {
    let reported = status.available_components.as_ref()?;
    let count = reported.count.and_then(|count| usize::try_from(count).ok());
    Some(ComponentsSummary { hash: bytes(&reported.hash)?, count })
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    written::bytes(hex).map(Vec::from)
}
