//! The CEL rules of the definitions, run without an API server.

use kube::core::cel::Validator;
use serde::Deserialize;
use serde_json::{Value, json};

use super::schema::schema_of;

/// A base object and what is changed in it; the file says more.
#[derive(Deserialize)]
struct Family {
    base: Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    case: String,
    change: Value,
    rule: Option<String>,
    schema: Option<String>,
}

fn families() -> Vec<Family> {
    serde_saphyr::from_str(include_str!("../../../tests/integration/crd_rules.yaml")).unwrap()
}

fn changed(base: &Value, change: &Value) -> Value {
    let mut object = base.clone();
    merge(&mut object, change);
    object
}

/// A JSON merge patch, RFC 7396.
fn merge(target: &mut Value, change: &Value) {
    let (Value::Object(fields), Value::Object(changes)) = (&mut *target, change) else {
        *target = change.clone();
        return;
    };
    for (name, value) in changes {
        if value.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name).or_insert(Value::Null), value);
        }
    }
}

fn refusals(object: &Value) -> Vec<String> {
    let schema = schema_of(object["kind"].as_str().unwrap());
    match Validator::new().validate(&schema, object, None) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.into_vec().into_iter().map(|error| error.message).collect(),
    }
}

#[test]
fn each_rule_refuses_one_fault_in_words_for_its_author() {
    for Family { base, cases } in families() {
        let mut told = Vec::new();
        for Case { case, change, rule, schema } in cases {
            if schema.is_none() {
                let expected: Vec<String> = rule.into_iter().collect();
                let kind = base["kind"].as_str().unwrap();
                assert_eq!(refusals(&changed(&base, &change)), expected, "{kind}: {case}");
                told.extend(expected);
            }
        }
        let untested: Vec<String> =
            messages(&schema_of(base["kind"].as_str().unwrap())).into_iter().filter(|m| !told.contains(m)).collect();
        // The limit on all bodies has a test of its own, for the size of what it takes.
        assert!(untested.iter().all(|message| message.contains("900000")), "no case for {untested:?}");
    }
}

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
    const LIMIT: usize = crate::api::remote_config::BODIES_LIMIT;
    let with_bodies = |bodies: [String; 2]| {
        json!({
            "kind": "RemoteConfig", "metadata": {"name": "base"},
            "spec": {"files": [
                {"name": "a", "body": bodies[0]},
                {"name": "b", "body": bodies[1]},
                {"name": "c", "bodyFrom": {"configMapKeyRef": {"name": "rules", "key": "c"}}},
            ]},
        })
    };
    for (case, bodies, fits) in [
        ("exactly the limit", ["x".repeat(LIMIT - 10), "x".repeat(10)], true),
        ("one over it", ["x".repeat(LIMIT - 10), "x".repeat(11)], false),
        ("fewer characters, more bytes", ["ä".repeat(LIMIT / 2), "x".into()], false),
    ] {
        let expected = if fits { vec![] } else { vec!["files: all bodies together must have at most 900000 bytes"] };
        assert_eq!(refusals(&with_bodies(bodies)), expected, "{case}");
    }
}
