//! All sessions of this replica, each behind a lock of its own.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use prometheus_client::metrics::gauge::Gauge;

use super::{entry::Entry, lock};
use crate::opamp::InstanceUid;

/// Maps that are locked apart, so that agents seldom wait for each other. A power of two.
const SHARDS: usize = 64;

/// The place of one session; empty once it was dropped.
type Place = Arc<Mutex<Option<Entry>>>;
type Shard = HashMap<InstanceUid, Place>;

/// Sessions by uid, no more than a limit.
pub(super) struct Sessions {
    shards: Box<[RwLock<Shard>]>,
    /// Seeded at random: uids are chosen by agents.
    hasher: RandomState,
    count: Gauge,
    limit: i64,
}

impl Sessions {
    /// None yet. They are counted by this gauge.
    pub(super) fn new(limit: usize, count: Gauge) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            hasher: RandomState::new(),
            count,
            limit: i64::try_from(limit).unwrap_or(i64::MAX),
        }
    }

    /// Whether there is room for few more only.
    pub(super) fn are_scarce(&self) -> bool {
        self.count.get() >= self.limit.saturating_mul(9) / 10
    }

    /// Does something with a session, if there is one.
    pub(super) fn with<R>(&self, uid: InstanceUid, work: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let place = self.find(uid)?;
        let mut entry = lock(&place);
        entry.as_mut().map(work)
    }

    /// Does something with a session, which is made if there is none. `None`: there is no room for another.
    ///
    /// It is made while nobody else can look for it: what changes meanwhile finds it afterwards.
    pub(super) fn with_open<R>(
        &self,
        uid: InstanceUid,
        make: impl Fn() -> Entry,
        work: impl FnOnce(&mut Entry) -> R,
    ) -> Option<R> {
        loop {
            let place = match self.find(uid) {
                Some(place) => place,
                None => self.insert(uid, &make)?,
            };
            // It may have been dropped between the look-up and the lock; then there is room for a new one.
            if let Some(entry) = lock(&place).as_mut() {
                return Some(work(entry));
            }
        }
    }

    /// Drops a session if it may go.
    pub(super) fn drop_if(&self, uid: InstanceUid, may_go: impl FnOnce(&Entry) -> bool) {
        let Some(place) = self.find(uid) else { return };
        let mut entry = lock(&place);
        if entry.as_ref().is_none_or(|entry| !may_go(entry)) {
            return;
        }
        *entry = None;
        // Whoever finds the empty place from here on looks again; it must be gone then.
        let mut shard = self.shard(uid).write().unwrap_or_else(PoisonError::into_inner);
        shard.remove(&uid);
        self.count.dec();
        if shard.capacity() > 4 * (shard.len() + 16) {
            let half = shard.len() * 2;
            shard.shrink_to(half);
        }
    }

    /// Every uid at this moment, a shard at a time.
    pub(super) fn uids(&self) -> impl Iterator<Item = InstanceUid> {
        self.shards.iter().flat_map(|shard| {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.keys().copied().collect::<Vec<_>>()
        })
    }

    fn find(&self, uid: InstanceUid) -> Option<Place> {
        self.shard(uid).read().unwrap_or_else(PoisonError::into_inner).get(&uid).map(Arc::clone)
    }

    fn insert(&self, uid: InstanceUid, make: impl Fn() -> Entry) -> Option<Place> {
        let mut shard = self.shard(uid).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = shard.get(&uid) {
            return Some(Arc::clone(found));
        }
        if self.count.inc() >= self.limit {
            self.count.dec();
            return None;
        }
        let place = Arc::new(Mutex::new(Some(make())));
        shard.insert(uid, Arc::clone(&place));
        Some(place)
    }

    fn shard(&self, uid: InstanceUid) -> &RwLock<Shard> {
        let hash = usize::try_from(self.hasher.hash_one(uid) % SHARDS as u64).unwrap_or_default();
        &self.shards[hash]
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::status::render::Owner;

    fn entry(uid: InstanceUid) -> Entry {
        let owner = Owner { replica: "opamp-operator-0".into(), incarnation: "first".into() };
        Entry::new(uid, &[], &owner, Duration::from_secs(300))
    }

    #[test]
    fn there_is_room_again_once_a_session_has_gone() {
        let count = Gauge::default();
        let sessions = Sessions::new(1, count.clone());
        let (one, two) = (InstanceUid::generate(), InstanceUid::generate());
        assert_eq!(sessions.with_open(one, || entry(one), |entry| entry.session.uid()), Some(one));
        assert_eq!(sessions.with_open(two, || entry(two), |_| ()), None, "no room");
        sessions.drop_if(one, |_| false);
        assert_eq!(count.get(), 1);
        sessions.drop_if(one, |_| true);
        assert_eq!(count.get(), 0);
        assert_eq!(sessions.with(one, |_| ()), None);
        assert_eq!(sessions.with_open(two, || entry(two), |_| ()), Some(()));
        assert_eq!(sessions.uids().collect::<Vec<_>>(), [two]);
    }

    #[test]
    fn a_session_that_is_dropped_while_its_agent_speaks_is_made_anew_and_never_doubled() {
        let count = Gauge::default();
        let sessions = Sessions::new(1_000, count.clone());
        let uids: Vec<_> = (0..4).map(|_| InstanceUid::generate()).collect();
        let spoken = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 0..2_000 {
                        let uid = uids[round % uids.len()];
                        let mine = sessions.with_open(uid, || entry(uid), |entry| entry.session.uid());
                        assert_eq!(mine, Some(uid));
                        spoken.fetch_add(1, Ordering::Relaxed);
                    }
                });
                scope.spawn(|| (0..2_000).for_each(|round| sessions.drop_if(uids[round % uids.len()], |_| true)));
            }
        });
        assert_eq!(spoken.into_inner(), 4_000);
        let left = sessions.uids().count();
        assert_eq!(count.get(), i64::try_from(left).expect("few"));
        uids.iter().for_each(|uid| sessions.drop_if(*uid, |_| true));
        assert_eq!((count.get(), sessions.uids().count()), (0, 0));
    }

    #[test]
    fn the_maps_shrink_when_a_crowd_has_gone() {
        let sessions = Sessions::new(100_000, Gauge::default());
        let uids: Vec<_> = (0..20_000).map(|_| InstanceUid::generate()).collect();
        for uid in &uids {
            let _ = sessions.with_open(*uid, || entry(*uid), |_| ());
        }
        uids.iter().for_each(|uid| sessions.drop_if(*uid, |_| true));
        let places: usize = sessions.shards.iter().map(|shard| shard.read().unwrap().capacity()).sum();
        assert!(places <= SHARDS * 4 * 16 * 2, "{places} places for nobody");
    }
}
