//! When the objects of agents that are gone are deleted, and which of two objects of one agent is too many.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::summary::AgentSummary;

/// How long the object of an agent is kept that no fleet ever took, or that went before anybody approved of it. Nobody
/// asked for it, and whoever looks for the reason looks soon.
const STRANGER: Duration = Duration::from_secs(600);

/// How long objects are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kept {
    /// This long after the agent was last connected.
    For(Duration),
    /// For ever.
    Always,
}

/// Whether the object of an agent has outlived its agent. What a person has decided about an agent is kept for ever.
/// `fleet` is what the agent's last fleet asks for; it is not asked for an agent that no fleet ever took, nor for one
/// that waited for approval.
#[must_use]
pub fn is_over(agent: &AgentSummary, fleet: impl FnOnce(&AgentSummary) -> Kept, now: Timestamp) -> bool {
    let Some(left) = left_at(agent) else { return false };
    let kept = if agent.access.is_some() {
        Kept::Always
    } else if agent.never_matched() || agent.is_pending() {
        Kept::For(STRANGER)
    } else {
        fleet(agent)
    };
    match kept {
        Kept::For(period) => SignedDuration::try_from(period).is_ok_and(|period| now.duration_since(left) >= period),
        Kept::Always => false,
    }
}

/// Since when the agent is not connected; `None` while it is. An object that no session ever claimed was made by one
/// that ended at once, so that it counts from its creation.
fn left_at(agent: &AgentSummary) -> Option<Timestamp> {
    match &agent.connected {
        Some(_) if agent.is_connected() => None,
        Some(connected) => Some(connected.since),
        None => agent.created,
    }
}

/// Which of the objects of one agent counts: one about which a person has decided, provided that the agent ever was
/// there, for anybody may write such an object into a namespace of their own; then the one of the higher epoch, because an
/// agent that moves to another namespace is claimed there with a higher one. Of two with the same epoch it is the older
/// one, which everybody finds alike.
#[must_use]
pub fn winner(objects: &[Arc<AgentSummary>]) -> Option<&Arc<AgentSummary>> {
    let is_decided = |object: &AgentSummary| object.access.is_some() && object.epoch() > 0;
    objects.iter().max_by(|one, other| {
        is_decided(one)
            .cmp(&is_decided(other))
            .then_with(|| one.epoch().cmp(&other.epoch()))
            .then_with(|| one.access.is_some().cmp(&other.access.is_some()))
            .then_with(|| other.created.cmp(&one.created))
            .then_with(|| other.namespace.cmp(&one.namespace))
    })
}

