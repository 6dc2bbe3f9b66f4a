//! The table of what the resources accept and refuse, `rule_table.yaml`, as whole objects.

use serde::Deserialize;
use serde_json::Value;

/// One object, and what is said about it.
pub struct Case {
    /// What it shows.
    pub name: String,
    /// The object that is applied.
    pub object: Value,
    /// The message of the CEL rule that refuses it.
    pub rule: Option<String>,
    /// A part of what the API server says where a type, limit or format refuses it.
    pub schema: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Family {
    base: Value,
    cases: Vec<Variation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variation {
    case: String,
    change: Value,
    rule: Option<String>,
    schema: Option<String>,
}

/// All cases, in the order of the table.
pub fn cases() -> Vec<Case> {
    let families: Vec<Family> = serde_saphyr::from_str(include_str!("rule_table.yaml")).unwrap();
    let mut cases = Vec::new();
    for Family { base, cases: variations } in families {
        for Variation { case, change, rule, schema } in variations {
            let mut object = base.clone();
            merge(&mut object, &change);
            cases.push(Case { name: format!("{}: {case}", base["kind"]), object, rule, schema });
        }
    }
    cases
}

/// A JSON merge patch, RFC 7396, except that a `null` stays where the base has no such field: it is for the API
/// server to prune.
fn merge(target: &mut Value, change: &Value) {
    let (Value::Object(fields), Value::Object(changes)) = (&mut *target, change) else {
        *target = change.clone();
        return;
    };
    for (name, value) in changes {
        if value.is_null() && fields.contains_key(name) {
            fields.remove(name);
        } else {
            merge(fields.entry(name).or_insert(Value::Null), value);
        }
    }
}
