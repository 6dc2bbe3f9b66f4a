//! What the API server accepts of each kind, and in which words it refuses the rest: each case of the table as a dry
//! run.

use kube::{
    Client,
    api::{Api, ApiResource, DynamicObject, PostParams},
};
use opamp_operator::api::{
    agent::Agent,
    agent_fleet::AgentFleet,
    connection_settings::ConnectionSettings,
    remote_config::{BODIES_LIMIT, RemoteConfig},
};
use serde_json::{Value, json};

use super::rule_table::{Case, cases};
use crate::harness::ControlPlane;

/// Runs the whole table. What is accepted is stored as its author wrote it,
/// without defaults, and with a status that nobody takes for finished.
#[tokio::test]
async fn the_api_server_accepts_and_refuses_what_the_table_says() {
    let client = ControlPlane::shared().client().await;
    let mut wrong = Vec::new();
    for Case { name, object, rule, schema } in cases() {
        let as_written = without_nulls(object["spec"].clone());
        let answer = dry_run(&client, object).await;
        let expected = rule.or(schema);
        let as_promised = match (&answer, &expected) {
            (Ok(stored), None) => stored["spec"] == as_written && stored["status"] == json!({"observedGeneration": -1}),
            (Err(told), Some(expected)) => told.contains(expected.as_str()),
            (Ok(_), Some(_)) | (Err(_), None) => false,
        };
        if !as_promised {
            wrong.push(format!("{name}: expected {expected:?}, the answer was {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The bound on all bodies counts bytes and keeps objects below what etcd takes.
#[tokio::test]
async fn the_api_server_takes_bodies_up_to_their_limit() {
    let client = ControlPlane::shared().client().await;
    for (case, body, fits) in [
        ("exactly the limit", "x".repeat(BODIES_LIMIT), true),
        ("one byte over it, in fewer characters", "ä".repeat(BODIES_LIMIT / 2) + "x", false),
    ] {
        let object = json!({
            "apiVersion": "opamp.dev/v1alpha1", "kind": "RemoteConfig",
            "metadata": {"name": "large", "namespace": "default"},
            "spec": {"files": [{"name": "collector.yaml", "body": body}]},
        });
        assert_eq!(dry_run(&client, object).await.is_ok(), fits, "{case}");
    }
}

/// What the API server would store of an object, or its words of refusal.
async fn dry_run(client: &Client, object: Value) -> Result<Value, String> {
    let resource = match object["kind"].as_str() {
        Some("AgentFleet") => ApiResource::erase::<AgentFleet>(&()),
        Some("ConnectionSettings") => ApiResource::erase::<ConnectionSettings>(&()),
        Some("RemoteConfig") => ApiResource::erase::<RemoteConfig>(&()),
        Some("Agent") => ApiResource::erase::<Agent>(&()),
        kind => return Err(format!("the table has an object of kind {kind:?}")),
    };
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let namespace = object.metadata.namespace.clone().unwrap();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
    match api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await {
        Ok(stored) => Ok(stored.data),
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(other) => Err(format!("no answer: {other}")),
    }
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, field)| !field.is_null());
            fields.map(|(name, field)| (name, without_nulls(field))).collect()
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}
