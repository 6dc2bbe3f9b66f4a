//! What the leader does about Agents that no session speaks for: which of them are due, without a client or a clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::{
    agents::{
        retention::{self, is_over, losers},
        summary::{Acceptance, AgentSummary},
    },
    api::{
        agent::Access, agent_fleet::EffectiveConfigDetail, condition::Verdict, enrollment::Enrollment,
        selector::AttributeSelector,
    },
    catalog::Catalog,
    effective_configs::stored::Kept,
    lease::{Holder, Incarnation, Presence, presence::Expired},
    opamp::InstanceUid,
};

/// How long two objects of one agent are left alone: a replica that moves an agent makes the new one, claims it, and
/// deletes the old one.
const MOVING: Duration = Duration::from_secs(60);

/// How long an object is left alone after the API server has refused what was to be done to it: it will hardly change
/// its mind at once, and others wait for their turn.
const REST: Duration = Duration::from_secs(60);

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Chore {
    /// Delete an object, if it is still as it was seen.
    Delete(Arc<AgentSummary>),
    /// Read an agent that is not connected, or whose replica is gone, and say anew how it is.
    Restate(Arc<AgentSummary>),
    /// Delete the Lease of a replica that is long gone.
    DeleteLease(Expired),
    /// Delete the Secret with an effective configuration that no agent runs any more.
    DeleteConfig(Kept),
}

/// An agent's object.
pub type AgentKey = (Arc<str>, InstanceUid);

/// The key of an agent's object.
#[must_use]
pub fn key(agent: &AgentSummary) -> AgentKey {
    (Arc::clone(&agent.namespace), agent.uid)
}

/// What is to be done, and the replicas that are gone.
#[derive(Debug, Default)]
pub struct Due {
    /// One thing for one object at most.
    pub chores: Vec<Chore>,
    /// Runs of replicas whose word no longer counts.
    pub gone: BTreeSet<Holder>,
}

/// What came of a round.
#[derive(Debug, Default)]
pub struct Carried {
    /// Agents of which nothing is left to be said.
    pub done: Vec<AgentKey>,
    /// Agents about which the API server has refused what was asked.
    pub refused: Vec<AgentKey>,
}

/// What is remembered between two rounds.
#[derive(Debug, Default)]
pub struct Housekeeping {
    /// Since when there are two objects of an agent.
    doubled: BTreeMap<InstanceUid, Instant>,
    /// Until when agents are left alone about which something was refused.
    resting: BTreeMap<AgentKey, Instant>,
    /// Agents that are not connected, and whose fleet may be another one now.
    to_be_matched: BTreeSet<AgentKey>,
    /// By namespace, what decided which fleet takes an agent when this was last looked at.
    rules: Option<BTreeMap<String, Vec<MatchingRule>>>,
    /// The generation of the catalog that was last looked at.
    seen: Option<u64>,
}

/// All of a fleet that decides whom it takes, and what the leader says of them.
#[derive(Clone, Debug, PartialEq)]
struct MatchingRule {
    name: String,
    uid: String,
    priority: i32,
    created: Timestamp,
    selector: AttributeSelector,
    enrollment: Enrollment,
    /// It decides what the status of its members says.
    effective_config: EffectiveConfigDetail,
}

impl Housekeeping {
    /// Looks at the catalog. If it has changed in a way that touches who is taken by which fleet of a namespace, the agents there that are
    /// not connected have to be looked at. Those that are connected are their bridges' business. A new leader looks at all,
    /// because fleets may have changed while nobody led.
    pub fn look_at(&mut self, catalog: &Catalog, agents: &[Arc<AgentSummary>]) {
        if self.seen == Some(catalog.generation()) {
            return;
        }
        self.seen = Some(catalog.generation());
        let mut rules: BTreeMap<String, Vec<MatchingRule>> = BTreeMap::new();
        for fleet in catalog.fleets() {
            rules.entry(fleet.namespace.clone()).or_default().push(MatchingRule {
                name: fleet.name.clone(),
                uid: fleet.uid.clone(),
                priority: fleet.priority,
                created: fleet.created,
                selector: fleet.selector.clone(),
                enrollment: fleet.enrollment.clone(),
                effective_config: fleet.effective_config,
            });
        }
        let former = self.rules.take();
        let touched =
            |namespace: &str| former.as_ref().is_none_or(|former| former.get(namespace) != rules.get(namespace));
        let away = agents.iter().filter(|agent| is_away(agent) && touched(&agent.namespace));
        self.to_be_matched.extend(away.map(|agent| key(agent)));
        self.rules = Some(rules);
    }

