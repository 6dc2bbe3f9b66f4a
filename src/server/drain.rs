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
    started: watch::Sender<Option<Instant>>,
}

impl Drain {
    /// Not begun; once it is, so many WebSockets are closed a second.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        Self {
            spacing: Duration::from_secs(1) / per_second.max(1),
            next: AtomicU32::new(0),
            started: watch::Sender::new(None),
        }
    }

    /// Begins it. A second call changes nothing.
    pub fn start(&self, now: Instant) {
        self.started.send_if_modified(|started| {
            let first = started.is_none();
            started.get_or_insert(now);
            first
        });
    }

    /// Waits until it begins.
    pub async fn started(&self) {
        // The sender lives in `self`, so that this ends with the drain only.
        let _ = self.started.subscribe().wait_for(Option::is_some).await;
    }

    /// When the one that asks is to be closed; to be asked once by each, after [`Self::started`].
    pub fn turn(&self, now: Instant) -> Instant {
        let place = self.next.fetch_add(1, Ordering::Relaxed);
        self.started.borrow().unwrap_or(now) + self.spacing.saturating_mul(place)
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
        drain.start(now);
        drain.start(now + Duration::from_secs(9));
        assert!(drain.started().now_or_never().is_some());
        for place in 0..3 {
            assert_eq!(drain.turn(now + Duration::from_secs(1)), now + Duration::from_millis(2) * place);
        }
    }
}
