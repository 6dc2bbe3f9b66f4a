//! What the offers of all classes have in common: what one goes along with, and when it may be repeated.

use std::time::{Duration, Instant};

use crate::opamp::record::OfferState;

/// How soon an offer that had no echo is repeated; doubled each time (AMB-24 asks for 30 s or more).
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest wait between two offers of the same hash to an agent that reports but does not take it.
const LONGEST_PATIENCE: Duration = Duration::from_secs(900);

/// What an offer goes along with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Occasion {
    /// The reply to a message that reports a status of what is offered.
    ReplyToStatus,
    /// The reply to a copy of a message whose first reply, which may be lost, offered the same (RTY-02).
    ReplyToCopy,
    /// The reply to a message that asks for what is offered.
    ReplyToRequest,
    /// The reply to any other.
    Reply,
    /// Nothing: it would be sent by itself.
    Push,
}

/// A person wants what failed to be offered once more.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Again {
    #[default]
    No,
    Once,
}

impl Again {
    /// The agent has reported a state. One that is no failure leaves nothing to be offered again.
    pub(super) fn reported(&mut self, state: OfferState) {
        match state {
            OfferState::Failed => {}
            OfferState::Unset | OfferState::Applied | OfferState::Applying | OfferState::Unknown(_) => *self = Self::No,
        }
    }
}

/// What was offered last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<Hash> {
    pub(super) hash: Hash,
    pub(super) times: u32,
    /// Not before that time, unless there is another reason.
    pub(super) again_at: Instant,
}

impl<Hash: PartialEq> Sent<Hash> {
    /// Counts one more.
    pub(super) fn after(former: Option<Self>, hash: Hash, now: Instant) -> Self {
        let times = former.filter(|former| former.hash == hash).map_or(0, |former| former.times);
        let patience = PATIENCE.saturating_mul(2_u32.saturating_pow(times)).min(LONGEST_PATIENCE);
        Self { hash, times: times.saturating_add(1), again_at: now + patience }
    }
}
