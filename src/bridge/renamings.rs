//! Which new uids were given out: at its first use, whoever gave it out need not do so again (AMB-13).

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use crate::opamp::InstanceUid;

/// How long a new uid that was given out is remembered.
const GRACE: Duration = Duration::from_secs(600);

/// New uids, each with the uid under which its agent spoke before; no more than a limit, the latest win.
#[derive(Debug)]
pub(super) struct Renamings {
    formers: HashMap<InstanceUid, InstanceUid>,
    /// In the order in which they were given out; some may be in use already.
    given: VecDeque<(Instant, InstanceUid)>,
    limit: usize,
}

impl Renamings {
    pub(super) fn new(limit: usize) -> Self {
        Self { formers: HashMap::new(), given: VecDeque::new(), limit: limit.max(1) }
    }

    /// A new uid was given to whoever spoke under the former one.
    pub(super) fn note(&mut self, new_uid: InstanceUid, former: InstanceUid, now: Instant) {
        while let Some((given, oldest)) = self.given.front().copied() {
            if self.given.len() < self.limit && now.saturating_duration_since(given) < GRACE {
                break;
            }
            self.given.pop_front();
            self.formers.remove(&oldest);
        }
        self.given.push_back((now, new_uid));
        self.formers.insert(new_uid, former);
    }

    /// Under which uid the agent spoke that uses this one for the first time.
    pub(super) fn adopt(&mut self, new_uid: InstanceUid) -> Option<InstanceUid> {
        if self.formers.is_empty() { None } else { self.formers.remove(&new_uid) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: u8) -> InstanceUid {
        InstanceUid::from_wire(&[number; 16]).expect("16 bytes")
    }

    #[test]
    fn a_new_uid_is_known_once_and_for_ten_minutes() {
        // AMB-13
        let start = Instant::now();
        let mut renamings = Renamings::new(10);
        renamings.note(uid(1), uid(100), start);
        renamings.note(uid(2), uid(100), start + Duration::from_secs(1));
        assert_eq!(renamings.adopt(uid(1)), Some(uid(100)));
        assert_eq!(renamings.adopt(uid(1)), None, "it is in use");
        renamings.note(uid(3), uid(100), start + GRACE);
        assert_eq!(renamings.adopt(uid(2)), Some(uid(100)), "a second is left");
        renamings.note(uid(4), uid(100), start + GRACE + GRACE);
        assert_eq!(renamings.adopt(uid(3)), None);
    }

    #[test]
    fn however_many_are_given_out_only_so_many_are_remembered() {
        let now = Instant::now();
        let mut renamings = Renamings::new(3);
        for number in 0..200 {
            renamings.note(uid(number), uid(250), now);
            assert!(renamings.given.len() <= 3 && renamings.formers.len() <= 3);
        }
        assert_eq!(renamings.adopt(uid(196)), None);
        assert_eq!(renamings.adopt(uid(197)), Some(uid(250)));
    }
}
