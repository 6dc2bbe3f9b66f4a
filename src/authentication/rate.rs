//! A burst, and then a steady rate, as a pure function of time.

use std::time::{Duration, Instant};

/// How often something may happen. Who uses it keeps one moment: until when is paid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    spacing: Duration,
    burst: Duration,
}

impl Rate {
    /// So many at once, and then one in this time.
    pub(super) const fn new(burst: u32, spacing: Duration) -> Self {
        Self { spacing, burst: spacing.saturating_mul(burst) }
    }

    /// How long until there is room for one more; `None` if there is.
    pub(super) fn wait(&self, paid_until: Instant, now: Instant) -> Option<Duration> {
        let debt = paid_until.saturating_duration_since(now) + self.spacing;
        debt.checked_sub(self.burst).filter(|wait| !wait.is_zero())
    }

    /// Pays for one.
    pub(super) fn pay(&self, paid_until: Instant, now: Instant) -> Instant {
        paid_until.max(now) + self.spacing
    }
}
