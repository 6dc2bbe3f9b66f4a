//! `Agent`: one agent, created by the operator when it first reports.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{agent_fleet::not_observed, condition};

/// Finalizer of a revoked Agent, until its certificates are in the published list.
pub const REVOCATION_FINALIZER: &str = "opamp.dev/revocation";

/// What people ask of this one agent. The operator never writes it.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "opamp.dev",
    version = "v1alpha1",
    kind = "Agent",
    namespaced,
    status = "AgentStatus",
    category = "opamp",
    selectable = ".status.fleet",
    selectable = ".spec.access",
    doc = "One telemetry agent.\n\nThe operator creates it when the agent first reports, in the namespace of\nthe fleet that takes it, and deletes it when the agent has been gone for as\nlong as the fleet's `spec.retention` says. Its name is the agent's\ninstance_uid. It says what the agent reported of itself, what it was offered\nand what became of it.",
    validation = Rule::new("self.metadata.name.matches('^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$')")
        .message("metadata.name: the name of an Agent must be its instance_uid, a UUID in lower case; the operator creates Agents when they first report"),
    printcolumn(
        name = "Fleet", type_ = "string", json_path = ".status.fleet",
        description = "The fleet that the agent belongs to."
    ),
    printcolumn(
        name = "Connected", type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Connected\")].status",
        description = "Whether the agent has a live session."
    ),
    printcolumn(
        name = "Healthy", type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Healthy\")].status",
        description = "Whether the agent reports to be well."
    ),
    printcolumn(
        name = "Config", type_ = "string",
        json_path = ".status.conditions[?(@.type==\"ConfigApplied\")].reason",
        description = "What became of the configuration that the agent was offered."
    ),
    printcolumn(
        name = "Version", type_ = "string",
        json_path = ".status.attributes['identifying', 'nonIdentifying'].service\\.version",
        description = "The agent's service.version."
    ),
    printcolumn(
        name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp",
        description = "Time since the agent first reported."
    ),
    printcolumn(
        name = "Access", type_ = "string", priority = 1, json_path = ".spec.access",
        description = "What a person has decided about the agent."
    ),
    printcolumn(
        name = "Host", type_ = "string", priority = 1,
        json_path = ".status.attributes['identifying', 'nonIdentifying'].host\\.name",
        description = "The agent's host.name."
    ),
    printcolumn(
        name = "Transport", type_ = "string", priority = 1, json_path = ".status.connection.transport",
        description = "How the agent is connected, or last was."
    ),
    printcolumn(
        name = "Replica", type_ = "string", priority = 1, json_path = ".status.connection.replica",
        description = "The replica of the operator that holds the session, or last did."
    ),
    printcolumn(
        name = "Reason", type_ = "string", priority = 1,
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why the agent is ready, or is not."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct AgentSpec {
    /// Whether the agent may take part. Only holders of the verb `approve` on
    /// `agents.opamp.dev` may set, change or remove it.
    ///
    /// Possible values:
    /// - `Approved`: it may, where its fleet asks for approval.
    /// - `Denied`: it may not. Its connection is refused, its credential stays.
    /// - `Revoked`: it may not, and its certificates count no more.
    ///
    /// `Denied` and `Revoked` of an Agent in the operator's own namespace count for
    /// this agent in every namespace. Default: the fleet's
    /// `spec.enrollment.approval` decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Access")]
    pub access: Option<Access>,
    /// Asks that what this agent reported as failed, its configuration or its
    /// connection settings, be offered to it once more. Without it the same
    /// content is not offered to the agent again until it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reoffer: Option<Reoffer>,
}

/// Whether an agent may take part.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
pub enum Access {
    /// It may.
    Approved,
    /// It may not.
    Denied,
    /// It may not, nor do its certificates count any more.
    Revoked,
}

/// A wish to be offered a failed configuration again.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reoffer {
    /// When it was asked, such as `2026-11-29T12:00:00Z`. A time later than the one
    /// in `status.reoffer` asks once; an earlier or equal one asks nothing.
    pub requested_at: Time,
}

