//! Rates as pure functions of time.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Gives out turns at a fixed rate, to a queue of bounded length. A turn is a moment in the future.
#[derive(Debug)]
pub struct Ramp {
    spacing: Duration,
    longest_wait: Duration,
    next: Option<Instant>,
    /// Turns of those who did not wait for them; whoever comes next gets the first. At most as many as the queue is long.
    returned: BTreeSet<Instant>,
}

impl Ramp {
    /// So many turns a second; nobody waits longer than the queue allows by number or by time.
    #[must_use]
    pub fn new(per_second: u32, queue: usize, wait: Duration) -> Self {
        let spacing = Duration::from_secs(1) / per_second.max(1);
        let queue = u32::try_from(queue).unwrap_or(u32::MAX);
        let longest_wait = wait.min(spacing.saturating_mul(queue));
        Self { spacing, longest_wait, next: None, returned: BTreeSet::new() }
    }

    /// The next free turn, or `None` if the queue is full.
    pub fn turn(&mut self, now: Instant) -> Option<Instant> {
        self.returned = self.returned.split_off(&now);
        if let Some(turn) = self.returned.pop_first() {
            return Some(turn);
        }
        let turn = self.next.map_or(now, |next| next.max(now));
        if turn - now > self.longest_wait {
            return None;
        }
        self.next = Some(turn + self.spacing);
        Some(turn)
    }

    /// Takes back a turn that is not waited for. One whose time has come was used.
    pub fn give_back(&mut self, turn: Instant, now: Instant) {
        if turn > now {
            self.returned.insert(turn);
        }
    }
}

/// Bytes that cost as much as a message: a large one takes as long to decode as many small ones.
const BYTES_PER_TOKEN: usize = 4 << 10;

/// What a message of so many bytes takes out of a [`TokenBucket`].
#[must_use]
pub fn tokens(bytes: usize) -> u32 {
    u32::try_from(1 + bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX)
}

/// Lets a burst through and then a steady rate.
#[derive(Debug)]
pub struct TokenBucket {
    spacing: Duration,
    /// How far [`Self::paid_until`] may run ahead of the clock.
    burst: Duration,
    paid_until: Instant,
}

impl TokenBucket {
    /// A full bucket.
    #[must_use]
    pub fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let spacing = Duration::from_secs(1) / per_second.max(1);
        Self { spacing, burst: spacing.saturating_mul(burst), paid_until: now }
    }

    /// Takes so many tokens. Tells when more may be taken, if that is later than now.
    pub fn take(&mut self, tokens: u32, now: Instant) -> Option<Instant> {
        self.paid_until = self.paid_until.max(now) + self.spacing.saturating_mul(tokens);
        let over = (self.paid_until - now).checked_sub(self.burst)?;
        (!over.is_zero()).then(|| now + over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn ten_thousand_at_once_get_turns_over_ten_seconds_and_the_next_none() {
        let now = Instant::now();
        let mut ramp = Ramp::new(1_000, 10_000, Duration::from_secs(10));
        for place in 0..=10_000_u32 {
            assert_eq!(ramp.turn(now), Some(now + MILLISECOND * place), "place {place}");
        }
        assert_eq!(ramp.turn(now), None, "the queue is full");
        assert_eq!(ramp.turn(now + MILLISECOND), Some(now + MILLISECOND * 10_001), "one place became free");
    }

    #[test]
    fn a_turn_that_nobody_took_is_not_saved_up() {
        let now = Instant::now();
        let mut ramp = Ramp::new(1_000, 10, Duration::from_secs(10));
        assert_eq!(ramp.turn(now), Some(now));
        let later = now + Duration::from_secs(60);
        assert_eq!(ramp.turn(later), Some(later));
        assert_eq!(ramp.turn(later), Some(later + MILLISECOND));
    }

    #[test]
    fn turns_that_were_given_back_are_the_next_to_be_taken() {
        let now = Instant::now();
        let mut ramp = Ramp::new(1_000, 10_000, Duration::from_secs(10));
        let turns: Vec<_> = std::iter::from_fn(|| ramp.turn(now)).collect();
        let later = now + MILLISECOND * 5;
        for place in [2, 8, 6] {
            ramp.give_back(turns[place], later);
        }
        let next: Vec<_> = (0..3).filter_map(|_| ramp.turn(later)).collect();
        assert_eq!(next, [turns[6], turns[8], turns[10_000] + MILLISECOND], "the third was used");
        ramp.give_back(turns[9_000], later);
        assert_eq!(ramp.turn(now + Duration::from_secs(60)), Some(now + Duration::from_secs(60)), "it has passed");
    }

    #[test]
    fn the_shorter_of_queue_and_wait_limits() {
        let now = Instant::now();
        for (queue, wait, expected) in [(5, Duration::from_secs(10), 6), (100, MILLISECOND * 3, 4), (0, MILLISECOND, 1)]
        {
            let mut ramp = Ramp::new(1_000, queue, wait);
            let turns = std::iter::from_fn(|| ramp.turn(now)).count();
            assert_eq!(turns, expected, "queue {queue}, wait {wait:?}");
        }
    }

    #[test]
    fn a_bucket_lets_the_burst_through_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(100, 5, start);
        for token in 0..5 {
            assert_eq!(bucket.take(1, start), None, "token {token}");
        }
        let next = bucket.take(1, start).unwrap();
        assert_eq!(next, start + MILLISECOND * 10, "100 a second");
        assert_eq!(bucket.take(1, next).unwrap(), next + MILLISECOND * 10);
        assert_eq!(bucket.take(5, start + Duration::from_secs(60)), None, "full again");
    }

    #[test]
    fn a_large_message_costs_as_much_as_many_small_ones() {
        for (bytes, cost) in [(0, 1), (4_095, 1), (4_096, 2), (4 << 20, 1_025)] {
            assert_eq!(tokens(bytes), cost, "{bytes} bytes");
        }
        let start = Instant::now();
        let mut bucket = TokenBucket::new(500, 2_000, start);
        assert_eq!(bucket.take(tokens(4 << 20), start), None);
        assert_eq!(bucket.take(tokens(4 << 20), start), Some(start + MILLISECOND * 100), "50 too many, 2 ms each");
    }
}
