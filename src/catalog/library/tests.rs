use serde_json::{Value, json};

use super::*;
use crate::catalog::{
    credentials::{Credential, CredentialKind},
    revision::{Revision, RevisionEntry, RevisionHash},
    settings::CredentialReference,
};

fn loaded(name: &str) -> Arc<LoadedRevision> {
    let revision = Revision {
        entries: vec![RevisionEntry {
            name: name.into(),
            selector: None,
            template: crate::api::remote_config::TemplateMode::Disabled,
            format: crate::api::remote_config::ConfigFormat::Opaque,
            files: vec![],
        }],
        ..Revision::default()
    };
    Arc::new(LoadedRevision::new(revision.hash(), revision))
}

fn short(name: &str) -> String {
    loaded(name).hash().short()
}

fn fleet(version: u64, status: &Value) -> AgentFleet {
    serde_json::from_value(json!({
        "apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleet",
        "metadata": {"name": "edge", "namespace": "telemetry", "uid": "uid-1", "resourceVersion": version.to_string()},
        "spec": {"selector": {}}, "status": status,
    }))
    .unwrap()
}

fn offering(current: &str, epoch: i64) -> Value {
    json!({"currentRevision": short(current), "updateRevision": short(current),
        "rollout": {"phase": "Completed", "epoch": epoch, "threshold": "All"}})
}

fn guard(fleet: AgentFleet) -> GuardedFleet {
    DeserializeGuard(Ok(fleet))
}

fn shelve(library: &mut Library, name: &str) -> Result<(), NotTheNamedOne> {
    let key = library.missing().into_iter().find(|key| key.short_hash == short(name)).expect(name);
    library.shelve(&key, loaded(name))
}

/// Current revision and epoch of the only fleet.
fn served(library: &Library) -> Option<(RevisionHash, i64)> {
    match &library.fleets.values().next()?.entry.offering {
        Offering::NoRevision | Offering::NotLoaded => None,
        Offering::Revisions(revisions) => Some((revisions.current.as_ref()?.hash(), revisions.epoch)),
    }
}

#[test]
fn a_revision_is_asked_for_and_then_served() {
    let mut library = Library::new(&[None]);
    library.apply(0, Event::Apply(guard(fleet(1, &offering("one", 1)))));
    let missing = library.missing();
    let secret = missing.first().unwrap();
    assert_eq!(secret.secret_name(), format!("opamp-revision-uid1-{}", short("one")));
    assert_eq!(served(&library), None);
    shelve(&mut library, "one").unwrap();
    assert_eq!(served(&library), Some((loaded("one").hash(), 1)));
    assert!(library.missing().is_empty());
    assert!(library.take_changes().is_some());
    assert!(library.take_changes().is_none(), "nothing has changed since");
}

#[test]
fn the_former_revision_is_served_until_the_next_is_loaded() {
    let mut library = Library::new(&[None]);
    library.apply(0, Event::Apply(guard(fleet(1, &offering("one", 1)))));
    shelve(&mut library, "one").unwrap();
    library.apply(0, Event::Apply(guard(fleet(2, &offering("two", 2)))));
    assert_eq!(served(&library), Some((loaded("one").hash(), 1)), "the epoch does not run ahead");
    shelve(&mut library, "two").unwrap();
    assert_eq!(served(&library), Some((loaded("two").hash(), 2)));
    library.apply(0, Event::Apply(guard(fleet(3, &offering("one", 3)))));
    assert_eq!(library.missing().len(), 1, "what is no longer named was let go");
}

#[test]
fn a_changed_selector_counts_at_once() {
    let mut library = Library::new(&[None]);
    library.apply(0, Event::Apply(guard(fleet(1, &offering("one", 1)))));
    shelve(&mut library, "one").unwrap();
    let mut changed = fleet(2, &offering("two", 2));
    changed.spec.priority = 9;
    library.take_changes();
    library.apply(0, Event::Apply(guard(changed)));
    let fleets = library.take_changes().unwrap();
    assert_eq!(fleets[0].priority, 9);
    assert_eq!(served(&library), Some((loaded("one").hash(), 1)));
}

#[test]
fn counters_in_a_status_are_no_change() {
    let mut library = Library::new(&[None]);
    library.apply(0, Event::Apply(guard(fleet(1, &offering("one", 1)))));
    shelve(&mut library, "one").unwrap();
    library.take_changes();
    let mut counted = fleet(2, &offering("one", 1));
    counted.status.as_mut().unwrap().agents = Some(crate::api::agent_fleet::AgentCounts::default());
    library.apply(0, Event::Apply(guard(counted)));
    assert!(library.take_changes().is_none());
}

#[test]
fn a_revision_under_a_false_name_is_refused() {
    let mut library = Library::new(&[None]);
    let mut status = offering("one", 1);
    let forged = format!("{}{}", short("one"), "0".repeat(54));
    status["revisions"] = json!([{"hash": forged, "createdAt": "2026-01-01T00:00:00Z", "outcome": "Completed"}]);
    library.apply(0, Event::Apply(guard(fleet(1, &status))));
    let key = library.missing().pop_first().unwrap();
    assert_eq!(library.shelve(&key, loaded("other")), Err(NotTheNamedOne), "another hash");
    assert_eq!(library.shelve(&key, loaded("one")), Err(NotTheNamedOne), "another than the status has on record");
    assert_eq!(served(&library), None);
}

