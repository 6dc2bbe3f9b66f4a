//! What is held of every object that this replica writes, compared with what the watch shows of them.
//!
//! Most of what the watch shows is what was written here, and is met without a request. All else is somebody's doing: a
//! deleted object, a label or a status that a person has changed, a claim from elsewhere. Then the object is read again
//! before anything is concluded from it.

use std::collections::HashMap;

use super::held::Held;
use crate::{agents::index::AgentIndex, opamp::InstanceUid};

/// Objects at rest, and those whose turn it is.
#[derive(Default)]
pub(super) struct Ledger {
    resting: HashMap<InstanceUid, Held>,
    flying: HashMap<InstanceUid, Meanwhile>,
}

/// What the watch has shown of an object during its turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Meanwhile {
    Nothing,
    Something,
}

/// Whether an object has to be looked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Look {
    /// It is as it was left.
    Needless,
    /// Somebody else has had a hand in it.
    Needed,
}

impl Ledger {
    /// An agent's turn begins: what is held of its object goes with it.
    pub(super) fn hand_out(&mut self, uid: InstanceUid) -> Option<Held> {
        self.flying.insert(uid, Meanwhile::Nothing);
        self.resting.remove(&uid)
    }

    /// An agent's turn is over.
    pub(super) fn take_back(&mut self, uid: InstanceUid, kept: Option<Held>, index: &AgentIndex) -> Look {
        let meanwhile = self.flying.remove(&uid);
        let Some(kept) = kept else { return Look::Needless };
        self.resting.insert(uid, kept);
        if meanwhile == Some(Meanwhile::Something) { self.compare(uid, index) } else { Look::Needless }
    }

    /// The watch shows something new of an agent.
    pub(super) fn follow(&mut self, uid: InstanceUid, index: &AgentIndex) -> Look {
        if let Some(meanwhile) = self.flying.get_mut(&uid) {
            *meanwhile = Meanwhile::Something;
            return Look::Needless;
        }
        self.compare(uid, index)
    }

    /// More has changed than could be followed one by one; who has to be looked at.
    pub(super) fn follow_all(&mut self, index: &AgentIndex) -> Vec<InstanceUid> {
        self.flying.values_mut().for_each(|meanwhile| *meanwhile = Meanwhile::Something);
        let resting: Vec<InstanceUid> = self.resting.keys().copied().collect();
        resting.into_iter().filter(|uid| self.compare(*uid, index) == Look::Needed).collect()
    }

    fn compare(&mut self, uid: InstanceUid, index: &AgentIndex) -> Look {
        let Some(held) = self.resting.get_mut(&uid) else { return Look::Needless };
        let objects = index.get(&uid);
        let shown = objects.iter().find(|shown| *shown.namespace == *held.namespace);
        if held.agrees_with(shown.map(AsRef::as_ref)) {
            return Look::Needless;
        }
        held.doubt();
        Look::Needed
    }
}
