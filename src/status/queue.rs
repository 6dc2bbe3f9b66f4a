//! Whose status is written next: one slot an agent, the latest state wins.
//!
//! The queue holds no state of agents, only that something changed and when. So it is as long as there are agents, and
//! no change is ever lost or written twice.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap},
    time::{Duration, Instant},
};

use super::pace::Pace;
use crate::opamp::InstanceUid;

/// A change waits this long for those that follow it, so that one apply is one patch.
const COALESCING: Duration = Duration::from_millis(500);

/// Why an agent is to be written; the order of the variants is the order of the writes.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Urgency {
    /// It failed to apply something, or is not well.
    Failure,
    /// It is seen for the first time.
    FirstSight,
    /// What it is offered, or what became of that.
    Configuration,
    /// It came or went.
    Connection,
    /// All else.
    Rest,
}

impl Urgency {
    /// How much later than a failure of the same moment it counts. More urgent changes come first, but whoever has waited
    /// for longer than the difference is served nevertheless: nobody starves.
    const fn handicap(self) -> Duration {
        Duration::from_secs(match self {
            Self::Failure => 0,
            Self::FirstSight => 300,
            Self::Configuration => 600,
            Self::Connection => 900,
            Self::Rest => 1_200,
        })
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ended {
    /// Something was written.
    Written,
    /// There was nothing to write.
    Unchanged,
    /// It did not work for this agent; it is tried again, later each time.
    Failed,
    /// It did not work for any agent now; it keeps its place.
    Postponed,
}

/// Whether turns are spread out.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Haste {
    #[default]
    None,
    /// The process ends: what waits is due.
    Ending,
}

/// What [`WriteQueue::pop`] has to say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Turn {
    /// This agent is to be written now; [`WriteQueue::finish`] must follow.
    Now(InstanceUid),
    /// Somebody is due then.
    At(Instant),
    /// Nobody waits.
    Idle,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// When it changed, plus the handicap: the smallest comes first among those that are due.
    rank: Instant,
    due: Instant,
}

#[derive(Debug, Default)]
struct Entry {
    waiting: Option<Waiting>,
    /// What was taken by the turn in flight.
    in_flight: Option<Waiting>,
    pace: Pace,
}

impl Entry {
    fn is_forgettable(&mut self, now: Instant) -> bool {
        self.waiting.is_none() && self.in_flight.is_none() && self.pace.is_forgettable(now)
    }
}

/// The agents that wait to be written. Pure: time is an argument.
#[derive(Debug, Default)]
pub struct WriteQueue {
    agents: HashMap<InstanceUid, Entry>,
    /// Those that are not due yet. Entries that do not fit their agent any more are skipped.
    later: BinaryHeap<Reverse<(Instant, InstanceUid)>>,
    /// Those that are due, by rank.
    ready: BTreeSet<(Instant, InstanceUid)>,
    waiting: usize,
    in_flight: usize,
    haste: Haste,
}

impl WriteQueue {
    /// An agent has changed. Changes of one agent merge; one that is in flight is taken once more afterwards.
    pub fn touch(&mut self, uid: InstanceUid, urgency: Urgency, now: Instant) {
        let haste = self.haste;
        let entry = self.agents.entry(uid).or_default();
        let due = match haste {
            Haste::None => entry.pace.not_before(now).max(now + COALESCING),
            Haste::Ending => now,
        };
        self.enqueue(uid, Waiting { rank: now + urgency.handicap(), due });
    }

    /// Who is next.
    pub fn pop(&mut self, now: Instant) -> Turn {
        while let Some(Reverse((due, uid))) = self.later.peek().copied() {
            if due > now {
                break;
            }
            self.later.pop();
            let idle = self.agents.get(&uid).filter(|entry| entry.in_flight.is_none());
            if let Some(waiting) = idle.and_then(|entry| entry.waiting).filter(|waiting| waiting.due <= now) {
                self.ready.insert((waiting.rank, uid));
            }
        }
        if let Some((_, uid)) = self.ready.pop_first() {
            if let Some(entry) = self.agents.get_mut(&uid) {
                entry.in_flight = entry.waiting.take();
                self.waiting -= 1;
                self.in_flight += 1;
            }
            return Turn::Now(uid);
        }
        self.later.peek().map_or(Turn::Idle, |Reverse((due, _))| Turn::At(*due))
    }

    /// The turn of an agent is over.
    pub fn finish(&mut self, uid: InstanceUid, ended: Ended, now: Instant) {
        let haste = self.haste;
        let Some(entry) = self.agents.get_mut(&uid) else { return };
        let Some(taken) = entry.in_flight.take() else { return };
        self.in_flight -= 1;
        let meanwhile = entry.waiting.take();
        self.waiting -= usize::from(meanwhile.is_some());
        let next = match ended {
            Ended::Written => {
                entry.pace.written(now);
                let bound = match haste {
                    Haste::None => entry.pace.not_before(now),
                    Haste::Ending => now,
                };
                meanwhile.map(|waiting| Waiting { due: waiting.due.max(bound), ..waiting })
            }
            Ended::Unchanged => {
                entry.pace.succeeded();
                meanwhile
            }
            Ended::Failed => merge(Some(Waiting { due: now, ..taken }), meanwhile)
                .map(|waiting| Waiting { due: now + entry.pace.failed(), ..waiting }),
            Ended::Postponed => merge(Some(Waiting { due: now, ..taken }), meanwhile),
        };
        if let Some(next) = next {
            self.enqueue(uid, next);
        }
    }

