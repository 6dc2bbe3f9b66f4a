//! The orderly end: everybody is sent away, but not all at once.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use tokio::sync::watch;

/// Tells every task of the server that it stops, and each WebSocket when its turn is.
#[derive(Debug)]
pub struct Drain {
    spacing: Duration,
    next: AtomicU32,
    begun: watch::Sender<Option<Begun>>,
}

/// When a drain began, and the time between two turns.
#[derive(Clone, Copy, Debug)]
struct Begun {
    at: Instant,
    spacing: Duration,
}

impl Drain {
    /// Not begun; once it is, so many WebSockets are closed a second.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        Self {
            spacing: Duration::from_secs(1) / per_second.max(1),
            next: AtomicU32::new(0),
            begun: watch::Sender::new(None),
        }
    }

    /// Begins it, faster than its rate if so many connections would not all have their turn within that time. A second
    /// call changes nothing.
    pub fn start(&self, connections: usize, within: Duration, now: Instant) {
        let share = within / u32::try_from(connections).unwrap_or(u32::MAX).max(1);
        let spacing = self.spacing.min(share);
        self.begun.send_if_modified(|begun| {
            let is_first = begun.is_none();
            begun.get_or_insert(Begun { at: now, spacing });
            is_first
        });
    }

    /// Waits until it begins.
    pub async fn started(&self) {
        // The sender lives in `self`, so that this ends with the drain only.
        let _ = self.begun.subscribe().wait_for(Option::is_some).await;
    }

    /// When the one that asks is to be closed; to be asked once by each, after [`Self::started`].
    pub fn turn(&self, now: Instant) -> Instant {
        let place = self.next.fetch_add(1, Ordering::Relaxed);
        self.begun.borrow().map_or(now, |begun| begun.at + begun.spacing.saturating_mul(place))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn turns_follow_each_other_at_the_rate_of_the_drain() {
        let drain = Drain::new(500);
        let now = Instant::now();
        assert!(drain.started().now_or_never().is_none());
        drain.start(10, Duration::from_secs(10), now);
        drain.start(10, Duration::from_secs(10), now + Duration::from_secs(9));
        assert!(drain.started().now_or_never().is_some());
        for place in 0..3 {
            assert_eq!(drain.turn(now + Duration::from_secs(1)), now + Duration::from_millis(2) * place);
        }
    }

    #[test]
    fn more_than_the_rate_allows_are_all_sent_away_in_time() {
        let (drain, now) = (Drain::new(500), Instant::now());
        drain.start(15_000, Duration::from_secs(15), now);
        let last = (0..15_000).map(|_| drain.turn(now)).last().unwrap();
        assert_eq!(last, now + Duration::from_millis(14_999));
    }
}
