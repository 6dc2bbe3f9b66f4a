//! The counters of all fleets, from one look at all Agents.
//!
//! Counted anew whenever an Agent has changed, at most once a second: ten thousand take about a millisecond, and a
//! number that is never carried over cannot drift away from what it counts.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    agents::summary::AgentSummary,
    api::{
        agent_fleet::{AgentCounts, AgentFailure, AgentFleet, AgentFleetStatus},
        condition::Verdict,
        reasons::AgentReason,
    },
    catalog::threshold::{Bucket, Threshold},
    kubernetes::ObjectKey,
    lease::Uncounted,
};

/// The most samples of failures that a fleet shows.
const MOST_FAILURES: usize = 20;

/// What is counted of one fleet.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Census {
    /// The counters.
    pub counts: AgentCounts,
    /// The first failures by the name of the Agent, so that the choice is the same at each count.
    pub failures: Vec<AgentFailure>,
    /// What the members were measured by; `None`: they were not.
    pub given: Option<Given>,
}

impl Census {
    /// As it counts for a fleet that gives this. Of what it gave when the members were counted nobody is up to date any
    /// more, and nobody has failed at it yet.
    #[must_use]
    pub fn measured_by(&self, given: &Given) -> Self {
        let mut census = self.clone();
        if census.given.as_ref() != Some(given) {
            (census.counts.up_to_date, census.counts.failed) = (0, 0);
            census.failures.clear();
        }
        census
    }
}

/// What a fleet gives its members now, which is what they are measured by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Given {
    fleet_uid: String,
    current: Option<String>,
    update: Option<String>,
    threshold: Threshold,
}

impl Given {
    /// What the status of a fleet says that its members are given.
    #[must_use]
    pub fn by(fleet: &AgentFleet) -> Self {
        Self::in_status(fleet, &fleet.status.clone().unwrap_or_default())
    }

    /// What another status of the same fleet would say.
    #[must_use]
    pub fn in_status(fleet: &AgentFleet, status: &AgentFleetStatus) -> Self {
        let rollout = status.rollout.as_ref();
        Self {
            fleet_uid: fleet.metadata.uid.clone().unwrap_or_default(),
            current: status.current_revision.clone(),
            update: status.update_revision.clone(),
            threshold: rollout.and_then(|rollout| rollout.threshold.parse().ok()).unwrap_or_default(),
        }
    }

    /// Whether the agent's status speaks of the revision that the agent is given now.
    fn is_measured_by(&self, agent: &AgentSummary) -> bool {
        let Some(update) = &self.update else { return false };
        let bucket = || Bucket::of(&agent.uid, &self.fleet_uid, update);
        let revision = match self.threshold {
            Threshold::All => Some(update),
            Threshold::Below(_) if self.threshold.admits(bucket()) => Some(update),
            Threshold::Below(_) => self.current.as_ref(),
        };
        agent.revision.as_ref().is_some_and(|assigned| {
            *assigned.fleet_uid == *self.fleet_uid && revision.is_some_and(|revision| *assigned.hash == **revision)
        })
    }
}

/// Counts the members of each fleet. Agents without an object are not among them: `uncounted` gives their number by the
/// uid of their fleet, and they count as members that are connected.
pub fn count<'a>(
    agents: impl IntoIterator<Item = &'a AgentSummary>,
    fleets: &BTreeMap<ObjectKey, Given>,
    uncounted: &Uncounted,
) -> BTreeMap<ObjectKey, Census> {
    let mut tallies: HashMap<(&str, &str), Tally> =
        fleets.iter().map(|(key, given)| ((key.namespace.as_str(), key.name.as_str()), Tally::new(given))).collect();
    for agent in agents {
        let fleet = agent.fleet.as_deref().filter(|_| is(agent.matched.as_ref().map(|it| it.verdict)));
        if let Some(tally) = fleet.and_then(|fleet| tallies.get_mut(&(&*agent.namespace, fleet))) {
            tally.add(agent);
        }
    }
    fleets
        .iter()
        .filter_map(|(key, given)| {
            let tally = tallies.remove(&(key.namespace.as_str(), key.name.as_str()))?;
            Some((key.clone(), tally.finish(uncounted.get(&given.fleet_uid).copied().unwrap_or_default())))
        })
        .collect()
}

fn is(verdict: Option<Verdict>) -> bool {
    verdict == Some(Verdict::True)
}

