//! Agents that wait for approval and have no object yet: there may be so many in a namespace, so that a flood of
//! unknowns cannot fill the API server.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::opamp::InstanceUid;

/// Those whose object the watch does not show yet, by namespace.
#[derive(Debug)]
pub(super) struct PendingRoom {
    limit: usize,
    entering: HashMap<InstanceUid, Arc<str>>,
    counts: BTreeMap<Arc<str>, usize>,
}

/// Whether one more may wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Seat {
    Taken,
    None,
}

impl PendingRoom {
    /// So many may wait in each namespace.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, entering: HashMap::new(), counts: BTreeMap::new() }
    }

    /// An agent waits in this namespace, of which the watch shows so many that wait already.
    pub(super) fn enter(&mut self, uid: InstanceUid, namespace: &str, shown: usize) -> Seat {
        if self.entering.get(&uid).is_some_and(|entered| **entered == *namespace) {
            return Seat::Taken;
        }
        self.leave(uid);
        if shown + self.counts.get(namespace).copied().unwrap_or_default() >= self.limit {
            return Seat::None;
        }
        let namespace: Arc<str> = namespace.into();
        *self.counts.entry(Arc::clone(&namespace)).or_default() += 1;
        self.entering.insert(uid, namespace);
        Seat::Taken
    }

    /// Its object is shown, or it does not wait any more.
    pub(super) fn leave(&mut self, uid: InstanceUid) {
        let Some(namespace) = self.entering.remove(&uid) else { return };
        if let Some(count) = self.counts.get_mut(&namespace) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&namespace);
            }
        }
    }

    /// Those that were let in and may have gone since.
    pub(super) fn all(&self) -> Vec<InstanceUid> {
        self.entering.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(number: u8) -> InstanceUid {
        InstanceUid::from_wire(&[number; 16]).expect("16 bytes")
    }

    #[test]
    fn each_namespace_has_so_many_places_for_those_shown_and_those_on_their_way() {
        let mut room = PendingRoom::new(3);
        assert_eq!(room.enter(agent(1), "telemetry", 1), Seat::Taken);
        assert_eq!(room.enter(agent(2), "telemetry", 1), Seat::Taken);
        assert_eq!(room.enter(agent(3), "telemetry", 1), Seat::None);
        assert_eq!(room.enter(agent(2), "telemetry", 3), Seat::Taken, "it has a place");
        assert_eq!(room.enter(agent(3), "shop", 0), Seat::Taken, "another namespace");
        room.leave(agent(1));
        room.leave(agent(1));
        assert_eq!(room.enter(agent(4), "telemetry", 1), Seat::Taken);
        assert_eq!(room.enter(agent(4), "shop", 2), Seat::None, "who goes elsewhere needs a place there");
        assert_eq!(room.enter(agent(5), "telemetry", 1), Seat::Taken, "and leaves one here");
    }
}
