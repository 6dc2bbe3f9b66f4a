//! From what is observed of ConnectionSettings to what is to be written: pure.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    api::{
        condition::merge,
        connection_settings::{ConnectionSettings, ConnectionSettingsStatus},
        reasons::{ConnectionSettingsReason, StandingReason, standing_findings},
    },
    events::{Transition, transition},
    revisions::{credentials::Judgement, settings::Incomplete},
    status::difference::difference,
};

/// The most fleets that a status names; the field has the same limit.
const MOST_FLEETS: usize = 64;

/// What was found out about the values that the settings refer to, without these.
#[derive(Clone, Debug)]
pub struct Examined {
    reasons: Vec<(ConnectionSettingsReason, String)>,
}

impl Examined {
    /// Every value was looked for.
    #[must_use]
    pub fn judged(judgement: Judgement) -> Self {
        if judgement.faults.is_empty() {
            return Self { reasons: vec![(ConnectionSettingsReason::Valid, String::new())] };
        }
        Self { reasons: judgement.faults }
    }

    /// The spec itself does not say enough.
    #[must_use]
    pub fn incomplete(incomplete: &Incomplete) -> Self {
        Self { reasons: vec![(ConnectionSettingsReason::InvalidReference, incomplete.to_string())] }
    }
}

/// What is to be written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// A merge patch for the status.
    pub status: Option<Value>,
    /// What began.
    pub events: Vec<Transition>,
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { status, events } = self;
        status.is_none() && events.is_empty()
    }
}

/// Plans what brings the status of ConnectionSettings to what is observed; `fleets` are those that name them, in order.
#[must_use]
pub fn plan(settings: &ConnectionSettings, examined: &Examined, fleets: &[String], now: Timestamp) -> Plan {
    if settings.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    let former = settings
        .status
        .clone()
        .unwrap_or_else(|| ConnectionSettingsStatus { observed_generation: -1, ..Default::default() });
    let observed_generation = settings.metadata.generation.unwrap_or_default();
    let findings = standing_findings(&examined.reasons);
    let status = ConnectionSettingsStatus {
        observed_generation,
        fleets: fleets.iter().take(MOST_FLEETS).cloned().collect(),
        conditions: merge(&former.conditions, findings, Some(observed_generation), now),
    };
    let words: Vec<_> = ConnectionSettingsReason::ALL.iter().map(|reason| reason.declaration().word).collect();
    Plan {
        events: transition(&former.conditions, &status.conditions, &words).into_iter().collect(),
        status: written_difference(&former, &status),
    }
}

fn written_difference(former: &ConnectionSettingsStatus, status: &ConnectionSettingsStatus) -> Option<Value> {
    // A status is made of strings, numbers, lists and objects, all of which have a JSON form.
    let former = serde_json::to_value(former).ok()?;
    let status = serde_json::to_value(status).ok()?;
    difference(&former, &status)
}
