//! When certificates are renewed.

use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{
    authority::BACKDATED,
    facts::{between, earlier, later},
    stored::{Given, Held, Signer},
};
use crate::opamp::InstanceUid;

/// How long certificates of a fleet count, and how long before their end they are renewed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Validity {
    /// `enrollment.certificates.duration`.
    pub duration: Duration,
    /// `enrollment.certificates.renewBefore`.
    pub renew_before: Duration,
}

impl Default for Validity {
    fn default() -> Self {
        Self { duration: Duration::from_secs(168 * 3_600), renew_before: Duration::from_secs(56 * 3_600) }
    }
}

impl Validity {
    /// When a certificate is to be renewed: `renewBefore` its end, and up to a quarter of that earlier, each agent at a
    /// moment of its own and always at the same. Never in the first third of its time, whatever was asked for: a renewal
    /// would be due at once, and again.
    #[must_use]
    pub fn renewal_time(&self, agent: &InstanceUid, given: &Given) -> Timestamp {
        let Held { not_before, not_after, .. } = given.certificate;
        let issued_at = match given.signer {
            Signer::Operator => later(not_before, BACKDATED),
            // Others date theirs back by as much as they like, and some give a longer time than was asked for.
            Signer::Other => not_before.max(earlier(not_after, self.duration)),
        };
        self.renewal_within(agent, issued_at, not_after)
    }

    fn renewal_within(&self, agent: &InstanceUid, issued_at: Timestamp, not_after: Timestamp) -> Timestamp {
        let window = self.renew_before.min(between(issued_at, not_after) / 2);
        earlier(not_after, window + (window / 4).mul_f64(share(agent)))
    }
}

/// A number from 0 to 1 that is the agent's own.
fn share(agent: &InstanceUid) -> f64 {
    let digest = Sha256::digest(agent.as_bytes());
    f64::from(u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{
        key::KeyId,
        serial::Serial,
        tests::{at, uid},
    };

    fn renewal(agent: &InstanceUid, duration: i64, renew_before: u64) -> i64 {
        let validity = Validity {
            duration: Duration::from_secs(duration.unsigned_abs()),
            renew_before: Duration::from_secs(renew_before),
        };
        validity.renewal_within(agent, at(0), at(duration)).as_second() - at(0).as_second()
    }

    #[test]
    fn certificates_of_others_are_not_taken_for_dated_back() {
        let validity = Validity { duration: Duration::from_secs(60), renew_before: Duration::from_secs(40) };
        for (signer, not_before) in [(Signer::Operator, -300), (Signer::Other, 0)] {
            let (not_before, not_after) = (at(not_before), at(60));
            let (issuer, serial) = (KeyId::of(b"issuer"), Serial::from_der(&[1]).unwrap());
            let certificate = Held { digest: [0; 32], issuer, serial, not_before, not_after };
            let given = Given { chain: "".into(), ca: "".into(), signer, certificate, former: None };
            let moment = validity.renewal_time(&uid(1), &given);
            assert!((at(22)..=at(30)).contains(&moment), "{signer:?}: {moment}");
        }
    }

    #[test]
    fn a_certificate_that_was_dated_back_by_far_is_not_renewed_at_once() {
        let validity = Validity { duration: Duration::from_secs(600), renew_before: Duration::from_secs(540) };
        for (case, not_before, not_after) in [("an hour", -3_600, 600), ("not at all", 0, 600), ("longer", 0, 86_400)] {
            let certificate = Held {
                digest: [0; 32],
                issuer: KeyId::of(b"issuer"),
                serial: Serial::from_der(&[1]).unwrap(),
                not_before: at(not_before),
                not_after: at(not_after),
            };
            let (chain, ca) = ("".into(), "".into());
            let given = Given { chain, ca, signer: Signer::Other, certificate, former: None };
            let left = not_after - (validity.renewal_time(&uid(1), &given).as_second() - at(0).as_second());
            assert!((300..=375).contains(&left), "{case}: {left} s before its end");
        }
    }

    #[test]
    fn a_renewal_is_due_before_the_end_at_a_moment_of_the_agents_own() {
        for (case, duration, renew_before, earliest, latest) in [
            ("the default", 604_800, 201_600, 604_800 - 252_000, 604_800 - 201_600),
            ("short", 60, 20, 35, 40),
            ("more than there is", 60, 100, 22, 30),
        ] {
            let moments: Vec<_> = (0..100).map(|number| renewal(&uid(number), duration, renew_before)).collect();
            assert!(moments.iter().all(|moment| (earliest..=latest).contains(moment)), "{case}: {moments:?}");
            assert_eq!(moments[7], renewal(&uid(7), duration, renew_before), "{case}: always the same");
        }
        let mut spread: Vec<_> = (0..100).map(|number| renewal(&uid(number), 604_800, 201_600)).collect();
        spread.sort_unstable();
        spread.dedup();
        assert_eq!(spread.len(), 100, "not all at once");
    }
}
