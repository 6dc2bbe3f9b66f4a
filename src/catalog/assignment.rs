//! The catalog: a snapshot of all fleets, and the pure function from one agent to what it is to have.

use std::{cmp::Reverse, sync::Arc};

use super::{
    fleet::{Claimant, FleetEntry, Offering, Policy},
    offers::NoOffer,
    revision::RevisionHash,
    settings::Connection,
};
use crate::opamp::{InstanceUid, offer::Offer, record::Attributes};

/// All fleets at one moment. Never changed: a newer one takes its place.
#[derive(Debug, Default)]
pub struct Catalog {
    /// In the order in which they are asked.
    fleets: Vec<Arc<FleetEntry>>,
    policy: Policy,
    generation: u64,
}

/// An agent, as far as it decides what it is given.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its uid.
    pub uid: InstanceUid,
    /// Who speaks for it.
    pub who: Claimant<'a>,
    /// What it says of itself, or said before; `None` if nothing is known.
    pub attributes: Option<&'a Attributes>,
    /// The namespace in which its object lives, if it has one.
    pub home: Option<&'a str>,
}

/// Which fleet takes an agent, and what that means for it.
#[derive(Clone, Debug)]
pub enum Assignment {
    /// None does. Nothing is offered, nothing withdrawn.
    Unmatched(UnmatchedReason),
    /// This one.
    Matched(Arc<FleetEntry>, Outcome),
}

/// Why no fleet takes an agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UnmatchedReason {
    /// No fleet admits its identity.
    NotAdmitted,
    /// It has not described itself: not even an empty selector selects it.
    DescriptionMissing,
    /// No fleet that admits it selects its attributes.
    NoFleetSelects,
}

/// What a member is to have.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The fleet has no revision for it yet.
    NoRevision,
    /// The fleet has a revision that this replica has not read yet: nothing can be said of it for a moment.
    NotLoaded,
    /// This is what the revision gives it; an empty offer if it has no file for it.
    Given {
        /// The revision.
        revision: RevisionHash,
        /// The fleet's epoch that gave it.
        epoch: i64,
        /// What it gives.
        offer: Offer,
        /// How the agent is to connect; `None`: it keeps the connection that it has.
        connection: Option<Connection>,
    },
    /// A template fails for its attributes. It keeps what it has.
    TemplateFailed {
        /// The revision.
        revision: RevisionHash,
        /// The fleet's epoch that gave it.
        epoch: i64,
        /// `RemoteConfig`, file, place and fault.
        message: String,
        /// How the agent is to connect all the same.
        connection: Option<Connection>,
    },
    /// The revision must not be offered to it as it stands. It keeps what it has; the fleet's conditions tell why.
    Withheld {
        /// The revision.
        revision: RevisionHash,
        /// The fleet's epoch that gave it.
        epoch: i64,
        /// Which file, and why.
        message: String,
        /// How the agent is to connect all the same.
        connection: Option<Connection>,
    },
}

impl Catalog {
    /// A snapshot of these fleets. Generations of one replica grow; they mean nothing to another.
    #[must_use]
    pub fn new(mut fleets: Vec<Arc<FleetEntry>>, policy: Policy, generation: u64) -> Self {
        fleets.sort_by(|a, b| rank(a).cmp(&rank(b)));
        Self { fleets, policy, generation }
    }

    /// Which snapshot this is.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The fleets in the order in which they are asked.
    pub fn fleets(&self) -> impl Iterator<Item = &Arc<FleetEntry>> {
        self.fleets.iter()
    }

    /// One fleet.
    #[must_use]
    pub fn fleet(&self, namespace: &str, name: &str) -> Option<&Arc<FleetEntry>> {
        self.fleets.iter().find(|fleet| fleet.namespace == namespace && fleet.name == name)
    }

