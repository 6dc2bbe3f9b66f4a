//! `docs/reference.md`, made from the definitions and the declared reasons.

use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Map, Value};

use super::schema::schema_of;
use crate::api::{
    condition::ConditionType,
    crds,
    reasons::{
        AgentReason, ConnectionSettingsReason, Declaration, FleetReason, RemoteConfigReason, Standing, StandingReason,
    },
};

const INTRODUCTION: &str = "\
<!-- Generated from src/api; `UPDATE_GENERATED=1 cargo test --lib api::tests::generated` writes it anew. -->

# Reference of the resources

Group `opamp.dev`, version `v1alpha1`, all in namespaces. `kubectl get opamp` lists all kinds, `kubectl explain` shows what
stands here. People write `spec`, the operator writes `status`.

Defaults are applied when the operator reads an object: what is stored is what its author wrote. A field set to `null` is
absent.
";

/// The whole page.
pub(super) fn markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    for definition in crds::all() {
        let kind = definition.spec.names.kind.as_str();
        let schema = schema_of(kind);
        write!(page, "\n## {kind}\n\n{}\n", text(&schema["description"])).unwrap();
        page.push_str(&names(&definition));
        page.push_str(&columns(&definition));
        page.push_str(&rules(&schema));
        let mut seen = Vec::new();
        for part in ["spec", "status"] {
            write!(page, "\n### {kind} {part}\n\n{}\n", text(&schema["properties"][part]["description"])).unwrap();
            fields(&mut page, &mut seen, part, &schema["properties"][part]);
        }
        write!(page, "\n### {kind} conditions\n\n{}", conditions(kind)).unwrap();
    }
    page
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn names(definition: &CustomResourceDefinition) -> String {
    let names = &definition.spec.names;
    let all = [names.plural.as_str(), names.singular.as_deref().unwrap_or_default()];
    let all = all.into_iter().chain(names.short_names.iter().flatten().map(String::as_str));
    let all: Vec<String> = all.map(|name| format!("`{name}`")).collect();
    let selectable = definition.spec.versions[0].selectable_fields.iter().flatten();
    let selectable: Vec<String> = selectable.map(|field| format!("`{}`", &field.json_path[1..])).collect();
    let mut line = format!("\nNames for kubectl: {}.\n", all.join(", "));
    if !selectable.is_empty() {
        writeln!(line, "Usable in field selectors: {}.", selectable.join(", ")).unwrap();
    }
    line
}

fn columns(definition: &CustomResourceDefinition) -> String {
    let mut table = "\n| column of `kubectl get` | meaning |\n|---|---|\n".to_owned();
    for column in definition.spec.versions[0].additional_printer_columns.iter().flatten() {
        let wide = if column.priority == Some(1) { " (`-o wide`)" } else { "" };
        let meaning = column.description.as_deref().unwrap_or_default();
        writeln!(table, "| {}{wide} | {meaning} |", column.name.to_uppercase()).unwrap();
    }
    table
}

/// One entry for each field, depth first, required fields before the others.
fn fields(page: &mut String, seen: &mut Vec<(Value, String)>, path: &str, schema: &Value) {
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    let required = |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
    let (first, rest): (Vec<_>, Vec<_>) = properties.iter().partition(|(name, _)| required(name));
    for (name, property) in first.into_iter().chain(rest) {
        let path = format!("{path}.{name}");
        let need = if required(name) { ", required" } else { "" };
        write!(page, "\n#### `{path}`\n\n*{}{need}*\n\n{}\n", kind_of(property), text(&property["description"]))
            .unwrap();
        page.push_str(&rules(property));
        let (inner, inner_path) = if property["items"].is_object() {
            page.push_str(&rules(&property["items"]));
            (&property["items"], format!("{path}[]"))
        } else {
            (property, path)
        };
        if inner["properties"].is_object() {
            let known = seen.iter().find(|(properties, _)| *properties == inner["properties"]);
            if let Some((_, place)) = known {
                write!(page, "\nIts fields are those of `{place}`.\n").unwrap();
            } else {
                seen.push((inner["properties"].clone(), inner_path.clone()));
                fields(page, seen, &inner_path, inner);
            }
        }
    }
}

