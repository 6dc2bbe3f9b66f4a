//! A walk over every field of every definition: what the API of this project promises of each of them.

use kube::CustomResourceExt;
use serde_json::Value;

use crate::api::{
    agent::Agent, agent_fleet::AgentFleet, connection_settings::ConnectionSettings, crds, remote_config::RemoteConfig,
};

/// Fields that are truly two-valued, with the reason.
const BOOLEANS: &[(&str, &str)] = &[
    ("Agent.status.health.healthy", "OpAMP's ComponentHealth.healthy; not reported means no health at all"),
    ("ConnectionSettings.spec.opamp.tls.insecureSkipVerify", "OpAMP's field of this name"),
];

/// Texts wider than this are broken by `kubectl explain`.
const WIDEST_LINE: usize = 76;

/// The schema of a kind, as the API server gets it.
pub(super) fn schema_of(kind: &str) -> Value {
    let definition = crds::all().into_iter().find(|definition| definition.spec.names.kind == kind).unwrap();
    serde_json::to_value(&definition.spec.versions[0].schema).unwrap()["openAPIV3Schema"].clone()
}

/// One place in a schema.
struct Place<'a> {
    path: String,
    schema: &'a Value,
    /// Whether people read its description: fields, not the items of a list or map.
    is_field: bool,
}

fn places<'a>(path: &str, schema: &'a Value, found: &mut Vec<Place<'a>>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        found.push(Place { path: path.clone(), schema: property, is_field: true });
        places(&path, property, found);
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            let path = format!("{path}{mark}");
            found.push(Place { path: path.clone(), schema: &schema[key], is_field: false });
            places(&path, &schema[key], found);
        }
    }
}

/// Runs a check at every place of every kind and lists the places where it finds fault.
fn assert_everywhere(check: impl Fn(&Place) -> Option<String>) {
    let mut faults = Vec::new();
    for definition in crds::all() {
        let kind = definition.spec.names.kind;
        let schema = schema_of(&kind);
        let mut found = vec![Place { path: kind.clone(), schema: &schema, is_field: true }];
        places(&kind, &schema, &mut found);
        faults.extend(found.iter().filter_map(|place| check(place).map(|fault| format!("{}: {fault}", place.path))));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_field_is_described_in_whole_sentences_that_fit_the_terminal() {
    assert_everywhere(|place| {
        let Some(description) = place.schema["description"].as_str() else {
            return place.is_field.then(|| "has no description".to_owned());
        };
        (!description.ends_with('.')).then(|| "the description does not end in a full stop".to_owned()).or_else(|| {
            let wide = description.lines().find(|line| line.chars().count() > WIDEST_LINE)?;
            Some(format!("a line of more than {WIDEST_LINE} characters: {wide}"))
        })
    });
}

#[test]
fn a_default_that_code_applies_is_told_in_the_description() {
    let mut faults = Vec::new();
    for definition in [AgentFleet::crd(), RemoteConfig::crd(), ConnectionSettings::crd(), Agent::crd()] {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        let mut found = Vec::new();
        places("spec", &schema["openAPIV3Schema"]["properties"]["spec"], &mut found);
        faults.extend(found.into_iter().filter(|place| !tells_de(place.schema)).map(|place| place.path));
    }
    assert!(faults.is_empty(), "{faults:?}");
}

fn tells_de(schema: &Value) -> bool {
    let default = match &schema["default"] {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        // What is empty or has fields of its own is told there.
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return true,
    };
    schema["description"].as_str().is_some_and(|text| text.contains(&format!("Default: `{default}`.")))
}

#[test]
fn every_string_list_and_map_has_a_maximum() {
    assert_everywhere(|place| {
        let schema = place.schema;
        let bounded = match schema["type"].as_str() {
            Some("string") => {
                schema["maxLength"].is_u64() || schema["enum"].is_array() || schema["format"] == "date-time"
            }
            Some("array") => schema["maxItems"].is_u64(),
            Some("object") => schema["properties"].is_object() || schema["maxProperties"].is_u64(),
            _ => true,
        };
        (!bounded && place.path.contains('.')).then(|| "has no maximum".to_owned())
    });
}

#[test]
fn every_list_and_map_says_how_it_is_merged() {
    assert_everywhere(|place| {
        let told = match place.schema["type"].as_str() {
            Some("array") => place.schema["x-kubernetes-list-type"].is_string(),
            Some("object") if place.schema["additionalProperties"].is_object() => {
                place.schema["x-kubernetes-map-type"].is_string()
            }
            _ => true,
        };
        (!told).then(|| "has no list or map type".to_owned())
    });
}

#[test]
fn numbers_are_whole_and_of_formats_that_kubernetes_knows() {
    assert_everywhere(|place| {
        let schema = place.schema;
        let known = match (schema["type"].as_str(), schema["format"].as_str()) {
            (Some("integer"), Some("int32" | "int64")) => schema["minimum"].is_number(),
            (Some("integer" | "number"), _) => false,
            (_, format) => matches!(format, None | Some("date-time")),
        };
        (!known).then(|| "must be int32 or int64 with a minimum".to_owned())
    });
}

#[test]
fn null_is_never_a_value() {
    assert_everywhere(|place| {
        let lists_null = place.schema["enum"].as_array().is_some_and(|values| values.contains(&Value::Null));
        (place.schema["nullable"] == true || lists_null).then(|| "accepts null".to_owned())
    });
}

#[test]
fn the_only_default_is_a_status_not_yet_observed() {
    assert_everywhere(|place| {
        let default = &place.schema["default"];
        let allowed = default.is_null()
            || place.path.ends_with(".status.observedGeneration") && *default == -1
            || place.path.ends_with(".status") && *default == serde_json::json!({"observedGeneration": -1});
        (!allowed).then(|| "would be written into stored objects".to_owned())
    });
}

#[test]
fn a_boolean_is_used_only_where_no_third_value_can_come() {
    assert_everywhere(|place| {
        let listed = BOOLEANS.iter().any(|(path, _)| *path == place.path);
        (place.schema["type"] == "boolean" && !listed).then(|| "is a boolean".to_owned())
    });
}

#[test]
fn every_kind_is_found_by_category_and_shows_its_readiness() {
    for definition in crds::all() {
        let names = &definition.spec.names;
        assert_eq!(names.categories.as_deref(), Some(&["opamp".to_owned()][..]), "{}", names.kind);
        let version = &definition.spec.versions[0];
        assert!(version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some()));
        let columns = version.additional_printer_columns.iter().flatten();
        let (wide, always): (Vec<_>, Vec<_>) = columns.partition(|column| column.priority == Some(1));
        assert_eq!(always.last().map(|column| column.name.as_str()), Some("Age"), "{}", names.kind);
        assert_eq!(wide.last().map(|column| column.name.as_str()), Some("Reason"), "{}", names.kind);
    }
}
