//! How often it is told that objects cannot be written: a missing right concerns ten thousand agents at once.

use std::time::{Duration, Instant};

/// One line in this time is enough to be found; the metric counts all.
const INTERVAL: Duration = Duration::from_secs(10);

/// When it was told last, and what was left out since.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    told: Option<Instant>,
    left_out: u64,
}

impl Complaints {
    /// One more; if it is to be told, with how many were left out before it.
    pub(super) fn another(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now < told + INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_ten_seconds_is_told_with_how_many_were_left_out() {
        let start = Instant::now();
        let mut complaints = Complaints::default();
        let told: Vec<_> = (0..25).map(|second| complaints.another(start + Duration::from_secs(second))).collect();
        let expected = |second| [(0, 0), (10, 9), (20, 9)].into_iter().find(|(at, _)| *at == second);
        for (second, told) in told.into_iter().enumerate() {
            assert_eq!(told, expected(second).map(|(_, left_out)| left_out), "{second}");
        }
    }
}