fn kind_of(schema: &Value) -> String {
    let range = |least: &Value, most: &Value, unit: &str| match (least.as_f64(), most.as_f64()) {
        (Some(least), Some(most)) => format!(", {least} to {most}{unit}"),
        (None, Some(most)) => format!(", at most {most}{unit}"),
        (Some(least), None) => format!(", at least {least}{unit}"),
        (None, None) => String::new(),
    };
    match schema["type"].as_str() {
        Some("string") if schema["enum"].is_array() => {
            let values = schema["enum"].as_array().unwrap().iter();
            values.map(|value| format!("`{}`", text(value))).collect::<Vec<_>>().join(" or ")
        }
        Some("string") if schema["format"] == "date-time" => "time, RFC 3339".into(),
        Some("string") => format!("string{}", range(&schema["minLength"], &schema["maxLength"], " characters")),
        Some("integer") => format!("integer{}", range(&schema["minimum"], &schema["maximum"], "")),
        Some("array") => {
            let entries = range(&schema["minItems"], &schema["maxItems"], " entries");
            format!("list{entries}, of: {}", kind_of(&schema["items"]))
        }
        Some("object") if schema["additionalProperties"].is_object() => {
            let entries = range(&schema["minProperties"], &schema["maxProperties"], " keys");
            format!("map{entries}, of: {}", kind_of(&schema["additionalProperties"]))
        }
        other => other.unwrap_or("any").into(),
    }
}

/// What the API server says when a rule is broken.
fn rules(schema: &Value) -> String {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let list: Vec<String> = rules.map(|rule| format!("- {}\n", text(&rule["message"]))).collect();
    if list.is_empty() { String::new() } else { format!("\nRefused with:\n\n{}", list.concat()) }
}

fn conditions(kind: &str) -> String {
    match kind {
        "AgentFleet" => standing_table(FleetReason::ALL),
        "RemoteConfig" => standing_table(RemoteConfigReason::ALL),
        "ConnectionSettings" => standing_table(ConnectionSettingsReason::ALL),
        _ => agent_tables(),
    }
}

fn standing_table<R: StandingReason>(reasons: &[R]) -> String {
    let mut table = "| reason | conditions | meaning | what to do |\n|---|---|---|---|\n".to_owned();
    for reason in reasons {
        let conditions = match reason.standing() {
            Standing::Ready => "`Ready=True`",
            Standing::Reconciling => "`Ready=False`, `Reconciling=True`",
            Standing::Stalled => "`Ready=False`, `Stalled=True`",
            Standing::Held => "`Ready=False`",
        };
        let Declaration { word, meaning, remedy } = reason.declaration();
        writeln!(table, "| `{word}` | {conditions} | {meaning} | {remedy} |").unwrap();
    }
    table
}

fn agent_tables() -> String {
    let mut tables = String::new();
    for (condition, about) in [
        (ConditionType::Ready, "where it is not True it repeats the reason and message of what stands in the way"),
        (ConditionType::Matched, "a fleet takes the agent"),
        (ConditionType::Accepted, "the agent may take part"),
        (ConditionType::Connected, "the agent has a live session, or polls in time"),
        (ConditionType::Healthy, "the agent reports to be well"),
        (ConditionType::ConfigApplied, "the agent runs what its fleet gives it"),
        (
            ConditionType::CertificateIssued,
            "the agent has the certificate that its connection settings ask for; only where they ask for one",
        ),
    ] {
        write!(tables, "`{}`: {about}.\n\n", condition.as_str()).unwrap();
        tables.push_str("| reason | status | meaning | what to do |\n|---|---|---|---|\n");
        for reason in AgentReason::ALL.iter().filter(|reason| reason.condition() == condition) {
            let Declaration { word, meaning, remedy } = reason.declaration();
            writeln!(tables, "| `{word}` | {} | {meaning} | {remedy} |", reason.verdict().as_str()).unwrap();
        }
        tables.push('\n');
    }
    format!("{}\n", tables.trim_end())
}
