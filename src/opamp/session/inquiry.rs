//! Something that an agent is asked for until it has come, with patience.

use std::time::{Duration, Instant};

/// How long to wait for the first answer before asking once more; doubled each time. A lost reply is rare, and an agent
/// that cannot answer must not be made to report in full all the time.
const PATIENCE: Duration = Duration::from_secs(120);
/// The longest wait.
const LONGEST_PATIENCE: Duration = Duration::from_secs(900);
/// So often a new connection is a reason to ask at once: the question may have gone down with the former one.
const IMPATIENT_TRIES: u32 = 3;

/// One question.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Inquiry {
    /// Nothing is wanted.
    #[default]
    Closed,
    /// Something is wanted, and not asked for since.
    Due { tries: u32 },
    /// It was asked for.
    Asked { tries: u32, again_at: Instant },
}

impl Inquiry {
    /// Wants it; changes nothing if it is wanted already.
    pub(super) fn open(&mut self) {
        if matches!(self, Self::Closed) {
            *self = Self::Due { tries: 0 };
        }
    }

    /// Wants it for a new reason: what was asked before does not count.
    pub(super) fn renew(&mut self) {
        *self = Self::Due { tries: 0 };
    }

    /// Whether something is wanted that was not asked for.
    pub(super) fn is_due(self) -> bool {
        match self {
            Self::Due { .. } => true,
            Self::Closed | Self::Asked { .. } => false,
        }
    }

    /// It has come.
    pub(super) fn close(&mut self) {
        *self = Self::Closed;
    }

    /// The agent speaks over a new connection.
    pub(super) fn reconnected(&mut self) {
        if let Self::Asked { tries, .. } = *self
            && tries < IMPATIENT_TRIES
        {
            *self = Self::Due { tries };
        }
    }

    /// Whether to ask in the message that is being written; counts as asked then.
    pub(super) fn ask(&mut self, now: Instant) -> Ask {
        let tries = match *self {
            Self::Due { tries } => tries,
            Self::Asked { tries, again_at } if again_at <= now => tries,
            Self::Closed | Self::Asked { .. } => return Ask::No,
        };
        let patience = PATIENCE.saturating_mul(2_u32.saturating_pow(tries)).min(LONGEST_PATIENCE);
        *self = Self::Asked { tries: tries + 1, again_at: now + patience };
        Ask::Now
    }
}

/// Whether a question goes into the next message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ask {
    /// It does.
    Now,
    /// It does not.
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_once_and_then_with_growing_patience() {
        let mut inquiry = Inquiry::default();
        let mut now = Instant::now();
        assert_eq!(inquiry.ask(now), Ask::No, "nothing is wanted");
        inquiry.open();
        assert_eq!(inquiry.ask(now), Ask::Now);
        for patience in [120, 240, 480, 900, 900] {
            inquiry.open();
            assert_eq!(inquiry.ask(now + Duration::from_secs(patience - 1)), Ask::No, "before {patience} s");
            now += Duration::from_secs(patience);
            assert_eq!(inquiry.ask(now), Ask::Now, "after {patience} s");
        }
        inquiry.close();
        assert_eq!(inquiry.ask(now + LONGEST_PATIENCE), Ask::No, "it has come");
    }

    #[test]
    fn a_new_connection_is_a_reason_to_ask_again_three_times() {
        let now = Instant::now();
        let mut inquiry = Inquiry::default();
        inquiry.open();
        let asked: Vec<Ask> = (0..5)
            .map(|_| {
                let ask = inquiry.ask(now);
                inquiry.reconnected();
                ask
            })
            .collect();
        assert_eq!(asked, [Ask::Now, Ask::Now, Ask::Now, Ask::No, Ask::No]);
        inquiry.renew();
        assert_eq!(inquiry.ask(now), Ask::Now, "a new reason");
    }
}
