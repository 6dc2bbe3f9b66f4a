//! From what is observed of a fleet to what is to be written: pure.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::Time};
use serde_json::Value;

use super::census::{Census, Given};
use crate::{
    api::{
        agent_fleet::{
            AgentFleet, AgentFleetStatus, EnrollmentMethod, RevisionOutcome, RevisionRecord, RolloutPhase,
            RolloutStatus,
        },
        condition::merge,
        reasons::{FleetReason, StandingReason, standing_findings},
    },
    catalog::{Policy, Threshold},
    events::{Severity, Transition, transition},
    revisions::{Compiled, inputs::StoredRevision},
    status::difference::difference,
};

/// How many digits of a revision's hash are shown in place of the whole.
const SHORT: usize = 10;

/// The reason of the event that a new revision is offered.
const REVISION_CREATED: &str = "RevisionCreated";

/// What became of the inputs of a fleet.
#[derive(Clone, Debug)]
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
    /// The Secrets of its revisions that exist.
    pub stored: &'a [StoredRevision],
    /// Its counters.
    pub census: &'a Census,
    /// Its members that are served without an object, because there are too many.
    pub uncounted: usize,
    /// What the operator as a whole permits.
    pub policy: &'a Policy,
}

/// What is to be written, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
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
        let Self { create, status, obsolete, events } = self;
        create.is_none() && status.is_none() && obsolete.is_empty() && events.is_empty()
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
    let target = target(&former, observed);
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
        create: target.and_then(|target| missing_secret(fleet, &target, observed)),
        status: written_difference(&former, &status),
        obsolete: obsolete(&status, observed.stored),
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
fn target(status: &AgentFleetStatus, observed: &Observed<'_>) -> Option<String> {
    let Made::Revision(Compiled { revision, inputs }) = observed.made else { return None };
    let inputs = inputs.to_string();
    let offered = status.revisions.first().map(|record| &record.hash);
    let unmoved = observed.stored.iter().find(|stored| Some(&stored.hash) == offered && stored.inputs == inputs);
    Some(unmoved.map_or_else(|| revision.hash().to_string(), |stored| stored.hash.clone()))
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
    let Made::Revision(Compiled { revision, inputs }) = observed.made else { return None };
    let missing = revision.hash().to_string() == target && observed.stored.iter().all(|stored| stored.hash != target);
    missing.then(|| revision.to_secret(fleet, *inputs))
}

/// The Secrets that the status does not name. A status without any revision says nothing about them: it may have been
/// emptied by a person while the inputs are broken, and the last good revision must not go with it.
fn obsolete(status: &AgentFleetStatus, stored: &[StoredRevision]) -> Vec<StoredRevision> {
    if status.revisions.is_empty() {
        return Vec::new();
    }
    let named = |stored: &StoredRevision| status.revisions.iter().any(|record| record.hash == stored.hash);
    stored.iter().filter(|stored| !named(stored)).cloned().collect()
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
    let anonymous = fleet.spec.enrollment.methods.contains(&EnrollmentMethod::Anonymous);
    let namespace = fleet.metadata.namespace.as_deref().unwrap_or_default();
    if anonymous && !observed.policy.anonymous.permit(namespace) {
        let message = "the operator does not permit the method Anonymous in this namespace";
        reasons.push((FleetReason::AnonymousNotAllowed, message.into()));
    }
    if observed.uncounted > 0 {
        let message = format!("{} members are served without an Agent object", observed.uncounted);
        reasons.push((FleetReason::ObjectCapReached, message));
    }
    if let Some(revision) = status.current_revision.as_ref().filter(|_| reasons.is_empty()) {
        reasons.push((FleetReason::Completed, format!("revision {revision} is offered to all members")));
    }
    reasons
}

