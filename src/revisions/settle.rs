//! When the inputs of a fleet are quiet enough to be read: a half-applied sync must never be served.

use std::time::{Duration, Instant};

/// How long nothing may have moved.
pub const QUIET: Duration = Duration::from_secs(1);
/// How long a movement waits at most, so that inputs which never rest are still served.
pub const PATIENCE: Duration = Duration::from_secs(4);

/// The movements since the inputs were last read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Settle {
    unread: Option<Unread>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Unread {
    first: Instant,
    last: Instant,
}

impl Settle {
    /// Something moved.
    pub fn moved(&mut self, now: Instant) {
        let first = self.unread.map_or(now, |unread| unread.first);
        self.unread = Some(Unread { first, last: now });
    }

    /// Whether something moved since the inputs were last read.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.unread.is_some()
    }

    /// How much longer to wait; `None`: the inputs may be read now.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let unread = self.unread?;
        let due = (unread.last + QUIET).min(unread.first + PATIENCE);
        Some(due.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// The inputs are about to be read: what moves from now on is a new movement.
    pub fn read(&mut self) {
        self.unread = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Movements at these milliseconds; the inputs are read as soon as they may be, never before `until`.
    fn reads(movements: &[u64], until: u64) -> Vec<u64> {
        let start = Instant::now();
        let mut settle = Settle::default();
        let mut reads = Vec::new();
        for millisecond in 0..=until {
            let now = start + Duration::from_millis(millisecond);
            if movements.contains(&millisecond) {
                settle.moved(now);
            }
            if settle.unread.is_some() && settle.wait(now).is_none() {
                settle.read();
                reads.push(millisecond);
            }
        }
        reads
    }

    #[test]
    fn inputs_are_read_a_second_after_the_last_movement_and_four_after_the_first() {
        for (case, movements, expected) in [
            ("nothing moved", vec![], vec![]),
            ("one movement", vec![100], vec![1_100]),
            ("a burst", vec![100, 200, 900, 1_800], vec![2_800]),
            ("two bursts", vec![100, 1_200], vec![1_100, 2_200]),
            ("without rest", (0..=8_000).step_by(500).collect(), vec![4_000, 8_500]),
        ] {
            assert_eq!(reads(&movements, 9_000), expected, "{case}");
        }
    }

    #[test]
    fn what_was_never_moved_may_be_read() {
        assert_eq!(Settle::default().wait(Instant::now()), None);
    }
}
