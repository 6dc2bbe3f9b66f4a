//! How often one agent may be written: ever more seldom while it keeps changing or failing.

use std::time::{Duration, Instant};

/// One agent is written at most this often.
const SPACING: Duration = Duration::from_secs(5);
/// What the spacing stretches to while an agent keeps changing.
const LONGEST_SPACING: Duration = Duration::from_secs(300);
/// So many writes may follow each other at the shortest spacing: connecting, a few changes of its configuration.
const WRITES_BEFORE_STRETCHING: u32 = 6;
/// Doublings of the spacing that reach its longest.
const MOST_DOUBLINGS: u32 = 6;
/// An agent that is quiet for twice its spacing, and at least for this long, may be written a step sooner again.
const QUIET: Duration = Duration::from_secs(60);
/// After a failure an agent waits a second, then twice as long each time, up to a minute.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The recent past of one agent's writes.
#[derive(Debug, Default)]
pub(super) struct Pace {
    last_written: Option<Instant>,
    /// From when on quiet time has not been counted yet.
    quiet_since: Option<Instant>,
    /// Writes that followed each other closely.
    streak: u32,
    failures: u32,
}

impl Pace {
    /// When it may be written again: now, or later.
    pub(super) fn not_before(&mut self, now: Instant) -> Instant {
        self.relax(now);
        self.last_written.map_or(now, |last| now.max(last + self.spacing()))
    }

    /// It was written.
    pub(super) fn written(&mut self, now: Instant) {
        self.relax(now);
        self.succeeded();
        self.streak = self.streak.saturating_add(1).min(WRITES_BEFORE_STRETCHING + MOST_DOUBLINGS);
        self.last_written = Some(now);
        self.quiet_since = Some(now);
    }

    /// A turn did not fail.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// A turn failed; how long to wait now.
    pub(super) fn failed(&mut self) -> Duration {
        let wait = (FIRST_RETRY * (1 << self.failures.min(6))).min(LONGEST_RETRY);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// Whether nothing of it would change what happens next.
    pub(super) fn is_forgettable(&mut self, now: Instant) -> bool {
        self.not_before(now) <= now && self.streak == 0 && self.failures == 0
    }

    fn spacing(&self) -> Duration {
        let doublings = self.streak.saturating_sub(WRITES_BEFORE_STRETCHING).min(MOST_DOUBLINGS);
        (SPACING * (1 << doublings)).min(LONGEST_SPACING)
    }

    /// Forgets a part of the streak for each long quiet time since the last write; none counts twice.
    fn relax(&mut self, now: Instant) {
        while let Some(since) = self.quiet_since.filter(|_| self.streak > 0) {
            let step = QUIET.max(self.spacing() * 2);
            if now.saturating_duration_since(since) < step {
                return;
            }
            self.quiet_since = Some(since + step);
            self.streak -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Writes as often as permitted; the gaps between the writes in seconds, and the time of the last.
    fn write_often(pace: &mut Pace, start: Instant, times: usize) -> (Vec<u64>, Instant) {
        let mut now = start;
        let mut gaps = Vec::new();
        for _ in 0..times {
            let next = pace.not_before(now);
            gaps.push((next - now).as_secs());
            now = next;
            pace.written(now);
        }
        (gaps, now)
    }

    #[test]
    fn an_agent_that_keeps_changing_is_written_ever_more_seldom() {
        let (gaps, _) = write_often(&mut Pace::default(), Instant::now(), 15);
        assert_eq!(gaps, [0, 5, 5, 5, 5, 5, 5, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn a_quiet_agent_may_be_written_soon_again_step_by_step() {
        let start = Instant::now();
        for (quiet, expected) in [(0, 300), (599, 300), (600, 160), (920, 80), (3_600, 5)] {
            let mut pace = Pace::default();
            let (_, last) = write_often(&mut pace, start, 20);
            let later = last + seconds(quiet);
            for second in 0..quiet {
                pace.not_before(last + seconds(second));
            }
            pace.relax(later);
            assert_eq!(pace.spacing(), seconds(expected), "after {quiet} s, however often it was asked");
        }
    }

    #[test]
    fn a_change_a_minute_never_stretches() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        for _ in 0..100 {
            pace.written(now);
            now += seconds(61);
            assert_eq!(pace.not_before(now), now);
        }
        assert!(pace.spacing() <= seconds(5));
    }

    #[test]
    fn failures_are_tried_again_later_each_time_until_one_succeeds() {
        let mut pace = Pace::default();
        let waits: Vec<u64> = (0..8).map(|_| pace.failed().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        pace.succeeded();
        assert_eq!(pace.failed(), FIRST_RETRY);
    }

    #[test]
    fn only_the_pace_of_quiet_agents_is_forgettable() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(pace.is_forgettable(start));
        pace.written(start);
        assert!(!pace.is_forgettable(start + seconds(10)), "the streak counts for a minute");
        assert!(pace.is_forgettable(start + seconds(60)));
    }
}
