//! `RemoteConfig`: configuration files for agents.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::agent_fleet::not_observed;

/// The files of a configuration, and how they are checked.
#[derive(Clone, CustomResource, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "opamp.dev",
    version = "v1alpha1",
    kind = "RemoteConfig",
    namespaced,
    status = "RemoteConfigResourceStatus",
    shortname = "rcfg",
    category = "opamp",
    doc = "Configuration files that fleets offer to their agents."
)]
#[serde(rename_all = "camelCase")]
pub struct RemoteConfigSpec {
    /// The files, each with a name of its own.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub files: Vec<ConfigFile>,
    /// Whether file bodies are templates.
    #[serde(default)]
    pub template: TemplateMode,
    /// What is checked before anything is offered.
    #[serde(default)]
    pub format: ConfigFormat,
}

/// One file.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFile {
    /// The file's name; the empty name is allowed for an only file.
    #[schemars(length(max = 256))]
    pub name: String,
    /// The MIME type that agents are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub content_type: Option<String>,
    /// The content as it stands here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 900_000))]
    pub body: Option<String>,
    /// The content from elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_from: Option<BodySource>,
}

/// Where a body comes from.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BodySource {
    /// A key of a ConfigMap in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
    /// A key of a Secret in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
}

/// A key of an object in the same namespace.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyReference {
    /// The object's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Whether file bodies are templates.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum TemplateMode {
    /// They are taken as they are.
    #[default]
    Disabled,
    /// Jinja, rendered for each agent.
    Jinja,
}

/// What is checked.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ConfigFormat {
    /// Nothing.
    #[default]
    Opaque,
    /// YAML of the OpenTelemetry Collector.
    OpenTelemetryCollector,
}

/// What is observed of a RemoteConfig.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct RemoteConfigResourceStatus {
    /// The generation of the spec that this status speaks of; -1: none yet.
    #[serde(default = "not_observed")]
    pub observed_generation: i64,
    /// SHA-256 over the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Bytes of all files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// The files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub files: Vec<ConfigFileStatus>,
    /// The fleets that name it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub fleets: Vec<String>,
    /// Ready; Reconciling and Stalled only while True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// What is observed of a file.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFileStatus {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub size: i64,
    /// SHA-256 of its body.
    pub hash: String,
}