    /// Whether any fleet takes this identity; if none does it is refused before the upgrade.
    #[must_use]
    pub fn admits(&self, who: Claimant<'_>) -> bool {
        self.fleets.iter().any(|fleet| fleet.admits(who, &self.policy))
    }

    /// Whether any fleet of this namespace takes this identity.
    #[must_use]
    pub fn admits_in(&self, namespace: &str, who: Claimant<'_>) -> bool {
        self.fleets.iter().any(|fleet| fleet.namespace == namespace && fleet.admits(who, &self.policy))
    }

    /// Whether this fleet takes this identity.
    #[must_use]
    pub fn fleet_admits(&self, namespace: &str, name: &str, who: Claimant<'_>) -> bool {
        self.fleet(namespace, name).is_some_and(|fleet| fleet.admits(who, &self.policy))
    }

    /// Which fleet takes an agent, and what it is to have. Attributes choose only among the fleets that the identity
    /// may join. Of those that select it, one in the namespace of its object wins, so that it stays where it is; then
    /// the highest priority, the oldest, the first by namespace and name.
    #[must_use]
    pub fn assign(&self, subject: &Subject<'_>) -> Assignment {
        let mut admitting = self.fleets.iter().filter(|fleet| fleet.admits(subject.who, &self.policy)).peekable();
        if admitting.peek().is_none() {
            return Assignment::Unmatched(UnmatchedReason::NotAdmitted);
        }
        let Some(attributes) = subject.attributes else {
            return Assignment::Unmatched(UnmatchedReason::DescriptionMissing);
        };
        let mut elsewhere = None;
        for fleet in admitting.filter(|fleet| fleet.selects(attributes)) {
            if subject.home.is_none_or(|home| home == fleet.namespace) {
                return self.give(fleet, subject.uid, attributes);
            }
            elsewhere = elsewhere.or(Some(fleet));
        }
        match elsewhere {
            Some(fleet) => self.give(fleet, subject.uid, attributes),
            None => Assignment::Unmatched(UnmatchedReason::NoFleetSelects),
        }
    }

    fn give(&self, fleet: &Arc<FleetEntry>, uid: InstanceUid, attributes: &Attributes) -> Assignment {
        Assignment::Matched(Arc::clone(fleet), self.outcome(fleet, &uid, attributes))
    }

    fn outcome(&self, fleet: &FleetEntry, uid: &InstanceUid, attributes: &Attributes) -> Outcome {
        let revisions = match &fleet.offering {
            Offering::NoRevision => return Outcome::NoRevision,
            Offering::NotLoaded => return Outcome::NotLoaded,
            Offering::Revisions(revisions) => revisions,
        };
        let Some(loaded) = revisions.of(uid, &fleet.uid) else { return Outcome::NoRevision };
        let (revision, epoch) = (loaded.hash(), revisions.epoch);
        let connection = loaded.settings().map(|settings| Connection {
            settings: Arc::clone(settings),
            credentials: fleet.credentials.clone(),
            secrets: self.policy.secrets,
        });
        match loaded.offer(uid, attributes, self.policy.secrets) {
            Ok(remote_config) => {
                Outcome::Given { revision, epoch, offer: Offer { remote_config, ..Offer::default() }, connection }
            }
            Err(error @ (NoOffer::Template { .. } | NoOffer::Rendered { .. })) => {
                Outcome::TemplateFailed { revision, epoch, message: error.to_string(), connection }
            }
            Err(error @ (NoOffer::FileNameClash(_) | NoOffer::SecretsNeedTls(_))) => {
                Outcome::Withheld { revision, epoch, message: error.to_string(), connection }
            }
        }
    }
}

