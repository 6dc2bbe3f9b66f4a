//! Slows guessing: a limit on failures for each address, never on successes.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use super::rate::Rate;

/// Ten agents behind one address may have a wrong credential at once; then one attempt a second is looked at. A token of
/// 64 bits withstands that for ever, and a password that is in no dictionary for years.
const RATE: Rate = Rate::new(10, Duration::from_secs(1));
/// Addresses that are remembered. Beyond it those are forgotten that have failed least.
const MOST: usize = 10_000;

/// Where somebody comes from: an IPv4 address, or the 64 bits of an IPv6 address that one subscriber has to himself.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct Source(IpAddr);

impl Source {
    pub(super) fn of(address: SocketAddr) -> Self {
        Self(match address.ip().to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        })
    }
}

/// Who has failed of late. It forgets what is paid off.
#[derive(Debug, Default)]
pub(super) struct Failures {
    paid_until: HashMap<Source, Instant>,
    by_time: BTreeSet<(Instant, Source)>,
}

impl Failures {
    /// How long this one has to wait; `None` if its next attempt is looked at.
    pub(super) fn wait(&self, source: Source, now: Instant) -> Option<Duration> {
        RATE.wait(*self.paid_until.get(&source)?, now)
    }

    /// An attempt has failed.
    pub(super) fn note(&mut self, source: Source, now: Instant) {
        let before = self.paid_until.get(&source).copied();
        if let Some(before) = before {
            self.by_time.remove(&(before, source));
        }
        let paid_until = RATE.pay(before.unwrap_or(now), now);
        self.paid_until.insert(source, paid_until);
        self.by_time.insert((paid_until, source));
        while let Some((first, source)) = self.by_time.first().copied() {
            if first > now && self.by_time.len() <= MOST {
                break;
            }
            self.by_time.remove(&(first, source));
            self.paid_until.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> Source {
        Source::of(SocketAddr::new(address.parse().unwrap(), 4711))
    }

    #[test]
    fn after_ten_failures_one_a_second_is_looked_at() {
        let (mut failures, start, guesser) = (Failures::default(), Instant::now(), source("192.0.2.1"));
        let mut looked_at = 0;
        for step in 0..600_u32 {
            let now = start + Duration::from_millis(100) * step;
            if failures.wait(guesser, now).is_none() {
                failures.note(guesser, now);
                looked_at += 1;
            }
        }
        assert_eq!(looked_at, 10 + 59, "600 attempts in a minute");
        assert_eq!(failures.wait(source("192.0.2.2"), start), None, "another address");
        let wait = failures.wait(guesser, start + Duration::from_millis(59_900)).unwrap();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
    }

    #[test]
    fn addresses_that_one_subscriber_has_are_one() {
        for (one, other, expected) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8::1", "2001:db8::ffff:0:0:1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            assert_eq!(source(one) == source(other), expected, "{one}, {other}");
        }
    }

    #[test]
    fn memory_is_bounded_and_the_worst_are_kept() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let guesser = source("192.0.2.1");
        (0..10).for_each(|_| failures.note(guesser, start));
        for number in 0..50_000_u32 {
            failures.note(Source(IpAddr::V4((0x0a00_0000 + number).into())), start);
        }
        assert_eq!((failures.paid_until.len(), failures.by_time.len()), (MOST, MOST));
        assert!(failures.wait(guesser, start).is_some());
        failures.note(source("192.0.2.2"), start + Duration::from_secs(60));
        assert_eq!((failures.paid_until.len(), failures.by_time.len()), (1, 1), "what is paid off is forgotten");
    }
}