    /// What is to be done now. `agents` are all of them, ordered by uid; `kept` says how long the last fleet of an agent
    /// wants its object kept.
    pub fn due(
        &mut self,
        agents: &[Arc<AgentSummary>],
        presence: &mut Presence,
        kept: impl Fn(&AgentSummary) -> retention::Kept,
        now: (Instant, Timestamp),
    ) -> Due {
        let (instant, wall) = now;
        let claiming: BTreeSet<Holder> = agents.iter().filter(|agent| agent.is_connected()).filter_map(owner).collect();
        let gone = presence.gone(&claiming, instant);
        let surplus = self.surplus(agents, instant);
        self.resting.retain(|_, until| instant < *until);
        let mut to_be_matched = BTreeSet::new();
        let mut chores = Vec::new();
        for agent in agents {
            let is_touched = is_away(agent) && self.to_be_matched.contains(&key(agent));
            if is_touched {
                to_be_matched.insert(key(agent));
            }
            let asked_for = is_touched || is_away(agent) && is_decided_anew(agent);
            if agent.deleted.is_some() || self.resting.contains_key(&key(agent)) {
                continue;
            }
            let orphaned = agent.is_connected() && owner(agent).is_some_and(|owner| gone.contains(&owner));
            if surplus.contains(&key(agent)) || is_over(agent, &kept, wall) {
                chores.push(Chore::Delete(Arc::clone(agent)));
            } else if orphaned || asked_for {
                chores.push(Chore::Restate(Arc::clone(agent)));
            }
        }
        self.to_be_matched = to_be_matched;
        chores.extend(presence.expired(instant).into_iter().map(Chore::DeleteLease));
        Due { chores, gone }
    }

    /// A round has ended.
    pub fn carried(&mut self, carried: Carried, now: Instant) {
        let Carried { done, refused } = carried;
        for agent in &done {
            self.to_be_matched.remove(agent);
        }
        self.resting.extend(refused.into_iter().map(|agent| (agent, now + REST)));
    }

    /// The objects that are too many, of agents that have had two for longer than a move takes.
    fn surplus(&mut self, agents: &[Arc<AgentSummary>], now: Instant) -> BTreeSet<AgentKey> {
        let doubled = agents.chunk_by(|one, other| one.uid == other.uid).filter(|objects| objects.len() > 1);
        let mut since = BTreeMap::new();
        let mut surplus = BTreeSet::new();
        for objects in doubled {
            let uid = objects[0].uid;
            let first = self.doubled.get(&uid).copied().unwrap_or(now);
            since.insert(uid, first);
            if now.saturating_duration_since(first) >= MOVING {
                surplus.extend(losers(objects).iter().map(|loser| key(loser)));
            }
        }
        self.doubled = since;
        surplus
    }
}

/// Whether the agent was once claimed and is not connected, so that its status is the leader's.
fn is_away(agent: &AgentSummary) -> bool {
    agent.connected.as_ref().is_some_and(|connected| connected.verdict != Verdict::True)
}

/// Whether a person has decided otherwise about the agent than its status says.
fn is_decided_anew(agent: &AgentSummary) -> bool {
    let shown = agent.acceptance;
    match agent.access {
        Some(Access::Denied) => shown != Some(Acceptance::Denied),
        Some(Access::Revoked) => shown != Some(Acceptance::Revoked),
        Some(Access::Approved) => {
            matches!(shown, Some(Acceptance::Pending | Acceptance::Denied | Acceptance::Revoked))
        }
        None => matches!(shown, Some(Acceptance::Denied | Acceptance::Revoked)),
    }
}

