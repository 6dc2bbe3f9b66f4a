//! How many Agent objects there may be, and who waits for one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use crate::opamp::InstanceUid;

/// The most objects that are made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ObjectLimits {
    /// In all. Agents beyond it are served without an object.
    pub agents: usize,
    /// Of agents that no fleet ever took, in the operator's own namespace.
    pub unmatched: usize,
}

impl Default for ObjectLimits {
    fn default() -> Self {
        Self { agents: 10_000, unmatched: 500 }
    }
}

/// How many objects there are, as the watch shows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Occupied {
    pub(super) agents: usize,
    pub(super) unmatched: usize,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Guest {
    since: Timestamp,
    /// The uid of the fleet that takes the agent, if one does.
    fleet: Option<String>,
}

/// The agents that wait for an object, and the objects that are on their way.
#[derive(Debug)]
pub(super) struct Room {
    limits: ObjectLimits,
    /// Those that were let in and whose object the watch has not shown yet, with whether a fleet takes them.
    entering: HashMap<InstanceUid, Kind>,
    waiting: HashMap<InstanceUid, Guest>,
    order: BTreeSet<(Timestamp, InstanceUid)>,
}

/// What an object counts as.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Matched,
    Unmatched,
}

impl Room {
    pub(super) fn new(limits: ObjectLimits) -> Self {
        Self { limits, entering: HashMap::new(), waiting: HashMap::new(), order: BTreeSet::new() }
    }

    /// Whether an object may be made for this agent. If so it counts until [`Self::entered`] or [`Self::leave`]; if not
    /// the agent waits. Whoever waits is never overtaken by an agent whose session is younger.
    pub(super) fn enter(
        &mut self,
        uid: InstanceUid,
        fleet: Option<&str>,
        since: Timestamp,
        occupied: Occupied,
    ) -> bool {
        let kind = if fleet.is_some() { Kind::Matched } else { Kind::Unmatched };
        self.leave(uid);
        self.order.insert((since, uid));
        self.waiting.insert(uid, Guest { since, fleet: fleet.map(ToOwned::to_owned) });
        let may_enter = self.vacant(kind, occupied) > 0 && self.next(occupied).contains(&uid);
        if may_enter {
            self.leave(uid);
            self.entering.insert(uid, kind);
        }
        may_enter
    }

    /// The agent needs no object any more, or did not get one.
    pub(super) fn leave(&mut self, uid: InstanceUid) {
        self.entering.remove(&uid);
        if let Some(guest) = self.waiting.remove(&uid) {
            self.order.remove(&(guest.since, uid));
        }
    }

    /// Forgets those whose object the watch shows by now.
    pub(super) fn entered(&mut self, is_shown: impl Fn(&InstanceUid) -> bool) {
        self.entering.retain(|uid, _| !is_shown(uid));
    }

    /// Those who may try again, the oldest session first.
    pub(super) fn next(&self, occupied: Occupied) -> Vec<InstanceUid> {
        let mut matched = self.vacant(Kind::Matched, occupied);
        let mut unmatched = self.vacant(Kind::Unmatched, occupied);
        self.order
            .iter()
            .filter(|(_, uid)| {
                let has_fleet = self.waiting.get(uid).is_some_and(|guest| guest.fleet.is_some());
                if matched == 0 || !has_fleet && unmatched == 0 {
                    return false;
                }
                matched -= 1;
                unmatched = unmatched.saturating_sub(usize::from(!has_fleet));
                true
            })
            .map(|(_, uid)| *uid)
            .collect()
    }

    /// How many agents wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many wait, per uid of the fleet that takes them.
    pub(super) fn uncounted(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for fleet in self.waiting.values().filter_map(|guest| guest.fleet.as_ref()) {
            *counts.entry(fleet.clone()).or_default() += 1;
        }
        counts
    }

    /// How many more objects of this kind there may be. The cap on all counts for the unmatched, too.
    fn vacant(&self, kind: Kind, occupied: Occupied) -> usize {
        let agents = self.limits.agents.saturating_sub(occupied.agents + self.entering.len());
        match kind {
            Kind::Matched => agents,
            Kind::Unmatched => {
                let entering = self.entering.values().filter(|kind| **kind == Kind::Unmatched).count();
                agents.min(self.limits.unmatched.saturating_sub(occupied.unmatched + entering))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ObjectLimits = ObjectLimits { agents: 4, unmatched: 1 };
    const EMPTY: Occupied = Occupied { agents: 0, unmatched: 0 };

    fn agent(number: u8) -> InstanceUid {
        InstanceUid::from_wire(&[number; 16]).expect("16 bytes")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn objects_on_their_way_count_until_the_watch_shows_them() {
        let mut room = Room::new(LIMITS);
        for number in 1..=4 {
            assert!(room.enter(agent(number), Some("fleet"), at(0), EMPTY));
        }
        assert!(!room.enter(agent(5), Some("fleet"), at(0), EMPTY));
        room.entered(|uid| *uid == agent(1));
        assert!(!room.enter(agent(5), Some("fleet"), at(0), Occupied { agents: 1, unmatched: 0 }));
        room.leave(agent(2));
        assert!(room.enter(agent(5), Some("fleet"), at(0), Occupied { agents: 1, unmatched: 0 }));
    }

    #[test]
    fn agents_without_a_fleet_have_a_cap_of_their_own() {
        let mut room = Room::new(LIMITS);
        assert!(room.enter(agent(1), None, at(0), EMPTY));
        assert!(!room.enter(agent(2), None, at(0), EMPTY));
        assert!(room.enter(agent(3), Some("fleet"), at(0), EMPTY));
        assert_eq!(room.uncounted(), BTreeMap::new(), "no fleet misses it");
        assert_eq!(room.waiting(), 1);
    }

    #[test]
    fn whoever_waits_is_counted_for_its_fleet_and_gets_its_object_by_the_age_of_its_session() {
        let mut room = Room::new(LIMITS);
        let full = Occupied { agents: 4, unmatched: 0 };
        for (number, fleet, since) in [(1, Some("a"), 30), (2, Some("b"), 10), (3, Some("a"), 20), (4, None, 5)] {
            assert!(!room.enter(agent(number), fleet, at(since), full));
        }
        assert_eq!(room.uncounted(), BTreeMap::from([("a".into(), 2), ("b".into(), 1)]));
        assert_eq!(room.next(full), []);
        assert_eq!(room.next(Occupied { agents: 2, unmatched: 1 }), [agent(2), agent(3)]);
        assert_eq!(room.next(Occupied { agents: 2, unmatched: 0 }), [agent(4), agent(2)]);
        room.leave(agent(2));
        assert_eq!(room.next(Occupied { agents: 3, unmatched: 1 }), [agent(3)]);
        let vacant = Occupied { agents: 3, unmatched: 1 };
        assert!(!room.enter(agent(5), Some("a"), at(21), vacant), "an older session waits");
        assert!(room.enter(agent(3), Some("a"), at(20), vacant));
        room.leave(agent(5));
        assert_eq!(room.uncounted(), BTreeMap::from([("a".into(), 1)]));
    }
}
