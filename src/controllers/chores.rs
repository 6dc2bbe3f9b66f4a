//! What the leader does about Agents that no session speaks for: which of them are due, without a client or a clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::{
    agents::{
        retention::{Kept, is_over, losers},
        summary::AgentSummary,
    },
    api::{agent_fleet::EnrollmentMethod, condition::Verdict, selector::AttributeSelector},
    catalog::Catalog,
    lease::{Holder, Incarnation, Presence, presence::Expired},
    opamp::InstanceUid,
};

/// How long two objects of one agent are left alone: a replica that moves an agent makes the new one, claims it, and
/// deletes the old one.
const MOVING: Duration = Duration::from_secs(60);

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Chore {
    /// Delete an object, if it is still as it was seen.
    Delete(Arc<AgentSummary>),
    /// Read an agent that is not connected, or whose replica is gone, and say anew how it is.
    Restate(Arc<AgentSummary>),
    /// Delete the Lease of a replica that is long gone.
    DeleteLease(Expired),
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

/// What is remembered between two rounds.
#[derive(Debug, Default)]
pub struct Housekeeping {
    /// Since when there are two objects of an agent.
    doubled: BTreeMap<InstanceUid, Instant>,
    /// Agents that are not connected, and whose fleet may be another one now.
    to_be_matched: BTreeSet<AgentKey>,
    /// By namespace, what decided which fleet takes an agent when this was last looked at.
    rules: Option<BTreeMap<String, Vec<MatchingRule>>>,
    /// The generation of the catalog that was last looked at.
    seen: Option<u64>,
}

/// All of a fleet that decides whom it takes.
#[derive(Clone, Debug, PartialEq)]
struct MatchingRule {
    name: String,
    uid: String,
    priority: i32,
    created: Timestamp,
    selector: AttributeSelector,
    methods: Vec<EnrollmentMethod>,
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
                methods: fleet.methods.clone(),
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
        kept: impl Fn(&AgentSummary) -> Kept,
        now: (Instant, Timestamp),
    ) -> Due {
        let (instant, wall) = now;
        let claiming: BTreeSet<Holder> = agents.iter().filter(|agent| agent.is_connected()).filter_map(owner).collect();
        let gone = presence.gone(&claiming, instant);
        let surplus = self.surplus(agents, instant);
        let mut to_be_matched = BTreeSet::new();
        let mut chores = Vec::new();
        for agent in agents {
            let asked_for = is_away(agent) && self.to_be_matched.contains(&key(agent));
            if asked_for {
                to_be_matched.insert(key(agent));
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

    /// An agent was looked at, and nothing is left to be said of it.
    pub fn restated(&mut self, agent: &AgentKey) {
        self.to_be_matched.remove(agent);
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

fn owner(agent: &Arc<AgentSummary>) -> Option<Holder> {
    let connection = agent.connection.as_ref()?;
    Some(Holder {
        replica: (*connection.replica).into(),
        incarnation: Incarnation::from_text(&*connection.incarnation),
    })
}
