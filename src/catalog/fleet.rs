//! A fleet as replicas serve it: whom it takes, and what it offers.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    credentials::Credentials,
    offers::LoadedRevision,
    scrub::Scrubber,
    threshold::{Bucket, NoThreshold, Threshold},
};
use crate::{
    api::{
        agent_fleet::{AgentFleet, EffectiveConfigDetail},
        enrollment::{Enrollment, EnrollmentMethod},
        selector::AttributeSelector,
    },
    opamp::{
        InstanceUid,
        identity::{Audience, Identity, Principal},
        record::Attributes,
    },
};

/// What the operator as a whole permits, whatever fleets ask for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Policy {
    /// Where agents without a credential may join.
    pub anonymous: AnonymousNamespaces,
    /// Whether files from Secrets may go over this listener.
    pub secrets: SecretContent,
}

/// Where fleets may list `Anonymous`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AnonymousNamespaces {
    /// Everywhere.
    All,
    /// In these namespaces.
    Listed(BTreeSet<String>),
}

impl Default for AnonymousNamespaces {
    fn default() -> Self {
        Self::Listed(BTreeSet::new())
    }
}

impl FromIterator<String> for AnonymousNamespaces {
    /// From the words of the command line; `*` is everywhere.
    fn from_iter<I: IntoIterator<Item = String>>(namespaces: I) -> Self {
        let listed: BTreeSet<String> = namespaces.into_iter().collect();
        if listed.contains("*") { Self::All } else { Self::Listed(listed) }
    }
}

impl AnonymousNamespaces {
    /// Whether fleets of this namespace may take agents without a credential.
    #[must_use]
    pub fn permit(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Listed(listed) => listed.contains(namespace),
        }
    }
}

/// Whether content that came from Secrets may be offered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SecretContent {
    /// The connection protects it, or somebody said that it need not.
    Offered,
    /// Agents are served over plain text: it would be readable on the way.
    #[default]
    Withheld,
}

/// Somebody who wants to join.
#[derive(Clone, Copy, Debug)]
pub struct Claimant<'a> {
    /// Who it is.
    pub identity: &'a Identity,
    /// Of a ServiceAccount: whom its token is meant for. `None`: that is not known, for all that is left of the agent is
    /// its object; it counts as meant for whatever was open to it.
    pub audiences: Option<&'a BTreeSet<Audience>>,
}

impl<'a> Claimant<'a> {
    /// Whoever is connected.
    #[must_use]
    pub fn present(principal: &'a Principal) -> Self {
        Self { identity: &principal.identity, audiences: Some(&principal.audiences) }
    }

    /// Whoever was connected, as its object says.
    #[must_use]
    pub fn recorded(identity: &'a Identity) -> Self {
        Self { identity, audiences: None }
    }

    fn is_for(&self, audience: impl Fn(&Audience) -> bool) -> bool {
        self.audiences.is_none_or(|audiences| audiences.iter().any(audience))
    }
}

fn method(identity: &Identity) -> EnrollmentMethod {
    match identity {
        Identity::Anonymous => EnrollmentMethod::Anonymous,
        Identity::EnrollmentToken { .. } => EnrollmentMethod::EnrollmentToken,
        Identity::Basic { .. } => EnrollmentMethod::Basic,
        Identity::ServiceAccount { .. } => EnrollmentMethod::ServiceAccount,
        Identity::Certificate { .. } | Identity::ClientCa { .. } => EnrollmentMethod::ClientCertificate,
    }
}

/// A fleet in the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetEntry {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its `metadata.uid`.
    pub uid: String,
    /// The highest wins where several fleets select an agent.
    pub priority: i32,
    /// The oldest wins where priorities are equal.
    pub created: Timestamp,
    /// Which agents belong to it.
    pub selector: AttributeSelector,
    /// Who may join it, and with what.
    pub enrollment: Enrollment,
    /// What is kept of its members' effective configurations.
    pub effective_config: EffectiveConfigDetail,
    /// What its members are given.
    pub offering: Offering,
    /// The values that the settings of its revisions refer to; `None`: none is known yet.
    pub credentials: Option<Arc<Credentials>>,
}

/// What a fleet gives its members.
#[derive(Clone, Debug, PartialEq)]
pub enum Offering {
    /// It has no revision yet.
    NoRevision,
    /// It has one that this replica has not read yet. It lasts for moments after a start, unless the revision's Secret
    /// is gone or unreadable.
    NotLoaded,
    /// Everything that its status names, loaded.
    Revisions(Revisions),
}