fn written_difference(former: &AgentFleetStatus, status: &AgentFleetStatus) -> Option<Value> {
    // A status is made of strings, numbers, lists and objects, all of which have a JSON form.
    let former = serde_json::to_value(former).ok()?;
    let status = serde_json::to_value(status).ok()?;
    difference(&former, &status)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use kube::ResourceExt;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{
        api::{agent_fleet::AgentCounts, remote_config::RemoteConfig},
        catalog::{
            SecretContent,
            stored::{HASH_ANNOTATION, INPUTS_ANNOTATION},
        },
        revisions::{Bodies, Inputs, compile},
    };

    const NOON: Timestamp = Timestamp::constant(1_800_000_000, 0);
    const LATER: Timestamp = Timestamp::constant(1_800_000_600, 0);

    /// What became of a fleet with one file of this body.
    fn offering(body: &str) -> Made {
        let spec = serde_json::from_value(json!({"files": [{"name": "x", "body": body}]})).expect("a spec");
        let remote_configs = BTreeMap::from([("base".to_owned(), Arc::new(RemoteConfig::new("base", spec)))]);
        let entries = [serde_json::from_value(json!({"name": "base"})).expect("an entry")];
        let bodies = Bodies::new();
        let inputs = Inputs {
            entries: &entries,
            remote_configs: &remote_configs,
            bodies: &bodies,
            secrets: SecretContent::Offered,
        };
        Made::Revision(compile(&inputs).expect("a revision"))
    }

    fn faulty() -> Made {
        Made::Faulty(vec![(FleetReason::FileNameClash, "the file \"x\" twice".into())])
    }

    /// The API server, as far as one fleet is concerned.
    struct World {
        fleet: AgentFleet,
        stored: Vec<StoredRevision>,
        census: Census,
        uncounted: usize,
        policy: Policy,
    }

    impl World {
        fn new() -> Self {
            let spec = json!({"selector": {}, "enrollment": {"methods": ["Anonymous"]}, "revisionHistoryLimit": 2});
            let mut fleet = AgentFleet::new("edge", serde_json::from_value(spec).expect("a spec"));
            fleet.metadata.namespace = Some("telemetry".into());
            fleet.metadata.uid = Some("0c1d2e3f-0000-0000-0000-000000000000".into());
            fleet.metadata.generation = Some(1);
            fleet.status = Some(serde_json::from_value(json!({"observedGeneration": -1})).expect("a status"));
            let policy =
                Policy { anonymous: ["telemetry".to_owned()].into_iter().collect(), secrets: SecretContent::Offered };
            Self { fleet, stored: Vec::new(), census: Census::default(), uncounted: 0, policy }
        }

        fn plan(&self, made: &Made, now: Timestamp) -> Plan {
            let observed = Observed {
                made,
                stored: &self.stored,
                census: &self.census,
                uncounted: self.uncounted,
                policy: &self.policy,
            };
            plan(&self.fleet, &observed, now)
        }

        fn apply(&mut self, plan: Plan) {
            let Plan { create, status, obsolete, events: _ } = plan;
            if let Some(secret) = create {
                let annotation = |name| secret.annotations().get(name).cloned().unwrap_or_default();
                let (hash, inputs) = (annotation(HASH_ANNOTATION), annotation(INPUTS_ANNOTATION));
                let (uid, version) = (String::new(), String::new());
                self.stored.push(StoredRevision { name: secret.name_any(), uid, version, hash, inputs });
            }
            if let Some(status) = status {
                let mut merged = serde_json::to_value(&self.fleet.status).expect("JSON");
                merge_patch(&mut merged, &status);
                self.fleet.status = Some(serde_json::from_value(merged).expect("a status"));
            }
            self.stored.retain(|stored| !obsolete.contains(stored));
        }

        /// Plans and applies; gives the reasons of the events.
        fn reconcile(&mut self, made: &Made, now: Timestamp) -> Vec<&'static str> {
            let plan = self.plan(made, now);
            let events = plan.events.iter().map(|event| event.reason).collect();
            self.apply(plan);
            assert_eq!(self.plan(made, now + jiff::SignedDuration::from_secs(9)), Plan::default(), "once is enough");
            events
        }

        fn status(&self) -> AgentFleetStatus {
            self.fleet.status.clone().expect("a status")
        }

        fn conditions(&self) -> Vec<String> {
            let conditions = self.status().conditions;
            conditions.iter().map(|it| format!("{}={} {}", it.type_, it.status, it.reason)).collect()
        }
    }

    /// The algorithm of RFC 7386 section 2.
    fn merge_patch(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        for (key, value) in patch {
            if value.is_null() {
                target.as_object_mut().expect("an object").remove(key);
            } else {
                merge_patch(&mut target[key], value);
            }
        }
    }

    fn hash_of(made: &Made) -> String {
        let Made::Revision(Compiled { revision, .. }) = made else { panic!("no revision") };
        revision.hash().to_string()
    }

    #[test]
    fn a_new_revision_is_for_all_at_once_and_stored_before_it_is_named() {
        let mut world = World::new();
        let first = offering("1");
        let plan = world.plan(&first, NOON);
        assert!(plan.create.is_some() && plan.status.is_some());
        assert_eq!(world.reconcile(&first, NOON), ["RevisionCreated"]);
        let status = world.status();
        let short = hash_of(&first)[..10].to_owned();
        assert_eq!((status.current_revision, status.update_revision), (Some(short.clone()), Some(short)));
        let rollout = status.rollout.expect("a rollout");
        assert_eq!((rollout.phase, rollout.epoch, rollout.threshold.as_str()), (RolloutPhase::Completed, 1, "All"));
        assert_eq!(status.observed_generation, 1);
        assert_eq!(world.conditions(), ["Ready=True Completed"]);
        assert_eq!(world.reconcile(&offering("2"), LATER), ["RevisionCreated"]);
        assert_eq!(world.status().rollout.map(|rollout| rollout.epoch), Some(2));
    }

    #[test]
    fn nobody_is_up_to_date_with_a_revision_that_was_just_made() {
        let mut world = World::new();
        world.reconcile(&offering("1"), NOON);
        world.census = Census {
            counts: AgentCounts { matched: 20, connected: 20, up_to_date: 20, ..AgentCounts::default() },
            failures: Vec::new(),
            given: Some(Given::by(&world.fleet)),
        };
        world.reconcile(&offering("1"), NOON);
        assert_eq!(world.status().agents.map(|agents| agents.up_to_date), Some(20));
        world.reconcile(&offering("2"), LATER);
        let agents = world.status().agents.expect("counters");
        assert_eq!((agents.matched, agents.up_to_date), (20, 0), "until they are counted anew");
    }

    #[test]
    fn the_same_content_again_changes_nothing_but_what_was_observed() {
        let mut world = World::new();
        world.reconcile(&offering("1"), NOON);
        assert!(world.plan(&offering("1"), LATER).is_empty());
        world.fleet.metadata.generation = Some(2);
        let plan = world.plan(&offering("1"), LATER);
        assert_eq!((plan.create, plan.events.len()), (None, 0));
        let patch = plan.status.expect("a patch");
        let fields: Vec<_> = patch.as_object().expect("an object").keys().collect();
        assert_eq!(fields, ["conditions", "observedGeneration"]);
    }

    #[test]
    fn whatever_is_wrong_the_last_good_revision_stays() {
        let mut world = World::new();
        assert_eq!(world.reconcile(&faulty(), NOON), ["FileNameClash"]);
        assert_eq!((world.status().current_revision, world.stored.len()), (None, 0));
        world.reconcile(&offering("1"), NOON);
        world.fleet.metadata.generation = Some(2);
        assert_eq!(world.reconcile(&faulty(), LATER), ["FileNameClash"]);
        let status = world.status();
        assert_eq!(status.current_revision.as_deref(), Some(&hash_of(&offering("1"))[..10]));
        assert_eq!((status.observed_generation, world.stored.len()), (2, 1));
        assert_eq!(world.conditions(), ["Ready=False FileNameClash", "Stalled=True FileNameClash"]);
        let ready = &status.conditions[0];
        assert!(ready.message.starts_with("the file \"x\" twice; revision "), "{}", ready.message);
        assert_eq!(ready.observed_generation, Some(2));
        assert_eq!(world.reconcile(&offering("1"), LATER), ["Recovered"]);
        assert_eq!(world.status().rollout.map(|rollout| rollout.epoch), Some(1), "the agents were left in peace");
    }

    #[test]
    fn what_else_is_wrong_shows_without_holding_a_revision_back() {
        for (case, change, expected) in [
            (
                "not permitted here",
                (|world| world.policy = Policy::default()) as fn(&mut World),
                &["Ready=False AnonymousNotAllowed", "Stalled=True AnonymousNotAllowed"][..],
            ),
            ("too many objects", |world| world.uncounted = 3, &["Ready=False ObjectCapReached"]),
            ("open to nobody", |world| world.fleet.spec.enrollment.methods.clear(), &["Ready=True Completed"]),
        ] {
            let mut world = World::new();
            change(&mut world);
            world.reconcile(&offering("1"), NOON);
            assert_eq!(world.conditions(), expected, "{case}");
            assert!(world.status().current_revision.is_some(), "{case}");
        }
    }

    #[test]
    fn an_upgrade_that_writes_the_same_inputs_in_another_form_makes_no_revision() {
        let mut world = World::new();
        world.reconcile(&offering("1"), NOON);
        // As a former version would have stored it: another hash, from the same inputs.
        let former = "f".repeat(64);
        world.stored[0].hash.clone_from(&former);
        let mut status = world.status();
        status.revisions[0].hash.clone_from(&former);
        status.current_revision = Some(former[..10].into());
        status.update_revision = status.current_revision.clone();
        world.fleet.status = Some(status);
        let plan = world.plan(&offering("1"), LATER);
        assert_eq!((plan.create, plan.obsolete, plan.events), (None, vec![], vec![]));
        assert_eq!(world.reconcile(&offering("2"), LATER), ["RevisionCreated"]);
    }

    #[test]
    fn history_keeps_what_was_asked_for_and_always_what_is_offered() {
        let mut world = World::new();
        for body in ["1", "2", "3", "4"] {
            world.reconcile(&offering(body), NOON);
        }
        let hashes = |world: &World| world.status().revisions.into_iter().map(|it| it.hash).collect::<Vec<_>>();
        assert_eq!(hashes(&world), [hash_of(&offering("4")), hash_of(&offering("3")), hash_of(&offering("2"))]);
        let mut stored: Vec<_> = world.stored.iter().map(|stored| stored.hash.clone()).collect();
        stored.sort();
        let mut expected = hashes(&world);
        expected.sort();
        assert_eq!(stored, expected);
        world.reconcile(&offering("2"), LATER);
        assert_eq!(hashes(&world), [hash_of(&offering("2")), hash_of(&offering("4")), hash_of(&offering("3"))]);
        assert_eq!(world.status().revisions[0].created_at, Time(NOON), "it was not made a second time");
        world.fleet.spec.revision_history_limit = 0;
        world.reconcile(&offering("2"), LATER);
        assert_eq!((hashes(&world), world.stored.len()), (vec![hash_of(&offering("2"))], 1));
    }

    #[test]
    fn a_revision_that_somebody_deleted_is_written_again() {
        let mut world = World::new();
        world.reconcile(&offering("1"), NOON);
        world.stored.clear();
        let plan = world.plan(&offering("1"), LATER);
        assert!(plan.create.is_some() && plan.status.is_none());
        assert!(world.plan(&faulty(), LATER).create.is_none());
    }

    #[test]
    fn a_status_that_somebody_emptied_costs_no_revision() {
        let mut world = World::new();
        world.reconcile(&offering("1"), NOON);
        world.fleet.status = World::new().fleet.status;
        assert_eq!(world.plan(&faulty(), LATER).obsolete, []);
    }

    #[test]
    fn a_fleet_that_is_being_deleted_is_left_alone() {
        let mut world = World::new();
        world.fleet.metadata.deletion_timestamp = Some(Time(NOON));
        assert!(world.plan(&offering("1"), NOON).is_empty());
    }

    proptest! {
        /// Whatever happens to a fleet, one plan is enough, and what is offered exists.
        #[test]
        fn a_plan_made_after_a_plan_was_applied_is_empty(
            steps in prop::collection::vec((0..4_u8, 0..3_i64, 0..3_i32, 0..3_usize), 1..12)
        ) {
            let mut world = World::new();
            for (step, (body, matched, limit, uncounted)) in steps.into_iter().enumerate() {
                let made = if body == 0 { faulty() } else { offering(&body.to_string()) };
                world.census.counts = AgentCounts { matched, ..AgentCounts::default() };
                world.fleet.spec.revision_history_limit = limit;
                world.uncounted = uncounted;
                let epoch = world.status().rollout.map_or(0, |rollout| rollout.epoch);
                let now = NOON + jiff::SignedDuration::from_mins(i64::try_from(step).unwrap_or_default());
                world.reconcile(&made, now);
                let status = world.status();
                prop_assert!(status.rollout.map_or(0, |rollout| rollout.epoch) >= epoch);
                prop_assert!(status.revisions.len() <= usize::try_from(limit).unwrap_or_default() + 1);
                for record in &status.revisions {
                    prop_assert!(world.stored.iter().any(|stored| stored.hash == record.hash));
                }
                prop_assert_eq!(world.stored.len(), status.revisions.len());
            }
        }
    }
}