#[test]
fn what_is_not_listed_again_is_gone_and_only_in_its_own_scope() {
    let mut library = Library::new(&[None]);
    let mut elsewhere = fleet(1, &json!(null));
    elsewhere.metadata.namespace = Some("shop".into());
    library.apply(0, Event::Apply(guard(fleet(1, &json!(null)))));
    library.apply(1, Event::Apply(guard(elsewhere)));
    library.apply(0, Event::Init);
    library.apply(0, Event::InitDone);
    assert_eq!(library.fleets.keys().map(|key| key.namespace.as_str()).collect::<Vec<_>>(), ["shop"]);
    assert_eq!(library.scopes_listed(), 1);
    library.apply(1, Event::Init);
    library.apply(1, Event::Init);
    library.apply(1, Event::InitDone);
    assert!(library.fleets.is_empty());
    assert_eq!(library.scopes_listed(), 2);
}

#[test]
fn a_fleet_that_was_made_anew_inherits_nothing() {
    let mut library = Library::new(&[None]);
    library.apply(0, Event::Apply(guard(fleet(1, &offering("one", 1)))));
    shelve(&mut library, "one").unwrap();
    let mut anew = fleet(2, &json!(null));
    anew.metadata.uid = Some("uid-2".into());
    library.apply(0, Event::Apply(guard(anew)));
    assert_eq!(served(&library), None);
}

#[test]
fn an_object_that_cannot_be_read_leaves_the_former_state() {
    let mut library = Library::new(&[None]);
    library.apply(0, Event::Apply(guard(fleet(1, &offering("one", 1)))));
    shelve(&mut library, "one").unwrap();
    let unreadable: GuardedFleet = serde_json::from_value(json!({
        "apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleet",
        "metadata": {"name": "edge", "namespace": "telemetry"}, "spec": {"selector": 1},
    }))
    .unwrap();
    library.apply(0, Event::Init);
    library.apply(0, Event::InitApply(unreadable));
    library.apply(0, Event::InitDone);
    assert_eq!(served(&library), Some((loaded("one").hash(), 1)));
    let mut half = offering("two", 2);
    half["rollout"]["threshold"] = json!("half");
    library.apply(0, Event::Apply(guard(fleet(2, &half))));
    assert_eq!(served(&library), Some((loaded("one").hash(), 1)));
}

#[test]
fn what_is_read_outside_the_watch_never_goes_back() {
    let mut library = Library::new(&[None]);
    library.apply(0, Event::Apply(guard(fleet(5, &offering("one", 1)))));
    shelve(&mut library, "one").unwrap();
    library.reread(fleet(4, &json!(null)));
    assert_eq!(served(&library), Some((loaded("one").hash(), 1)));
    library.reread(fleet(6, &json!(null)));
    assert_eq!(served(&library), None);
}

fn credentials_of(owner: &str, version: u64, value: &'static str) -> Secret {
    let mut owner_fleet = fleet(1, &json!(null));
    owner_fleet.metadata.uid = Some(owner.into());
    let reference = CredentialReference::secret("edge-token", "header");
    let value = Credential { kind: CredentialKind::Value, value: value.into() };
    let values = BTreeMap::from([(reference.clone(), value)]);
    let mut secret = Credentials::new(owner, &values).to_secret(&owner_fleet, &BTreeSet::from([reference]));
    secret.metadata.resource_version = Some(version.to_string());
    secret
}

/// The value that the only fleet's members are offered.
fn token(library: &Library) -> Option<String> {
    let entry = &library.fleets.values().next()?.entry;
    let value = entry.credentials.as_ref()?.get(&CredentialReference::secret("edge-token", "header"))?;
    Some(String::from_utf8_lossy(value).into())
}

#[test]
fn a_fleet_has_its_own_credentials_whichever_comes_first() {
    for fleet_first in [Some(()), None] {
        let mut library = Library::new(&[None]);
        if fleet_first.is_some() {
            library.apply(0, Event::Apply(guard(fleet(1, &json!(null)))));
            library.take_changes();
        }
        library.apply_credentials(&None, Event::Apply(credentials_of("uid-1", 1, "one")));
        library.apply(0, Event::Apply(guard(fleet(2, &json!(null)))));
        assert_eq!(token(&library).as_deref(), Some("one"));
        assert!(library.take_changes().is_some());
    }
}

#[test]
fn a_rotated_value_is_a_change_and_the_same_value_is_none() {
    let mut library = Library::new(&[None]);
    library.apply(0, Event::Apply(guard(fleet(1, &json!(null)))));
    library.apply_credentials(&None, Event::Apply(credentials_of("uid-1", 1, "one")));
    library.take_changes();
    library.apply_credentials(&None, Event::Apply(credentials_of("uid-1", 2, "one")));
    assert!(library.take_changes().is_none());
    library.apply_credentials(&None, Event::Apply(credentials_of("uid-1", 3, "two")));
    assert_eq!((token(&library).as_deref(), library.take_changes().is_some()), (Some("two"), true));
}

#[test]
fn credentials_that_vanish_or_cannot_be_used_leave_the_former_ones() {
    let mut library = Library::new(&[None]);
    library.apply(0, Event::Apply(guard(fleet(1, &json!(null)))));
    library.apply_credentials(&None, Event::Apply(credentials_of("uid-1", 1, "one")));
    let mut ownerless = credentials_of("uid-1", 2, "two");
    ownerless.metadata.owner_references = None;
    library.apply_credentials(&None, Event::Apply(ownerless));
    assert_eq!(token(&library).as_deref(), Some("one"), "nobody's");
    library.apply_credentials(&None, Event::Delete(credentials_of("uid-1", 3, "one")));
    library.apply(0, Event::Apply(guard(fleet(2, &json!(null)))));
    assert_eq!(token(&library).as_deref(), Some("one"), "deleted");
    // Its name differs from the fleet's uid only beyond what names of Secrets show.
    let mut other = credentials_of("uid-1", 4, "two");
    other.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-1-of-another".into();
    library.apply_credentials(&None, Event::Apply(other));
    assert_eq!(token(&library).as_deref(), Some("one"), "another fleet's");
}
