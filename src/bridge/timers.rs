//! When sessions want to be looked at again. A deadline that moves back costs nothing: it is asked anew when it comes.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::Mutex,
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::sleep_until};

use super::lock;
use crate::{opamp::InstanceUid, server::now};

/// When no session has a deadline.
const LONG: Duration = Duration::from_secs(3600);

/// The deadlines of all sessions, at most one entry each besides those that an earlier one has overtaken.
#[derive(Default)]
pub(super) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<Ring>>>,
    sooner: Notify,
}

/// A deadline of a session.
pub(super) type Ring = (Instant, InstanceUid);

/// What a session remembers of its entry in the heap.
#[derive(Debug, Default)]
pub(super) struct Timer {
    set: Option<Instant>,
}

impl Timer {
    /// It rings for this deadline. Says whether that is the one which counts: another has overtaken it otherwise.
    pub(super) fn rings(&mut self, deadline: Instant) -> bool {
        let counts = self.set == Some(deadline);
        if counts {
            self.set = None;
        }
        counts
    }
}

impl Timers {
    /// Has the session looked at by then, unless it is looked at sooner anyway.
    pub(super) fn set(&self, uid: InstanceUid, deadline: Option<Instant>, timer: &mut Timer) {
        let Some(deadline) = deadline else { return };
        if timer.set.is_some_and(|set| set <= deadline) {
            return;
        }
        timer.set = Some(deadline);
        let mut heap = lock(&self.heap);
        let is_first = heap.peek().is_none_or(|Reverse((first, _))| deadline < *first);
        heap.push(Reverse((deadline, uid)));
        if is_first {
            self.sooner.notify_one();
        }
    }

    /// Waits until a deadline has passed, and takes all that have. Cancelling it loses nothing.
    pub(super) async fn rung(&self) -> Vec<Ring> {
        loop {
            let now = now().instant;
            let (due, next) = self.take(now);
            if !due.is_empty() {
                return due;
            }
            let next = next.unwrap_or(now + LONG);
            tokio::select! {
                () = sleep_until(next.into()) => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    fn take(&self, now: Instant) -> (Vec<Ring>, Option<Instant>) {
        let mut heap = lock(&self.heap);
        let mut due = Vec::new();
        while let Some(Reverse((deadline, uid))) = heap.peek().copied() {
            if deadline > now {
                return (due, Some(deadline));
            }
            heap.pop();
            due.push((deadline, uid));
        }
        heap.shrink_to(0);
        (due, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_looked_at_at_its_earliest_deadline_and_costs_one_entry() {
        let timers = Timers::default();
        let (start, uid) = (Instant::now(), InstanceUid::generate());
        let mut timer = Timer::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        for deadline in [Some(at(300)), Some(at(301)), None, Some(at(400))] {
            timers.set(uid, deadline, &mut timer);
        }
        assert_eq!(lock(&timers.heap).len(), 1);
        timers.set(uid, Some(at(3)), &mut timer);
        assert_eq!(timers.take(start), (vec![], Some(at(3))));
        assert_eq!(timers.take(at(3)), (vec![(at(3), uid)], Some(at(300))));
    }

    #[test]
    fn a_deadline_that_was_overtaken_rings_for_nobody() {
        let timers = Timers::default();
        let (start, uid) = (Instant::now(), InstanceUid::generate());
        let mut timer = Timer::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        timers.set(uid, Some(at(300)), &mut timer);
        timers.set(uid, Some(at(3)), &mut timer);
        let mut counted = 0;
        for second in [3, 300, 303, 600] {
            for (deadline, _) in timers.take(at(second)).0 {
                if timer.rings(deadline) {
                    counted += 1;
                    timers.set(uid, Some(deadline + Duration::from_secs(300)), &mut timer);
                }
            }
        }
        assert_eq!(counted, 2, "at 3 and at 303");
        assert_eq!(lock(&timers.heap).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sooner_deadline_wakes_whoever_waits_for_a_later_one() {
        let timers = Timers::default();
        let (start, early, late) = (now().instant, InstanceUid::generate(), InstanceUid::generate());
        let at = |seconds| start + Duration::from_secs(seconds);
        timers.set(late, Some(at(300)), &mut Timer::default());
        let set_sooner = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            timers.set(early, Some(at(2)), &mut Timer::default());
        };
        let (rung, ()) = tokio::join!(timers.rung(), set_sooner);
        assert_eq!(rung, [(at(2), early)]);
        assert_eq!(timers.rung().await, [(at(300), late)]);
    }
}
