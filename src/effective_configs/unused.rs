//! Secrets that no Agent names any more: which of them are to go. The leader asks.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::stored::Kept;
use crate::kubernetes::ObjectKey;

/// How long a Secret is kept that no Agent names: a status that is to name it may have to wait for its turn, and an agent
/// that goes back to what it ran before finds it.
const GRACE: Duration = Duration::from_secs(600);

/// Since when which Secrets were not named.
#[derive(Debug, Default)]
pub struct Unused {
    since: BTreeMap<ObjectKey, Instant>,
}

impl Unused {
    /// The Secrets that have not been named for long enough.
    pub fn due(&mut self, kept: Vec<Kept>, is_named: impl Fn(&ObjectKey) -> bool, now: Instant) -> Vec<Kept> {
        let former = std::mem::take(&mut self.since);
        let mut due = Vec::new();
        for kept in kept.into_iter().filter(|kept| !is_named(&kept.key)) {
            let since = former.get(&kept.key).copied().unwrap_or(now);
            self.since.insert(kept.key.clone(), since);
            if now.saturating_duration_since(since) >= GRACE {
                due.push(kept);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(name: &str) -> Kept {
        let key = ObjectKey::new("telemetry", name);
        Kept { key, uid: "uid".into(), version: "1".into(), hash: "hash".into() }
    }

    #[test]
    fn what_was_not_named_for_ten_minutes_in_a_row_goes() {
        let start = Instant::now();
        let mut unused = Unused::default();
        for (minute, named, expected) in [
            (0, &["one"][..], &[][..]),
            (5, &["one", "two"], &[]),
            (9, &[], &[]),
            (18, &[], &[]),
            (19, &[], &["one", "two"]),
            (20, &["one"], &["two"]),
            (21, &[], &["two"]),
        ] {
            let is_named = |key: &ObjectKey| named.contains(&key.name.as_str());
            let now = start + Duration::from_secs(60 * minute);
            let due = unused.due(vec![kept("one"), kept("two")], is_named, now);
            let names: Vec<&str> = due.iter().map(|kept| kept.key.name.as_str()).collect();
            assert_eq!(names, expected, "minute {minute}");
        }
        assert_eq!(unused.due(Vec::new(), |_| false, start), []);
        assert!(unused.since.is_empty(), "what is gone is forgotten");
    }
}
