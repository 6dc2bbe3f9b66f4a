//! The pace at which a broken watch is tried again.

use std::time::Duration;

use kube::runtime::utils::Backoff;

const FIRST: Duration = Duration::from_millis(200);
/// 200 ms doubled twice: 0.8 s, at most 1 s with its jitter.
const DOUBLINGS: u32 = 2;

/// 0.2 s, 0.4 s, then 0.8 s, each up to a quarter more or less.
///
/// kube's own backoff grows to 30 s, and counts the ordinary `410 Gone` after an API server's restart as a failure, so
/// that a watch comes back half a minute after its server did. Replicas that lose the server together are told apart by
/// the jitter. Any success starts it anew.
#[derive(Clone, Debug, Default)]
pub struct QuickBackoff {
    attempts: u32,
}

impl Iterator for QuickBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let doublings = self.attempts.min(DOUBLINGS);
        self.attempts = self.attempts.saturating_add(1);
        Some((FIRST * (1 << doublings)).mul_f64(rand::random_range(0.75..=1.25)))
    }
}

impl Backoff for QuickBackoff {
    fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_longer_than_a_second_and_a_success_starts_anew() {
        let mut backoff = QuickBackoff::default();
        let waits: Vec<_> = backoff.by_ref().take(50).collect();
        assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(1)), "{waits:?}");
        assert!(waits[10] >= Duration::from_millis(600));
        backoff.reset();
        assert!(backoff.next().is_some_and(|wait| wait <= Duration::from_millis(250)));
    }
}
