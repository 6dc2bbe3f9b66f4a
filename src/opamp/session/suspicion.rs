//! Signs that several agents share one uid over HTTP, where no socket can be pinged (AMB-14).

use super::{
    effects::Suspicion,
    sequence::{Numbered, Step},
};
use crate::opamp::{inbound::Digest, record::Attributes};

/// So many turns are no accident: lost and repeated messages make one or two.
const TURNS: u8 = 3;

/// What two interleaved agents would leave behind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    counters: Turns,
    before_gap: Option<u64>,
    identities: Turns,
    identity: Option<Digest>,
    former_identity: Option<Digest>,
}

/// How often two have taken turns; reported once.
#[derive(Clone, Copy, Debug, Default)]
struct Turns(u8);

impl Turns {
    fn another(&mut self, suspicion: Suspicion) -> Option<Suspicion> {
        self.0 = self.0.saturating_add(1);
        (self.0 == TURNS).then_some(suspicion)
    }
}

impl Watch {
    /// Notes a message: suspicious if it continues the numbers that the last gap broke off.
    pub(super) fn number(&mut self, former: Option<Numbered>, next: Numbered, step: Step) -> Option<Suspicion> {
        match step {
            Step::First | Step::Regular | Step::Copy => None,
            Step::GapForward | Step::GapBack => {
                let broken_off = std::mem::replace(&mut self.before_gap, former.map(|former| former.number));
                let continues = broken_off.is_some_and(|number| next.number == number.wrapping_add(1));
                if continues { self.counters.another(Suspicion::CountersAlternate) } else { None }
            }
        }
    }

    /// Notes a description: suspicious if the identifying attributes go back to what they were before.
    pub(super) fn describe(&mut self, attributes: &Attributes) -> Option<Suspicion> {
        let identity = digest(attributes);
        if self.identity == Some(identity) {
            return None;
        }
        let before = std::mem::replace(&mut self.former_identity, self.identity.replace(identity));
        if before == Some(identity) { self.identities.another(Suspicion::IdentitiesAlternate) } else { None }
    }
}

fn digest(attributes: &Attributes) -> Digest {
    let mut text = String::new();
    for (key, value) in &attributes.identifying {
        for part in [key, value] {
            text.push_str(part);
            text.push('\0');
        }
    }
    Digest::of(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opamp::session::sequence::Sequence;

    fn suspicions(numbers: &[u64]) -> Vec<Suspicion> {
        let (mut sequence, mut observer) = (Sequence::default(), Watch::default());
        let found = numbers.iter().filter_map(|number| {
            let next = Numbered { number: *number, digest: Digest::of(&number.to_be_bytes()) };
            let former = sequence.last();
            observer.number(former, next, sequence.advance(next))
        });
        found.collect()
    }

    #[test]
    fn counters_that_take_turns_are_reported_once() {
        // AMB-14
        let alternating = [10, 200, 11, 201, 12, 202, 13, 203, 14, 204];
        assert_eq!(suspicions(&alternating), [Suspicion::CountersAlternate]);
    }

    #[test]
    fn losses_restarts_and_repetitions_are_no_reason_for_suspicion() {
        for numbers in [&[1, 2, 3, 4][..], &[1, 5, 9, 20], &[57, 0, 1, 2], &[1, 2, 2, 4, 3, 5], &[3, 1, 4]] {
            assert_eq!(suspicions(numbers), [], "{numbers:?}");
        }
    }

    #[test]
    fn identities_that_take_turns_are_reported_once() {
        // AMB-14
        let named = |name: &str| Attributes {
            identifying: [("service.instance.id".into(), name.into())].into(),
            non_identifying: [].into(),
        };
        let mut observer = Watch::default();
        let turns = ["a", "b", "a", "a", "b", "a", "b", "a"];
        let found: Vec<Suspicion> = turns.iter().filter_map(|name| observer.describe(&named(name))).collect();
        assert_eq!(found, [Suspicion::IdentitiesAlternate]);
    }
}
