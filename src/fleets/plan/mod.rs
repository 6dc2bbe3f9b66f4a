//! From what is observed of a fleet to what is to be written: pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::Time};
use serde_json::Value;

use super::{
    census::{Census, Given},
    credentials::{Change, Kept},
};
use crate::{
    api::{
        agent_fleet::{AgentFleet, AgentFleetStatus, RevisionOutcome, RevisionRecord, RolloutPhase, RolloutStatus},
        condition::merge,
        enrollment::EnrollmentMethod,
        reasons::{FleetReason, StandingReason, standing_findings},
    },
    catalog::{Policy, Threshold, stored::revision_secret_name},
    events::{Severity, Transition, transition},
    revisions::{Compiled, compile::not_ready, inputs::StoredRevision},
    status::difference::written_difference,
};

/// How many digits of a revision's hash are shown in place of the whole.
const SHORT: usize = 10;

/// The reason of the event that a new revision is offered.
const REVISION_CREATED: &str = "RevisionCreated";

/// What became of the inputs of a fleet.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each fleet")]
pub enum Made {
    /// A revision.
    Revision(Compiled),
    /// No revision, for these reasons, most important first.
    Faulty(Vec<(FleetReason, String)>),
}

/// What is known beside the fleet itself.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    /// What became of its inputs.
    pub made: &'a Made,
    /// The state of the values that its members are offered.
    pub credentials: &'a Kept,
    /// The Secrets of its revisions that exist.
    pub stored: &'a [StoredRevision],
    /// Its counters.
    pub census: &'a Census,
    /// Its members that are served without an object, because there are too many.
    pub uncounted: usize,
    /// What is wrong with who vouches for its members, and who signs for them.
    pub admission: &'a AdmissionFaults,
    /// What the operator as a whole permits.
    pub policy: &'a Policy,
}

/// What people must mend before all ways into a fleet are open and its members get certificates, in words for a condition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionFaults {
    /// A Secret with CAs of clients cannot be used.
    pub client_ca: Option<String>,
    /// The issuer of certificates cannot issue.
    pub issuer: Option<String>,
}

/// What is to be written, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The Secret with credentials: it must hold a value before anything refers to that, and is deleted last.
    pub credentials: Change,
    /// A revision's Secret: it must exist before the status names it.
    pub create: Option<Secret>,
    /// A merge patch for the status.
    pub status: Option<Value>,
    /// Revisions' Secrets that the status no longer names.
    pub obsolete: Vec<StoredRevision>,
    /// What began.
    pub events: Vec<Transition>,
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { credentials, create, status, obsolete, events } = self;
        *credentials == Change::Nothing
            && create.is_none()
            && status.is_none()
            && obsolete.is_empty()
            && events.is_empty()
    }
}

/// Plans what brings a fleet's status to what is observed.
///
/// Without rollout steps a new revision is for all members at once: one patch moves `currentRevision` and
/// `updateRevision` together. Whatever is wrong with the inputs, the revision that is offered stays.
#[must_use]
pub fn plan(fleet: &AgentFleet, observed: &Observed<'_>, now: Timestamp) -> Plan {
    if fleet.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    let former =
        fleet.status.clone().unwrap_or_else(|| AgentFleetStatus { observed_generation: -1, ..Default::default() });
    let mut status = former.clone();
    let mut events = Vec::new();
    let target = target(fleet, &former, observed);
    if let Some(target) = target.as_ref().filter(|target| !is_offered(&former, target)) {
        offer(&mut status, target, now);
        events.push(Transition {
            severity: Severity::Normal,
            reason: REVISION_CREATED,
            note: format!("revision {} is offered to all members", short(target)),
        });
    }
    keep_history(&mut status, fleet.spec.revision_history_limit);
    status.observed_generation = fleet.metadata.generation.unwrap_or_default();
    let Census { counts, failures, given: _ } = observed.census.measured_by(&Given::in_status(fleet, &status));
    status.agents = Some(counts);
    status.failures = failures;
    let findings = standing_findings(&reasons(fleet, observed, &status));
    status.conditions = merge(&former.conditions, findings, Some(status.observed_generation), now);
    events.extend(transition(&former.conditions, &status.conditions, &words()));
    Plan {
        credentials: observed.credentials.change.clone(),
        create: target.and_then(|target| missing_secret(fleet, &target, observed)),
        status: written_difference(&former, &status),
        obsolete: obsolete(fleet, &status, observed.stored),
        events,
    }
}

fn words() -> Vec<&'static str> {
    FleetReason::ALL.iter().map(|reason| reason.declaration().word).collect()
}

fn short(hash: &str) -> &str {
    hash.get(..SHORT).unwrap_or(hash)
}

/// The whole hash of the revision that the fleet is to offer; `None` if the inputs give none.
///
/// A stored revision that was made from the same inputs stays, even if this version of the operator would write it in
/// another form: an upgrade is no reason to touch ten thousand agents.
fn target(fleet: &AgentFleet, status: &AgentFleetStatus, observed: &Observed<'_>) -> Option<String> {
    let Made::Revision(Compiled { revision, inputs, settings: _ }) = observed.made else { return None };
    let inputs = inputs.to_string();
    let offered = status.revisions.first().map(|record| &record.hash).filter(|hash| {
        let name = secret_of(fleet, hash);
        observed.stored.iter().any(|stored| stored.name == name && stored.inputs == inputs)
    });
    Some(offered.cloned().unwrap_or_else(|| revision.hash().to_string()))
}

