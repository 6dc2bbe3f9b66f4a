//! `AgentFleet`: a group of agents that are configured together.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{condition, duration, enrollment::Enrollment, selector::AttributeSelector};

/// What a fleet is to be.
#[derive(Clone, CustomResource, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "opamp.dev",
    version = "v1alpha1",
    kind = "AgentFleet",
    namespaced,
    status = "AgentFleetStatus",
    shortname = "fleet",
    shortname = "fleets",
    category = "opamp",
    doc = "A group of telemetry agents that are configured together.\n\nAn AgentFleet is to agents what a Deployment is to pods: it selects agents\nby what they report of themselves, offers them configuration and tells what\nbecame of it. What it offers at one time is a revision: it is checked as a\nwhole before any agent sees it, and while a newer one is faulty the last\ngood one stays served. Agents of a deleted fleet stay connected and keep\nwhat they run. The name of a fleet has at most 63 characters.",
    validation = Rule::new("size(self.metadata.name) <= 63")
        .message("metadata.name: the name of a fleet must have at most 63 characters, it becomes the value of a label"),
    printcolumn(
        name = "Ready", type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether members are offered what the spec asks for."
    ),
    printcolumn(
        name = "Revision", type_ = "string", json_path = ".status.currentRevision",
        description = "The revision that members have in common."
    ),
    printcolumn(
        name = "Agents", type_ = "integer", json_path = ".status.agents.matched",
        description = "Agents that belong to the fleet."
    ),
    printcolumn(
        name = "Connected", type_ = "integer", json_path = ".status.agents.connected",
        description = "Members that are connected."
    ),
    printcolumn(
        name = "Up-To-Date", type_ = "integer", json_path = ".status.agents.upToDate",
        description = "Members that have applied what their revision gives them."
    ),
    printcolumn(
        name = "Failed", type_ = "integer", json_path = ".status.agents.failed",
        description = "Members that failed to apply it, or for which it could not be made."
    ),
    printcolumn(
        name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp",
        description = "Time since it was created."
    ),
    printcolumn(
        name = "Update", type_ = "string", priority = 1, json_path = ".status.updateRevision",
        description = "The revision that members are moved to."
    ),
    printcolumn(
        name = "Reason", type_ = "string", priority = 1,
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why it is ready, or is not."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct AgentFleetSpec {
    /// Which agents belong to the fleet, by the attributes that they report. The
    /// empty selector `{}` selects every agent that has described itself. An agent
    /// joins only a fleet that also admits it: see enrollment. An agent that no
    /// fleet takes is `Matched=False` and is offered nothing.
    pub selector: AttributeSelector,
    /// Which fleet an agent joins when several select it: the one of the highest
    /// priority; of equal ones the oldest, then the first by namespace and name.
    /// A fleet in the namespace of the Agent goes before fleets of others.
    /// From -1000000 to 1000000. Default: `0`.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// The RemoteConfigs of this namespace that members get, at most 64, each
    /// named once. A name that does not exist is `Reconciling,
    /// RemoteConfigNotFound`; two files of one name that some member could get are
    /// `Stalled, FileNameClash`. Without any, members keep what they run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub remote_configs: Vec<RemoteConfigEntry>,
    /// The ConnectionSettings of this namespace that members get: where they
    /// connect, and with what. A name that does not exist is `Reconciling,
    /// ConnectionSettingsNotFound`. Without it members keep the connection that
    /// they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_settings: Option<ConnectionSettingsReference>,
    /// How many former revisions are kept, each as a Secret owned by the fleet,
    /// besides those that members are given now. From 0 to 100. Default: `10`.
    #[serde(default = "default_revision_history_limit")]
    #[schemars(range(min = 0, max = 100))]
    pub revision_history_limit: i32,
    /// Who may join, and with what. An agent without any credential may only where
    /// the fleet says so.
    #[serde(default)]
    pub enrollment: Enrollment,
    /// What is kept of the configuration that members report as running.
    ///
    /// Possible values:
    /// - `None`: nothing.
    /// - `Hash`: its hash and size, in the status of the Agent.
    /// - `Stored`: its text too, in a Secret of type `opamp.dev/effective-config`
    ///   that the status of the Agent names. Secrets are taken out of it: what
    ///   came from Secrets of this fleet, values under names such as password or
    ///   token, private keys, credentials in URLs. Agents that run the same
    ///   share a Secret. A text of more than 256 KiB, and any beyond 100 Secrets
    ///   of this fleet, is not stored; `status.effectiveConfig.notStored` of the
    ///   Agent says so. A Secret that no Agent names is deleted after 10 minutes.
    ///
    /// Default: `Hash`.
    #[serde(default)]
    pub effective_config: EffectiveConfigDetail,
    /// When the objects of agents that are gone are deleted.
    #[serde(default)]
    pub retention: Retention,
}

fn default_revision_history_limit() -> i32 {
    10
}

/// One RemoteConfig of a fleet.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteConfigEntry {
    /// The name of a RemoteConfig in this namespace, of 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')")
        .message("name: must be a RemoteConfig's name of lower case letters, digits, '-' and '.'"))]
    pub name: String,
    /// Which members get it as well. Where two RemoteConfigs have a file of one
    /// name, their selectors must exclude each other on a key.
    /// Default: all members get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<AttributeSelector>,
}

