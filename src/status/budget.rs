//! How fast this replica may write to the API server: a token bucket that gives way when the server asks for it.

use std::time::{Duration, Instant};

/// A 429 leaves half the rate, and never less than this, or a busy server would silence us for good.
const SLOWEST: f64 = 1.0;
/// The whole rate is back this long after the last 429.
const RECOVERY: Duration = Duration::from_secs(60);
/// Requests in flight together are refused together; that is one refusal.
const ONE_REFUSAL: Duration = Duration::from_secs(1);
/// The longest `Retry-After` that is believed.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);
/// How long nothing is tried after the server could not be reached, and how that grows.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What a replica may spend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetLimits {
    /// Writes per second in the long run. The default, 50, costs an API server about a third of a core.
    pub per_second: u32,
    /// Writes that may follow each other at once after a quiet time. The default, 2,000, is a change for a thousand
    /// agents: each is written as configured, then as applied.
    pub burst: u32,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self { per_second: 50, burst: 2_000 }
    }
}

/// What a request has told of the server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Heard {
    /// It answered, whatever it said.
    Answer,
    /// It answered 429.
    TooMany {
        /// Its `Retry-After`, if it gave one.
        retry_after: Option<Duration>,
    },
    /// It could not be reached, is not ready, or did not answer in time.
    Nothing,
}

/// A token bucket: one token is one create, patch or delete.
#[derive(Debug)]
pub struct Budget {
    limits: BudgetLimits,
    tokens: f64,
    rate: f64,
    counted_until: Instant,
    paused_until: Option<Instant>,
    refused_at: Option<Instant>,
    unreachable: u32,
}

impl Budget {
    /// A full bucket.
    #[must_use]
    pub fn new(limits: BudgetLimits, now: Instant) -> Self {
        Self {
            limits,
            tokens: f64::from(limits.burst),
            rate: f64::from(limits.per_second),
            counted_until: now,
            paused_until: None,
            refused_at: None,
            unreachable: 0,
        }
    }

    /// Spends a token, or tells when to ask again.
    pub fn take(&mut self, now: Instant) -> Result<(), Instant> {
        self.advance(now);
        if let Some(until) = self.paused_until.filter(|until| *until > now) {
            return Err(until);
        }
        if self.tokens < 1.0 {
            return Err(now + Duration::from_secs_f64((1.0 - self.tokens) / self.rate) + Duration::from_millis(1));
        }
        self.tokens -= 1.0;
        Ok(())
    }

    /// Gives back a token that was not needed.
    pub fn refund(&mut self) {
        self.tokens = (self.tokens + 1.0).min(f64::from(self.limits.burst));
    }

    /// Follows what a request has told of the server.
    pub fn heard(&mut self, heard: Heard, now: Instant) {
        match heard {
            Heard::Answer => self.unreachable = 0,
            Heard::TooMany { retry_after } => {
                self.unreachable = 0;
                self.refused(retry_after, now);
            }
            Heard::Nothing => self.unreached(now),
        }
    }

