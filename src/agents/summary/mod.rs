//! What is kept of one Agent object.

use std::{collections::HashSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::core::Object;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::written;
use crate::{
    api::{
        FLEET_LABEL,
        agent::{Access, AgentStatus, REVOCATION_FINALIZER},
        condition::{ConditionType, Verdict, find},
        reasons::AgentReason,
    },
    opamp::{InstanceUid, offer::ConnectionSettingsHash},
};

/// How much of a failure's message is kept, in bytes: enough for the samples in the status of a fleet.
const FAILURE_LIMIT: usize = 256;

/// One Agent object, compact: little more than a kilobyte with its certificate and connection settings.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentSummary {
    /// The agent, by whose uid the object is named.
    pub uid: InstanceUid,
    /// Where the object lives.
    pub namespace: Arc<str>,
    /// The object's own uid, for preconditions.
    pub object_uid: Box<str>,
    /// The state of the object that this summary was made of.
    pub resource_version: Box<str>,
    /// Grows with each change of the spec.
    pub generation: i64,
    /// When the object was made.
    pub created: Option<Timestamp>,
    /// When somebody asked for its deletion, if a finalizer holds it up.
    pub deleted: Option<Timestamp>,
    /// What people say of whether the agent may take part.
    pub access: Option<Access>,
    /// The label that names the fleet that the agent belongs to, or last belonged to.
    pub fleet_label: Option<Arc<str>>,
    /// The fleet that takes the agent now, by `status.fleet`.
    pub fleet: Option<Arc<str>>,
    /// Who writes the status; `None` before the first claim.
    pub connection: Option<ConnectionSummary>,
    /// Who spoke for the agent last, as `status.connection.identity` tells it.
    pub identity: Option<Arc<str>>,
    /// The certificate that was issued to it.
    pub certificate: Option<Box<CertificateSummary>>,
    /// Whether it may take part, as its status says.
    pub acceptance: Option<Acceptance>,
    /// Whether a fleet takes the agent.
    pub matched: Option<ConditionSummary>,
    /// Whether it is connected; `since` is what retention counts from.
    pub connected: Option<ConditionSummary>,
    /// Whether it says that it is well.
    pub healthy: Option<ConditionSummary>,
    /// Whether it runs what its fleet gives it.
    pub config_applied: Option<ConditionSummary>,
    /// What `ConfigApplied` says while False, at most 256 bytes of it.
    pub failure: Option<Box<str>>,
    /// Whether the agent takes remote configuration (capability `AcceptsRemoteConfig`).
    pub accepts_remote_config: bool,
    /// The hash of the configuration that it is to have.
    pub offered: Option<Box<[u8]>>,
    /// The hash that it last spoke of.
    pub last_reported: Option<Box<[u8]>>,
    /// The hash that is not offered again by itself.
    pub failed: Option<Box<[u8]>>,
    /// What became of its connection settings; `None` of an agent that has nothing to do with any.
    pub connection_settings: Option<Box<ConnectionSettingsSummary>>,
    /// Whether it takes connection settings (capability `AcceptsOpAMPConnectionSettings`).
    pub accepts_connection_settings: bool,
    /// Since when it may take part, or may not.
    pub accepted_since: Option<Timestamp>,
    /// Whether the object is held until the agent's certificates are in the published list.
    pub is_held_for_revocation: bool,
    /// The revision that it is given.
    pub revision: Option<RevisionSummary>,
    /// The Secret that keeps the text of what it runs.
    pub effective_config: Option<Arc<str>>,
    /// A person's wish to have offered again what failed.
    pub reoffer_requested: Option<Timestamp>,
    /// The last such wish that was granted.
    pub reoffer_granted: Option<Timestamp>,
}

/// Whether an agent may take part.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Acceptance {
    /// It may.
    Admitted,
    /// Its fleet asks for a person's approval, and nobody has given it.
    Pending,
    /// A person has denied it.
    Denied,
    /// A person has revoked it.
    Revoked,
}