/// The objects of one agent that are too many: a replica that ends in the midst of a move leaves the old one behind. What
/// a person has decided stays.
#[must_use]
pub fn losers(objects: &[Arc<AgentSummary>]) -> Vec<Arc<AgentSummary>> {
    let Some(winner) = winner(objects) else { return Vec::new() };
    let is_surplus = |object: &Arc<AgentSummary>| object.namespace != winner.namespace && object.access.is_none();
    objects.iter().filter(|object| is_surplus(object)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::agents::index::AgentIndex;

    const UID: &str = "01900000-0000-7000-8000-000000000001";
    const MADE: &str = "2026-11-29T12:00:00Z";

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn agent(namespace: &str, fleet: Option<&str>, status: &Value) -> Value {
        let labels = fleet.map_or_else(|| json!({}), |fleet| json!({"opamp.dev/fleet": fleet}));
        json!({
            "metadata": {"name": UID, "namespace": namespace, "resourceVersion": "1", "creationTimestamp": MADE,
                "labels": labels},
            "spec": {},
            "status": status,
        })
    }

    fn connected(status: &str, since: &str) -> Value {
        json!({"conditions": [{"type": "Connected", "status": status, "reason": "Any", "message": "",
            "lastTransitionTime": since}]})
    }

    #[test]
    fn objects_outlive_their_agents_as_long_as_the_last_fleet_asks() {
        let left = "2026-11-29T13:00:00Z";
        let hour = Kept::For(Duration::from_secs(3_600));
        for (case, fleet, status, kept, now, expected) in [
            ("connected", Some("edge"), connected("True", left), hour, "2027-11-29T13:00:00Z", false),
            ("just left", Some("edge"), connected("False", left), hour, "2026-11-29T13:59:59Z", false),
            ("left", Some("edge"), connected("False", left), hour, "2026-11-29T14:00:00Z", true),
            ("its replica is gone", Some("edge"), connected("Unknown", left), hour, "2026-11-29T14:00:00Z", true),
            ("kept for ever", Some("edge"), connected("False", left), Kept::Always, "2036-11-29T14:00:00Z", false),
            ("never claimed", Some("edge"), json!({}), hour, "2026-11-29T13:00:00Z", true),
            ("never claimed, new", Some("edge"), json!({}), hour, "2026-11-29T12:59:59Z", false),
            ("no fleet", None, connected("False", left), Kept::Always, "2026-11-29T13:10:00Z", true),
            ("no fleet, just left", None, connected("False", left), hour, "2026-11-29T13:09:59Z", false),
            ("a clock behind", Some("edge"), connected("False", left), hour, "2026-11-29T12:30:00Z", false),
        ] {
            let agents = AgentIndex::holding([agent("telemetry", fleet, &status)]).all();
            assert_eq!(is_over(&agents[0], |_| kept, at(now)), expected, "{case}");
            let mut decided = agent("telemetry", fleet, &status);
            decided["spec"]["access"] = json!("Denied");
            let agents = AgentIndex::holding([decided]).all();
            assert!(!is_over(&agents[0], |_| kept, at(now)), "{case}, and a person has decided about it");
        }
    }

    #[test]
    fn a_stranger_that_left_before_it_was_approved_is_kept_for_ten_minutes() {
        let left = "2026-11-29T13:00:00Z";
        let mut status = connected("False", left);
        let conditions = status["conditions"].as_array_mut().expect("a list");
        conditions.push(json!({"type": "Accepted", "status": "False", "reason": "PendingApproval", "message": "",
            "lastTransitionTime": left}));
        let agents = AgentIndex::holding([agent("telemetry", Some("edge"), &status)]).all();
        for (now, expected) in [("2026-11-29T13:09:59Z", false), ("2026-11-29T13:10:00Z", true)] {
            assert_eq!(is_over(&agents[0], |_| Kept::Always, at(now)), expected, "{now}");
        }
    }

    #[test]
    fn of_two_objects_of_one_agent_the_one_claimed_later_stays() {
        let claimed = |epoch: i64| json!({"connection": {"replica": "replica-0", "incarnation": "1111111111", "epoch": epoch, "since": MADE}});
        for (case, there, here, decided, expected) in [
            ("moved here", claimed(3), claimed(4), None, &["there"][..]),
            ("not yet claimed here", claimed(3), json!({}), None, &["here"][..]),
            ("a tie", claimed(3), claimed(3), None, &["there"][..]),
            ("moved here, and denied there", claimed(3), claimed(4), Some(0), &["here"][..]),
            ("moved here, and denied where it never was", json!({}), claimed(4), Some(0), &[][..]),
            ("moved here, and denied here", claimed(3), claimed(4), Some(1), &["there"][..]),
        ] {
            let mut objects = [agent("there", None, &there), agent("here", None, &here)];
            if let Some(decided) = decided {
                let decided: usize = decided;
                objects[decided]["spec"]["access"] = json!("Denied");
            }
            let found = losers(&AgentIndex::holding(objects).all());
            let found: Vec<&str> = found.iter().map(|object| &*object.namespace).collect();
            assert_eq!(found, expected, "{case}");
        }
        assert_eq!(losers(&AgentIndex::holding([agent("here", None, &claimed(1))]).all()), []);
    }
}
