//! `AgentFleet`: a group of agents that are configured together.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::selector::AttributeSelector;

/// The desired state of a fleet.
#[derive(Clone, CustomResource, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "opamp.dev",
    version = "v1alpha1",
    kind = "AgentFleet",
    namespaced,
    status = "AgentFleetStatus",
    shortname = "fleet",
    category = "opamp",
    doc = "A group of telemetry agents that are configured together."
)]
#[serde(rename_all = "camelCase")]
pub struct AgentFleetSpec {
    /// Which agents belong to the fleet, by the attributes that they report.
    pub selector: AttributeSelector,
    /// Which fleet an agent joins when several select it: the highest wins.
    #[serde(default)]
    pub priority: i32,
    /// The configuration that members get, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub remote_configs: Vec<RemoteConfigEntry>,
    /// How many former revisions are kept.
    #[serde(default = "default_revision_history_limit")]
    #[schemars(range(min = 0, max = 100))]
    pub revision_history_limit: i32,
    /// Who may join, and how.
    #[serde(default)]
    pub enrollment: Enrollment,
    /// What is kept of the configuration that members report as running.
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
    /// Name of a RemoteConfig in this namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Which members get it; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<AttributeSelector>,
}

/// Who may join a fleet.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Enrollment {
    /// The ways in; none: nobody may join.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub methods: Vec<EnrollmentMethod>,
}

/// A way into a fleet.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum EnrollmentMethod {
    /// Without any credential.
    Anonymous,
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
    /// How long an agent must have been disconnected before its object is
    /// deleted, as `24h` or `1h30m`; `Never` keeps it.
    #[serde(default = "default_disconnected_for")]
    #[schemars(length(min = 2, max = 32))]
    pub disconnected_for: String,
}

impl Default for Retention {
    fn default() -> Self {
        Self { disconnected_for: default_disconnected_for() }
    }
}

fn default_disconnected_for() -> String {
    "24h".into()
}

/// What is observed of a fleet.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct AgentFleetStatus {
    /// The generation of the spec that this status speaks of; -1: none yet.
    #[serde(default = "not_observed")]
    pub observed_generation: i64,
    /// The first 10 hex digits of the revision that members have in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,
    /// The first 10 hex digits of the revision that members are moved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,
    /// Counts of the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<AgentCounts>,
    /// How far the update is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// Samples of members that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub failures: Vec<AgentFailure>,
    /// The revisions kept, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 102))]
    pub revisions: Vec<RevisionRecord>,
    /// Ready; Reconciling and Stalled only while True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

pub(super) fn not_observed() -> i64 {
    -1
}

/// Counts of a fleet's members.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentCounts {
    /// Agents that belong to the fleet.
    pub matched: i64,
    /// Those connected now.
    pub connected: i64,
    /// Those that report to be healthy.
    pub healthy: i64,
    /// Those that have applied what their revision gives them.
    pub up_to_date: i64,
    /// Those that have refused what their revision gives them, or for which it could not be made.
    pub failed: i64,
    /// Those that do not take remote configuration.
    pub unsupported: i64,
}

/// How far an update is.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// The state of the rollout.
    pub phase: RolloutPhase,
    /// Grows with every decision about what members get.
    pub epoch: i64,
    /// Members whose bucket is below it get the update: `All`, or a hexadecimal number.
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
    pub agent: String,
    /// The reason of its condition.
    pub reason: String,
    /// What it said.
    pub message: String,
}

/// A revision that is kept.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionRecord {
    /// The whole hash, 64 hex digits.
    pub hash: String,
    /// When it was made.
    pub created_at: Time,
    /// What became of it.
    pub outcome: RevisionOutcome,
}

/// What became of a revision.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum RevisionOutcome {
    /// It was offered to all members.
    Completed,
}