    /// The process ends: whoever waits is due now, and whoever changes is due at once.
    pub fn hasten(&mut self, now: Instant) {
        self.haste = Haste::Ending;
        for (uid, entry) in &mut self.agents {
            if let Some(waiting) = &mut entry.waiting {
                waiting.due = now;
                if entry.in_flight.is_none() {
                    self.later.push(Reverse((now, *uid)));
                }
            }
        }
    }

    /// Forgets the pace of agents that have been quiet for long. Cheap; to be called once a minute or so.
    pub fn sweep(&mut self, now: Instant) {
        self.agents.retain(|_, entry| !entry.is_forgettable(now));
    }

    /// How many agents wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many turns are not over.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn enqueue(&mut self, uid: InstanceUid, new: Waiting) {
        let entry = self.agents.entry(uid).or_default();
        let former = entry.waiting;
        let merged = merge(former, Some(new)).unwrap_or(new);
        entry.waiting = Some(merged);
        if former.is_none() {
            self.waiting += 1;
        }
        if entry.in_flight.is_some() {
            return;
        }
        match former {
            Some(former) if self.ready.remove(&(former.rank, uid)) => {
                self.ready.insert((merged.rank, uid));
            }
            // It is in the heap already, and not to come sooner.
            Some(former) if former.due <= merged.due => {}
            Some(_) | None => self.later.push(Reverse((merged.due, uid))),
        }
    }
}

