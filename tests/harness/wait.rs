//! Waiting for what is to happen.

use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

/// How often a condition is looked at.
const EVERY: Duration = Duration::from_millis(200);

/// Looks until there is something to return. `look` says what it saw instead; the last of that is in the panic when
/// the time is up.
pub async fn wait_for<T>(what: &str, limit: Duration, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        match look().await {
            Ok(found) => return found,
            Err(seen) => assert!(began.elapsed() < limit, "not within {limit:?}: {what}; last seen: {seen}"),
        }
    }
}
