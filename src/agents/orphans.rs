//! What the leader writes about agents that no session speaks for: theirs ended, or their replica did.
//!
//! The leader knows nothing of such an agent but its status. So it restates that status: what changed is said anew, all
//! else stays as its last owner left it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::written::{DENIED, REVOKED};
use crate::api::{
    agent::{AgentStatus, EffectiveConfigStatus},
    agent_fleet::EffectiveConfigDetail,
    condition::{ConditionType, Verdict, find, merge},
    reasons::{AgentReason, agent_ready},
};

/// The conditions that `Ready` follows from, most important first.
const IN_ORDER: [ConditionType; 5] = [
    ConditionType::Accepted,
    ConditionType::Matched,
    ConditionType::Connected,
    ConditionType::ConfigApplied,
    ConditionType::Healthy,
];

/// The status of an agent whose replica is gone, and which has not turned up elsewhere. It may be connected still: to a
/// replica that the API server does not hear of.
#[must_use]
pub fn gone(status: &AgentStatus, now: Timestamp) -> AgentStatus {
    let replica = status.connection.as_ref().map_or("", |connection| connection.replica.as_str());
    let message = format!("the replica {replica} is gone, and the agent has not turned up at another one");
    AgentStatus { conditions: restate(status, &[(AgentReason::ReplicaGone, message)], now), ..status.clone() }
}

/// The status of an agent that no fleet of its namespace takes any more. What it was offered stays told, for the case
/// that the fleet is put back.
#[must_use]
pub fn lost(status: &AgentStatus, now: Timestamp) -> AgentStatus {
    let changes = [
        (
            AgentReason::NoFleetSelects,
            "no fleet that admits the agent selects its attributes; it keeps what it runs".to_owned(),
        ),
        (AgentReason::NotMatched, "no fleet takes the agent".to_owned()),
    ];
    AgentStatus { fleet: None, conditions: restate(status, &changes, now), ..status.clone() }
}

/// The status of an agent that a fleet takes, again or for the first time. What the fleet gives it is told by the
/// replica to which it returns.
#[must_use]
pub fn taken(status: &AgentStatus, fleet: &str, fleet_uid: &str, now: Timestamp) -> AgentStatus {
    let changes = [(AgentReason::FleetSelects, String::new()), config_applied(status, fleet_uid)];
    AgentStatus { fleet: Some(fleet.into()), conditions: restate(status, &changes, now), ..status.clone() }
}

/// The status of an agent that a person keeps out, for this reason: it belongs to no fleet.
#[must_use]
pub fn kept_out(status: &AgentStatus, access: KeptOut, now: Timestamp) -> AgentStatus {
    let (reason, message) = match access {
        KeptOut::Denied => (AgentReason::Denied, DENIED),
        KeptOut::Revoked => (AgentReason::Revoked, REVOKED),
    };
    let changes = [
        (reason, message.to_owned()),
        (AgentReason::NoFleetSelects, "an agent that is denied or revoked belongs to no fleet".to_owned()),
        (AgentReason::NotMatched, "no fleet takes the agent".to_owned()),
    ];
    AgentStatus { fleet: None, conditions: restate(status, &changes, now), ..status.clone() }
}

/// How a person keeps an agent out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeptOut {
    /// By `spec.access: Denied`.
    Denied,
    /// By `spec.access: Revoked`.
    Revoked,
}

/// The status of an agent whose fleet asks for a person's approval, which this command gives.
#[must_use]
pub fn pending(status: &AgentStatus, command: &str, now: Timestamp) -> AgentStatus {
    let changes = [
        (AgentReason::PendingApproval, command.to_owned()),
        (AgentReason::NotAccepted, "nothing is offered before the agent is approved".to_owned()),
    ];
    AgentStatus { conditions: restate(status, &changes, now), ..status.clone() }
}

/// The status of an agent that may take part, which is said where its status says otherwise. `fleet_uid` is of the fleet
/// that takes it.
#[must_use]
pub fn admitted(status: &AgentStatus, fleet_uid: Option<&str>, now: Timestamp) -> AgentStatus {
    let keeps_out = |condition: &Condition| condition.status != Verdict::True.as_str();
    if !find(&status.conditions, ConditionType::Accepted).is_some_and(keeps_out) {
        return status.clone();
    }
    let was_held = find(&status.conditions, ConditionType::ConfigApplied)
        .is_some_and(|condition| condition.reason == AgentReason::NotAccepted.declaration().word);
    let applied = fleet_uid.filter(|_| was_held).map(|fleet_uid| config_applied(status, fleet_uid));
    let changes: Vec<_> = std::iter::once((AgentReason::Admitted, String::new())).chain(applied).collect();
    AgentStatus { conditions: restate(status, &changes, now), ..status.clone() }
}

/// The status of an agent whose fleet wants so much to be kept of what the agent runs. More than was kept is told by the
/// replica to which it returns.
#[must_use]
pub fn keeping(mut status: AgentStatus, detail: EffectiveConfigDetail) -> AgentStatus {
    status.effective_config = status.effective_config.take().and_then(|config| match detail {
        EffectiveConfigDetail::None => None,
        EffectiveConfigDetail::Hash => Some(EffectiveConfigStatus { secret_ref: None, not_stored: None, ..config }),
        EffectiveConfigDetail::Stored => Some(config),
    });
    status
}