/// The revisions that a fleet's status names.
#[derive(Clone, Debug, PartialEq)]
pub struct Revisions {
    /// What members have whose bucket is not below the threshold.
    pub current: Option<Arc<LoadedRevision>>,
    /// What the others have.
    pub update: Option<Arc<LoadedRevision>>,
    /// How far the update has come.
    pub threshold: Threshold,
    /// Grows with every decision about what members get.
    pub epoch: i64,
}

impl Revisions {
    /// The revision of one member. It is always one of the two.
    #[must_use]
    pub fn of(&self, uid: &InstanceUid, fleet_uid: &str) -> Option<&Arc<LoadedRevision>> {
        match &self.update {
            Some(update) if self.threshold == Threshold::All => Some(update),
            Some(update) if self.threshold.admits(Bucket::of(uid, fleet_uid, &update.hash().short())) => Some(update),
            Some(_) | None => self.current.as_ref(),
        }
    }
}

/// The revisions that a fleet's status names, before they are loaded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NamedRevisions {
    /// The short hash of the current one.
    pub current: Option<String>,
    /// The short hash of the one that members are moved to.
    pub update: Option<String>,
    /// How far that is.
    pub threshold: Threshold,
    /// Grows with every decision.
    pub epoch: i64,
}

impl NamedRevisions {
    /// A fleet without a status.
    pub const NONE: Self = Self { current: None, update: None, threshold: Threshold::All, epoch: 0 };

    /// Reads a fleet's status.
    pub fn of(fleet: &AgentFleet) -> Result<Self, NoThreshold> {
        let Some(status) = &fleet.status else {
            return Ok(Self::NONE);
        };
        let (threshold, epoch) = match &status.rollout {
            Some(rollout) => (rollout.threshold.parse()?, rollout.epoch),
            None => (Threshold::All, 0),
        };
        Ok(Self { current: status.current_revision.clone(), update: status.update_revision.clone(), threshold, epoch })
    }

    /// The short hashes, without repetition.
    pub fn hashes(&self) -> impl Iterator<Item = &String> {
        let update = self.update.as_ref().filter(|update| self.current.as_ref() != Some(update));
        self.current.iter().chain(update)
    }
}

impl FleetEntry {
    /// The fleet as its author wrote it, with what it offers; `None` for an object that the API server never gave a
    /// namespace and a uid.
    #[must_use]
    pub fn new(fleet: &AgentFleet, offering: Offering) -> Option<Self> {
        Some(Self {
            namespace: fleet.namespace()?,
            name: fleet.name_any(),
            uid: fleet.uid()?,
            priority: fleet.spec.priority,
            created: fleet.creation_timestamp().map_or(Timestamp::MAX, |time| time.0),
            selector: fleet.spec.selector.clone(),
            enrollment: fleet.spec.enrollment.clone(),
            effective_config: fleet.spec.effective_config,
            offering,
            credentials: None,
        })
    }

    /// Whether somebody may join, whatever its attributes.
    #[must_use]
    pub fn admits(&self, who: Claimant<'_>, policy: &Policy) -> bool {
        self.enrollment.methods().contains(&method(who.identity)) && self.is_open_to(who, policy)
    }

    fn is_open_to(&self, who: Claimant<'_>, policy: &Policy) -> bool {
        let is_here = |namespace: &str, name: &str| namespace == self.namespace && name == self.name;
        match who.identity {
            Identity::Anonymous => policy.anonymous.permit(&self.namespace),
            Identity::EnrollmentToken { namespace, fleet } => {
                *namespace == self.namespace && fleet.as_ref().is_none_or(|fleet| *fleet == self.name)
            }
            Identity::Basic { namespace, fleet, .. }
            | Identity::Certificate { namespace, fleet, .. }
            | Identity::ClientCa { namespace, fleet, .. } => is_here(namespace, fleet),
            Identity::ServiceAccount { namespace, name } => {
                let from_here =
                    *namespace == self.namespace && who.is_for(|audience| *audience == Audience::OwnNamespace);
                let named =
                    self.enrollment.service_accounts.iter().any(|it| it.namespace == *namespace && it.name == *name);
                let for_here =
                    |audience: &Audience| matches!(audience, Audience::Namespace(here) if *here == self.namespace);
                from_here || named && who.is_for(for_here)
            }
        }
    }

    /// Whether this identity may speak for agents that it was not issued to.
    #[must_use]
    pub fn is_gateway(&self, identity: &Identity) -> bool {
        !self.enrollment.gateways.is_empty() && {
            let text = identity.to_string();
            self.enrollment.gateways.iter().any(|gateway| gateway.identity == text)
        }
    }

