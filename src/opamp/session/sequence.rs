//! The sequence numbers of one agent, over all its connections and transports.

use std::time::{Duration, Instant};

use crate::opamp::inbound::Digest;

/// So many gaps at once are each a reason to ask for the agent's state, and then one in each [`GAP_SPACING`]. More come from
/// an agent that counts wrongly, or from two under one uid: asked at each, they would report in full, and so leave the
/// next gap, as fast as the line allows (STS-07).
const GAPS: u32 = 10;
const GAP_SPACING: Duration = Duration::from_secs(6);

/// A message by its number and its bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Numbered {
    pub(super) number: u64,
    pub(super) digest: Digest,
}

impl Numbered {
    /// The successor of the largest number is 0 (AMB-04).
    pub(super) fn follows(self, former: Self) -> bool {
        self.number == former.number.wrapping_add(1)
    }
}

/// How a message stands to the one before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// There was none: any number is right (AMB-01).
    First,
    /// The next one.
    Regular,
    /// The same once more (AMB-03).
    Copy,
    /// Messages were lost, or came in another order (CMP-05).
    GapForward,
    /// The same, and the agent has begun to count anew (CMP-06).
    GapBack,
}

/// The last accepted message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sequence {
    last: Option<Numbered>,
}

impl Sequence {
    /// The last accepted message.
    pub(super) fn last(self) -> Option<Numbered> {
        self.last
    }

    /// Accepts a message; its number is the new baseline whatever it is (CMP-09).
    pub(super) fn advance(&mut self, next: Numbered) -> Step {
        match self.last.replace(next) {
            None => Step::First,
            Some(last) if next == last => Step::Copy,
            Some(last) if next.follows(last) => Step::Regular,
            Some(last) if next.number > last.number => Step::GapForward,
            Some(_) => Step::GapBack,
        }
    }
}

/// How many gaps there were lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gaps {
    /// When none of them will count any more.
    forgotten: Option<Instant>,
}

impl Gaps {
    /// Notes one more. Tells until when the agent is not to be asked because of it, if there were too many.
    pub(super) fn another(&mut self, now: Instant) -> Option<Instant> {
        let forgotten = self.forgotten.map_or(now, |forgotten| forgotten.max(now)) + GAP_SPACING;
        if forgotten - now <= GAP_SPACING * GAPS {
            self.forgotten = Some(forgotten);
            return None;
        }
        forgotten.checked_sub(GAP_SPACING * GAPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u64, content: &str) -> Numbered {
        Numbered { number, digest: Digest::of(content.as_bytes()) }
    }

    #[test]
    fn any_number_may_begin_and_the_largest_is_followed_by_zero() {
        // CMP-04, AMB-04
        for (begin, next) in [(0, 1), (1, 2), (57, 58), (u64::MAX, 0)] {
            let mut sequence = Sequence::default();
            assert_eq!(sequence.advance(message(begin, "a")), Step::First);
            assert_eq!(sequence.advance(message(next, "b")), Step::Regular, "{next} after {begin}");
        }
    }

    #[test]
    fn every_other_number_is_a_gap_and_the_new_baseline() {
        // CMP-05, CMP-06, CMP-09, AMB-03
        for (case, number, content, step) in [
            ("one lost", 7, "b", Step::GapForward),
            ("from the beginning", 0, "b", Step::GapBack),
            ("the one before", 4, "b", Step::GapBack),
            ("same number, other content", 5, "b", Step::GapBack),
            ("same number, same content", 5, "a", Step::Copy),
        ] {
            let mut sequence = Sequence::default();
            let _ = sequence.advance(message(5, "a"));
            assert_eq!(sequence.advance(message(number, content)), step, "{case}");
            assert_eq!(sequence.advance(message(number + 1, "c")), Step::Regular, "after {case}");
        }
    }

    #[test]
    fn ten_gaps_are_asked_about_at_once_and_then_one_every_six_seconds() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut gaps = Gaps::default();
        for gap in 0..10 {
            assert_eq!(gaps.another(begin), None, "gap {gap}");
        }
        for _ in 0..100 {
            assert_eq!(gaps.another(begin), Some(at(6)), "however many");
        }
        assert_eq!(gaps.another(at(6)), None);
        assert_eq!(gaps.another(at(7)), Some(at(12)));
        assert!((0..10).all(|_| gaps.another(at(100)).is_none()), "they are forgotten");
    }
}