fn owner(agent: &Arc<AgentSummary>) -> Option<Holder> {
    let connection = agent.connection.as_ref()?;
    Some(Holder {
        replica: (*connection.replica).into(),
        incarnation: Incarnation::from_text(&*connection.incarnation),
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::enrollment::EnrollmentMethod;
    use crate::{
        agents::index::AgentIndex,
        api::agent_fleet::AgentFleet,
        catalog::{
            Policy,
            fleet::{FleetEntry, Offering},
        },
    };

    const SINCE: &str = "2026-11-29T12:00:00Z";
    /// An hour after the agents of these tests came or went.
    const NOW: Timestamp = Timestamp::constant(1_795_957_200, 0);

    /// An agent that the first run of replica-0 claimed.
    fn agent(number: u32, namespace: &str, connected: &str, epoch: i64) -> Value {
        json!({
            "metadata": {"name": format!("01900000-0000-7000-8000-{number:012x}"), "namespace": namespace,
                "resourceVersion": "1", "creationTimestamp": SINCE, "labels": {"opamp.dev/fleet": "edge"}},
            "spec": {},
            "status": {
                "connection": {"replica": "replica-0", "incarnation": "1111111111", "epoch": epoch, "since": SINCE},
                "conditions": [{"type": "Connected", "status": connected, "reason": "Any", "message": "",
                    "lastTransitionTime": SINCE}],
            },
        })
    }

    fn agents(all: impl IntoIterator<Item = Value>) -> Vec<Arc<AgentSummary>> {
        AgentIndex::holding(all).all()
    }

    fn catalog(fleets: &[(&str, &str, i32)], generation: u64) -> Catalog {
        let fleets = fleets.iter().map(|(namespace, name, priority)| {
            Arc::new(FleetEntry {
                namespace: (*namespace).into(),
                name: (*name).into(),
                uid: "uid".into(),
                priority: *priority,
                created: Timestamp::UNIX_EPOCH,
                selector: AttributeSelector::default(),
                enrollment: Enrollment { methods: Some(vec![EnrollmentMethod::Anonymous]), ..Enrollment::default() },
                effective_config: EffectiveConfigDetail::Hash,
                offering: Offering::NoRevision,
                credentials: None,
            })
        });
        Catalog::new(fleets.collect(), Policy::default(), generation)
    }

    /// The chores of these seconds, as the names of what is done to which object.
    fn chores(
        housekeeping: &mut Housekeeping,
        agents: &[Arc<AgentSummary>],
        presence: &mut Presence,
        now: Instant,
    ) -> Vec<String> {
        let due = housekeeping.due(agents, presence, |_| retention::Kept::For(Duration::from_secs(86_400)), (now, NOW));
        due.chores
            .iter()
            .map(|chore| match chore {
                Chore::Delete(agent) => format!("delete {}", agent.namespace),
                Chore::Restate(agent) => format!("restate {}", agent.namespace),
                Chore::DeleteLease(expired) => format!("delete Lease {}", expired.name),
                Chore::DeleteConfig(kept) => format!("delete Secret {}", kept.key.name),
            })
            .collect()
    }

    fn lease_of(identity: &str) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.name = Some("opamp-replica-replica-0".into());
        lease.spec = Some(LeaseSpec { holder_identity: Some(identity.into()), ..LeaseSpec::default() });
        lease
    }

    #[test]
    fn only_agents_whose_replica_is_gone_for_a_minute_are_restated() {
        let start = Instant::now();
        let agents = agents([agent(1, "connected", "True", 1), agent(2, "left", "False", 1)]);
        for (case, holder, expected) in [
            ("its replica lives", "replica-0_1111111111", &[][..]),
            ("its replica was replaced", "replica-0_2222222222", &["restate connected"]),
        ] {
            let (mut housekeeping, mut presence) = (Housekeeping::default(), Presence::default());
            for second in (0..60).step_by(3) {
                let now = start + Duration::from_secs(second);
                let mut lease = lease_of(holder);
                lease.metadata.resource_version = Some(second.to_string());
                presence.apply(Event::Apply(lease), now);
                assert_eq!(chores(&mut housekeeping, &agents, &mut presence, now), [""; 0], "{case} at {second} s");
            }
            let minute = start + Duration::from_secs(60);
            assert_eq!(chores(&mut housekeeping, &agents, &mut presence, minute), expected, "{case}");
        }
    }

    #[test]
    fn agents_that_are_away_are_matched_anew_only_where_fleets_have_changed() {
        let now = Instant::now();
        let all = agents([agent(1, "shop", "True", 1), agent(2, "shop", "False", 1), agent(3, "bank", "Unknown", 1)]);
        let (mut housekeeping, mut presence) = (Housekeeping::default(), Presence::default());
        let mut look = |housekeeping: &mut Housekeeping, catalog: &Catalog, case: &str, expected: &[&str]| {
            housekeeping.look_at(catalog, &all);
            assert_eq!(chores(housekeeping, &all, &mut presence, now), expected, "{case}");
        };
        let before = catalog(&[("shop", "edge", 0), ("bank", "edge", 0)], 1);
        look(&mut housekeeping, &before, "a new leader looks at all", &["restate shop", "restate bank"]);
        look(&mut housekeeping, &before, "until that was done", &["restate shop", "restate bank"]);
        let done = all.iter().map(|agent| key(agent)).collect();
        housekeeping.carried(Carried { done, ..Carried::default() }, now);
        look(&mut housekeeping, &before, "done", &[]);
        look(&mut housekeeping, &catalog(&[("bank", "edge", 0), ("shop", "edge", 0)], 2), "no such change", &[]);
        let other = catalog(&[("shop", "edge", 1), ("bank", "edge", 0)], 3);
        look(&mut housekeeping, &other, "another priority", &["restate shop"]);
        look(
            &mut housekeeping,
            &catalog(&[("shop", "edge", 1)], 4),
            "a fleet is gone",
            &["restate shop", "restate bank"],
        );
    }

    #[test]
    fn an_agent_that_moves_has_a_minute_to_do_so() {
        let start = Instant::now();
        let all = agents([agent(1, "from", "False", 1), agent(1, "to", "True", 2), agent(2, "to", "False", 1)]);
        let (mut housekeeping, mut presence) = (Housekeeping::default(), Presence::default());
        for (second, expected) in [(0, &[][..]), (59, &[]), (60, &["delete from", "restate to"])] {
            let now = start + Duration::from_secs(second);
            assert_eq!(chores(&mut housekeeping, &all, &mut presence, now), expected, "{second}");
        }
        let moved = agents([agent(1, "to", "True", 2)]);
        chores(&mut housekeeping, &moved, &mut presence, start + Duration::from_secs(61));
        let again = chores(&mut housekeeping, &all, &mut presence, start + Duration::from_secs(62));
        assert!(!again.contains(&"delete from".to_owned()), "the minute begins anew");
    }

    #[test]
    fn what_the_api_server_refuses_is_left_alone_for_a_minute_and_holds_up_nobody() {
        let start = Instant::now();
        let all = agents([agent(1, "shop", "False", 1), agent(2, "bank", "False", 1)]);
        let (mut housekeeping, mut presence) = (Housekeeping::default(), Presence::default());
        housekeeping.look_at(&catalog(&[], 1), &all);
        housekeeping.carried(Carried { refused: vec![key(&all[0])], ..Carried::default() }, start);
        for (second, expected) in
            [(0, &["restate bank"][..]), (59, &["restate bank"]), (60, &["restate shop", "restate bank"])]
        {
            let now = start + Duration::from_secs(second);
            assert_eq!(chores(&mut housekeeping, &all, &mut presence, now), expected, "{second}");
        }
    }

    #[test]
    fn an_object_whose_deletion_a_finalizer_holds_up_is_not_deleted_again() {
        let mut held_up = agent(1, "shop", "False", 1);
        held_up["metadata"]["deletionTimestamp"] = json!(SINCE);
        let due = Housekeeping::default().due(
            &agents([held_up]),
            &mut Presence::default(),
            |_| retention::Kept::For(Duration::ZERO),
            (Instant::now(), NOW),
        );
        assert_eq!(due.chores, []);
    }

    #[test]
    fn retention_counts_from_the_end_of_the_connection() {
        let all = agents([agent(1, "shop", "False", 1)]);
        for (case, kept, expected) in [
            ("over", retention::Kept::For(Duration::from_secs(3_600)), 1),
            ("not yet", retention::Kept::For(Duration::from_secs(3_601)), 0),
            ("for ever", retention::Kept::Always, 0),
        ] {
            let due = Housekeeping::default().due(&all, &mut Presence::default(), |_| kept, (Instant::now(), NOW));
            assert_eq!(due.chores.len(), expected, "{case}");
        }
        // The default of a fleet is the one that its schema documents.
        let spec = serde_json::from_value(json!({"selector": {}})).expect("a spec");
        let period = AgentFleet::new("edge", spec).spec.retention.period();
        assert_eq!(period, Some(Duration::from_secs(24 * 3_600)));
    }
}
