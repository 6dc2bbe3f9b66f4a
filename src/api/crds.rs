//! The custom resource definitions, as they are applied to an API server.
//!
//! Made from the types beside this file and freed of what the derive adds that would do harm:
//!
//! * `nullable`, by which an explicit `null` would be stored instead of meaning "absent";
//! * defaults of the spec: written into stored objects, they would freeze the default of the day and show up as
//!   changes that nobody made. The operator applies them when it reads an object. The status keeps its one default,
//!   `observedGeneration: -1`, so that a fresh object is never taken for a finished one.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use serde_json::{Number, Value};

use super::{
    agent::Agent, agent_fleet::AgentFleet, connection_settings::ConnectionSettings, remote_config::RemoteConfig,
};

/// The definitions of all kinds, those that people write first.
#[must_use]
pub fn all() -> Vec<CustomResourceDefinition> {
    [AgentFleet::crd(), RemoteConfig::crd(), ConnectionSettings::crd(), Agent::crd()].map(finished).into()
}

/// All definitions as one YAML stream, for `kubectl apply -f -`.
#[must_use]
pub fn yaml() -> String {
    all().iter().map(document).collect::<Vec<_>>().concat()
}

/// One definition as a YAML document with its separator.
pub(super) fn document(definition: &CustomResourceDefinition) -> String {
    #[expect(clippy::expect_used, reason = "a definition is plain data, tested to be written")]
    let text = serde_json::to_value(definition)
        .map(whole_numbers)
        .map_err(|error| error.to_string())
        .and_then(|value| serde_saphyr::to_string(&value).map_err(|error| error.to_string()))
        .expect("a definition is written as YAML");
    format!("---\n{}\n", text.trim_end())
}

/// Limits are floating-point numbers to the API; written as `24.0` they would differ from what it returns.
fn whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().and_then(|limit| limit.to_string().parse::<i64>().ok());
            Value::Number(whole.map_or(number, Number::from))
        }
        Value::Array(items) => items.into_iter().map(whole_numbers).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, field)| (name, whole_numbers(field))).collect(),
        Value::Null | Value::Bool(_) | Value::String(_) => value,
    }
}

fn finished(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut definition.spec.versions {
        let Some(root) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) else {
            continue;
        };
        for_each_schema(root, &mut forbid_null);
        if let Some(spec) = root.properties.as_mut().and_then(|properties| properties.get_mut("spec")) {
            for_each_schema(spec, &mut |schema| schema.default = None);
        }
    }
    definition
}

/// `null` means absent, everywhere: without `nullable` the API server prunes it.
fn forbid_null(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(values) = &mut schema.enum_ {
        values.retain(|value| !value.0.is_null());
    }
}

fn for_each_schema(schema: &mut JSONSchemaProps, change: &mut impl FnMut(&mut JSONSchemaProps)) {
    change(schema);
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        for_each_schema(property, change);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(item)) => for_each_schema(item, change),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => {
            for item in items {
                for_each_schema(item, change);
            }
        }
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        for_each_schema(values, change);
    }
}
