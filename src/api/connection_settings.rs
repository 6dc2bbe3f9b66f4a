//! `ConnectionSettings`: where agents connect, and with what.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{agent_fleet::not_observed, condition, duration, enrollment::SecretReference, remote_config::KeyReference};

/// Where agents connect, and with what.
#[expect(clippy::duplicated_attributes, reason = "two columns may have one type")]
#[derive(Clone, CustomResource, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "opamp.dev",
    version = "v1alpha1",
    kind = "ConnectionSettings",
    plural = "connectionsettings",
    namespaced,
    status = "ConnectionSettingsStatus",
    shortname = "conn",
    category = "opamp",
    doc = "Where agents connect, and with what.\n\nConnectionSettings do nothing by themselves: an AgentFleet names them in its\n`spec.connectionSettings`. What they say is part of the fleet's revision;\nvalues that they refer to in Secrets and ConfigMaps are not: a value that\nrotates is offered at once and is never rolled back. An agent that cannot\nuse what it is offered keeps its old connection and says so.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether everything that the settings refer to is there."
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".spec.opamp.endpoint",
        description = "Where agents connect to this operator."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "Time since it was created."
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        priority = 1,
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        description = "Why it is ready, or is not."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionSettingsSpec {
    /// How agents connect to this operator. Agents that do not accept such settings
    /// keep what they were started with.
    pub opamp: OpampConnection,
}

/// How agents connect to this operator.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpampConnection {
    /// The URL of the OpAMP server, such as
    /// `wss://opamp.example.com:4320/v1/opamp`; `ws`, `wss`, `http` or `https`.
    /// An agent that polls over HTTP may not understand `ws` and `wss`, and one
    /// with a WebSocket not the others. At most 2048 characters.
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(validation = Rule::new("self.matches('^(wss?|https?)://[^/?#@[:space:][:cntrl:]]+(/[^#[:space:][:cntrl:]]*)?$')")
        .message("endpoint: must be a ws, wss, http or https URL such as wss://opamp.example.com:4320/v1/opamp, without user or fragment"))]
    pub endpoint: String,
    /// HTTP headers that the agent sends when it connects, in this order. At most
    /// 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub headers: Vec<SettingsHeader>,
    /// The client certificate that the agent uses. Without one it uses none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<ClientCertificate>,
    /// How the agent checks the server. Without it the agent keeps what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSettings>,
    /// The proxy through which the agent connects. Without it the agent keeps what
    /// it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxySettings>,
    /// How often the agent says that it lives, in hours, minutes and seconds; from
    /// `1s` to `24h`. `0s` ends it for agents on WebSockets.
    /// Default: `30s`.
    #[serde(default = "default_heartbeat_interval")]
    #[schemars(length(min = 2, max = 32))]
    #[x_kube(
        validation = Rule::new("self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$')")
            .message("heartbeatInterval: must be hours, minutes and seconds such as 30s or 1m30s"),
        validation = Rule::new("!self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') || duration(self) <= duration('24h')")
            .message("heartbeatInterval: must be at most 24h")
    )]
    pub heartbeat_interval: String,
}

impl OpampConnection {
    /// How often the agent says that it lives; zero: never.
    #[must_use]
    pub fn heartbeat_interval(&self) -> Duration {
        duration::parse(&self.heartbeat_interval).unwrap_or_default()
    }
}

fn default_heartbeat_interval() -> String {
    "30s".into()
}

/// A header.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.value) != has(self.valueFrom)")
    .message("a header needs exactly one of value and valueFrom"))]
pub struct SettingsHeader {
    /// The name of the header, of 1 to 128 characters.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9!#$%&*+.^_|~-]+$')")
        .message("name: must be the name of an HTTP header"))]
    pub name: String,
    /// The value, of at most 8192 characters, for what is no secret.
    /// Exactly one of value and valueFrom is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    #[x_kube(validation = Rule::new("!self.matches('[[:cntrl:]]')")
        .message("value: control characters are not allowed in a header"))]
    pub value: Option<String>,
    /// The value from a key of a Secret, as it stands there: for `Authorization`
    /// that is `Bearer ` and the token. A change there is offered at once.
    /// Exactly one of value and valueFrom is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<SecretValueSource>,
}

