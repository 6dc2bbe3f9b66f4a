//! All sessions of this replica, each behind a lock of its own.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{entry::Entry, lock};
use crate::opamp::InstanceUid;

/// Maps that are locked apart, so that agents seldom wait for each other. A power of two.
const SHARDS: usize = 64;

type Shard = RwLock<HashMap<InstanceUid, Arc<Mutex<Entry>>>>;

/// Sessions by uid, no more than a limit.
pub(super) struct Sessions {
    shards: Box<[Shard]>,
    /// Seeded at random: uids are chosen by agents.
    hasher: RandomState,
    count: AtomicUsize,
    limit: usize,
}

impl Sessions {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: RandomState::new(),
            count: AtomicUsize::new(0),
            limit,
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Does something with a session, if there is one.
    pub(super) fn with<R>(&self, uid: InstanceUid, work: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let entry = self.find(uid)?;
        let mut entry = lock(&entry);
        if entry.is_retired() { None } else { Some(work(&mut entry)) }
    }

    /// Does something with a session, which is made if there is none. `None`: there is no room for another.
    pub(super) fn with_open<R>(
        &self,
        uid: InstanceUid,
        make: impl Fn() -> Entry,
        work: impl FnOnce(&mut Entry) -> R,
    ) -> Option<R> {
        loop {
            let entry = match self.find(uid) {
                Some(entry) => entry,
                None => self.insert(uid, &make)?,
            };
            let mut entry = lock(&entry);
            // It may have been dropped between the look-up and the lock; then there is room for a new one.
            if !entry.is_retired() {
                return Some(work(&mut entry));
            }
        }
    }

    /// Drops a session if it may go.
    pub(super) fn drop_if(&self, uid: InstanceUid, may_go: impl FnOnce(&Entry) -> bool) {
        let Some(found) = self.find(uid) else { return };
        let mut entry = lock(&found);
        if entry.is_retired() || !may_go(&entry) {
            return;
        }
        entry.retire();
        drop(entry);
        let removed = self.shard(uid).write().unwrap_or_else(PoisonError::into_inner).remove(&uid);
        if removed.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Every uid at this moment, a shard at a time.
    pub(super) fn uids(&self) -> impl Iterator<Item = InstanceUid> {
        self.shards.iter().flat_map(|shard| {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.keys().copied().collect::<Vec<_>>()
        })
    }

    fn find(&self, uid: InstanceUid) -> Option<Arc<Mutex<Entry>>> {
        self.shard(uid).read().unwrap_or_else(PoisonError::into_inner).get(&uid).map(Arc::clone)
    }

    fn insert(&self, uid: InstanceUid, make: impl Fn() -> Entry) -> Option<Arc<Mutex<Entry>>> {
        let mut shard = self.shard(uid).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = shard.get(&uid) {
            return Some(Arc::clone(found));
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let entry = Arc::new(Mutex::new(make()));
        shard.insert(uid, Arc::clone(&entry));
        Some(entry)
    }

    fn shard(&self, uid: InstanceUid) -> &Shard {
        let hash = usize::try_from(self.hasher.hash_one(uid) % SHARDS as u64).unwrap_or_default();
        &self.shards[hash]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::opamp::now::Now;

    fn entry(uid: InstanceUid) -> Entry {
        Entry::new(uid, None, None, Duration::from_secs(300), Now::read())
    }

    #[test]
    fn there_is_room_again_once_a_session_has_gone() {
        let sessions = Sessions::new(1);
        let (one, two) = (InstanceUid::generate(), InstanceUid::generate());
        assert_eq!(sessions.with_open(one, || entry(one), |entry| entry.session.uid()), Some(one));
        assert_eq!(sessions.with_open(two, || entry(two), |_| ()), None, "no room");
        sessions.drop_if(one, |_| false);
        assert_eq!(sessions.len(), 1);
        sessions.drop_if(one, |_| true);
        assert_eq!(sessions.len(), 0);
        assert_eq!(sessions.with(one, |_| ()), None);
        assert_eq!(sessions.with_open(two, || entry(two), |_| ()), Some(()));
        assert_eq!(sessions.uids().collect::<Vec<_>>(), [two]);
    }
}