/// What became of what the fleet gave the agent before, as far as its status tells.
fn config_applied(status: &AgentStatus, fleet_uid: &str) -> (AgentReason, String) {
    let able = |capability: &str| status.capabilities.iter().any(|known| known == capability);
    if !able("AcceptsRemoteConfig") {
        return (AgentReason::Unsupported, "the agent does not accept remote configuration".into());
    }
    if status.revision.as_ref().is_none_or(|revision| revision.fleet_uid != fleet_uid) {
        return (AgentReason::NoRevision, "the agent was not connected since the fleet took it".into());
    }
    let config = status.remote_config.clone().unwrap_or_default();
    if config.offered.is_none() {
        return (AgentReason::NothingToApply, String::new());
    }
    let reported = config.status.as_deref().filter(|_| config.last_reported == config.offered);
    let failed = config.failed.filter(|failed| Some(&failed.hash) == config.offered.as_ref());
    match (reported, failed) {
        (Some("Applied"), _) => (AgentReason::Applied, String::new()),
        (Some("Failed"), _) => (AgentReason::ConfigFailed, config.error),
        (_, Some(failed)) => (AgentReason::ConfigFailed, failed.error),
        (Some("Applying"), None) => (AgentReason::Applying, "the agent was applying it when it left".into()),
        (_, None) if able("ReportsRemoteConfig") => {
            (AgentReason::Pending, "the agent had not answered to it when it left".into())
        }
        (_, None) => (AgentReason::ReportUnsupported, "the agent does not report what became of it".into()),
    }
}

/// The conditions with some of them said anew, and `Ready` as it follows. One that this version does not know is kept
/// as it is.
fn restate(status: &AgentStatus, changes: &[(AgentReason, String)], now: Timestamp) -> Vec<Condition> {
    let former = &status.conditions;
    let found: Vec<(AgentReason, String)> = IN_ORDER
        .into_iter()
        .filter_map(|kind| {
            let anew = changes.iter().find(|(reason, _)| reason.condition() == kind);
            anew.cloned().or_else(|| find(former, kind).and_then(read))
        })
        .collect();
    let ready = agent_ready(&found);
    let others = found.into_iter().map(|(reason, message)| reason.finding(message));
    let generation = Some(status.observed_generation).filter(|generation| *generation >= 0);
    let mut conditions = merge(former, std::iter::once(ready).chain(others).collect(), generation, now);
    let unknown: Vec<Condition> =
        former.iter().filter(|old| conditions.iter().all(|new| new.type_ != old.type_)).cloned().collect();
    conditions.extend(unknown);
    conditions
}

/// The reason of a condition, if it is one of this version's and says what the condition says.
fn read(condition: &Condition) -> Option<(AgentReason, String)> {
    let reason = AgentReason::ALL.iter().find(|reason| {
        let declared = reason.declaration().word == condition.reason;
        declared && reason.condition().as_str() == condition.type_ && reason.verdict().as_str() == condition.status
    })?;
    Some((*reason, condition.message.clone()))
}