    /// The server answered 429: half as fast from now on, no burst, and nothing before the end of `Retry-After`.
    fn refused(&mut self, retry_after: Option<Duration>, now: Instant) {
        self.advance(now);
        self.pause(retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER), now);
        if self.refused_at.is_some_and(|at| now < at + ONE_REFUSAL) {
            return;
        }
        self.refused_at = Some(now);
        self.rate = (self.rate / 2.0).max(SLOWEST);
        self.tokens = self.tokens.min(self.rate);
    }

    /// The server could not be reached, or is not ready: a short pause that grows to 2 s. The bucket stays as it is, so
    /// that what could not be written is written at once when the server is back.
    fn unreached(&mut self, now: Instant) {
        self.advance(now);
        if self.paused_until.is_some_and(|until| until > now) {
            return;
        }
        self.pause((FIRST_PAUSE * (1 << self.unreachable.min(3))).min(LONGEST_PAUSE), now);
        self.unreachable = self.unreachable.saturating_add(1);
    }

    /// Whether the server was away when last tried: then one request at a time finds out whether it is back.
    #[must_use]
    pub fn is_probing(&self) -> bool {
        self.unreachable > 0
    }

    /// The tokens that are there now, for the metric.
    #[must_use]
    pub fn level(&mut self, now: Instant) -> f64 {
        self.advance(now);
        self.tokens
    }

    fn pause(&mut self, length: Duration, now: Instant) {
        let until = now + length;
        self.paused_until = Some(self.paused_until.map_or(until, |former| former.max(until)));
    }

    fn advance(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.counted_until).as_secs_f64();
        self.counted_until = self.counted_until.max(now);
        let whole = f64::from(self.limits.per_second);
        self.tokens = (self.tokens + elapsed * self.rate).min(f64::from(self.limits.burst));
        self.rate = (self.rate + elapsed * whole / RECOVERY.as_secs_f64()).min(whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend_all(budget: &mut Budget, now: Instant) -> u32 {
        std::iter::repeat_with(|| budget.take(now)).take_while(Result::is_ok).map(|_| 1).sum()
    }

    #[test]
    fn a_full_bucket_bursts_and_then_drips() {
        let start = Instant::now();
        let mut budget = Budget::new(BudgetLimits::default(), start);
        assert_eq!(spend_all(&mut budget, start), 2_000);
        let again = budget.take(start).expect_err("empty");
        assert!(again > start && again <= start + Duration::from_millis(25), "one token of 50 a second");
        assert!(budget.take(again).is_ok(), "what was promised is kept");
        assert_eq!(spend_all(&mut budget, again + Duration::from_secs(2)), 100);
        assert_eq!(spend_all(&mut budget, again + Duration::from_secs(3_600)), 2_000, "never more than the burst");
    }

    #[test]
    fn a_refusal_halves_the_rate_and_ends_the_burst_until_it_has_recovered() {
        let start = Instant::now();
        let mut budget = Budget::new(BudgetLimits::default(), start);
        for _ in 0..16 {
            budget.refused(None, start);
        }
        assert_eq!(spend_all(&mut budget, start), 25, "sixteen in flight are one refusal");
        let slow = spend_all(&mut budget, start + Duration::from_secs(1));
        assert!((25..30).contains(&slow), "{slow}");
        let recovered = start + Duration::from_secs(61);
        spend_all(&mut budget, recovered);
        assert_eq!(spend_all(&mut budget, recovered + Duration::from_secs(1)), 50);
    }

    #[test]
    fn many_refusals_never_silence_it() {
        let mut now = Instant::now();
        let mut budget = Budget::new(BudgetLimits::default(), now);
        for _ in 0..100 {
            budget.refused(None, now);
            now += Duration::from_secs(1);
        }
        let again = budget.take(now).map_or_else(|again| again, |()| now);
        assert!(again <= now + Duration::from_secs(1));
    }

    #[test]
    fn retry_after_is_honoured_up_to_five_minutes() {
        let start = Instant::now();
        for (asked, expected) in [(7, 7), (100_000, 300)] {
            let mut budget = Budget::new(BudgetLimits::default(), start);
            budget.refused(Some(Duration::from_secs(asked)), start);
            assert_eq!(budget.take(start), Err(start + Duration::from_secs(expected)), "{asked} s");
        }
    }

    #[test]
    fn an_outage_costs_no_tokens_and_ends_within_two_seconds_of_its_end() {
        let mut now = Instant::now();
        let mut budget = Budget::new(BudgetLimits::default(), now);
        let end = now + Duration::from_secs(60);
        while now < end {
            match budget.take(now) {
                Ok(()) => {
                    budget.refund();
                    budget.unreached(now);
                    assert!(budget.is_probing());
                }
                Err(again) => now = again,
            }
        }
        assert!(now < end + LONGEST_PAUSE);
        assert_eq!(spend_all(&mut budget, now), 2_000);
        budget.heard(Heard::Answer, now);
        assert!(!budget.is_probing());
    }
}
