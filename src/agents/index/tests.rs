use serde_json::{Value, json};

use super::{
    super::summary::tests::{UID, observed},
    *,
};

const OTHER: &str = "01900000-0000-7000-8000-000000000002";

impl AgentIndex {
    /// An index of all namespaces that has listed these Agents and watches nothing.
    pub(crate) fn holding(agents: impl IntoIterator<Item = Value>) -> Self {
        let index = Self::new(&Scope::All);
        index.relist(agents);
        index
    }

    /// As if the watch had listed these, and no others.
    pub(crate) fn relist(&self, agents: impl IntoIterator<Item = Value>) {
        self.take(0, Event::Init);
        for agent in agents {
            self.take(0, Event::InitApply(serde_json::from_value(agent).expect("an Agent")));
        }
        self.take(0, Event::InitDone);
    }
}

fn at(version: &str, mut agent: ObservedAgent) -> ObservedAgent {
    agent.metadata.resource_version = Some(version.into());
    agent
}

fn uid(name: &str) -> InstanceUid {
    InstanceUid::from_name(name).expect("a uid")
}

fn in_all_namespaces() -> Known {
    Known::new(&Scope::All)
}

#[test]
fn what_is_not_listed_any_more_is_gone() {
    let mut known = in_all_namespaces();
    for name in [UID, OTHER] {
        known.take(0, Event::Apply(observed(name, "telemetry", &json!({}))), clock());
    }
    known.take(0, Event::Init, clock());
    known.take(0, Event::InitApply(observed(OTHER, "telemetry", &json!({}))), clock());
    known.take(0, Event::Init, clock());
    known.take(0, Event::InitApply(observed(UID, "telemetry", &json!({}))), clock());
    assert_eq!(known.agents.len(), 2, "nothing is gone before the list is complete");
    assert!(!known.is_synced());
    let changes = known.take(0, Event::InitDone, clock());
    assert!(known.is_synced());
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].before.as_ref().map(|before| before.uid), Some(uid(OTHER)));
    assert!(changes[0].after.is_none());
    assert_eq!(known.counts.get("telemetry"), Some(&Counts { agents: 1, ..Counts::default() }));
}

#[test]
fn a_listing_speaks_for_its_own_namespace_only() {
    let scope = Scope::new(["telemetry".to_owned()], "opamp-system");
    let mut known = Known::new(&scope);
    known.take(0, Event::Apply(observed(UID, "opamp-system", &json!({}))), clock());
    known.take(1, Event::Apply(observed(UID, "telemetry", &json!({}))), clock());
    assert_eq!(known.of(uid(UID)).len(), 2, "one agent with an object in each");
    known.take(1, Event::Init, clock());
    known.take(1, Event::InitDone, clock());
    assert!(!known.is_synced(), "the other namespace has not been listed");
    let left: Vec<_> = known.of(uid(UID)).iter().map(|summary| summary.namespace.to_string()).collect();
    assert_eq!(left, ["opamp-system"]);
}

#[test]
fn whoever_is_revoked_and_deleted_counts_as_revoked_for_a_minute() {
    let (mut known, start) = (in_all_namespaces(), clock());
    let with = |version: &str, access: &str| {
        let agent = at(version, observed(UID, "telemetry", &json!({})));
        let spec = serde_json::from_value(json!({"access": access})).expect("a spec");
        ObservedAgent { spec, ..agent }
    };
    let count = |known: &Known, seconds| known.lately_revoked(start + Duration::from_secs(seconds)).count();
    for (case, last, expected) in [("denied", "Denied", 0), ("revoked, and the watch shows no more", "Revoked", 1)] {
        known.take(0, Event::Apply(with("18", "Approved")), start);
        let changes = known.take(0, Event::Delete(with("19", last)), start);
        assert_eq!((changes.len(), count(&known, 59), count(&known, 60)), (1, expected, 0), "{case}");
    }
    known.take(0, Event::Apply(with("20", "Revoked")), start);
    known.take(0, Event::Init, start);
    known.take(0, Event::InitDone, start + Duration::from_secs(70));
    assert_eq!((count(&known, 129), count(&known, 130)), (1, 0), "a new list does not show it");
    assert!(known.of(uid(UID)).is_empty());
}

