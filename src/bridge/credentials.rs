//! What the bridge asks about credentials that were checked before: whether they still count.

use jiff::Timestamp;
use tokio::sync::watch;

use crate::opamp::identity::{Principal, Proof};

/// The credentials that count now.
pub trait Credentials: Send + Sync + 'static {
    /// Whether a principal that was admitted once would be admitted again. Called for each message; must return at once.
    fn is_valid(&self, principal: &Principal, now: Timestamp) -> bool;

    /// Moves whenever a credential may have gone.
    fn changed(&self) -> watch::Receiver<u64>;
}

/// Where agents show no credential at all, so that none can go.
pub struct NoCredentials {
    never: watch::Sender<u64>,
}

impl Default for NoCredentials {
    fn default() -> Self {
        Self { never: watch::Sender::new(0) }
    }
}

impl Credentials for NoCredentials {
    fn is_valid(&self, principal: &Principal, _now: Timestamp) -> bool {
        principal.proof == Proof::None
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.never.subscribe()
    }
}
