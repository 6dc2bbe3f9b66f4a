//! Custom resources in tests: written as few words as matter, read as JSON.

use kube::api::ApiResource;
use opamp_operator::api::{
    agent::Agent, agent_fleet::AgentFleet, connection_settings::ConnectionSettings, remote_config::RemoteConfig,
};
use serde_json::{Value, json};

/// The kinds that tests read.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `AgentFleet`.
    Fleet,
    /// `RemoteConfig`.
    RemoteConfig,
    /// `Agent`.
    Agent,
    /// `ConnectionSettings`.
    ConnectionSettings,
}

impl Kind {
    /// How the API server calls it.
    pub fn resource(self) -> ApiResource {
        match self {
            Self::Fleet => ApiResource::erase::<AgentFleet>(&()),
            Self::RemoteConfig => ApiResource::erase::<RemoteConfig>(&()),
            Self::Agent => ApiResource::erase::<Agent>(&()),
            Self::ConnectionSettings => ApiResource::erase::<ConnectionSettings>(&()),
        }
    }
}

/// One condition of an object, as far as tests look at it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Condition {
    /// `True`, `False` or `Unknown`; empty: there is no such condition.
    pub status: String,
    /// One word.
    pub reason: String,
    /// What it means here.
    pub message: String,
}

impl Condition {
    /// The condition of this type.
    pub fn of(object: &Value, kind: &str) -> Self {
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let found = conditions.into_iter().flatten().find(|condition| condition["type"] == kind);
        found.map_or_else(Self::default, |condition| Self {
            status: text(&condition["status"]),
            reason: text(&condition["reason"]),
            message: text(&condition["message"]),
        })
    }

    /// Whether it is this, for this reason.
    pub fn is(&self, status: &str, reason: &str) -> bool {
        self.status == status && self.reason == reason
    }
}

/// A text in an object; empty if there is none.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The name of an object.
pub fn name(object: &Value) -> String {
    text(&object["metadata"]["name"])
}

/// A fleet that takes anyone whose `service.name` is its own name.
pub fn fleet(name: &str) -> Fleet {
    Fleet(json!({
        "apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleet", "metadata": {"name": name},
        "spec": {
            "selector": {"matchAttributes": {"service.name": name}},
            "enrollment": {"methods": ["Anonymous"]},
            "remoteConfigs": [],
        },
    }))
}

/// A fleet in the making.
pub struct Fleet(Value);

impl Fleet {
    /// Offers these RemoteConfigs, in this order.
    pub fn offering(mut self, remote_configs: &[&str]) -> Self {
        self.0["spec"]["remoteConfigs"] = remote_configs.iter().map(|name| json!({"name": name})).collect();
        self
    }

    /// Selects by this attribute instead.
    pub fn selecting(mut self, key: &str, value: &str) -> Self {
        self.0["spec"]["selector"] = json!({"matchAttributes": {key: value}});
        self
    }

    /// As it is applied.
    pub fn build(self) -> Value {
        self.0
    }
}

/// A RemoteConfig without files.
pub fn remote_config(name: &str) -> Config {
    Config(json!({
        "apiVersion": "opamp.dev/v1alpha1", "kind": "RemoteConfig", "metadata": {"name": name},
        "spec": {"files": []},
    }))
}

/// A RemoteConfig in the making.
pub struct Config(Value);

impl Config {
    /// With this file, of this type.
    pub fn typed_file(mut self, name: &str, content_type: &str, body: &str) -> Self {
        self.add(json!({"name": name, "contentType": content_type, "body": body}));
        self
    }

    /// With this YAML file.
    pub fn file(self, name: &str, body: &str) -> Self {
        self.typed_file(name, "text/yaml", body)
    }

    /// With a file that stands in a ConfigMap.
    pub fn file_from_config_map(mut self, name: &str, config_map: &str, key: &str) -> Self {
        let source = json!({"configMapKeyRef": {"name": config_map, "key": key}});
        self.add(json!({"name": name, "contentType": "text/yaml", "bodyFrom": source}));
        self
    }

    /// With a file that stands in a Secret.
    pub fn file_from_secret(mut self, name: &str, secret: &str, key: &str) -> Self {
        let source = json!({"secretKeyRef": {"name": secret, "key": key}});
        self.add(json!({"name": name, "contentType": "text/yaml", "bodyFrom": source}));
        self
    }

    /// Checked as configuration of the OpenTelemetry Collector.
    pub fn for_collectors(mut self) -> Self {
        self.0["spec"]["format"] = json!("OpenTelemetryCollector");
        self
    }

    /// Rendered for each agent.
    pub fn templated(mut self) -> Self {
        self.0["spec"]["template"] = json!("Jinja");
        self
    }

    /// As it is applied.
    pub fn build(self) -> Value {
        self.0
    }

    fn add(&mut self, file: Value) {
        self.0["spec"]["files"].as_array_mut().expect("files are a list").push(file);
    }
}

/// A complete configuration of a collector; the marker is in a comment, so that tests can tell versions apart.
pub fn collector_config(marker: &str) -> String {
    format!(
        "# {marker}\nreceivers:\n  otlp: {{protocols: {{grpc: {{}}}}}}\nexporters:\n  debug: {{}}\nservice:\n  pipelines:\n    traces: {{receivers: [otlp], exporters: [debug]}}\n"
    )
}