fn is_offered(status: &AgentFleetStatus, target: &str) -> bool {
    let named = |revision: &Option<String>| revision.as_deref() == Some(short(target));
    named(&status.current_revision)
        && named(&status.update_revision)
        && status.rollout.is_some()
        && status.revisions.first().is_some_and(|record| record.hash == target)
}

fn offer(status: &mut AgentFleetStatus, target: &str, now: Timestamp) {
    let known = status.revisions.iter().position(|record| record.hash == target);
    let created_at = known.map_or(Time(now), |place| status.revisions.remove(place).created_at);
    let record = RevisionRecord { hash: target.into(), created_at, outcome: RevisionOutcome::Completed };
    status.revisions.insert(0, record);
    status.current_revision = Some(short(target).into());
    status.update_revision = Some(short(target).into());
    let epoch = status.rollout.as_ref().map_or(0, |rollout| rollout.epoch);
    status.rollout = Some(RolloutStatus {
        phase: RolloutPhase::Completed,
        epoch: epoch.saturating_add(1),
        threshold: Threshold::All.to_string(),
    });
}

/// The revision on offer is the first and is never dropped.
fn keep_history(status: &mut AgentFleetStatus, limit: i32) {
    status.revisions.truncate(usize::try_from(limit).unwrap_or_default().saturating_add(1));
}

/// The target's Secret, if it is to be made, or was deleted and can be made again.
fn missing_secret(fleet: &AgentFleet, target: &str, observed: &Observed<'_>) -> Option<Secret> {
    let Made::Revision(Compiled { revision, inputs, settings: _ }) = observed.made else { return None };
    let name = secret_of(fleet, target);
    let missing = revision.hash().to_string() == target && observed.stored.iter().all(|stored| stored.name != name);
    missing.then(|| revision.to_secret(fleet, *inputs))
}

/// The name of the Secret that holds a revision of this fleet; its hash may be the whole or the short one.
fn secret_of(fleet: &AgentFleet, hash: &str) -> String {
    revision_secret_name(fleet.metadata.uid.as_deref().unwrap_or_default(), short(hash))
}

/// The Secrets that the status does not name. A status without any revision says nothing about them: it may have been
/// emptied by a person while the inputs are broken, and the last good revision must not go with it.
fn obsolete(fleet: &AgentFleet, status: &AgentFleetStatus, stored: &[StoredRevision]) -> Vec<StoredRevision> {
    if status.revisions.is_empty() {
        return Vec::new();
    }
    let recorded = status.revisions.iter().map(|record| &record.hash);
    let offered = status.current_revision.iter().chain(&status.update_revision);
    let named: BTreeSet<String> = recorded.chain(offered).map(|hash| secret_of(fleet, hash)).collect();
    stored.iter().filter(|stored| !named.contains(&stored.name)).cloned().collect()
}

/// Everything that is to be said of the fleet, most important first.
fn reasons(fleet: &AgentFleet, observed: &Observed<'_>, status: &AgentFleetStatus) -> Vec<(FleetReason, String)> {
    let mut reasons = match observed.made {
        Made::Faulty(faults) => faults.clone(),
        Made::Revision(_) => Vec::new(),
    };
    if let (Some((_, message)), Some(revision)) = (reasons.first_mut(), &status.current_revision) {
        *message = format!("{message}; revision {revision} stays on offer");
    }
    if let Some(name) = &observed.credentials.not_ready {
        reasons.push((FleetReason::ConnectionSettingsNotReady, not_ready(name)));
    }
    let anonymous = fleet.spec.enrollment.methods().contains(&EnrollmentMethod::Anonymous);
    let namespace = fleet.metadata.namespace.as_deref().unwrap_or_default();
    if anonymous && !observed.policy.anonymous.permit(namespace) {
        let message = "the operator does not permit the method Anonymous in this namespace; \
                       take it out of spec.enrollment.methods, or start the operator with the namespace in --anonymous-namespaces";
        reasons.push((FleetReason::AnonymousNotAllowed, message.into()));
    }
    let AdmissionFaults { client_ca, issuer } = observed.admission;
    reasons.extend(client_ca.iter().map(|why| (FleetReason::ClientCaNotUsable, why.clone())));
    reasons.extend(issuer.iter().map(|why| (FleetReason::IssuerNotUsable, why.clone())));
    if observed.uncounted > 0 {
        let message = format!("{} members are served without an Agent object", observed.uncounted);
        reasons.push((FleetReason::ObjectCapReached, message));
    }
    if let Some(revision) = status.current_revision.as_ref().filter(|_| reasons.is_empty()) {
        reasons.push((FleetReason::Completed, format!("revision {revision} is offered to all members")));
    }
    reasons
}

#[cfg(test)]
mod tests;
