//! What an Agent's status says: a function of what is known of the agent, and of what its status said before.
//!
//! The object stays below 4 kB for all but talkative agents: long texts are cut with a mark, lists end with a count of
//! what was left out, and conditions that are True say little. Attributes are kept whole, within what is taken at
//! receipt, because they choose the fleet after a restart.

mod connecting;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use self::connecting::{certificate, connection_settings};
use super::{
    findings::findings,
    recall::filled,
    view::{AgentView, AssignmentView, EffectiveConfigView, FleetView, GivenView, LivenessView, TextView},
};
use crate::{
    agents::written,
    api::{
        agent::{
            AgentStatus, AssignedRevision, AttributesStatus, AvailableComponentsStatus, ConnectionStatus,
            EffectiveConfigStatus, FailedConfigStatus, HealthStatus, RemoteConfigStatus, Reoffer, SecretName,
            UnhealthyComponentStatus,
        },
        condition::{ConditionType, Verdict, merge},
    },
    opamp::record::{AgentRecord, FailedOffer, Health, OfferState},
};

/// Bytes of an error that an agent reports.
const ERROR_LIMIT: usize = 200;
/// Bytes of an error that is told in a second place.
const BRIEF_LIMIT: usize = 128;
/// Bytes of a word of state, or of a place.
const WORD_LIMIT: usize = 96;
/// Components that are not well.
const COMPONENTS_LIMIT: usize = 3;
/// Custom capabilities, the mark of those left out included.
const CUSTOM_CAPABILITIES_LIMIT: usize = 16;

/// What the writer adds to a view.
#[derive(Clone, Copy, Debug)]
pub struct Stamp<'a> {
    /// The replica that claims the status.
    pub owner: &'a Owner,
    /// The claim's epoch.
    pub epoch: i64,
    /// The generation of the object's spec.
    pub generation: i64,
    /// The present.
    pub now: Timestamp,
}

/// A replica in one run of its life.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Owner {
    /// Its name.
    pub replica: String,
    /// Random, and new with each start.
    pub incarnation: String,
}

/// The status of an agent.
#[must_use]
pub fn render(view: &AgentView, previous: &AgentStatus, stamp: Stamp<'_>) -> AgentStatus {
    let record = filled(&view.record, previous);
    AgentStatus {
        observed_generation: stamp.generation,
        fleet: view.fleet().map(|fleet| fleet.name.clone()),
        connection: Some(connection(view, stamp)),
        revision: revision(&view.assignment).or_else(|| previous.revision.clone()),
        attributes: attributes(&record),
        capabilities: record.capabilities.names(),
        health: record.health.as_ref().map(health),
        remote_config: remote_config(view, &record, previous),
        effective_config: effective_config(view, &record, previous),
        connection_settings: connection_settings(view, &record, previous),
        certificate: certificate(view, previous, stamp.now),
        available_components: available_components(&record),
        custom_capabilities: capped(&record.custom_capabilities),
        reoffer: (view.reoffer_granted.map(|at| Reoffer { requested_at: Time(at) }))
            .or_else(|| previous.reoffer.clone()),
        conditions: conditions(view, &record, previous, stamp),
    }
}

fn connection(view: &AgentView, stamp: Stamp<'_>) -> ConnectionStatus {
    let connection = &view.connection;
    ConnectionStatus {
        transport: connection.transport,
        replica: stamp.owner.replica.clone(),
        incarnation: stamp.owner.incarnation.clone(),
        epoch: stamp.epoch,
        since: Time(connection.since),
        method: connection.identity.method().into(),
        identity: connection.identity.to_string(),
        remote_address: connection.remote_address.to_string(),
    }
}

/// What the agent is given; `None` where nothing is given anew, and the former stays.
fn revision(assignment: &AssignmentView) -> Option<AssignedRevision> {
    let AssignmentView::Matched(FleetView { uid, given, .. }) = assignment else { return None };
    match given {
        GivenView::NoRevision => None,
        GivenView::Offer { revision, .. } | GivenView::TemplateFailed { revision, .. } => {
            Some(AssignedRevision { hash: revision.hash.clone(), fleet_uid: uid.clone(), epoch: revision.epoch })
        }
    }
}

fn attributes(record: &AgentRecord) -> Option<AttributesStatus> {
    record.description.as_ref().map(|description| AttributesStatus {
        identifying: description.identifying.clone(),
        non_identifying: description.non_identifying.clone(),
    })
}

fn health(health: &Health) -> HealthStatus {
    let left_out = health.unhealthy_components.len().saturating_sub(COMPONENTS_LIMIT) + health.unhealthy_left_out;
    HealthStatus {
        healthy: health.healthy,
        status: cut(&health.status, WORD_LIMIT),
        started_at: health.started_at.map(Time),
        last_error: cut(&health.last_error, ERROR_LIMIT),
        unhealthy_components: health
            .unhealthy_components
            .iter()
            .take(COMPONENTS_LIMIT)
            .map(|component| UnhealthyComponentStatus {
                path: cut(&component.path, WORD_LIMIT),
                status: cut(&component.status, WORD_LIMIT),
                last_error: cut(&component.last_error, BRIEF_LIMIT),
            })
            .collect(),
        unhealthy_left_out: (left_out > 0).then(|| count(left_out)),
    }
}