/// What became of an agent's connection settings, by their hashes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ConnectionSettingsSummary {
    /// What it is to have; of an agent that reports no status, what it has presumably taken.
    pub offered: Option<ConnectionSettingsHash>,
    /// What it last spoke of.
    pub last_reported: Option<Box<[u8]>>,
    /// What is not offered again by itself.
    pub failed: Option<Box<[u8]>>,
}

/// A certificate that was issued to an agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificateSummary {
    /// Its serial number, in hex digits.
    pub serial: Box<str>,
    /// When it ends.
    pub not_after: Timestamp,
    /// Since when the agent connects with it; `None`: it was never seen in use.
    pub in_use_since: Option<Timestamp>,
}

impl CertificateSummary {
    /// Whether nothing else may speak for the agent: it was seen in use and has not ended.
    #[must_use]
    pub fn holds(&self, now: Timestamp) -> bool {
        self.in_use_since.is_some() && now < self.not_after
    }
}

/// Which session of which replica owns the status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConnectionSummary {
    /// The replica that holds or held the session.
    pub replica: Arc<str>,
    /// That replica's run of life.
    pub incarnation: Arc<str>,
    /// Grows by one with each session that claims the agent.
    pub epoch: i64,
    /// When the session began.
    pub since: Timestamp,
}

/// One condition without its message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConditionSummary {
    /// Its status.
    pub verdict: Verdict,
    /// Its reason.
    pub reason: Arc<str>,
    /// When its status last changed.
    pub since: Timestamp,
}

/// The revision that an agent is given.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RevisionSummary {
    /// The first 10 hex digits of its hash.
    pub hash: Arc<str>,
    /// The uid of the fleet; epochs compare within one.
    pub fleet_uid: Arc<str>,
    /// The fleet's epoch that gave it.
    pub epoch: i64,
}

impl AgentSummary {
    /// Whether the agent is connected, as far as its status says.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected.as_ref().is_some_and(|condition| condition.verdict == Verdict::True)
    }

    /// Whether no fleet ever took the agent: it lives in the operator's own namespace and has no fleet's label.
    #[must_use]
    pub fn never_matched(&self) -> bool {
        self.fleet_label.is_none()
    }

    /// Whether the agent waits for a person's approval, as far as its status says.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.acceptance == Some(Acceptance::Pending)
    }

    /// The epoch of the last claim; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.connection.as_ref().map_or(0, |connection| connection.epoch)
    }
}

