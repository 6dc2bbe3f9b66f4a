use serde_json::{Value, json};

use super::*;

pub(in crate::agents) const UID: &str = "01900000-0000-7000-8000-000000000001";

pub(in crate::agents) fn observed(name: &str, namespace: &str, status: &Value) -> ObservedAgent {
    serde_json::from_value(json!({
        "apiVersion": "opamp.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": "object-uid",
            "resourceVersion": "17",
            "generation": 2,
            "creationTimestamp": "2026-11-29T12:00:00Z",
            "labels": {"opamp.dev/fleet": "edge", "team": "shop"},
        },
        "spec": {"reoffer": {"requestedAt": "2026-11-29T14:00:00Z"}},
        "status": status,
    }))
    .expect("an Agent")
}

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

#[test]
fn a_summary_has_what_owners_counters_and_retention_ask_for() {
    let status = json!({
        "observedGeneration": 2,
        "fleet": "edge",
        "connection": {"transport": "Carrier pigeon", "replica": "opamp-1", "incarnation": "ab12", "epoch": 4,
            "since": "2026-11-29T12:30:00Z", "identity": "token:telemetry/edge"},
        "certificate": {"serial": "0a1b", "notAfter": "2026-12-06T12:00:00Z", "inUseSince": "2026-11-29T12:31:00Z"},
        "revision": {"hash": "3f9a1c2b07", "fleetUID": "fleet-uid", "epoch": 9},
        "capabilities": ["ReportsStatus", "AcceptsRemoteConfig", "Bit40"],
        "remoteConfig": {"offered": "aa01", "lastReported": "aa02", "status": "Failed", "failed": {"hash": "aa03"}},
        "effectiveConfig": {"hash": "aa04", "size": 5, "secretRef": {"name": "opamp-effective-1"}},
        "reoffer": {"requestedAt": "2026-11-29T13:00:00Z"},
        "conditions": [
            {"type": "Connected", "status": "False", "reason": "ConnectionClosed", "message": "",
                "lastTransitionTime": "2026-11-29T12:40:00Z"},
            {"type": "ConfigApplied", "status": "False", "reason": "ConfigFailed", "message": "no such exporter",
                "lastTransitionTime": "2026-11-29T12:35:00Z"},
            {"type": "Accepted", "status": "False", "reason": "PendingApproval", "message": "",
                "lastTransitionTime": "2026-11-29T12:30:00Z"},
        ],
    });
    let summary = summarise(observed(UID, "telemetry", &status), &mut Interner::default()).expect("a summary");
    let connection = summary.connection.clone().expect("claimed");
    assert_eq!((&*connection.replica, &*connection.incarnation, connection.epoch), ("opamp-1", "ab12", 4));
    assert_eq!((summary.fleet.as_deref(), summary.fleet_label.as_deref()), (Some("edge"), Some("edge")));
    assert_eq!((&*summary.namespace, &*summary.resource_version, summary.generation), ("telemetry", "17", 2));
    assert_eq!(summary.created, Some(time("2026-11-29T12:00:00Z")));
    assert!(!summary.is_connected());
    assert!(summary.is_pending());
    assert_eq!(summary.connected.map(|connected| connected.since), Some(time("2026-11-29T12:40:00Z")));
    assert!(summary.accepts_remote_config);
    assert_eq!(summary.offered.as_deref(), Some(&[0xaa, 1][..]));
    assert_eq!(summary.last_reported.as_deref(), Some(&[0xaa, 2][..]));
    assert_eq!(summary.failed.as_deref(), Some(&[0xaa, 3][..]));
    assert_eq!(summary.effective_config.as_deref(), Some("opamp-effective-1"));
    assert_eq!(summary.failure.as_deref(), Some("no such exporter"));
    assert_eq!(summary.reoffer_requested, Some(time("2026-11-29T14:00:00Z")));
    assert_eq!(summary.reoffer_granted, Some(time("2026-11-29T13:00:00Z")));
    assert_eq!(summary.healthy, None);
    assert_eq!(summary.identity.as_deref(), Some("token:telemetry/edge"));
    let certificate = summary.certificate.expect("a certificate");
    assert_eq!((&*certificate.serial, certificate.not_after), ("0a1b", time("2026-12-06T12:00:00Z")));
    assert!(certificate.holds(time("2026-12-06T11:59:59Z")));
    assert!(!certificate.holds(time("2026-12-06T12:00:00Z")), "it has ended");
}

#[test]
fn an_access_that_this_version_does_not_know_keeps_the_agent_out() {
    for (word, expected) in [
        (json!("Approved"), Some(Access::Approved)),
        (json!("Denied"), Some(Access::Denied)),
        (json!("Revoked"), Some(Access::Revoked)),
        (json!("Suspended"), Some(Access::Denied)),
        (json!(null), None),
    ] {
        let mut agent = observed(UID, "telemetry", &json!({}));
        agent.spec.access = serde_json::from_value(word.clone()).expect("a word");
        let summary = summarise(agent, &mut Interner::default()).expect("a summary");
        assert_eq!(summary.access, expected, "{word}");
    }
}

#[test]
fn an_object_without_status_or_with_another_name_does_no_harm() {
    let mut interner = Interner::default();
    let fresh = observed(UID, "telemetry", &json!({"observedGeneration": -1}));
    let summary = summarise(fresh, &mut interner).expect("a summary");
    assert_eq!((summary.epoch(), summary.is_connected()), (0, false));
    for name in ["collector", "01900000000070008000000000000001", "01900000-0000-7000-8000-00000000000A"] {
        assert!(summarise(observed(name, "telemetry", &json!({})), &mut interner).is_none(), "{name}");
    }
}

#[test]
fn texts_in_common_are_kept_once() {
    let mut interner = Interner::default();
    let first = interner.share("opamp-operator-0");
    assert!(Arc::ptr_eq(&first, &interner.share("opamp-operator-0")));
    drop(first);
    interner.sweep();
    assert!(interner.texts.is_empty());
}