/// The ConnectionSettings of a fleet.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionSettingsReference {
    /// The name of ConnectionSettings in this namespace, of 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')")
        .message("name: must be an object's name of lower case letters, digits, '-' and '.'"))]
    pub name: String,
}

/// What is kept of effective configurations.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum EffectiveConfigDetail {
    /// Nothing.
    None,
    /// Hash and size.
    #[default]
    Hash,
    /// The text too, redacted, in a Secret.
    Stored,
}

/// When objects of agents that are gone are deleted.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// How long an agent must have been disconnected before its Agent object is
    /// deleted, as hours, minutes and seconds such as `24h` or `1h30m`; at least
    /// `10s`. `Never` keeps it. An agent that returns later is made anew.
    /// Default: `24h`.
    #[serde(default = "default_disconnected_for")]
    #[schemars(length(min = 2, max = 32))]
    #[x_kube(
        validation = Rule::new("self == 'Never' || self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$')")
            .message("disconnectedFor: must be Never, or hours, minutes and seconds such as 24h or 1h30m"),
        validation = Rule::new("!self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') || duration(self) >= duration('10s')")
            .message("disconnectedFor: must be at least 10s, so that an agent that reconnects finds its object")
    )]
    pub disconnected_for: String,
}

impl Default for Retention {
    fn default() -> Self {
        Self { disconnected_for: default_disconnected_for() }
    }
}

impl Retention {
    /// How long objects outlive their connection; `None`: for ever. What the schema would refuse keeps them too, for
    /// nothing is deleted on a misunderstanding.
    #[must_use]
    pub fn period(&self) -> Option<Duration> {
        duration::parse(&self.disconnected_for)
    }
}

fn default_disconnected_for() -> String {
    "24h".into()
}

/// How the fleet is; written by the operator.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct AgentFleetStatus {
    /// The `metadata.generation` that this status speaks of; -1 before the
    /// operator has seen the object.
    #[serde(default = "not_observed")]
    #[schemars(range(min = -1))]
    pub observed_generation: i64,
    /// The revision that members have in common: the first 10 hex digits of its
    /// hash. Absent until there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub current_revision: Option<String>,
    /// The revision that members are moved to: the first 10 hex digits of its
    /// hash. Equal to currentRevision when there is nothing to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub update_revision: Option<String>,
    /// How many members there are, and how they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<AgentCounts>,
    /// How far the move to the update revision is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// Samples of members that failed, at most 20; `agents.failed` counts all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub failures: Vec<AgentFailure>,
    /// The revisions that are kept, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 102))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub revisions: Vec<RevisionRecord>,
    /// `Ready` always; `Reconciling` and `Stalled` only while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

pub(super) fn not_observed() -> i64 {
    -1
}

/// How many members a fleet has, and how they are.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCounts {
    /// Agents that belong to the fleet.
    #[schemars(range(min = 0))]
    pub matched: i64,
    /// Members that are connected now.
    #[schemars(range(min = 0))]
    pub connected: i64,
    /// Members that are connected and report to be healthy.
    #[schemars(range(min = 0))]
    pub healthy: i64,
    /// Members that have applied exactly what their revision gives them, or for
    /// which it has nothing.
    #[schemars(range(min = 0))]
    pub up_to_date: i64,
    /// Members that failed to apply what their revision gives them, or for which
    /// it could not be made.
    #[schemars(range(min = 0))]
    pub failed: i64,
    /// Members that do not accept remote configuration.
    #[schemars(range(min = 0))]
    pub unsupported: i64,
    /// Members that a person has not approved yet; see `spec.enrollment.approval`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub pending_approval: Option<i64>,
}

/// How far the move to the update revision is.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// The state of the rollout.
    ///
    /// Possible values:
    /// - `Completed`: all members are offered the update revision.
    pub phase: RolloutPhase,
    /// Grows with every decision about what members get, so that an older
    /// decision is never taken for a newer one.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// Which members are offered the update revision: `All`, or those whose bucket
    /// is below this hexadecimal number. A bucket is a hash of the agent and the
    /// revision.
    #[schemars(length(max = 18))]
    pub threshold: String,
}

/// The state of a rollout.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum RolloutPhase {
    /// The update is for all members.
    #[default]
    Completed,
}

/// A member that failed.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentFailure {
    /// The name of the Agent.
    #[schemars(length(max = 253))]
    pub agent: String,
    /// The reason of its condition `ConfigApplied`.
    #[schemars(length(max = 128))]
    pub reason: String,
    /// What the agent said, cut to a readable length.
    #[schemars(length(max = 4096))]
    pub message: String,
}

/// A revision that is kept.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionRecord {
    /// The whole hash, 64 hex digits; the first 10 name the revision elsewhere.
    #[schemars(length(max = 64))]
    pub hash: String,
    /// When it was made.
    pub created_at: Time,
    /// What became of it.
    ///
    /// Possible values:
    /// - `Completed`: it was offered to all members.
    pub outcome: RevisionOutcome,
}

/// What became of a revision.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum RevisionOutcome {
    /// It was offered to all members.
    Completed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_outlive_their_connection_for_a_time_or_for_ever() {
        for (text, seconds) in [("1h30m", Some(5_400)), ("Never", None), ("nonsense", None)] {
            let retention = Retention { disconnected_for: text.into() };
            assert_eq!(retention.period(), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