/// Whether the leader may write this status: the agent is not connected, so that its last owner has handed it over.
#[must_use]
pub fn is_handed_over(status: &AgentStatus) -> bool {
    find(&status.conditions, ConditionType::Connected)
        .is_some_and(|connected| connected.status != Verdict::True.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EVENING: Timestamp = Timestamp::constant(1_800_040_000, 0);

    fn condition(type_: &str, status: &str, reason: &str) -> serde_json::Value {
        json!({"type": type_, "status": status, "reason": reason, "message": "as before",
            "lastTransitionTime": "2026-11-29T12:00:00Z", "observedGeneration": 3})
    }

    fn connected() -> AgentStatus {
        serde_json::from_value(json!({
            "observedGeneration": 3,
            "fleet": "edge",
            "connection": {"transport": "WebSocket", "replica": "replica-1", "incarnation": "1111111111", "epoch": 4,
                "since": "2026-11-29T12:00:00Z", "method": "Anonymous", "identity": "anonymous", "remoteAddress": "::1"},
            "revision": {"hash": "3f9a1c2b07", "fleetUID": "fleet-uid", "epoch": 2},
            "capabilities": ["ReportsStatus", "AcceptsRemoteConfig", "ReportsRemoteConfig"],
            "remoteConfig": {"offered": "aa01", "lastReported": "aa01", "status": "Applied"},
            "conditions": [
                condition("Ready", "True", "AsDesired"),
                condition("Matched", "True", "FleetSelects"),
                condition("Connected", "True", "SessionOpen"),
                condition("ConfigApplied", "True", "Applied"),
                condition("Healthy", "True", "ReportedHealthy"),
                condition("Accepted", "True", "OfALaterVersion"),
            ],
        }))
        .expect("a status")
    }

    fn shown(status: &AgentStatus) -> Vec<String> {
        status.conditions.iter().map(|it| format!("{}={} {}", it.type_, it.status, it.reason)).collect()
    }

    #[test]
    fn what_a_fleet_no_longer_wants_kept_is_no_longer_told() {
        let config = |secret: serde_json::Value| json!({"hash": "aa", "size": 5, "secretRef": secret});
        let status = |config: serde_json::Value| -> AgentStatus {
            serde_json::from_value(json!({"effectiveConfig": config})).expect("a status")
        };
        let stored = status(config(json!({"name": "opamp-effective-1"})));
        for (detail, expected) in [
            (EffectiveConfigDetail::Stored, stored.clone()),
            (EffectiveConfigDetail::Hash, status(config(json!(null)))),
            (EffectiveConfigDetail::None, status(json!(null))),
        ] {
            assert_eq!(keeping(stored.clone(), detail), expected, "{detail:?}");
        }
    }

    #[test]
    fn an_agent_whose_replica_is_gone_is_of_unknown_state_and_keeps_the_rest() {
        let orphan = gone(&connected(), EVENING);
        assert_eq!(
            shown(&orphan),
            [
                "Ready=Unknown ReplicaGone",
                "Matched=True FleetSelects",
                "Connected=Unknown ReplicaGone",
                "ConfigApplied=True Applied",
                "Healthy=True ReportedHealthy",
                "Accepted=True OfALaterVersion",
            ]
        );
        assert_eq!(orphan.conditions[2].last_transition_time.0, EVENING);
        assert!(orphan.conditions[2].message.contains("replica-1"));
        assert_ne!(orphan.conditions[1].last_transition_time.0, EVENING);
        assert!(!is_handed_over(&connected()) && is_handed_over(&orphan));
        assert_eq!(
            AgentStatus { conditions: Vec::new(), ..orphan },
            AgentStatus { conditions: Vec::new(), ..connected() }
        );
    }

    #[test]
    fn restating_the_same_changes_nothing() {
        let later = EVENING + jiff::SignedDuration::from_hours(1);
        let orphan = gone(&connected(), EVENING);
        assert_eq!(gone(&orphan, later), orphan);
        let lone = lost(&orphan, EVENING);
        assert_eq!(lost(&lone, later), lone);
        let found = taken(&lone, "edge", "fleet-uid", EVENING);
        assert_eq!(taken(&found, "edge", "fleet-uid", later), found);
    }

    #[test]
    fn a_fleet_that_is_put_back_finds_its_agents_as_they_were() {
        let before = gone(&connected(), EVENING);
        let without = lost(&before, EVENING);
        assert_eq!(without.fleet, None);
        assert_eq!(
            shown(&without)[..4],
            [
                "Ready=False NoFleetSelects",
                "Matched=False NoFleetSelects",
                "Connected=Unknown ReplicaGone",
                "ConfigApplied=Unknown NotMatched",
            ]
        );
        let back = taken(&without, "edge", "fleet-uid", EVENING);
        assert_eq!(shown(&back), shown(&before));
        assert_eq!(back.fleet.as_deref(), Some("edge"));
    }

    #[test]
    fn what_the_former_fleet_gave_says_nothing_of_a_new_one() {
        for (case, change, fleet_uid, expected) in [
            ("applied", json!({}), "fleet-uid", AgentReason::Applied),
            ("another fleet", json!({}), "other-uid", AgentReason::NoRevision),
            ("cannot", json!({"capabilities": ["ReportsStatus"]}), "fleet-uid", AgentReason::Unsupported),
            ("nothing", json!({"remoteConfig": {}}), "fleet-uid", AgentReason::NothingToApply),
            (
                "failed",
                json!({"remoteConfig": {"offered": "aa", "lastReported": "aa", "status": "Failed"}}),
                "fleet-uid",
                AgentReason::ConfigFailed,
            ),
            (
                "failed before",
                json!({"remoteConfig": {"offered": "aa", "lastReported": "bb", "status": "Applied",
                "failed": {"hash": "aa", "error": "no", "at": "2026-11-29T12:00:00Z"}}}),
                "fleet-uid",
                AgentReason::ConfigFailed,
            ),
            (
                "of another hash",
                json!({"remoteConfig": {"offered": "aa", "lastReported": "bb", "status": "Applied"}}),
                "fleet-uid",
                AgentReason::Pending,
            ),
            (
                "applying",
                json!({"remoteConfig": {"offered": "aa", "lastReported": "aa", "status": "Applying"}}),
                "fleet-uid",
                AgentReason::Applying,
            ),
            (
                "silent",
                json!({"capabilities": ["AcceptsRemoteConfig"], "remoteConfig": {"offered": "aa"}}),
                "fleet-uid",
                AgentReason::ReportUnsupported,
            ),
        ] {
            let mut status = serde_json::to_value(connected()).expect("JSON");
            for (key, value) in change.as_object().expect("an object") {
                status[key] = value.clone();
            }
            let status = serde_json::from_value(status).expect("a status");
            assert_eq!(config_applied(&status, fleet_uid).0, expected, "{case}");
        }
    }
}