    /// What an agent reports, without content and credentials that came from Secrets of this fleet. It goes through this before it is
    /// kept, logged or shown.
    #[must_use]
    pub fn scrub<'t>(&self, reported: &'t str) -> Cow<'t, str> {
        self.scrubbers().fold(Cow::Borrowed(reported), |text, scrubber| match text {
            Cow::Borrowed(text) => scrubber.scrub(text),
            Cow::Owned(text) => Cow::Owned(scrubber.scrub(&text).into_owned()),
        })
    }

    /// Whether [`Self::scrub`] knows all that members may quote: not before this replica has read the revisions.
    #[must_use]
    pub fn knows_its_secrets(&self) -> bool {
        match self.offering {
            Offering::NotLoaded => false,
            Offering::NoRevision | Offering::Revisions(_) => true,
        }
    }

    /// Whether [`Self::scrub`] has anything to take out.
    #[must_use]
    pub fn has_secrets(&self) -> bool {
        self.scrubbers().any(|scrubber| !scrubber.is_empty())
    }

    fn scrubbers(&self) -> impl Iterator<Item = &Scrubber> {
        let (current, update) = match &self.offering {
            Offering::NoRevision | Offering::NotLoaded => (None, None),
            Offering::Revisions(revisions) => (revisions.current.as_ref(), revisions.update.as_ref()),
        };
        let update = update.filter(|update| current != Some(update));
        let contents = current.into_iter().chain(update).map(|revision| revision.secrets());
        contents.chain(self.credentials.as_ref().map(|credentials| credentials.scrubber()))
    }

    /// Whether both offer the same revisions, with the same credentials.
    #[must_use]
    pub fn gives_as(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.credentials == other.credentials
            && self.revisions().map(|r| r.hash()).eq(other.revisions().map(|r| r.hash()))
    }

    /// The revisions that members are given.
    pub fn revisions(&self) -> impl Iterator<Item = &Arc<LoadedRevision>> {
        let revisions = match &self.offering {
            Offering::NoRevision | Offering::NotLoaded => None,
            Offering::Revisions(revisions) => Some(revisions),
        };
        revisions.into_iter().flat_map(|revisions| revisions.current.iter().chain(&revisions.update))
    }

    /// Whether an agent with these attributes belongs to it.
    #[must_use]
    pub fn selects(&self, attributes: &Attributes) -> bool {
        self.selector.matches(|key| attributes.get(key))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::{
        api::remote_config::{ConfigFormat, TemplateMode},
        catalog::{
            credentials::{Credential, CredentialKind},
            revision::{Origin, Revision, RevisionEntry, RevisionFile},
            settings::CredentialReference,
        },
    };

    #[test]
    fn anonymous_agents_join_where_they_are_permitted() {
        for (flag, namespace, expected) in [
            (&["telemetry"][..], "telemetry", true),
            (&["telemetry"], "other", false),
            (&["telemetry", "*"], "other", true),
            (&[], "telemetry", false),
        ] {
            let namespaces: AnonymousNamespaces = flag.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(namespaces.permit(namespace), expected, "{flag:?}, {namespace}");
        }
    }

    #[test]
    fn a_credential_opens_its_own_fleets_and_no_other() {
        let uid = "0190a5c4-7e2f-7cc0-8000-000000000001";
        let all = ["ClientCertificate", "EnrollmentToken", "ServiceAccount", "Basic"];
        let key = "5e".repeat(32);
        for (identity, audiences, expected) in [
            ("token:telemetry/edge", None, true),
            ("token:telemetry/*", None, true),
            ("token:telemetry/core", None, false),
            ("token:other/edge", None, false),
            ("token:other/*", None, false),
            ("basic:telemetry/edge/user", None, true),
            ("basic:telemetry/core/user", None, false),
            (&format!("certificate:telemetry/edge/{uid}"), None, true),
            (&format!("certificate:telemetry/core/{uid}"), None, false),
            (&format!("certificate:other/edge/{uid}"), None, false),
            (&format!("ca:telemetry/edge/{key}"), None, true),
            (&format!("ca:other/edge/{key}"), None, false),
            ("serviceaccount:telemetry/any", Some(&[Audience::OwnNamespace][..]), true),
            ("serviceaccount:telemetry/any", Some(&[Audience::Namespace("telemetry".into())]), false),
            ("serviceaccount:shop/collector", Some(&[Audience::Namespace("telemetry".into())]), true),
            ("serviceaccount:shop/collector", Some(&[Audience::OwnNamespace]), false),
            ("serviceaccount:shop/collector", Some(&[Audience::Namespace("shop".into())]), false),
            ("serviceaccount:shop/other", Some(&[Audience::Namespace("telemetry".into())]), false),
            ("serviceaccount:shop/other", None, false),
            ("serviceaccount:shop/collector", None, true),
            ("anonymous", None, false),
        ] {
            let spec = json!({"selector": {}, "enrollment": {
                "methods": all, "serviceAccounts": [{"namespace": "shop", "name": "collector"}],
            }});
            let mut fleet = AgentFleet::new("edge", serde_json::from_value(spec).unwrap());
            (fleet.metadata.namespace, fleet.metadata.uid) = (Some("telemetry".into()), Some("uid".into()));
            let fleet = FleetEntry::new(&fleet, Offering::NoRevision).unwrap();
            let who = Identity::parse(identity).unwrap();
            let audiences = audiences.map(|audiences| audiences.iter().cloned().collect());
            let claimant = Claimant { identity: &who, audiences: audiences.as_ref() };
            let policy = Policy { anonymous: AnonymousNamespaces::All, ..Policy::default() };
            assert_eq!(fleet.admits(claimant, &policy), expected, "{identity} {audiences:?}");
            let closed =
                FleetEntry { enrollment: Enrollment { methods: Some(Vec::new()), ..Enrollment::default() }, ..fleet };
            assert!(!closed.admits(claimant, &policy), "{identity}");
        }
    }

    #[test]
    fn reports_are_scrubbed_of_the_secrets_of_both_revisions() {
        let with_secret = |secret: &'static [u8]| {
            let file = RevisionFile {
                name: "token".into(),
                content_type: String::new(),
                origin: Origin::Secret,
                body: secret.into(),
            };
            let entry = RevisionEntry {
                name: "base".into(),
                selector: None,
                template: TemplateMode::Disabled,
                format: ConfigFormat::Opaque,
                files: vec![file],
            };
            let revision = Revision { entries: vec![entry], ..Revision::default() };
            Some(Arc::new(LoadedRevision::new(revision.hash(), revision)))
        };
        let mut fleet = AgentFleet::new("edge", serde_json::from_value(json!({"selector": {}})).unwrap());
        (fleet.metadata.namespace, fleet.metadata.uid) = (Some("telemetry".into()), Some("uid".into()));
        let (current, update) = (with_secret(b"old-canary"), with_secret(b"new-canary"));
        let offering = Offering::Revisions(Revisions { current, update, threshold: Threshold::Below(0), epoch: 1 });
        let fleet = FleetEntry::new(&fleet, offering).unwrap();
        assert_eq!(fleet.scrub("old-canary, new-canary, other"), "[redacted], [redacted], other");
        let value = Credential { kind: CredentialKind::Value, value: "Bearer token-canary".into() };
        let values = BTreeMap::from([(CredentialReference::secret("edge-token", "header"), value)]);
        let bare = FleetEntry { offering: Offering::NoRevision, ..fleet.clone() };
        let rotated = FleetEntry { credentials: Some(Arc::new(Credentials::new("uid", &values))), ..fleet.clone() };
        assert_eq!(rotated.scrub("old-canary, token-canary"), "[redacted], [redacted]");
        assert!(!bare.has_secrets() && FleetEntry { credentials: rotated.credentials.clone(), ..bare }.has_secrets());
        assert!(!fleet.gives_as(&rotated), "an agent may still quote the former values");
    }

    fn named(status: serde_json::Value) -> Result<NamedRevisions, NoThreshold> {
        let mut fleet = AgentFleet::new("edge", serde_json::from_value(json!({"selector": {}})).unwrap());
        fleet.status = serde_json::from_value(status).unwrap();
        NamedRevisions::of(&fleet)
    }

    #[test]
    fn a_status_names_its_revisions_once_each() {
        let rollout = json!({"phase": "Completed", "epoch": 3, "threshold": "0x10"});
        let both = named(json!({"currentRevision": "a", "updateRevision": "b", "rollout": rollout})).unwrap();
        assert_eq!((both.threshold, both.epoch), (Threshold::Below(16), 3));
        assert_eq!(both.hashes().collect::<Vec<_>>(), ["a", "b"]);
        let same = named(json!({"currentRevision": "a", "updateRevision": "a"})).unwrap();
        assert_eq!(same.hashes().collect::<Vec<_>>(), ["a"]);
        assert_eq!(named(json!(null)).unwrap().hashes().count(), 0);
        let broken = json!({"phase": "Completed", "epoch": 3, "threshold": "half"});
        assert_eq!(named(json!({"rollout": broken})), Err(NoThreshold));
    }
}