/// The object as the watch reads it: only what a summary is made of, and open to values that a newer version may write.
pub(super) type ObservedAgent = Object<ObservedSpec, ObservedStatus>;

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObservedSpec {
    access: Option<String>,
    reoffer: Option<ObservedReoffer>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObservedReoffer {
    requested_at: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObservedStatus {
    fleet: Option<String>,
    connection: Option<ObservedConnection>,
    revision: Option<ObservedRevision>,
    #[serde(default)]
    capabilities: Vec<String>,
    remote_config: Option<ObservedRemoteConfig>,
    effective_config: Option<ObservedEffectiveConfig>,
    connection_settings: Option<ObservedConnectionSettings>,
    certificate: Option<ObservedCertificate>,
    reoffer: Option<ObservedReoffer>,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObservedConnection {
    replica: String,
    incarnation: String,
    epoch: i64,
    since: Time,
    identity: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObservedCertificate {
    serial: String,
    not_after: Time,
    in_use_since: Option<Time>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObservedRevision {
    hash: String,
    #[serde(rename = "fleetUID")]
    fleet_uid: String,
    epoch: i64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObservedRemoteConfig {
    offered: Option<String>,
    last_reported: Option<String>,
    failed: Option<ObservedFailure>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObservedConnectionSettings {
    offered: Option<String>,
    last_reported: Option<String>,
    failed: Option<ObservedFailure>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObservedEffectiveConfig {
    secret_ref: Option<ObservedSecret>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct ObservedSecret {
    name: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct ObservedFailure {
    hash: String,
}

impl ObservedConnection {
    fn summarise(&self, interner: &mut Interner) -> ConnectionSummary {
        ConnectionSummary {
            replica: interner.share(&self.replica),
            incarnation: interner.share(&self.incarnation),
            epoch: self.epoch,
            since: self.since.0,
        }
    }
}

impl ObservedConnectionSettings {
    fn summarise(&self) -> ConnectionSettingsSummary {
        let hash =
            |digits: &str| Some(ConnectionSettingsHash::from_digest((*written::bytes(digits)?).try_into().ok()?));
        ConnectionSettingsSummary {
            offered: self.offered.as_deref().and_then(hash),
            last_reported: self.last_reported.as_deref().and_then(written::bytes),
            failed: self.failed.as_ref().and_then(|failed| written::bytes(&failed.hash)),
        }
    }
}

impl ObservedCertificate {
    fn summarise(self) -> CertificateSummary {
        CertificateSummary {
            serial: self.serial.into(),
            not_after: self.not_after.0,
            in_use_since: self.in_use_since.map(|time| time.0),
        }
    }
}

impl ObservedRevision {
    fn summarise(&self, interner: &mut Interner) -> RevisionSummary {
        RevisionSummary {
            hash: interner.share(&self.hash),
            fleet_uid: interner.share(&self.fleet_uid),
            epoch: self.epoch,
        }
    }
}

/// Texts that thousands of agents have in common, kept once.
#[derive(Debug, Default)]
pub(super) struct Interner {
    texts: HashSet<Arc<str>>,
}

impl Interner {
    pub(super) fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&shared));
        shared
    }

    /// An identity; those of certificates are of one agent each, so that nobody would share them.
    fn share_unless_unique(&mut self, identity: &str) -> Arc<str> {
        if identity.starts_with("certificate:") { identity.into() } else { self.share(identity) }
    }

    /// Drops the texts that nobody uses any more, such as incarnations of the past.
    pub(super) fn sweep(&mut self) {
        self.texts.retain(|text| Arc::strong_count(text) > 1);
    }
}

/// The summary of an object; `None` if its name is no instance uid, which only a person can bring about.
pub(super) fn summarise(agent: ObservedAgent, interner: &mut Interner) -> Option<AgentSummary> {
    let metadata = &agent.metadata;
    let uid = named_uid(metadata)?;
    let status = agent.status.unwrap_or_default();
    let remote_config = status.remote_config.unwrap_or_default();
    let mut condition = |kind| summarise_condition(&status.conditions, kind, interner);
    Some(AgentSummary {
        uid,
        matched: condition(ConditionType::Matched),
        connected: condition(ConditionType::Connected),
        healthy: condition(ConditionType::Healthy),
        config_applied: condition(ConditionType::ConfigApplied),
        failure: failure(&status.conditions),
        namespace: interner.share(metadata.namespace.as_deref().unwrap_or_default()),
        object_uid: metadata.uid.as_deref().unwrap_or_default().into(),
        resource_version: metadata.resource_version.as_deref().unwrap_or_default().into(),
        generation: metadata.generation.unwrap_or_default(),
        created: metadata.creation_timestamp.as_ref().map(|time| time.0),
        deleted: metadata.deletion_timestamp.as_ref().map(|time| time.0),
        fleet_label: metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(FLEET_LABEL))
            .map(|name| interner.share(name)),
        fleet: status.fleet.as_deref().map(|name| interner.share(name)),
        access: agent.spec.access.as_deref().map(access),
        identity: status
            .connection
            .as_ref()
            .and_then(|connection| connection.identity.as_deref())
            .map(|identity| interner.share_unless_unique(identity)),
        certificate: status.certificate.map(|certificate| Box::new(certificate.summarise())),
        acceptance: acceptance(&status.conditions),
        connection: status.connection.map(|connection| connection.summarise(interner)),
        connection_settings: status.connection_settings.as_ref().map(|settings| Box::new(settings.summarise())),
        accepts_connection_settings: status.capabilities.iter().any(|name| name == "AcceptsOpAMPConnectionSettings"),
        accepted_since: find(&status.conditions, ConditionType::Accepted).map(|found| found.last_transition_time.0),
        is_held_for_revocation: metadata.finalizers.iter().flatten().any(|finalizer| finalizer == REVOCATION_FINALIZER),
        accepts_remote_config: status.capabilities.iter().any(|capability| capability == "AcceptsRemoteConfig"),
        offered: remote_config.offered.as_deref().and_then(written::bytes),
        last_reported: remote_config.last_reported.as_deref().and_then(written::bytes),
        failed: remote_config.failed.and_then(|failed| written::bytes(&failed.hash)),
        revision: status.revision.map(|revision| revision.summarise(interner)),
        effective_config: status
            .effective_config
            .and_then(|config| config.secret_ref)
            .map(|secret| interner.share(&secret.name)),
        reoffer_requested: requested_at(agent.spec.reoffer.as_ref()),
        reoffer_granted: requested_at(status.reoffer.as_ref()),
    })
}

/// The summary that an object with this status has, as far as the status tells it.
#[must_use]
pub fn of_status(uid: InstanceUid, namespace: &str, status: &AgentStatus) -> Option<AgentSummary> {
    let metadata = json!({"name": uid.to_string(), "namespace": namespace});
    let object = json!({"metadata": metadata, "spec": {}, "status": status});
    summarise(serde_json::from_value(object).ok()?, &mut Interner::default())
}

/// The agent that an object is named after; only the canonical text counts, so that one agent has one name.
pub(super) fn named_uid(metadata: &ObjectMeta) -> Option<InstanceUid> {
    let name = metadata.name.as_deref()?;
    InstanceUid::from_name(name).filter(|uid| uid.to_string() == name)
}

/// A word that only a newer version knows keeps the agent out: it is not known to let it in.
fn access(word: &str) -> Access {
    match word {
        "Approved" => Access::Approved,
        "Revoked" => Access::Revoked,
        _ => Access::Denied,
    }
}

fn acceptance(conditions: &[Condition]) -> Option<Acceptance> {
    let condition = find(conditions, ConditionType::Accepted)?;
    if verdict(condition) == Verdict::True {
        return Some(Acceptance::Admitted);
    }
    [
        (AgentReason::PendingApproval, Acceptance::Pending),
        (AgentReason::Denied, Acceptance::Denied),
        (AgentReason::Revoked, Acceptance::Revoked),
    ]
    .into_iter()
    .find_map(|(reason, acceptance)| (reason.declaration().word == condition.reason).then_some(acceptance))
}

fn requested_at(reoffer: Option<&ObservedReoffer>) -> Option<Timestamp> {
    reoffer?.requested_at.as_ref().map(|time| time.0)
}

fn summarise_condition(
    conditions: &[Condition],
    kind: ConditionType,
    interner: &mut Interner,
) -> Option<ConditionSummary> {
    find(conditions, kind).map(|condition| ConditionSummary {
        verdict: verdict(condition),
        reason: interner.share(&condition.reason),
        since: condition.last_transition_time.0,
    })
}

fn verdict(condition: &Condition) -> Verdict {
    [Verdict::True, Verdict::False]
        .into_iter()
        .find(|verdict| verdict.as_str() == condition.status)
        .unwrap_or(Verdict::Unknown)
}

fn failure(conditions: &[Condition]) -> Option<Box<str>> {
    let condition = find(conditions, ConditionType::ConfigApplied)?;
    (verdict(condition) == Verdict::False && !condition.message.is_empty())
        .then(|| written::beginning(&condition.message, FAILURE_LIMIT).into())
}

#[cfg(test)]
pub(super) mod tests;
