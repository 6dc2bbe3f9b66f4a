//! May this process hold that Lease: the rule, without a clock of its own and without a client.

use std::time::{Duration, Instant};

use super::Holder;

/// What this process has seen of a Lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sighting {
    version: String,
    holder: Option<String>,
    duration: Duration,
    since: Instant,
}

impl Sighting {
    /// The first sight of a Lease: whoever holds it has its whole duration from now on, whatever its times say.
    #[must_use]
    pub fn first(version: String, holder: Option<String>, duration: Duration, now: Instant) -> Self {
        Self { version, holder: holder.filter(|holder| !holder.is_empty()), duration, since: now }
    }

    /// A later sight: only a moved resourceVersion is a sign of life.
    #[must_use]
    pub fn again(self, later: Self) -> Self {
        if self.version == later.version { self } else { later }
    }
}

/// Whether this process has held the Lease before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tenure {
    /// Not yet: whoever else runs under its name is an earlier run of it.
    Never,
    /// Once: whoever else runs under its name is a later run, and this one has been replaced.
    Once,
}

/// What to do with a Lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// It is ours: say so again.
    Renew,
    /// It is free, or was left behind: write ourselves into it.
    Take,
    /// It is somebody else's: look again then.
    Wait {
        /// When it would be expired if nothing moved.
        until: Instant,
    },
}

/// Decides on a Lease that was seen.
///
/// An earlier run of the same replica cannot be alive next to this one, so what it left is taken at once: a restart
/// does not wait for an expiry. The reverse does not hold: who was replaced waits like anybody else, or two processes
/// that were given one name would take the Lease from each other for ever.
#[must_use]
pub fn decide(me: &Holder, tenure: Tenure, seen: &Sighting, now: Instant) -> Decision {
    let Some(identity) = &seen.holder else { return Decision::Take };
    let holder = Holder::parse(identity);
    if holder.as_ref() == Some(me) {
        return Decision::Renew;
    }
    let left_by_us = tenure == Tenure::Never && holder.is_some_and(|holder| holder.replica == me.replica);
    let expiry = seen.since + seen.duration;
    if left_by_us || now >= expiry { Decision::Take } else { Decision::Wait { until: expiry } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Incarnation;

    fn holder(replica: &str, incarnation: &str) -> Holder {
        Holder { replica: replica.into(), incarnation: Incarnation::from_text(incarnation) }
    }

    #[test]
    fn a_lease_is_renewed_taken_or_waited_for() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let expiry = Decision::Wait { until: after(10) };
        let me = holder("replica-0", "1111111111");
        for (case, found, tenure, now, expected) in [
            ("nobody's", None, Tenure::Never, after(0), Decision::Take),
            ("released", Some(""), Tenure::Never, after(0), Decision::Take),
            ("ours", Some("replica-0_1111111111"), Tenure::Once, after(0), Decision::Renew),
            ("ours though late", Some("replica-0_1111111111"), Tenure::Once, after(60), Decision::Renew),
            ("an earlier run's", Some("replica-0_2222222222"), Tenure::Never, after(0), Decision::Take),
            ("a later run's", Some("replica-0_2222222222"), Tenure::Once, after(0), expiry.clone()),
            ("a later run's, left", Some("replica-0_2222222222"), Tenure::Once, after(10), Decision::Take),
            ("another's", Some("replica-1_2222222222"), Tenure::Never, after(9), expiry.clone()),
            ("another's, left", Some("replica-1_2222222222"), Tenure::Never, after(10), Decision::Take),
            ("a stranger's", Some("somebody"), Tenure::Never, after(9), expiry),
        ] {
            let seen = Sighting::first("1".into(), found.map(Into::into), Duration::from_secs(10), start);
            assert_eq!(decide(&me, tenure, &seen, now), expected, "{case}");
        }
    }

    #[test]
    fn only_a_moved_version_is_a_sign_of_life() {
        let start = Instant::now();
        let later = start + Duration::from_secs(9);
        let at = |version: &str, now| {
            Sighting::first(version.into(), Some("replica-1_2222222222".into()), Duration::from_secs(10), now)
        };
        assert_eq!(at("1", start).again(at("1", later)).since, start);
        assert_eq!(at("1", start).again(at("2", later)).since, later);
    }
}
