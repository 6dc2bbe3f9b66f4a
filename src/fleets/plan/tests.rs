use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    api::{agent_fleet::AgentCounts, remote_config::RemoteConfig},
    catalog::{SecretContent, stored::INPUTS_ANNOTATION},
    revisions::{Bodies, Inputs, compile, compile::NamedSettings},
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
        settings: NamedSettings::None,
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
    credentials: Kept,
    census: Census,
    uncounted: usize,
    admission: AdmissionFaults,
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
        Self {
            fleet,
            stored: Vec::new(),
            credentials: Kept::default(),
            census: Census::default(),
            uncounted: 0,
            admission: AdmissionFaults::default(),
            policy,
        }
    }

    fn plan(&self, made: &Made, now: Timestamp) -> Plan {
        let observed = Observed {
            made,
            credentials: &self.credentials,
            stored: &self.stored,
            census: &self.census,
            uncounted: self.uncounted,
            admission: &self.admission,
            policy: &self.policy,
        };
        plan(&self.fleet, &observed, now)
    }

    fn apply(&mut self, plan: Plan) {
        let Plan { credentials: _, create, status, obsolete, events: _ } = plan;
        if let Some(secret) = create {
            let inputs = secret.annotations()[INPUTS_ANNOTATION].clone();
            let (uid, version) = (String::new(), String::new());
            self.stored.push(StoredRevision { name: secret.name_any(), uid, version, inputs });
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
        (
            "a value is missing",
            |world| world.credentials.not_ready = Some("edge".into()),
            &["Ready=False ConnectionSettingsNotReady", "Reconciling=True ConnectionSettingsNotReady"],
        ),
        (
            "a CA vouches for nobody",
            |world| world.admission.client_ca = Some("the Secret corporate does not exist".into()),
            &["Ready=False ClientCaNotUsable", "Reconciling=True ClientCaNotUsable"],
        ),
        (
            "nobody signs",
            |world| world.admission.issuer = Some("cert-manager is not installed".into()),
            &["Ready=False IssuerNotUsable", "Reconciling=True IssuerNotUsable"],
        ),
        ("open to nobody", |world| world.fleet.spec.enrollment.methods = Some(Vec::new()), &["Ready=True Completed"]),
    ] {
        let mut world = World::new();
        change(&mut world);
        world.reconcile(&offering("1"), NOON);
        assert_eq!(world.conditions(), expected, "{case}");
        assert!(world.status().current_revision.is_some(), "{case}");
    }
}

#[test]
fn what_was_wrong_with_an_issuer_goes_when_it_is_mended() {
    let mut world = World::new();
    world.reconcile(&offering("1"), NOON);
    world.admission.issuer = Some("cert-manager is not installed".into());
    assert_eq!(world.reconcile(&offering("1"), NOON), ["IssuerNotUsable"]);
    assert_eq!(world.status().conditions[0].message, "cert-manager is not installed");
    world.admission.issuer = None;
    assert_eq!(world.reconcile(&offering("1"), LATER), ["Recovered"]);
    assert_eq!(world.conditions(), ["Ready=True Completed"]);
}

#[test]
fn an_upgrade_that_writes_the_same_inputs_in_another_form_makes_no_revision() {
    let mut world = World::new();
    world.reconcile(&offering("1"), NOON);
    // As a former version would have stored it: another hash, from the same inputs.
    let former = "f".repeat(64);
    world.stored[0].name = secret_of(&world.fleet, &former);
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
    let stored: BTreeSet<_> = world.stored.iter().map(|stored| stored.name.clone()).collect();
    let expected: BTreeSet<_> = hashes(&world).iter().map(|hash| secret_of(&world.fleet, hash)).collect();
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
fn a_secret_without_its_annotations_is_still_the_revision_that_its_name_says() {
    let mut world = World::new();
    world.reconcile(&offering("1"), NOON);
    world.stored[0].inputs.clear();
    assert!(world.plan(&offering("1"), LATER).is_empty());
    assert!(world.plan(&faulty(), LATER).obsolete.is_empty());
}

#[test]
fn a_record_that_somebody_removed_does_not_take_the_revision_on_offer_along() {
    let mut world = World::new();
    world.reconcile(&offering("1"), NOON);
    world.reconcile(&offering("2"), NOON);
    world.fleet.status.as_mut().expect("a status").revisions.remove(0);
    assert_eq!(world.plan(&faulty(), LATER).obsolete, [], "it is offered still");
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
                let name = secret_of(&world.fleet, &record.hash);
                prop_assert!(world.stored.iter().any(|stored| stored.name == name));
            }
            prop_assert_eq!(world.stored.len(), status.revisions.len());
        }
    }
}
