//! Which replicas live, as the leader has watched them; without a clock of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{ResourceExt, runtime::watcher::Event};

use super::{DURATION, Holder, SignOfLife, Uncounted};

/// How long a replica must have been gone before its agents are shown as gone too: they have that long to turn up at
/// another replica, without a write for each.
pub const GRACE: Duration = Duration::from_secs(60);

/// How long an expired Lease of a replica is kept, for people who ask what happened.
pub const KEPT_EXPIRED: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
struct Seen {
    version: String,
    sign: Option<SignOfLife>,
    since: Instant,
}

/// A Lease whose replica is long gone.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Expired {
    /// The Lease's name.
    pub name: String,
    /// As it was last seen.
    pub version: String,
}

/// The replicas' Leases, and since when whoever they do not vouch for is gone.
#[derive(Debug, Default)]
pub struct Presence {
    seen: BTreeMap<String, Seen>,
    gone: BTreeMap<Holder, Instant>,
    /// While a list runs: what it has shown.
    listing: Option<BTreeSet<String>>,
    is_listed: bool,
}

impl Presence {
    /// Takes an event of the watch over the replicas' Leases.
    pub fn apply(&mut self, event: Event<Lease>, now: Instant) {
        match event {
            Event::Init => self.listing = Some(BTreeSet::new()),
            Event::InitApply(lease) => {
                if let Some(listing) = &mut self.listing {
                    listing.insert(lease.name_any());
                }
                self.saw(&lease, now);
            }
            Event::InitDone => {
                if let Some(listed) = self.listing.take() {
                    self.seen.retain(|name, _| listed.contains(name));
                    self.is_listed = true;
                }
            }
            Event::Apply(lease) => self.saw(&lease, now),
            Event::Delete(lease) => self.removed(&lease.name_any()),
        }
    }

    /// Whether all Leases were listed once: before, an absent one means nothing.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// A Lease was listed, or has changed: a sign of life, unless it is the same one.
    fn saw(&mut self, lease: &Lease, now: Instant) {
        let version = lease.resource_version().unwrap_or_default();
        let name = lease.name_any();
        if self.seen.get(&name).is_none_or(|seen| seen.version != version) {
            self.seen.insert(name, Seen { version, sign: SignOfLife::read(lease), since: now });
        }
    }

    /// A Lease was deleted: its replica ended in an orderly way.
    fn removed(&mut self, name: &str) {
        self.seen.remove(name);
    }

    /// The API server could not be watched, so nobody can be said to have been silent: all Leases start anew.
    pub fn outage(&mut self, now: Instant) {
        self.gone.clear();
        self.seen.values_mut().for_each(|seen| seen.since = now);
    }

    fn lives(&self, holder: &Holder, now: Instant) -> bool {
        self.living(now).any(|sign| sign.holder == *holder)
    }

    fn living(&self, now: Instant) -> impl Iterator<Item = &SignOfLife> {
        self.seen
            .values()
            .filter(move |seen| now.saturating_duration_since(seen.since) < DURATION)
            .filter_map(|seen| seen.sign.as_ref())
    }

    /// Of those who claim agents, the ones that have been gone for [`GRACE`] since this was first noticed. To be asked
    /// again and again with everybody who claims agents; who is not named is forgotten.
    pub fn gone(&mut self, claiming: &BTreeSet<Holder>, now: Instant) -> BTreeSet<Holder> {
        let missing: BTreeSet<&Holder> = claiming.iter().filter(|holder| !self.lives(holder, now)).collect();
        let noticed: BTreeMap<Holder, Instant> =
            missing.into_iter().map(|holder| (holder.clone(), self.gone.get(holder).copied().unwrap_or(now))).collect();
        self.gone = noticed;
        let overdue = |since: Instant| now.saturating_duration_since(since) >= GRACE;
        self.gone.iter().filter(|(_, since)| overdue(**since)).map(|(holder, _)| holder.clone()).collect()
    }

