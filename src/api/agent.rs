//! `Agent`: one agent, created by the operator when it first reports.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agent_fleet::not_observed;

/// What people ask of one agent.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "opamp.dev",
    version = "v1alpha1",
    kind = "Agent",
    namespaced,
    status = "AgentStatus",
    shortname = "agent",
    category = "opamp",
    doc = "One telemetry agent, created by the operator when the agent first reports."
)]
#[serde(rename_all = "camelCase")]
pub struct AgentSpec {
    /// Offers once more what this agent reported as failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reoffer: Option<Reoffer>,
}

/// A wish to be offered a failed configuration again.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reoffer {
    /// A new time asks once.
    pub requested_at: Time,
}

/// What is known of an agent.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct AgentStatus {
    /// The generation of the spec that this status speaks of; -1: none yet.
    #[serde(default = "not_observed")]
    pub observed_generation: i64,
    /// The fleet that the agent belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<String>,
    /// How it is connected, or was last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionStatus>,
    /// The revision that it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<AssignedRevision>,
    /// What it says of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<AttributesStatus>,
    /// What it is able to do; unknown ones as `Bit24`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub capabilities: Vec<String>,
    /// How it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthStatus>,
    /// What it was offered, and what became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_config: Option<RemoteConfigStatus>,
    /// What it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_config: Option<EffectiveConfigStatus>,
    /// What it could run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_components: Option<AvailableComponentsStatus>,
    /// What it understands beyond the specification.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub custom_capabilities: Vec<String>,
    /// The last wish to be offered again that was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reoffer: Option<Reoffer>,
    /// Ready, Matched, Connected, Healthy, ConfigApplied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// How an agent is connected, and which replica answers for its status.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionStatus {
    /// `WebSocket` or `HTTP`.
    pub transport: Transport,
    /// The replica that holds the session.
    pub replica: String,
    /// That replica's run of life.
    pub incarnation: String,
    /// Grows by one with each session that claims the agent.
    pub epoch: i64,
    /// Since when it is connected, or was.
    pub since: Time,
    /// How it showed who it is.
    pub method: String,
    /// Who it is.
    pub identity: String,
    /// Where it connects from.
    pub remote_address: String,
}

/// How an agent speaks.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Transport {
    /// A WebSocket.
    WebSocket,
    /// Plain HTTP.
    #[serde(rename = "HTTP")]
    Http,
}

/// The revision that an agent is given.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedRevision {
    /// The first 10 hex digits of its hash.
    pub hash: String,
    /// The fleet's uid.
    #[serde(rename = "fleetUID")]
    pub fleet_uid: String,
    /// The fleet's epoch that gave it.
    pub epoch: i64,
}

/// What an agent says of itself.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttributesStatus {
    /// What identifies it in its telemetry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    #[schemars(extend("maxProperties" = 64))]
    pub identifying: BTreeMap<String, String>,
    /// Where and on what it runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    #[schemars(extend("maxProperties" = 64))]
    pub non_identifying: BTreeMap<String, String>,
}

/// How an agent is.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthStatus {
    /// Its own verdict.
    pub healthy: bool,
    /// In its own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// Why it is not healthy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
    /// Its components that are not healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub unhealthy_components: Vec<UnhealthyComponentStatus>,
    /// How many more there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_left_out: Option<i64>,
}

/// One component that is not well.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyComponentStatus {
    /// Its place: `pipeline:traces/exporter:otlp`.
    pub path: String,
    /// In its own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}

/// What an agent was offered, and what became of it.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteConfigStatus {
    /// The hash of what it is to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered: Option<String>,
    /// The hash that it last spoke of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reported: Option<String>,
    /// What became of that: `Unset`, `Applied`, `Applying`, `Failed`, `Unknown7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// What it is not offered again by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedConfigStatus>,
}

/// A configuration that failed at an agent.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedConfigStatus {
    /// Its hash.
    pub hash: String,
    /// What the agent said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// When.
    pub at: Time,
}

/// What an agent runs.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveConfigStatus {
    /// SHA-256 over the files.
    pub hash: String,
    /// Bytes of all files.
    pub size: i64,
    /// Where the redacted text is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
}

/// The name of a Secret in the same namespace.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretName {
    /// The name.
    pub name: String,
}

/// What an agent could run.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AvailableComponentsStatus {
    /// Made by the agent.
    pub hash: String,
    /// How many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
}
