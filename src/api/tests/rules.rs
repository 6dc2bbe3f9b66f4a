//! The CEL rules of the definitions, run without an API server.

use std::collections::BTreeSet;

use kube::core::cel::Validator;
use serde_json::{Value, json};

use super::{
    rule_table::{Case, cases},
    schema::schema_of,
};
use crate::api::{crds, remote_config::BODIES_LIMIT};

fn refusals(object: &Value) -> Vec<String> {
    let schema = schema_of(object["kind"].as_str().unwrap());
    match Validator::new().validate(&schema, object, None) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.into_vec().into_iter().map(|error| error.message).collect(),
    }
}

#[test]
fn each_rule_refuses_one_fault_in_words_for_its_author() {
    for Case { name, object, rule, schema } in cases() {
        if schema.is_none() {
            let expected: Vec<String> = rule.into_iter().collect();
            assert_eq!(refusals(&object), expected, "{name}");
        }
    }
}

#[test]
fn each_rule_has_a_case() {
    let tested: BTreeSet<String> = cases().into_iter().filter_map(|case| case.rule).collect();
    for definition in crds::all() {
        for message in messages(&schema_of(&definition.spec.names.kind)) {
            // The limit on all bodies has a test of its own, for the size of what it takes.
            assert!(tested.contains(&message) || message == BODIES_TOO_LARGE, "no case for: {message}");
        }
    }
}

const BODIES_TOO_LARGE: &str = "files: all bodies together must have at most 900000 bytes";

fn messages(schema: &Value) -> Vec<String> {
    match schema {
        Value::Object(fields) => {
            let own = fields.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten();
            let own = own.filter_map(|rule| rule["message"].as_str().map(str::to_owned));
            own.chain(fields.values().flat_map(messages)).collect()
        }
        Value::Array(items) => items.iter().flat_map(messages).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

#[test]
fn all_bodies_together_have_a_limit_in_bytes() {
    let with_bodies = |bodies: &[String; 2]| {
        json!({
            "kind": "RemoteConfig", "metadata": {"name": "base"},
            "spec": {"files": [
                {"name": "a", "body": bodies[0]},
                {"name": "b", "body": bodies[1]},
                {"name": "c", "bodyFrom": {"configMapKeyRef": {"name": "rules", "key": "c"}}},
            ]},
        })
    };
    for (case, bodies, expected) in [
        ("exactly the limit", ["x".repeat(BODIES_LIMIT - 10), "x".repeat(10)], vec![]),
        ("one over it", ["x".repeat(BODIES_LIMIT - 10), "x".repeat(11)], vec![BODIES_TOO_LARGE]),
        ("fewer characters, more bytes", ["ä".repeat(BODIES_LIMIT / 2), "x".into()], vec![BODIES_TOO_LARGE]),
    ] {
        assert_eq!(refusals(&with_bodies(&bodies)), expected, "{case}");
    }
}