struct Tally<'a> {
    given: &'a Given,
    counts: AgentCounts,
    /// Those that a person has not approved yet: they are given nothing that they could be measured by.
    pending: i64,
    failed: BTreeSet<Failed<'a>>,
}

/// Ordered by the name of the Agent.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
struct Failed<'a> {
    agent: String,
    reason: &'static str,
    message: &'a str,
}

impl<'a> Tally<'a> {
    fn new(given: &'a Given) -> Self {
        Self { given, counts: AgentCounts::default(), pending: 0, failed: BTreeSet::new() }
    }

    fn add(&mut self, agent: &'a AgentSummary) {
        let counts = &mut self.counts;
        counts.matched += 1;
        if agent.is_connected() {
            counts.connected += 1;
            counts.healthy += i64::from(is(agent.healthy.as_ref().map(|it| it.verdict)));
        }
        if agent.is_pending() {
            self.pending += 1;
        } else if !agent.accepts_remote_config {
            counts.unsupported += 1;
        } else if self.given.is_measured_by(agent) {
            counts.up_to_date += i64::from(is(agent.config_applied.as_ref().map(|it| it.verdict)));
            if let Some(reason) = failure(agent) {
                counts.failed += 1;
                let message = agent.failure.as_deref().unwrap_or_default();
                self.failed.insert(Failed { agent: agent.uid.to_string(), reason, message });
                if self.failed.len() > MOST_FAILURES {
                    self.failed.pop_last();
                }
            }
        }
    }

    fn finish(self, uncounted: usize) -> Census {
        let Self { given, mut counts, pending, failed } = self;
        counts.pending_approval = Some(pending);
        let uncounted = i64::try_from(uncounted).unwrap_or(i64::MAX);
        counts.matched = counts.matched.saturating_add(uncounted);
        counts.connected = counts.connected.saturating_add(uncounted);
        let failures = failed.into_iter().map(|failed| AgentFailure {
            agent: failed.agent,
            reason: failed.reason.into(),
            message: failed.message.into(),
        });
        Census { counts, failures: failures.collect(), given: Some(given.clone()) }
    }
}