fn rank(fleet: &FleetEntry) -> (Reverse<i32>, jiff::Timestamp, &str, &str) {
    (Reverse(fleet.priority), fleet.created, &fleet.namespace, &fleet.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::opamp::identity::Identity;
    use crate::{
        api::{
            agent_fleet::EffectiveConfigDetail,
            enrollment::{Enrollment, EnrollmentMethod},
            remote_config::{ConfigFormat, TemplateMode},
            selector::AttributeSelector,
        },
        catalog::{
            credentials::{Credential, CredentialKind, Credentials},
            fleet::{AnonymousNamespaces, Revisions, SecretContent},
            offers::LoadedRevision,
            revision::{Origin, Revision, RevisionEntry, RevisionFile},
            settings::CredentialReference,
            threshold::Threshold,
        },
    };

    fn fleet(namespace: &str, name: &str) -> FleetEntry {
        FleetEntry {
            namespace: namespace.into(),
            name: name.into(),
            uid: format!("uid-of-{namespace}-{name}"),
            priority: 0,
            created: Timestamp::UNIX_EPOCH,
            selector: AttributeSelector::default(),
            enrollment: Enrollment { methods: Some(vec![EnrollmentMethod::Anonymous]), ..Enrollment::default() },
            effective_config: EffectiveConfigDetail::Hash,
            offering: Offering::NoRevision,
            credentials: None,
        }
    }

    fn selecting(mut fleet: FleetEntry, os: &str) -> FleetEntry {
        fleet.selector.match_attributes = BTreeMap::from([("os.type".into(), os.into())]);
        fleet
    }

    fn policy() -> Policy {
        Policy { anonymous: AnonymousNamespaces::All, secrets: SecretContent::Withheld }
    }

    fn catalog(fleets: Vec<FleetEntry>) -> Catalog {
        Catalog::new(fleets.into_iter().map(Arc::new).collect(), policy(), 1)
    }

    fn linux() -> Attributes {
        Attributes { identifying: BTreeMap::from([("os.type".into(), "linux".into())]), ..Attributes::default() }
    }

    fn subject<'a>(attributes: Option<&'a Attributes>, home: Option<&'a str>) -> Subject<'a> {
        Subject {
            uid: InstanceUid::from_wire(&[9; 16]).unwrap(),
            who: Claimant::recorded(&Identity::Anonymous),
            attributes,
            home,
        }
    }

    fn taker(
        catalog: &Catalog,
        attributes: Option<&Attributes>,
        home: Option<&str>,
    ) -> Result<String, UnmatchedReason> {
        match catalog.assign(&subject(attributes, home)) {
            Assignment::Unmatched(reason) => Err(reason),
            Assignment::Matched(fleet, _) => Ok(format!("{}/{}", fleet.namespace, fleet.name)),
        }
    }

    #[test]
    fn one_fleet_wins_by_home_priority_age_and_name() {
        let old = |mut fleet: FleetEntry| {
            fleet.created = Timestamp::MIN;
            fleet
        };
        let high = |mut fleet: FleetEntry| {
            fleet.priority = 10;
            fleet
        };
        let (a, b) = (|| fleet("one", "a"), || fleet("two", "b"));
        for (case, fleets, home, expected) in [
            ("name decides last", vec![b(), a()], None, "one/a"),
            ("the oldest", vec![a(), old(b())], None, "two/b"),
            ("priority before age", vec![old(a()), high(b())], None, "two/b"),
            ("home before priority", vec![a(), high(b())], Some("one"), "one/a"),
            ("elsewhere if none at home selects", vec![selecting(a(), "windows"), b()], Some("one"), "two/b"),
            ("priority at home", vec![a(), high(fleet("one", "z")), b()], Some("one"), "one/z"),
            ("elsewhere the best too", vec![a(), high(b())], Some("three"), "two/b"),
            ("selection before all", vec![high(old(selecting(a(), "windows"))), b()], None, "two/b"),
        ] {
            assert_eq!(taker(&catalog(fleets), Some(&linux()), home).as_deref(), Ok(expected), "{case}");
        }
    }

    #[test]
    fn who_is_not_taken_is_told_why() {
        let closed = FleetEntry {
            enrollment: Enrollment { methods: Some(Vec::new()), ..Enrollment::default() },
            ..fleet("one", "closed")
        };
        let everybody = || fleet("one", "everybody");
        let windows = || selecting(fleet("one", "windows"), "windows");
        for (case, fleets, attributes, expected) in [
            ("no fleet at all", vec![], Some(linux()), Err(UnmatchedReason::NotAdmitted)),
            ("no method", vec![closed.clone()], Some(linux()), Err(UnmatchedReason::NotAdmitted)),
            ("no description", vec![everybody()], None, Err(UnmatchedReason::DescriptionMissing)),
            ("no selector", vec![windows(), closed], Some(linux()), Err(UnmatchedReason::NoFleetSelects)),
            ("an empty description", vec![everybody()], Some(Attributes::default()), Ok("one/everybody".into())),
        ] {
            let catalog = catalog(fleets);
            assert_eq!(taker(&catalog, attributes.as_ref(), None), expected, "{case}");
            assert_eq!(
                catalog.admits(Claimant::recorded(&Identity::Anonymous)),
                expected != Err(UnmatchedReason::NotAdmitted),
                "{case}"
            );
        }
    }

    #[test]
    fn anonymous_agents_join_only_in_permitted_namespaces() {
        let policy = Policy { anonymous: [String::from("two")].into_iter().collect(), ..policy() };
        let fleets = vec![Arc::new(fleet("one", "a")), Arc::new(fleet("two", "b"))];
        let catalog = Catalog::new(fleets, policy, 1);
        assert_eq!(taker(&catalog, Some(&linux()), None).as_deref(), Ok("two/b"));
        assert_eq!(taker(&catalog, Some(&linux()), Some("one")).as_deref(), Ok("two/b"), "not even at home");
    }

    fn loaded(body: &str, template: TemplateMode, origin: Origin) -> Arc<LoadedRevision> {
        let revision = of_one_file(body, template, origin);
        Arc::new(LoadedRevision::new(revision.hash(), revision))
    }

    fn of_one_file(body: &str, template: TemplateMode, origin: Origin) -> Revision {
        let file = RevisionFile { name: "a".into(), content_type: String::new(), origin, body: body.to_owned().into() };
        Revision {
            entries: vec![RevisionEntry {
                name: "base".into(),
                selector: None,
                template,
                format: ConfigFormat::Opaque,
                files: vec![file],
            }],
            ..Revision::default()
        }
    }

    fn offering(
        current: Option<&Arc<LoadedRevision>>,
        update: Option<&Arc<LoadedRevision>>,
        threshold: Threshold,
    ) -> Offering {
        Offering::Revisions(Revisions { current: current.cloned(), update: update.cloned(), threshold, epoch: 7 })
    }

    fn outcome(offering: Offering) -> Outcome {
        let catalog = catalog(vec![FleetEntry { offering, ..fleet("one", "a") }]);
        match catalog.assign(&subject(Some(&linux()), None)) {
            Assignment::Unmatched(reason) => panic!("{reason:?}"),
            Assignment::Matched(_, outcome) => outcome,
        }
    }

    #[test]
    fn a_member_is_given_one_of_the_two_revisions_by_the_threshold() {
        let current = loaded("current", TemplateMode::Disabled, Origin::Inline);
        let update = loaded("update", TemplateMode::Disabled, Origin::Inline);
        for (case, offering, expected) in [
            ("not begun", offering(Some(&current), Some(&update), Threshold::Below(0)), Some(&current)),
            ("for all", offering(Some(&current), Some(&update), Threshold::All), Some(&update)),
            ("no update", offering(Some(&current), None, Threshold::All), Some(&current)),
            ("first one, not begun", offering(None, Some(&update), Threshold::Below(0)), None),
        ] {
            let given = match outcome(offering) {
                Outcome::Given { revision, epoch, offer, connection: _ } => {
                    assert_eq!(epoch, 7);
                    assert!(offer.remote_config.is_some());
                    Some(revision)
                }
                Outcome::NoRevision => None,
                other => panic!("{case}: {other:?}"),
            };
            assert_eq!(given, expected.map(|revision| revision.hash()), "{case}");
        }
    }

    #[test]
    fn how_a_member_connects_does_not_depend_on_its_files() {
        let settings = serde_json::json!({"name": "edge", "endpoint": "wss://a", "certificate": "none",
            "headers": [{"name": "A", "reference": {"kind": "Secret", "name": "t", "key": "k"}}], "heartbeatSeconds": 30});
        let value = Credential { kind: CredentialKind::Value, value: "one".into() };
        let values = BTreeMap::from([(CredentialReference::secret("t", "k"), value)]);
        for (case, body, template, origin) in [
            ("given", "a", TemplateMode::Disabled, Origin::Inline),
            ("a template fails", "{{ agent.attributes.gpu }}", TemplateMode::Jinja, Origin::Inline),
            ("a file is withheld", "a", TemplateMode::Disabled, Origin::Secret),
        ] {
            let opamp = Some(serde_json::from_value(settings.clone()).unwrap());
            let revision = Revision { opamp, ..of_one_file(body, template, origin) };
            let loaded = Arc::new(LoadedRevision::new(revision.hash(), revision));
            let credentials = Some(Arc::new(Credentials::new("uid", &values)));
            let offering = offering(Some(&loaded), None, Threshold::All);
            let fleet = FleetEntry { offering, credentials: credentials.clone(), ..fleet("one", "a") };
            let connection = match catalog(vec![fleet]).assign(&subject(Some(&linux()), None)) {
                Assignment::Matched(
                    _,
                    Outcome::Given { connection, .. }
                    | Outcome::TemplateFailed { connection, .. }
                    | Outcome::Withheld { connection, .. },
                ) => connection.unwrap(),
                other => panic!("{case}: {other:?}"),
            };
            assert_eq!(
                (&connection.settings, connection.credentials),
                (loaded.settings().unwrap(), credentials),
                "{case}"
            );
            assert_eq!(connection.secrets, SecretContent::Withheld, "{case}");
        }
    }

    #[test]
    fn what_cannot_be_offered_says_why() {
        let failing = loaded("{{ agent.attributes.gpu }}", TemplateMode::Jinja, Origin::Inline);
        let secret = loaded("token", TemplateMode::Disabled, Origin::Secret);
        assert!(matches!(outcome(Offering::NoRevision), Outcome::NoRevision));
        assert!(matches!(outcome(Offering::NotLoaded), Outcome::NotLoaded));
        assert!(matches!(
            outcome(offering(Some(&failing), None, Threshold::All)),
            Outcome::TemplateFailed { epoch: 7, .. }
        ));
        assert!(matches!(outcome(offering(Some(&secret), None, Threshold::All)), Outcome::Withheld { epoch: 7, .. }));
    }

    proptest! {
        #[test]
        fn raising_the_threshold_takes_the_update_from_nobody(uid: [u8; 16], low: u64, high: u64) {
            let current = loaded("current", TemplateMode::Disabled, Origin::Inline);
            let update = loaded("update", TemplateMode::Disabled, Origin::Inline);
            let uid = InstanceUid::from_wire(&uid).unwrap();
            let at = |threshold| {
                let revisions = Revisions { current: Some(current.clone()), update: Some(update.clone()), threshold, epoch: 1 };
                revisions.of(&uid, "fleet").map(|revision| revision.hash())
            };
            let (low, high) = (Threshold::Below(low.min(high)), Threshold::Below(low.max(high)));
            prop_assert!(at(low) != Some(update.hash()) || at(high) == Some(update.hash()));
            prop_assert_eq!(at(Threshold::All), Some(update.hash()));
        }
    }
}