/// What is known of the agent; written by the operator.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct AgentStatus {
    /// The `metadata.generation` that this status speaks of; -1 before the
    /// operator has written it.
    #[serde(default = "not_observed")]
    #[schemars(range(min = -1))]
    pub observed_generation: i64,
    /// The name of the fleet that the agent belongs to; absent when there is none.
    /// Usable in field selectors: `kubectl get agents --field-selector
    /// status.fleet=edge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub fleet: Option<String>,
    /// How the agent is connected; after it left, how it last was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionStatus>,
    /// The revision of the fleet that decides what the agent is offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<AssignedRevision>,
    /// How the agent describes itself. Selectors of fleets are compared with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<AttributesStatus>,
    /// What the agent is able to do, by the names of the OpAMP specification such
    /// as `AcceptsRemoteConfig`; a bit without a name is shown as `Bit24`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 64)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub capabilities: Vec<String>,
    /// How the agent says that it is; absent until it reports that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthStatus>,
    /// What the agent was offered, and what became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_config: Option<RemoteConfigStatus>,
    /// What the agent says that it runs; how much of it is kept is decided by
    /// `spec.effectiveConfig` of its fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_config: Option<EffectiveConfigStatus>,
    /// Which connection settings the agent was offered, and what became of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_settings: Option<ConnectionSettingsStatus>,
    /// The certificate that was issued to the agent, while it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateStatus>,
    /// What the agent says that it could run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_components: Option<AvailableComponentsStatus>,
    /// What the agent understands beyond the OpAMP specification, in its own words;
    /// at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 1024)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub custom_capabilities: Vec<String>,
    /// The last wish of `spec.reoffer` that was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reoffer: Option<Reoffer>,
    /// `Ready`, `Matched`, `Accepted`, `Connected`, `Healthy`, `ConfigApplied` and
    /// `CertificateIssued`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// How an agent is connected, and which replica answers for its status.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionStatus {
    /// How the agent speaks.
    ///
    /// Possible values:
    /// - `WebSocket`: over a connection that stays open; changes reach it at once.
    /// - `HTTP`: it polls; changes reach it with its next request.
    pub transport: Transport,
    /// The replica of the operator that holds the session and writes this status.
    #[schemars(length(max = 253))]
    pub replica: String,
    /// Which run of that replica: a random word made when it started.
    #[schemars(length(max = 64))]
    pub incarnation: String,
    /// Grows by one with each session that claims the agent, so that an older
    /// session never writes over a younger one.
    #[schemars(range(min = 0))]
    pub epoch: i64,
    /// Since when the agent has been connected; after it left, since when not.
    pub since: Time,
    /// The way in by which the agent was admitted, such as `Anonymous`.
    #[schemars(length(max = 64))]
    pub method: String,
    /// Who the agent is by its credential, such as `anonymous`. What it says of
    /// itself plays no part in it.
    #[schemars(length(max = 1024))]
    pub identity: String,
    /// The address and port that the connection comes from.
    #[schemars(length(max = 128))]
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
    /// The first 10 hex digits of the revision's hash.
    #[schemars(length(max = 64))]
    pub hash: String,
    /// The `metadata.uid` of the fleet that the revision is of.
    #[serde(rename = "fleetUID")]
    #[schemars(length(max = 64))]
    pub fleet_uid: String,
    /// The `status.rollout.epoch` of the fleet that gave it.
    #[schemars(range(min = 0))]
    pub epoch: i64,
}

/// What an agent says of itself. A value that is no string is shown as JSON; values are cut at 256 bytes.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttributesStatus {
    /// What identifies the agent in its own telemetry, such as `service.name` and
    /// `service.version`; at most 64 keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = {"type": "string", "maxLength": 1024}))]
    pub identifying: BTreeMap<String, String>,
    /// Where and on what the agent runs, such as `host.name` and `os.type`; at most
    /// 64 keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = {"type": "string", "maxLength": 1024}))]
    pub non_identifying: BTreeMap<String, String>,
}

/// How an agent says that it is.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthStatus {
    /// The agent's own verdict; the condition `Healthy` repeats it.
    pub healthy: bool,
    /// Its state in its own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub status: String,
    /// When it started; absent when it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// Why it is not healthy, in its own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub last_error: String,
    /// Its components that are not healthy, at most 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub unhealthy_components: Vec<UnhealthyComponentStatus>,
    /// How many more components are not healthy than the list has room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub unhealthy_left_out: Option<i64>,
}