/// Where a secret value comes from.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretValueSource {
    /// A key of a Secret in this namespace.
    pub secret_key_ref: KeyReference,
}

/// The client certificate of an agent.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(self.source == 'Secret') == has(self.secretRef)")
    .message("secretRef: must be set with the source Secret, and with no other"))]
pub struct ClientCertificate {
    /// Where it comes from.
    ///
    /// Possible values:
    /// - `Issued`: each agent gets its own, as `spec.enrollment.certificates` of
    ///   the fleet says. Until it has one, it is not offered these settings.
    /// - `Secret`: all agents get the one in secretRef.
    /// - `None`: they use none.
    pub source: CertificateSource,
    /// A Secret of this namespace of type `kubernetes.io/tls` with the keys
    /// `tls.crt`, `tls.key` and, if a CA signed it, `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}

/// Where a client certificate comes from.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum CertificateSource {
    /// Made for each agent.
    Issued,
    /// One for all.
    Secret,
    /// None is used.
    None,
}

/// How an agent checks the server.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsSettings {
    /// The CAs that the agent trusts, in PEM. A change there is offered at once.
    /// Without it the agent trusts the CAs of its system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_from: Option<CaSource>,
    /// Whether the CAs of the agent's system count as well as those of caFrom.
    ///
    /// Possible values:
    /// - `Ignored`: only those of caFrom.
    /// - `Trusted`: both.
    ///
    /// Default: `Ignored` with caFrom, `Trusted` without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SystemCas")]
    pub system_cas: Option<SystemCas>,
    /// The lowest version of TLS: `1.2` or `1.3`.
    /// Default: the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TlsVersion")]
    pub min_version: Option<TlsVersion>,
    /// The highest version of TLS: `1.2` or `1.3`.
    /// Default: the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TlsVersion")]
    pub max_version: Option<TlsVersion>,
    /// The cipher suites of TLS 1.2 by their IANA names, at most 32.
    /// Default: the agent's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 64)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub cipher_suites: Vec<String>,
    /// Whether the agent takes any server, whoever it is. Whoever sits between
    /// agent and server can then read and change everything.
    /// Default: `false`.
    #[serde(default)]
    pub insecure_skip_verify: bool,
}

/// Where the certificates of CAs come from.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.configMapKeyRef) != has(self.secretKeyRef)")
    .message("caFrom: exactly one of configMapKeyRef and secretKeyRef must be set"))]
pub struct CaSource {
    /// A key of a ConfigMap in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
    /// A key of a Secret in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
}

/// Whether the CAs of the agent's system count.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum SystemCas {
    /// They do not.
    Ignored,
    /// They do.
    Trusted,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}

impl TlsVersion {
    /// As agents are told it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        }
    }
}

/// The proxy of an agent.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxySettings {
    /// The URL of the proxy, such as `https://proxy.example.com:8443` or
    /// `127.0.0.1:8443`. At most 2048 characters.
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(validation = Rule::new("self.matches('^([a-z0-9+]+://)?[^/?#@[:space:][:cntrl:]]+/?$')")
        .message("url: must be host and port or a URL such as https://proxy.example.com:8443, without user, path or fragment"))]
    pub url: String,
    /// Headers of the CONNECT request, in this order. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub connect_headers: Vec<SettingsHeader>,
}

/// What was found of the settings; written by the operator.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct ConnectionSettingsStatus {
    /// The `metadata.generation` that this status speaks of; -1 before the
    /// operator has seen the object.
    #[serde(default = "not_observed")]
    #[schemars(range(min = -1))]
    pub observed_generation: i64,
    /// The names of the fleets that name these settings, sorted; the first 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub fleets: Vec<String>,
    /// `Ready` always; `Reconciling` and `Stalled` only while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}