fn remote_config(view: &AgentView, record: &AgentRecord, previous: &AgentStatus) -> Option<RemoteConfigStatus> {
    let former = previous.remote_config.as_ref();
    let offered = match &view.assignment {
        AssignmentView::Matched(FleetView { given: GivenView::Offer { remote_config, .. }, .. }) => {
            remote_config.map(|hash| hash.to_string())
        }
        // It keeps what it has.
        AssignmentView::Matched(FleetView {
            given: GivenView::NoRevision | GivenView::TemplateFailed { .. }, ..
        })
        | AssignmentView::Unmatched(_) => former.and_then(|former| former.offered.clone()),
    };
    let report = record.remote_config.as_ref();
    let status = RemoteConfigStatus {
        offered,
        last_reported: report.filter(|report| !report.hash.is_empty()).map(|report| written::hex(&report.hash)),
        status: report.map(|report| written::state(report.state)),
        error: report.map(|report| cut(&report.error, ERROR_LIMIT)).unwrap_or_default(),
        since: report.map(|report| Time(report.since)),
        failed: failed_config(record, former.and_then(|former| former.failed.as_ref())),
    };
    (status != RemoteConfigStatus::default()).then_some(status)
}

/// What failed stays until that very configuration is applied, also when the session has begun anew.
fn failed_config(record: &AgentRecord, former: Option<&FailedConfigStatus>) -> Option<FailedConfigStatus> {
    if let Some(FailedOffer { hash, error, at }) = &record.failed_config {
        return Some(FailedConfigStatus { hash: written::hex(hash), error: cut(error, BRIEF_LIMIT), at: Time(*at) });
    }
    let applied = record.remote_config.as_ref().filter(|report| report.state == OfferState::Applied);
    former.filter(|failed| applied.is_none_or(|report| written::hex(&report.hash) != failed.hash)).cloned()
}

fn effective_config(view: &AgentView, record: &AgentRecord, previous: &AgentStatus) -> Option<EffectiveConfigStatus> {
    let reported = record.effective_config.as_ref()?;
    let status = EffectiveConfigStatus {
        hash: written::hex(&reported.hash),
        size: count(reported.size),
        secret_ref: None,
        not_stored: None,
    };
    match &view.effective_config {
        EffectiveConfigView::None => None,
        EffectiveConfigView::Hash => Some(status),
        EffectiveConfigView::Stored(TextView::Kept { secret }) => {
            Some(EffectiveConfigStatus { secret_ref: Some(SecretName { name: (**secret).into() }), ..status })
        }
        EffectiveConfigView::Stored(TextView::Not(reason)) => {
            Some(EffectiveConfigStatus { not_stored: Some(*reason), ..status })
        }
        // The Secret of another fleet goes with that fleet.
        EffectiveConfigView::Stored(TextView::Unknown) => {
            let of_this_fleet = previous.fleet.as_ref() == view.fleet().map(|fleet| &fleet.name);
            let former = previous.effective_config.clone().filter(|former| of_this_fleet && former.hash == status.hash);
            Some(former.unwrap_or(status))
        }
    }
}

fn available_components(record: &AgentRecord) -> Option<AvailableComponentsStatus> {
    record.available_components.as_ref().map(|components| AvailableComponentsStatus {
        hash: written::hex(&components.hash),
        count: components.count.map(count),
    })
}

fn conditions(view: &AgentView, record: &AgentRecord, previous: &AgentStatus, stamp: Stamp<'_>) -> Vec<Condition> {
    let mut conditions = merge(&previous.conditions, findings(view, record), Some(stamp.generation), stamp.now);
    // An agent may have gone long before that could be written, and retention counts from here.
    if let LivenessView::Disconnected { since, .. } = view.connection.liveness {
        let connected = conditions.iter_mut().find(|condition| condition.type_ == ConditionType::Connected.as_str());
        if let Some(connected) = connected.filter(|condition| condition.status == Verdict::False.as_str()) {
            connected.last_transition_time = Time(since);
        }
    }
    conditions
}

/// At most so many bytes; what is cut off leaves a mark.
pub(super) fn cut(text: &str, limit: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= limit {
        return text.into();
    }
    format!("{}{MARK}", written::beginning(text, limit.saturating_sub(MARK.len())))
}

/// A list that is too long ends with how many were left out.
fn capped(list: &[String]) -> Vec<String> {
    let mut shown: Vec<String> = list.iter().map(|entry| cut(entry, WORD_LIMIT)).collect();
    if shown.len() > CUSTOM_CAPABILITIES_LIMIT {
        shown.truncate(CUSTOM_CAPABILITIES_LIMIT - 1);
        shown.push(format!("… {} more", list.len() - shown.len()));
    }
    shown
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
