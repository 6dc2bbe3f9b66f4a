//! When sessions want to be looked at again. A deadline that moves back costs nothing: it is asked anew when it comes.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::Mutex,
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::lock;
use crate::opamp::InstanceUid;

/// The deadlines of all sessions, at most one entry each besides those that an earlier one has overtaken.
#[derive(Default)]
pub(super) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Instant, InstanceUid)>>>,
    sooner: Notify,
}

/// What a session remembers of its entry in the heap.
#[derive(Debug, Default)]
pub(super) struct Timer {
    set: Option<Instant>,
}

impl Timer {
    /// It has rung.
    pub(super) fn rung(&mut self) {
        self.set = None;
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

    /// Waits until a deadline has passed, and takes all that have.
    pub(super) async fn rung(&self) -> Vec<InstanceUid> {
        loop {
            let now = Instant::now();
            let (due, next) = self.take(now);
            if !due.is_empty() {
                return due;
            }
            let pause = next.map_or(Duration::from_secs(3600), |next| next.saturating_duration_since(now));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    fn take(&self, now: Instant) -> (Vec<InstanceUid>, Option<Instant>) {
        let mut heap = lock(&self.heap);
        let mut due = Vec::new();
        while let Some(Reverse((deadline, uid))) = heap.peek().copied() {
            if deadline > now {
                return (due, Some(deadline));
            }
            heap.pop();
            due.push(uid);
        }
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
        let at = |seconds| Some(start + Duration::from_secs(seconds));
        for deadline in [at(300), at(301), None, at(400)] {
            timers.set(uid, deadline, &mut timer);
        }
        assert_eq!(lock(&timers.heap).len(), 1);
        timers.set(uid, at(3), &mut timer);
        assert_eq!(timers.take(start), (vec![], at(3)));
        assert_eq!(timers.take(start + Duration::from_secs(3)), (vec![uid], at(300)));
    }
}
