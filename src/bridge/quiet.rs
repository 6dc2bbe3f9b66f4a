//! How often the same is said of one agent: whoever is kept out tries again for ever.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::opamp::InstanceUid;

/// Once in this time.
const INTERVAL: Duration = Duration::from_secs(3600);
/// So many agents are remembered; of more nothing is said, because anybody can make up uids.
const LIMIT: usize = 10_000;

/// When something was said of whom.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    said: HashMap<InstanceUid, Instant>,
}

impl Quiet {
    /// Whether it is to be said now; counts as said then.
    pub(super) fn breaks(&mut self, uid: InstanceUid, now: Instant) -> bool {
        let is_recent = |said: &Instant| now.saturating_duration_since(*said) < INTERVAL;
        if self.said.get(&uid).is_some_and(is_recent) {
            return false;
        }
        if self.said.len() >= LIMIT {
            self.said.retain(|_, said| is_recent(said));
        }
        if self.said.len() >= LIMIT {
            return false;
        }
        self.said.insert(uid, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_an_hour_of_each_and_of_no_more_than_fit() {
        let start = Instant::now();
        let agent = |number: usize| InstanceUid::from_wire(&(number as u128).to_be_bytes()).expect("16 bytes");
        let mut quiet = Quiet::default();
        assert!(quiet.breaks(agent(1), start));
        assert!(!quiet.breaks(agent(1), start + Duration::from_secs(3599)));
        assert!(quiet.breaks(agent(2), start));
        assert!(quiet.breaks(agent(1), start + INTERVAL));
        let said = (0..2 * LIMIT).filter(|number| quiet.breaks(agent(*number), start + INTERVAL)).count();
        assert_eq!((said, quiet.said.len()), (LIMIT - 1, LIMIT));
        assert!(quiet.breaks(agent(3 * LIMIT), start + 2 * INTERVAL));
        assert_eq!(quiet.said.len(), 1);
    }
}
