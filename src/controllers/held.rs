//! What the leader remembers of an object that it brings to its desired status.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{Resource, ResourceExt};

use crate::revisions::settle::Settle;

/// The status of one object is written at most this often.
const SPACING: Duration = Duration::from_secs(1);
/// After an error it is tried again a second later, then twice as long each time, up to half a minute.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MOST_DOUBLINGS: u32 = 5;
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// One object, what was made of its inputs, and what became of the last write.
#[derive(Debug)]
pub struct Held<K, M> {
    /// When its inputs moved.
    pub settle: Settle,
    made: Option<Arc<M>>,
    /// When what was made has to be made anew although nothing moved.
    stale_at: Option<Instant>,
    /// What the API server answered to the last write, and the state that the watch had shown until then.
    answered: Option<(Option<String>, Arc<K>)>,
    not_before: Option<Instant>,
    failures: u32,
}

impl<K, M> Default for Held<K, M> {
    fn default() -> Self {
        Self { settle: Settle::default(), made: None, stale_at: None, answered: None, not_before: None, failures: 0 }
    }
}

impl<K: Resource, M> Held<K, M> {
    /// The latest state of the object: the answer to our own write until the watch shows something newer.
    #[must_use]
    pub fn latest(&self, watched: &Arc<K>) -> Arc<K> {
        match &self.answered {
            Some((shown, answer)) if *shown == watched.resource_version() => Arc::clone(answer),
            Some(_) | None => Arc::clone(watched),
        }
    }

    /// What was made of its inputs, unless they have to be read again.
    #[must_use]
    pub fn made(&self, now: Instant) -> Option<Arc<M>> {
        let stale = self.stale_at.is_some_and(|time| time <= now);
        self.made.clone().filter(|_| !stale && !self.settle.is_unread())
    }

    /// The inputs were read, and this was made of them; `stale_at` is when to try again, if that may give more.
    pub fn make(&mut self, made: M, stale_at: Option<Instant>) -> Arc<M> {
        let made = Arc::new(made);
        self.settle.read();
        self.made = Some(Arc::clone(&made));
        self.stale_at = stale_at;
        made
    }

    /// What was made is not to be used any more.
    pub fn discard(&mut self) {
        self.made = None;
    }

    /// When it may be written next; `None`: now.
    #[must_use]
    pub fn not_before(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|time| *time > now)
    }

    /// A plan was applied; `shown` is the resourceVersion that the watch had shown when it was made.
    pub fn applied(&mut self, shown: Option<String>, answer: Option<K>, now: Instant) {
        self.failures = 0;
        // Also where the object itself was not written: a plan that comes out the same each time must not run in circles.
        self.not_before = Some(now + SPACING);
        if let Some(answer) = answer {
            self.answered = Some((shown, Arc::new(answer)));
        }
    }

    /// Somebody was faster: the watch will show what.
    pub fn outdated(&mut self) {
        self.answered = None;
    }

    /// A plan could not be applied; says when to try again.
    pub fn failed(&mut self, now: Instant) -> Instant {
        self.answered = None;
        let wait = (FIRST_RETRY * (1 << self.failures.min(MOST_DOUBLINGS))).min(LONGEST_RETRY);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + wait);
        now + wait
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn version(version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.resource_version = Some(version.into());
        object
    }

    #[test]
    fn an_answer_counts_until_the_watch_shows_something_else() {
        let mut held = Held::<ConfigMap, ()>::default();
        let latest = |held: &Held<ConfigMap, ()>, watched| held.latest(&Arc::new(version(watched))).resource_version();
        assert_eq!(latest(&held, "10").as_deref(), Some("10"));
        held.applied(Some("10".into()), Some(version("11")), Instant::now());
        assert_eq!(latest(&held, "10").as_deref(), Some("11"));
        held.applied(Some("10".into()), Some(version("12")), Instant::now());
        assert_eq!(latest(&held, "10").as_deref(), Some("12"));
        assert_eq!(latest(&held, "13").as_deref(), Some("13"));
        held.outdated();
        assert_eq!(latest(&held, "10").as_deref(), Some("10"));
    }

    #[test]
    fn what_was_made_lasts_until_inputs_move_or_it_is_stale() {
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        let mut held = Held::<ConfigMap, u8>::default();
        assert_eq!(held.made(now), None);
        held.settle.moved(now);
        held.make(7, None);
        assert_eq!(held.made(later).as_deref(), Some(&7));
        held.settle.moved(later);
        assert_eq!(held.made(later), None);
        held.make(8, Some(later));
        assert_eq!((held.made(now).as_deref(), held.made(later)), (Some(&8), None));
        held.discard();
        assert_eq!(held.made(now), None);
    }

    #[test]
    fn writes_are_spaced_and_failures_wait_longer_and_longer() {
        let now = Instant::now();
        let mut held = Held::<ConfigMap, ()>::default();
        assert_eq!(held.not_before(now), None);
        held.applied(None, Some(version("1")), now);
        assert_eq!(held.not_before(now), Some(now + SPACING));
        assert_eq!(held.not_before(now + SPACING), None);
        let waits: Vec<u64> = (0..7).map(|_| (held.failed(now) - now).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        held.applied(None, None, now);
        assert_eq!(held.not_before(now), Some(now + SPACING), "also if nothing of the object itself was written");
        assert_eq!(held.failed(now), now + FIRST_RETRY);
    }
}