    /// The agents that living replicas serve without an object, by fleet uid.
    #[must_use]
    pub fn uncounted(&self, now: Instant) -> Uncounted {
        let mut total = Uncounted::new();
        for (fleet, count) in self.living(now).flat_map(|sign| &sign.uncounted) {
            let sum = total.entry(fleet.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        total
    }

    /// The Leases that have stood still for so long that nobody will ask for them.
    #[must_use]
    pub fn expired(&self, now: Instant) -> Vec<Expired> {
        self.seen
            .iter()
            .filter(|(_, seen)| now.saturating_duration_since(seen.since) >= DURATION + KEPT_EXPIRED)
            .map(|(name, seen)| Expired { name: name.clone(), version: seen.version.clone() })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;
    use crate::lease::{Incarnation, replica::UNCOUNTED_ANNOTATION};

    fn holder(replica: &str, incarnation: &str) -> Holder {
        Holder { replica: replica.into(), incarnation: Incarnation::from_text(incarnation) }
    }

    fn lease(holder: &Holder, version: &str) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.name = Some(format!("opamp-replica-{}", holder.replica));
        lease.metadata.resource_version = Some(version.into());
        lease.spec = Some(LeaseSpec { holder_identity: Some(holder.to_string()), ..LeaseSpec::default() });
        lease.annotations_mut().insert(UNCOUNTED_ANNOTATION.into(), r#"{"fleet-uid": 3}"#.into());
        lease
    }

    /// Seconds at which the first holder is found to be gone; `events` happen before the question of their second.
    fn gone_at(events: impl Fn(u64, &mut Presence, Instant), asked: &Holder, until: u64) -> Option<u64> {
        let start = Instant::now();
        let mut presence = Presence::default();
        let claiming = BTreeSet::from([asked.clone()]);
        (0..=until).find(|second| {
            let now = start + Duration::from_secs(*second);
            events(*second, &mut presence, now);
            presence.gone(&claiming, now).contains(asked)
        })
    }

    #[test]
    fn a_replica_is_gone_a_minute_after_it_was_first_missed() {
        let (first, second) = (holder("replica-0", "1111111111"), holder("replica-0", "2222222222"));
        let renewed = |until: u64| {
            let first = first.clone();
            move |second: u64, presence: &mut Presence, now| {
                if second <= until && second.is_multiple_of(3) {
                    presence.saw(&lease(&first, &second.to_string()), now);
                }
            }
        };
        assert_eq!(gone_at(renewed(1_000), &first, 1_000), None, "renewed");
        assert_eq!(gone_at(renewed(30), &first, 1_000), Some(30 + 10 + 60), "killed: the expiry, then the grace");
        assert_eq!(gone_at(|_, _, _| {}, &first, 1_000), Some(60), "before this leader's time");
        let replaced = |at: u64, presence: &mut Presence, now| match at {
            0 => presence.saw(&lease(&first, "1"), now),
            4 => presence.saw(&lease(&second, "2"), now),
            _ => {}
        };
        assert_eq!(gone_at(replaced, &first, 1_000), Some(4 + 60), "replaced by its next run");
        let deleted = |at: u64, presence: &mut Presence, now| match at {
            0 => presence.saw(&lease(&first, "1"), now),
            4 => presence.removed("opamp-replica-replica-0"),
            _ => {}
        };
        assert_eq!(gone_at(deleted, &first, 1_000), Some(4 + 60), "ended in order");
    }

    #[test]
    fn an_outage_of_the_api_server_makes_everybody_start_anew() {
        let replica = holder("replica-0", "1111111111");
        let outage = |at: u64, presence: &mut Presence, now| match at {
            0 => presence.saw(&lease(&replica, "1"), now),
            69 => presence.outage(now),
            _ => {}
        };
        assert_eq!(gone_at(outage, &replica, 1_000), Some(69 + 10 + 60));
    }

    #[test]
    fn a_list_that_shows_the_same_lease_is_no_sign_of_life() {
        let replica = holder("replica-0", "1111111111");
        let relisted = |_, presence: &mut Presence, now| presence.saw(&lease(&replica, "1"), now);
        assert_eq!(gone_at(relisted, &replica, 1_000), Some(70));
    }

    #[test]
    fn a_lease_that_a_new_list_does_not_show_is_gone() {
        let now = Instant::now();
        let mut presence = Presence::default();
        let (first, second) = (holder("replica-0", "1111111111"), holder("replica-1", "1111111111"));
        for event in
            [Event::Init, Event::InitApply(lease(&first, "1")), Event::InitApply(lease(&second, "2")), Event::InitDone]
        {
            assert!(!presence.is_listed());
            presence.apply(event, now);
        }
        assert!(presence.is_listed());
        for event in [Event::Init, Event::InitApply(lease(&second, "2")), Event::InitDone] {
            presence.apply(event, now);
        }
        assert!(!presence.lives(&first, now) && presence.lives(&second, now));
    }

    #[test]
    fn only_living_replicas_count_and_dead_ones_are_cleared_away_after_an_hour() {
        let start = Instant::now();
        let mut presence = Presence::default();
        presence.saw(&lease(&holder("replica-0", "1111111111"), "1"), start);
        presence.saw(&lease(&holder("replica-1", "1111111111"), "2"), start + Duration::from_secs(5));
        for (second, uncounted, expired) in [(5, 6, 0), (12, 3, 0), (15, 0, 0), (3_609, 0, 0), (3_610, 0, 1)] {
            let now = start + Duration::from_secs(second);
            assert_eq!(presence.uncounted(now).get("fleet-uid").copied().unwrap_or(0), uncounted, "{second}");
            assert_eq!(presence.expired(now).len(), expired, "{second}");
        }
    }
}
