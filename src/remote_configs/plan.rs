//! From what is observed of a RemoteConfig to what is to be written: pure.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    api::{
        condition::merge,
        reasons::{RemoteConfigReason, StandingReason, standing_findings},
        remote_config::{RemoteConfig, RemoteConfigResourceStatus},
    },
    events::{Transition, transition},
    revisions::Inspection,
    status::difference::difference,
};

/// The most fleets that a status names; the field has the same limit.
const MOST_FLEETS: usize = 64;

/// What was found out about the files.
#[derive(Clone, Debug)]
pub enum Examined {
    /// Every file was looked for.
    Inspected(Inspection),
    /// A file exists and could not be read: a sentence.
    Unreadable(String),
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

/// Plans what brings a RemoteConfig's status to what is observed; `fleets` are those that name it, in order.
///
/// While a file is missing or at fault, what is told of the files is what was last good: it is what fleets offer still.
#[must_use]
pub fn plan(remote_config: &RemoteConfig, examined: &Examined, fleets: &[String], now: Timestamp) -> Plan {
    if remote_config.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    let former = remote_config
        .status
        .clone()
        .unwrap_or_else(|| RemoteConfigResourceStatus { observed_generation: -1, ..Default::default() });
    let mut status = former.clone();
    status.observed_generation = remote_config.metadata.generation.unwrap_or_default();
    status.fleets = fleets.iter().take(MOST_FLEETS).cloned().collect();
    let reasons = match examined {
        Examined::Inspected(inspection) => {
            if let Some(hash) = inspection.hash().filter(|_| inspection.findings().is_empty()) {
                status.hash = Some(hash.to_string());
                status.size = i64::try_from(inspection.bytes()).ok();
                status.files = inspection.file_statuses();
            }
            inspection.reasons()
        }
        Examined::Unreadable(why) => vec![(RemoteConfigReason::ReferenceNotFound, why.clone())],
    };
    let findings = standing_findings(&reasons);
    status.conditions = merge(&former.conditions, findings, Some(status.observed_generation), now);
    let words: Vec<_> = RemoteConfigReason::ALL.iter().map(|reason| reason.declaration().word).collect();
    Plan {
        events: transition(&former.conditions, &status.conditions, &words).into_iter().collect(),
        status: written_difference(&former, &status),
    }
}

fn written_difference(former: &RemoteConfigResourceStatus, status: &RemoteConfigResourceStatus) -> Option<Value> {
    // A status is made of strings, numbers, lists and objects, all of which have a JSON form.
    let former = serde_json::to_value(former).ok()?;
    let status = serde_json::to_value(status).ok()?;
    difference(&former, &status)
}