/// The more urgent rank and the earlier turn of both.
fn merge(one: Option<Waiting>, other: Option<Waiting>) -> Option<Waiting> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Waiting { rank: one.rank.min(other.rank), due: one.due.min(other.due) }),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agent(number: u8) -> InstanceUid {
        InstanceUid::from_wire(&[number; 16]).expect("16 bytes")
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Writes whatever is due at once until nobody waits; the agents in their order, with the times of their turns.
    fn drain(queue: &mut WriteQueue, mut now: Instant) -> Vec<(InstanceUid, Instant)> {
        let mut turns = Vec::new();
        loop {
            match queue.pop(now) {
                Turn::Now(uid) => {
                    queue.finish(uid, Ended::Written, now);
                    turns.push((uid, now));
                }
                Turn::At(due) => now = now.max(due),
                Turn::Idle => return turns,
            }
        }
    }

    #[test]
    fn a_burst_of_changes_is_one_turn_half_a_second_after_the_first() {
        let start = Instant::now();
        let mut queue = WriteQueue::default();
        for milliseconds in [0, 100, 499] {
            queue.touch(agent(1), Urgency::Rest, start + Duration::from_millis(milliseconds));
        }
        assert_eq!(queue.pop(start + Duration::from_millis(499)), Turn::At(start + COALESCING));
        assert_eq!(drain(&mut queue, start), [(agent(1), start + COALESCING)]);
    }

    #[test]
    fn the_more_urgent_come_first_and_the_longest_waiting_among_equals() {
        let start = Instant::now();
        let mut queue = WriteQueue::default();
        let order = [Urgency::Failure, Urgency::FirstSight, Urgency::Configuration, Urgency::Connection, Urgency::Rest];
        for (number, urgency) in (1..).zip(order).collect::<Vec<_>>().into_iter().rev() {
            queue.touch(agent(number + 10), urgency, start + seconds(1));
            queue.touch(agent(number), urgency, start);
        }
        let turns = drain(&mut queue, start + seconds(2));
        let expected: Vec<_> = (1..=5).flat_map(|number| [agent(number), agent(number + 10)]).collect();
        assert_eq!(turns.into_iter().map(|(uid, _)| uid).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_change_that_turns_urgent_moves_forward() {
        let start = Instant::now();
        let mut queue = WriteQueue::default();
        queue.touch(agent(1), Urgency::FirstSight, start);
        queue.touch(agent(2), Urgency::Rest, start);
        queue.touch(agent(2), Urgency::Failure, start + Duration::from_millis(100));
        assert_eq!(queue.pop(start + seconds(1)), Turn::Now(agent(2)));
        queue.touch(agent(3), Urgency::Rest, start);
        assert_eq!(queue.pop(start + seconds(1)), Turn::Now(agent(1)));
        queue.touch(agent(3), Urgency::Failure, start + seconds(1));
        assert_eq!(queue.pop(start + seconds(1)), Turn::Now(agent(3)));
    }

    #[test]
    fn the_least_urgent_does_not_starve() {
        let start = Instant::now();
        let mut queue = WriteQueue::default();
        queue.touch(agent(0), Urgency::Rest, start);
        for second in 1..=1_300 {
            let now = start + seconds(second);
            queue.touch(agent(1 + u8::try_from(second % 200).expect("small")), Urgency::Failure, now);
            if let Turn::Now(uid) = queue.pop(now) {
                queue.finish(uid, Ended::Unchanged, now);
                if uid == agent(0) {
                    return;
                }
            }
        }
        panic!("the agent was never written");
    }

    #[test]
    fn a_change_during_the_flight_has_its_own_turn() {
        let start = Instant::now();
        for (ended, expected) in [
            (Ended::Written, start + seconds(11) + seconds(5)),
            (Ended::Unchanged, start + seconds(10) + COALESCING),
            (Ended::Failed, start + seconds(11) + seconds(1)),
            (Ended::Postponed, start + seconds(11)),
        ] {
            let mut queue = WriteQueue::default();
            queue.touch(agent(1), Urgency::Rest, start);
            assert_eq!(queue.pop(start + seconds(9)), Turn::Now(agent(1)));
            queue.touch(agent(1), Urgency::Rest, start + seconds(10));
            assert_eq!(queue.pop(start + seconds(10)), Turn::Idle, "never two in flight");
            queue.finish(agent(1), ended, start + seconds(11));
            assert_eq!(
                drain(&mut queue, start + seconds(11)),
                [(agent(1), expected.max(start + seconds(11)))],
                "{ended:?}"
            );
        }
    }

    #[test]
    fn at_the_end_everybody_who_waits_is_due() {
        let start = Instant::now();
        let mut queue = WriteQueue::default();
        queue.touch(agent(1), Urgency::Rest, start);
        drain(&mut queue, start);
        queue.touch(agent(1), Urgency::Rest, start + seconds(1));
        queue.hasten(start + seconds(1));
        queue.touch(agent(2), Urgency::Connection, start + seconds(1));
        assert_eq!(drain(&mut queue, start + seconds(1)).len(), 2);
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn the_pace_of_quiet_agents_is_forgotten() {
        let start = Instant::now();
        let mut queue = WriteQueue::default();
        queue.touch(agent(1), Urgency::Rest, start);
        drain(&mut queue, start);
        queue.sweep(start + seconds(10));
        assert_eq!(queue.agents.len(), 1);
        queue.sweep(start + seconds(1_000));
        assert_eq!(queue.agents.len(), 0);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Touch(u8, Urgency),
        Pop,
        Finish(u8, Ended),
        Wait(u16),
        Hasten,
        Sweep,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let urgency = prop::sample::select(vec![
            Urgency::Failure,
            Urgency::FirstSight,
            Urgency::Configuration,
            Urgency::Connection,
            Urgency::Rest,
        ]);
        let ended = prop::sample::select(vec![Ended::Written, Ended::Unchanged, Ended::Failed, Ended::Postponed]);
        prop_oneof![
            6 => (0..4_u8, urgency).prop_map(|(uid, urgency)| Step::Touch(uid, urgency)),
            6 => Just(Step::Pop),
            6 => (0..4_u8, ended).prop_map(|(uid, ended)| Step::Finish(uid, ended)),
            4 => (0..20_000_u16).prop_map(Step::Wait),
            1 => Just(Step::Hasten),
            1 => Just(Step::Sweep),
        ]
    }

    proptest! {
        /// After any history, no agent was twice in flight, and everybody who changed gets a turn after the change.
        #[test]
        fn every_change_is_followed_by_a_turn_and_no_agent_has_two_at_once(
            steps in prop::collection::vec(any_step(), 0..200),
        ) {
            let mut queue = WriteQueue::default();
            let mut now = Instant::now();
            let mut flying = BTreeSet::new();
            let mut owed = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Touch(number, urgency) => {
                        queue.touch(agent(number), urgency, now);
                        owed.insert(agent(number));
                    }
                    Step::Pop => if let Turn::Now(uid) = queue.pop(now) {
                        prop_assert!(flying.insert(uid), "two in flight for one agent");
                        prop_assert!(owed.remove(&uid), "a turn without a change");
                    },
                    Step::Finish(number, ended) => {
                        if flying.remove(&agent(number)) && matches!(ended, Ended::Failed | Ended::Postponed) {
                            owed.insert(agent(number));
                        }
                        queue.finish(agent(number), ended, now);
                    }
                    Step::Wait(milliseconds) => now += Duration::from_millis(milliseconds.into()),
                    Step::Hasten => queue.hasten(now),
                    Step::Sweep => queue.sweep(now),
                }
                prop_assert_eq!(queue.waiting(), owed.len());
                prop_assert_eq!(queue.in_flight(), flying.len());
            }
            for uid in std::mem::take(&mut flying) {
                queue.finish(uid, Ended::Written, now);
            }
            let turns = drain(&mut queue, now).into_iter().map(|(uid, _)| uid).collect();
            prop_assert_eq!(owed, turns);
        }
    }

    #[test]
    fn a_thousand_changes_of_one_agent_take_the_room_of_one() {
        let start = Instant::now();
        let mut queue = WriteQueue::default();
        for milliseconds in 0..1_000 {
            queue.touch(agent(1), Urgency::Rest, start + Duration::from_millis(milliseconds));
        }
        assert_eq!((queue.later.len(), queue.waiting()), (1, 1));
    }
}