/// One component that is not healthy.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyComponentStatus {
    /// Where it stands, such as `pipeline:traces/exporter:otlp`.
    #[schemars(length(max = 4096))]
    pub path: String,
    /// Its state in the agent's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub status: String,
    /// Why it is not healthy, in the agent's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub last_error: String,
}

/// What an agent was offered, and what became of it.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteConfigStatus {
    /// The hash of the configuration that the agent is to have: a SHA-256 over
    /// exactly its own files. Absent when there is nothing for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub offered: Option<String>,
    /// The hash of the configuration that the agent last spoke of, in hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub last_reported: Option<String>,
    /// What became of that: `Unset`, `Applied`, `Applying` or `Failed`; a number
    /// without a name is shown as `Unknown7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub status: Option<String>,
    /// Why it failed, in the agent's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub error: String,
    /// When the agent first reported that state of that hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The configuration that failed at this agent, and that it is not offered
    /// again by itself; see `spec.reoffer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedConfigStatus>,
}

/// A configuration that failed at an agent.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedConfigStatus {
    /// The hash of the configuration.
    #[schemars(length(max = 1024))]
    pub hash: String,
    /// What the agent said about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub error: String,
    /// When the agent said so.
    pub at: Time,
}

/// Which connection settings an agent was offered, and what became of them. Their values are not shown.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionSettingsStatus {
    /// The hash of the settings that the agent was offered last. It differs from
    /// agent to agent where each has a certificate of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub offered: Option<String>,
    /// The hash of the settings that the agent last spoke of, in hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub last_reported: Option<String>,
    /// What became of those: `Unset`, `Applied`, `Applying` or `Failed`; a number
    /// without a name is shown as `Unknown7`. Absent while the agent says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub status: Option<String>,
    /// Why the agent could not use them, in its own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub error: String,
    /// The settings that failed at this agent, and that it is not offered again by
    /// themselves; see `spec.reoffer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedConfigStatus>,
    /// Why the settings are not offered to the agent; absent while they are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub withheld: String,
}

/// A certificate that was issued to an agent.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// Its serial number, in hex digits.
    #[schemars(length(max = 64))]
    pub serial: String,
    /// When it ends.
    pub not_after: Time,
    /// The Secret that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
    /// Since when the agent connects with it. From then on, and until it ends,
    /// nothing else speaks for this agent. Absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use_since: Option<Time>,
}

/// What an agent says that it runs.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveConfigStatus {
    /// A SHA-256 over the files, 64 hex digits.
    #[schemars(length(max = 64))]
    pub hash: String,
    /// Bytes of all files.
    #[schemars(range(min = 0))]
    pub size: i64,
    /// The Secret that keeps the redacted text, if the fleet asks for it. Agents
    /// that run the same share one. Absent until it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretName>,
    /// Why no Secret keeps the text although the fleet asks for it.
    ///
    /// Possible values:
    /// - `TooLarge`: it has more than 256 KiB or more than 64 files.
    /// - `NotText`: a file is not UTF-8, so that nothing can be redacted in it.
    /// - `TooMany`: the fleet has 100 such Secrets; the text is asked for again
    ///   when one of them is gone.
    /// - `Refused`: the API server refuses the Secret, or another one has its
    ///   name; the log of the operator says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NotStored")]
    pub not_stored: Option<NotStored>,
}

/// Why the text of an effective configuration is not stored.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
pub enum NotStored {
    /// It is larger than what is stored.
    TooLarge,
    /// It is not text.
    NotText,
    /// The fleet has as many Secrets as it may.
    TooMany,
    /// The API server will not have it.
    Refused,
}

/// The name of a Secret in the same namespace.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretName {
    /// The name of the Secret, in the namespace of this Agent.
    #[schemars(length(max = 253))]
    pub name: String,
}

/// What an agent says that it could run.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AvailableComponentsStatus {
    /// The hash that the agent gives its list, in hex digits.
    #[schemars(length(max = 1024))]
    pub hash: String,
    /// How many components the list has; absent until the agent sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub count: Option<i64>,
}