#[test]
fn the_same_object_again_is_no_change() {
    let mut known = in_all_namespaces();
    assert_eq!(known.take(0, Event::Apply(observed(UID, "telemetry", &json!({}))), clock()).len(), 1);
    assert_eq!(known.take(0, Event::Apply(observed(UID, "telemetry", &json!({}))), clock()).len(), 0);
    let changes = known.take(0, Event::Apply(at("18", observed(UID, "telemetry", &json!({"fleet": "edge"})))), clock());
    let change = &changes[0];
    assert_eq!(change.before.as_ref().and_then(|before| before.fleet.clone()), None);
    assert_eq!(change.after.as_ref().and_then(|after| after.fleet.as_deref()), Some("edge"));
}

#[test]
fn counts_follow_labels_and_deletions() {
    let mut known = in_all_namespaces();
    let mut stray = observed(UID, "opamp-system", &json!({}));
    stray.metadata.labels = None;
    known.take(0, Event::Apply(stray.clone()), clock());
    assert_eq!(known.counts.get("opamp-system"), Some(&Counts { agents: 1, never_matched: 1, pending: 0 }));
    known.take(0, Event::Apply(at("18", observed(UID, "opamp-system", &json!({})))), clock());
    assert_eq!(known.counts.get("opamp-system"), Some(&Counts { agents: 1, ..Counts::default() }));
    known.take(0, Event::Delete(stray.clone()), clock());
    known.take(0, Event::Delete(stray), clock());
    assert_eq!(known.counts.get("opamp-system"), None);
}

#[tokio::test]
async fn listeners_hear_each_change_and_when_the_list_is_complete() {
    let index = AgentIndex::new(&Scope::All);
    let mut changes = index.changes();
    let generation = index.generation();
    assert!(!index.is_synced());
    index.relist([serde_json::to_value(observed(UID, "telemetry", &json!({}))).expect("JSON")]);
    index.synced().await;
    assert_eq!(*generation.borrow(), 1);
    assert_eq!(changes.recv().await.expect("a change").after.map(|after| after.uid), Some(uid(UID)));
    assert_eq!((index.total(), index.counts("telemetry").agents, index.get(&uid(OTHER)).len()), (1, 1, 0));
}

/// Ten thousand of these have to stay below 13 MB, each with a certificate, connection settings and the allocator's
/// overhead.
#[test]
fn a_summary_is_small() {
    const ALLOCATION: usize = 16;
    let hash = "ab".repeat(32);
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "SessionOpen", "message": "",
        "lastTransitionTime": "2026-11-29T12:40:00Z"})
    };
    let status = json!({
        "fleet": "edge",
        "connection": {"replica": "opamp-1", "incarnation": "ab12", "epoch": 4, "since": "2026-11-29T12:30:00Z",
            "identity": format!("certificate:telemetry/edge/{UID}")},
        "certificate": {"serial": "ab".repeat(16), "notAfter": "2026-12-06T12:00:00Z",
            "inUseSince": "2026-11-29T12:30:00Z"},
        "connectionSettings": {"offered": hash, "lastReported": hash, "status": "Applied"},
        "revision": {"hash": "3f9a1c2b07", "fleetUID": "fleet-uid", "epoch": 9},
        "remoteConfig": {"offered": hash, "lastReported": hash, "status": "Applied"},
        "conditions": [condition("Matched"), condition("Connected"), condition("Healthy"), condition("ConfigApplied")],
    });
    let summary = summarise(observed(UID, "telemetry", &status), &mut Interner::default()).expect("a summary");
    let settings = summary.connection_settings.as_deref().expect("settings");
    let boxed = [
        summary.offered.as_deref(),
        summary.last_reported.as_deref(),
        summary.failed.as_deref(),
        settings.last_reported.as_deref(),
    ];
    let heap =
        boxed.into_iter().flatten().map(|bytes| bytes.len() + ALLOCATION).sum::<usize>() + 36 + 10 + 2 * ALLOCATION; // the object's uid, and a resourceVersion of ten digits
    let certificate = summary.certificate.as_deref().expect("a certificate");
    let credentials = summary.identity.as_deref().map_or(0, str::len)
        + size_of_val(certificate)
        + certificate.serial.len()
        + 2 * size_of::<usize>() // counts of the shared identity
        + 3 * ALLOCATION;
    let key_and_node = 2 * (size_of::<Key>() + size_of::<Arc<AgentSummary>>()); // B-tree nodes are half empty at worst
    let credentials = credentials + size_of_val(settings) + ALLOCATION;
    let total = size_of::<AgentSummary>() + ALLOCATION + ALLOCATION + heap + credentials + key_and_node;
    assert!(total <= 1_250, "{total} bytes");
}
