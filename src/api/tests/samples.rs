//! `config/samples`: whoever applies them gets what they say, at once and without a fault.

use std::{collections::BTreeSet, fs, path::Path};

use kube::core::cel::Validator;
use serde_json::Value;

use super::schema::schema_of;
use crate::api::{
    agent_fleet::AgentFleet,
    connection_settings::{ConnectionSettings, SettingsHeader},
    remote_config::{KeyReference, RemoteConfig},
};

/// All objects of the folder, in the order in which `kubectl apply -f` takes them.
fn samples() -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/samples");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let texts = files.into_iter().map(|file| fs::read_to_string(file).unwrap());
    texts.flat_map(|text| serde_saphyr::from_multiple::<Value>(&text).unwrap()).collect()
}

fn of_kind(kind: &str) -> Vec<Value> {
    samples().into_iter().filter(|sample| sample["kind"] == kind).collect()
}

#[test]
fn the_namespace_comes_first_and_holds_all_others() {
    let samples = samples();
    assert_eq!(samples[0]["kind"], "Namespace");
    for sample in &samples[1..] {
        assert_eq!(sample["metadata"]["namespace"], samples[0]["metadata"]["name"], "{}", sample["metadata"]["name"]);
    }
}

#[test]
fn a_sample_has_only_fields_that_there_are_and_breaks_no_rule() {
    for kind in ["AgentFleet", "RemoteConfig", "ConnectionSettings"] {
        for sample in of_kind(kind) {
            let name = &sample["metadata"]["name"];
            assert!(Validator::new().validate(&schema_of(kind), &sample, None).is_ok(), "{name}");
            let unknown = unknown_fields("spec", &sample["spec"], &schema_of(kind)["properties"]["spec"]);
            assert!(unknown.is_empty(), "{name}: {unknown:?}");
        }
    }
}

fn unknown_fields(path: &str, value: &Value, schema: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) if schema["properties"].is_object() => fields
            .iter()
            .flat_map(|(name, field)| {
                let path = format!("{path}.{name}");
                match &schema["properties"][name] {
                    Value::Null => vec![path],
                    known => unknown_fields(&path, field, known),
                }
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(|item| unknown_fields(path, item, &schema["items"])).collect(),
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

#[test]
fn whatever_a_sample_refers_to_was_applied_before_it() {
    let mut applied = BTreeSet::new();
    for sample in samples() {
        let name = sample["metadata"]["name"].as_str().unwrap().to_owned();
        for reference in references(&sample) {
            assert!(applied.contains(&reference), "{name} refers to {reference:?}");
        }
        for key in ["data", "stringData"] {
            for key in sample[key].as_object().into_iter().flat_map(|data| data.keys()) {
                applied.insert((sample["kind"].as_str().unwrap().to_owned(), name.clone(), key.clone()));
            }
        }
        applied.insert((sample["kind"].as_str().unwrap().to_owned(), name, String::new()));
    }
}

/// Kind, name and key of what an object needs.
fn references(sample: &Value) -> Vec<(String, String, String)> {
    match sample["kind"].as_str() {
        Some("AgentFleet") => {
            let fleet: AgentFleet = serde_json::from_value(sample.clone()).unwrap();
            let entries = fleet.spec.remote_configs.into_iter();
            let configs = entries.map(|entry| ("RemoteConfig".to_owned(), entry.name, String::new()));
            let settings = fleet.spec.connection_settings.into_iter();
            let settings = settings.map(|settings| ("ConnectionSettings".to_owned(), settings.name, String::new()));
            configs.chain(settings).collect()
        }
        Some("ConnectionSettings") => {
            let settings: ConnectionSettings = serde_json::from_value(sample.clone()).unwrap();
            references_of_settings(settings)
        }
        Some("RemoteConfig") => {
            let config: RemoteConfig = serde_json::from_value(sample.clone()).unwrap();
            let sources = config.spec.files.into_iter().filter_map(|file| file.body_from);
            sources
                .flat_map(|source| {
                    let config_map = source.config_map_key_ref.map(|key| ("ConfigMap".to_owned(), key.name, key.key));
                    let secret = source.secret_key_ref.map(|key| ("Secret".to_owned(), key.name, key.key));
                    [config_map, secret].into_iter().flatten()
                })
                .collect()
        }
        _ => Vec::new(),
    }
}

fn references_of_settings(settings: ConnectionSettings) -> Vec<(String, String, String)> {
    let opamp = settings.spec.opamp;
    let of = |kind: &str, key: KeyReference| (kind.to_owned(), key.name, key.key);
    let value = |header: SettingsHeader| header.value_from.map(|source| of("Secret", source.secret_key_ref));
    let connect_headers = opamp.proxy.into_iter().flat_map(|proxy| proxy.connect_headers);
    let headers = opamp.headers.into_iter().chain(connect_headers).filter_map(value);
    let secret = opamp.certificate.and_then(|certificate| certificate.secret_ref);
    let certificate = secret.map(|secret| ("Secret".to_owned(), secret.name, "tls.crt".to_owned()));
    let authorities = opamp.tls.and_then(|tls| tls.ca_from).into_iter().flat_map(|source| {
        let config_map = source.config_map_key_ref.map(|key| of("ConfigMap", key));
        config_map.into_iter().chain(source.secret_key_ref.map(|key| of("Secret", key)))
    });
    headers.chain(certificate).chain(authorities).collect()
}

#[test]
fn the_samples_show_every_way_to_write_a_remote_config() {
    let text = of_kind("RemoteConfig").into_iter().map(|sample| sample["spec"].to_string()).collect::<String>();
    for feature in ["\"body\"", "configMapKeyRef", "secretKeyRef", "Jinja", "OpenTelemetryCollector"] {
        assert!(text.contains(feature), "no sample has {feature}");
    }
}
