//! `RemoteConfig`: configuration files for agents.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{agent_fleet::not_observed, condition};

/// The most bytes that the files of one `RemoteConfig` may have together, inline or by reference. etcd refuses
/// requests of more than 1.5 MiB and a Secret holds 1 MiB, in which the revision of the fleet must find room.
pub const BODIES_LIMIT: usize = 900_000;

/// The files, and how they are checked before any agent is offered them.
#[derive(Clone, CustomResource, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[expect(clippy::duplicated_attributes, reason = "two columns may have one type")]
#[kube(
    group = "opamp.dev",
    version = "v1alpha1",
    kind = "RemoteConfig",
    namespaced,
    status = "RemoteConfigResourceStatus",
    shortname = "rcfg",
    category = "opamp",
    doc = "Configuration files that fleets offer to their agents.\n\nA RemoteConfig does nothing by itself: an AgentFleet names it in its\n`spec.remoteConfigs`. Whatever is wrong with it is told by its condition\n`Ready`; until that is put right no agent is offered anything new, and the\nlast good revision stays served.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the files are there and hold what their format asks for."
    ),
    printcolumn(name = "Size", type_ = "integer", json_path = ".status.size", description = "Bytes of all files."),
    printcolumn(
        name = "Hash",
        type_ = "string",
        json_path = ".status.hash",
        description = "The first 10 hex digits of a hash over all files."
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
pub struct RemoteConfigSpec {
    /// The files, 1 to 24, each with a name of its own. All inline bodies together
    /// have at most 900000 bytes, and so have all bodies once references are
    /// resolved; `Ready=False, TooLarge` tells of the latter.
    #[schemars(length(min = 1, max = 24))]
    #[x_kube(
        merge_strategy = ListMerge::Map(vec!["name".into()]),
        validation = Rule::new("size(self) == 1 || self.all(file, size(file.name) > 0)")
            .message("files: the empty name is for an only file, give each file a name"),
        validation = Rule::new("self.map(file, has(file.body) ? size(bytes(file.body)) : 0).sum() <= 900000")
            .message("files: all bodies together must have at most 900000 bytes")
    )]
    pub files: Vec<ConfigFile>,
    /// Whether the bodies are templates, rendered for each agent.
    ///
    /// Possible values:
    /// - `Disabled`: they are offered byte by byte as they are.
    /// - `Jinja`: they are Jinja templates that know the agent as `agent.uid` and
    ///   its attributes, such as `{{ agent.attributes["host.name"] }}`. What is
    ///   not defined is an error; the test `is defined` and the filter `default`
    ///   help.
    ///
    /// A template that does not compile is `Ready=False, InvalidTemplate` here. One
    /// that fails for the attributes of one agent is `ConfigApplied=False,
    /// TemplateFailed` on that Agent, and the others go on.
    /// Default: `Disabled`.
    #[serde(default)]
    pub template: TemplateMode,
    /// What is checked before anything is offered.
    ///
    /// Possible values:
    /// - `Opaque`: nothing; the bodies may be any bytes.
    /// - `OpenTelemetryCollector`: each body is YAML that a collector would
    ///   read, and each component that a pipeline uses is defined in one of the
    ///   files that the agent gets. Of a template this is checked for each agent
    ///   after rendering.
    ///
    /// A fault is `Ready=False, InvalidYaml` here, or `UndefinedComponent` on the
    /// fleet.
    /// Default: `Opaque`.
    #[serde(default)]
    pub format: ConfigFormat,
}

/// One file.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.body) != has(self.bodyFrom)")
    .message("a file needs exactly one of body and bodyFrom"))]
pub struct ConfigFile {
    /// The name by which agents know the file, of at most 256 characters. The
    /// empty name is allowed for an only file. A name may have slashes, but no
    /// `..` between them and no control characters. Two files of one name that
    /// some member of a fleet could get are `Stalled, FileNameClash` there.
    #[schemars(length(max = 256))]
    #[x_kube(
        validation = Rule::new("!self.matches('[[:cntrl:]]')")
            .message("name: control characters are not allowed in a file's name"),
        validation = Rule::new(r"!self.matches(r'(^|[/\\])[.][.]([/\\]|$)')")
            .message("name: .. is not allowed as a part of a file's name")
    )]
    pub name: String,
    /// The MIME type that agents are told, such as `text/yaml`, of at most 128
    /// characters. Agents may show it; few act on it.
    /// Default: none is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *; *[A-Za-z0-9!#$&^_.+-]+=[^;]+)*$')")
        .message("contentType: must be a MIME type such as text/yaml or text/yaml; charset=utf-8"))]
    pub content_type: Option<String>,
    /// The content as it stands here, at most 900000 bytes in all files.
    /// Exactly one of body and bodyFrom is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 900_000))]
    pub body: Option<String>,
    /// The content from a key of a ConfigMap or Secret. A change there becomes a
    /// new revision like a change here. What does not exist is `Ready=False,
    /// ReferenceNotFound`, and is looked at again as soon as it appears.
    /// Exactly one of body and bodyFrom is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_from: Option<BodySource>,
}

/// Where a body comes from.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.configMapKeyRef) != has(self.secretKeyRef)")
    .message("bodyFrom: exactly one of configMapKeyRef and secretKeyRef must be set"))]
pub struct BodySource {
    /// A key of a ConfigMap in this namespace, of its `data` or `binaryData`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
    /// A key of a Secret in this namespace. Its content is content, not a
    /// credential: agents get it in their configuration. It is offered over TLS
    /// only, unless the operator is told otherwise; `Stalled, SecretsNeedTls` on
    /// the fleet tells so. It never shows in a status, an event or a log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
}

/// A key of an object in the same namespace.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyReference {
    /// The name of the object, of 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')")
        .message("name: must be an object's name of lower case letters, digits, '-' and '.'"))]
    pub name: String,
    /// The key in the object's data, of 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9._-]+$')")
        .message("key: must be a data key of letters, digits, '-', '_' and '.'"))]
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

/// What was found of the files; written by the operator.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct RemoteConfigResourceStatus {
    /// The `metadata.generation` that this status speaks of; -1 before the
    /// operator has seen the object.
    #[serde(default = "not_observed")]
    #[schemars(range(min = -1))]
    pub observed_generation: i64,
    /// The first 10 hex digits of the SHA-256 over all files, by which two
    /// contents are told apart. Absent until all files were read. It covers content
    /// of Secrets, as the hashes do that agents report: whoever can read it can
    /// confirm a guess, so a secret in a file must be one that cannot be guessed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub hash: Option<String>,
    /// Bytes of all files, references included, before any template is rendered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub size: Option<i64>,
    /// The files as they were read, in the order of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 24))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub files: Vec<ConfigFileStatus>,
    /// The names of the fleets that name this RemoteConfig, sorted; the first 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub fleets: Vec<String>,
    /// `Ready` always; `Reconciling` and `Stalled` only while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// One file as it was read.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigFileStatus {
    /// The name of the file.
    #[schemars(length(max = 256))]
    pub name: String,
    /// Its bytes.
    #[schemars(range(min = 0))]
    pub size: i64,
    /// The SHA-256 of its body, 64 hex digits. Absent for a body from a Secret: it
    /// would let anybody who can read this object try guesses at the secret alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub hash: Option<String>,
}