/// Why an agent failed at what it is given, if it did; that it is still about to apply it is no failure.
fn failure(agent: &AgentSummary) -> Option<&'static str> {
    let applied = agent.config_applied.as_ref().filter(|applied| applied.verdict == Verdict::False)?;
    [AgentReason::ConfigFailed, AgentReason::TemplateFailed]
        .map(|reason| reason.declaration().word)
        .into_iter()
        .find(|word| **word == *applied.reason)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::agents::index::AgentIndex;

    const SINCE: &str = "2026-11-29T12:00:00Z";

    /// A connected, healthy member of the fleet `edge` in `telemetry` that has applied what revision `77aa0e1944` gives.
    fn member(number: u32) -> Value {
        let condition = |type_: &str, reason: &str| json!({"type": type_, "status": "True", "reason": reason, "message": "", "lastTransitionTime": SINCE});
        json!({
            "metadata": {"name": format!("01900000-0000-7000-8000-{number:012x}"), "namespace": "telemetry",
                "resourceVersion": "1", "labels": {"opamp.dev/fleet": "edge"}},
            "spec": {},
            "status": {
                "fleet": "edge",
                "revision": {"hash": "77aa0e1944", "fleetUID": "edge-uid", "epoch": 2},
                "capabilities": ["AcceptsRemoteConfig"],
                "conditions": [condition("Matched", "FleetSelects"), condition("Connected", "SessionOpen"),
                    condition("ConfigApplied", "Applied"), condition("Healthy", "ReportedHealthy")],
            },
        })
    }

    fn with(mut member: Value, condition: usize, status: &str, reason: &str) -> Value {
        let condition = &mut member["status"]["conditions"][condition];
        condition["status"] = status.into();
        condition["reason"] = reason.into();
        condition["message"] = "no such exporter".into();
        member
    }

    fn edge() -> BTreeMap<ObjectKey, Given> {
        let given = Given {
            fleet_uid: "edge-uid".into(),
            current: Some("3f9a1c2b07".into()),
            update: Some("77aa0e1944".into()),
            threshold: Threshold::All,
        };
        BTreeMap::from([(ObjectKey::new("telemetry", "edge"), given)])
    }

    fn census(agents: Vec<Value>, uncounted: usize) -> Census {
        let agents = AgentIndex::holding(agents).all();
        let uncounted = BTreeMap::from([("edge-uid".to_owned(), uncounted), ("gone-uid".to_owned(), 5)]);
        let mut all = count(agents.iter().map(|agent| &**agent), &edge(), &uncounted);
        all.remove(&ObjectKey::new("telemetry", "edge")).expect("counted")
    }

    /// matched, connected, healthy, up to date, failed, unsupported.
    fn numbers(agents: Vec<Value>, uncounted: usize) -> [i64; 6] {
        let AgentCounts { matched, connected, healthy, up_to_date, failed, unsupported, .. } =
            census(agents, uncounted).counts;
        [matched, connected, healthy, up_to_date, failed, unsupported]
    }

    #[test]
    fn each_member_counts_as_its_status_says() {
        let mut incapable = member(1);
        incapable["status"]["capabilities"] = json!([]);
        let mut older = member(1);
        older["status"]["revision"]["hash"] = "3f9a1c2b07".into();
        let mut of_a_former_fleet = member(1);
        of_a_former_fleet["status"]["revision"]["fleetUID"] = "former-uid".into();
        let mut elsewhere = member(1);
        elsewhere["metadata"]["namespace"] = "shop".into();
        for (case, agent, expected) in [
            ("well", member(1), [1, 1, 1, 1, 0, 0]),
            ("not matched", with(member(1), 0, "False", "NoFleetSelects"), [0, 0, 0, 0, 0, 0]),
            ("in another namespace", elsewhere, [0, 0, 0, 0, 0, 0]),
            ("away", with(member(1), 1, "False", "ConnectionClosed"), [1, 0, 0, 1, 0, 0]),
            ("its replica is gone", with(member(1), 1, "Unknown", "ReplicaGone"), [1, 0, 0, 1, 0, 0]),
            ("failed", with(member(1), 2, "False", "ConfigFailed"), [1, 1, 1, 0, 1, 0]),
            ("template failed", with(member(1), 2, "False", "TemplateFailed"), [1, 1, 1, 0, 1, 0]),
            ("applying", with(member(1), 2, "False", "Applying"), [1, 1, 1, 0, 0, 0]),
            ("unwell", with(member(1), 3, "False", "ReportedUnhealthy"), [1, 1, 0, 1, 0, 0]),
            ("takes no configuration", incapable, [1, 1, 1, 0, 0, 1]),
            ("has applied an older revision", older.clone(), [1, 1, 1, 0, 0, 0]),
            ("failed at an older revision", with(older, 2, "False", "ConfigFailed"), [1, 1, 1, 0, 0, 0]),
            ("has what a deleted fleet of that name gave", of_a_former_fleet, [1, 1, 1, 0, 0, 0]),
        ] {
            assert_eq!(numbers(vec![agent], 0), expected, "{case}");
        }
    }

    #[test]
    fn who_waits_for_approval_is_a_member_that_is_measured_by_nothing() {
        let mut pending = with(member(1), 2, "Unknown", "NotAccepted");
        let conditions = pending["status"]["conditions"].as_array_mut().expect("a list");
        conditions.push(json!({"type": "Accepted", "status": "False", "reason": "PendingApproval", "message": "",
            "lastTransitionTime": SINCE}));
        pending["status"]["capabilities"] = json!([]);
        assert_eq!(numbers(vec![pending.clone(), member(2)], 0), [2, 2, 2, 1, 0, 0]);
        assert_eq!(census(vec![pending, member(2)], 0).counts.pending_approval, Some(1));
        assert_eq!(census(vec![member(2)], 0).counts.pending_approval, Some(0));
    }

    #[test]
    fn agents_without_an_object_are_connected_members() {
        assert_eq!(numbers(vec![member(1)], 7), [8, 8, 1, 1, 0, 0]);
    }

    #[test]
    fn failures_are_the_first_twenty_by_name_whatever_their_order() {
        let failed = |number| with(member(number), 2, "False", "ConfigFailed");
        let upwards = census((1..=30).map(failed).collect(), 0);
        let downwards = census((1..=30).rev().map(failed).collect(), 0);
        assert_eq!(upwards, downwards);
        assert_eq!((upwards.counts.failed, upwards.failures.len()), (30, 20));
        assert_eq!(upwards.failures[19].agent, "01900000-0000-7000-8000-000000000014");
        assert_eq!(upwards.failures[0].message, "no such exporter");
    }
}
