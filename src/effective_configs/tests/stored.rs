//! What is written, and how it is named.

use k8s_openapi::api::core::v1::Secret;

use super::{super::stored::*, PREFIX, fleet, fleet_with_secret, text};
use crate::{api::agent::NotStored, opamp::normalise::EffectiveConfigText};

fn drafted(files: &[(&str, &str)]) -> Draft {
    Draft::of(&text(files), &fleet(), std::iter::empty()).expect("a draft")
}

/// The files as they are shown, by key.
fn shown(secret: &Secret) -> Vec<(String, String)> {
    let data = secret.data.clone().unwrap_or_default();
    data.into_iter().map(|(key, value)| (key, String::from_utf8(value.0).expect("text"))).collect()
}

#[test]
fn a_secret_is_immutable_owned_by_the_fleet_and_legible() {
    let draft = drafted(&[("collector.yaml", "a: b\npassword: x\n")]);
    let secret = draft.secret();
    assert_eq!(secret.type_.as_deref(), Some("opamp.dev/effective-config"));
    assert_eq!(secret.immutable, Some(true));
    assert_eq!(shown(secret), [("collector.yaml".to_owned(), "a: b\npassword: \"[redacted]\"\n".to_owned())]);
    let owner = &secret.metadata.owner_references.as_deref().expect("an owner")[0];
    assert_eq!((&*owner.api_version, &*owner.kind, &*owner.name), ("opamp.dev/v1alpha1", "AgentFleet", "edge"));
    assert_eq!((&*owner.uid, owner.controller), ("0123abcd-ef01-4000-8000-000000000001", Some(true)));
    let labels = secret.metadata.labels.clone().unwrap_or_default();
    assert_eq!(labels.get("opamp.dev/fleet").map(String::as_str), Some("edge"));
    assert_eq!(labels.get("app.kubernetes.io/managed-by").map(String::as_str), Some("opamp-operator"));
    assert_eq!((draft.key().namespace.as_str(), draft.hash().len()), ("telemetry", 64));
}

#[test]
fn the_name_is_the_redacted_content() {
    let name = |files: &[(&str, &str)]| drafted(files).key().name.clone();
    let one = name(&[("a", "b: c")]);
    assert_eq!(one, format!("{PREFIX}{}", &drafted(&[("a", "b: c")]).hash()[..10]));
    assert_eq!(one.len(), PREFIX.len() + 10);
    assert_eq!(prefix_of(&one), PREFIX);
    assert_eq!(name(&[("a", "token: x")]), name(&[("a", "token: another")]), "a secret is no part of it");
    for other in [&[("b", "b: c")][..], &[("a", "b: d")], &[("a", "b: c"), ("", "")], &[]] {
        assert_ne!(one, name(other), "{other:?}");
    }
}

#[test]
fn every_file_has_a_legal_key_and_its_own_name_beside_it() {
    let draft = drafted(&[
        ("", "1"),
        ("..", "2"),
        ("a/b.yaml", "3"),
        ("a_b.yaml", "4"),
        ("a b.yaml", "5"),
        ("legal-1.yaml", "6"),
        (&"ü".repeat(300), "7"),
    ]);
    let keys: Vec<String> = shown(draft.secret()).into_iter().map(|(key, _)| key).collect();
    let long = "_".repeat(240);
    assert_eq!(keys, ["_..", &long, "a_b.yaml", "a_b.yaml-2", "a_b.yaml-3", "config", "legal-1.yaml"]);
    let annotations = draft.secret().metadata.annotations.clone().unwrap_or_default();
    let names: std::collections::BTreeMap<String, String> =
        serde_json::from_str(&annotations[FILES_ANNOTATION]).expect("JSON");
    assert_eq!(names["config"], "");
    assert_eq!(names["_.."], "..");
    assert_eq!((&*names["a_b.yaml"], &*names["a_b.yaml-2"]), ("a b.yaml", "a/b.yaml"));
    assert_eq!(names.get("legal-1.yaml"), None);
    let unnamed = drafted(&[("legal.yaml", "")]);
    assert!(!unnamed.secret().metadata.annotations.clone().unwrap_or_default().contains_key(FILES_ANNOTATION));
}

#[test]
fn what_is_too_large_or_no_text_is_not_stored() {
    let of = |text: &EffectiveConfigText| Draft::of(text, &fleet(), std::iter::empty()).map(|draft| draft.size());
    let body = |size| "x".repeat(size);
    assert_eq!(of(&text(&[("a", &body(200 << 10)), ("b", &body(56 << 10))])), Ok(256 << 10));
    assert_eq!(of(&text(&[("a", &body(200 << 10)), ("b", &body((56 << 10) + 1))])), Err(NotStored::TooLarge));
    let marks = format!("tokens: [{}]", "x,".repeat(100_000));
    assert_eq!(of(&text(&[("a", &marks)])), Err(NotStored::TooLarge), "large by its marks");
    let names: Vec<String> = (0..65).map(|number| number.to_string()).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    assert_eq!(of(&text(&many)), Err(NotStored::TooLarge), "many files");
    assert_eq!(of(&text(&[(&body(16 << 10), ""), ("a", "")])), Err(NotStored::TooLarge), "a long name");
    let mut binary = text(&[("a", "")]);
    binary.files.values_mut().for_each(|file| file.body = vec![0xff, 0xfe].into());
    assert_eq!(of(&binary), Err(NotStored::NotText));
}

#[test]
fn nothing_of_the_fleets_secrets_is_stored_whatever_it_is_called() {
    let fleet = fleet_with_secret("header: canary-in-a-secret\nescaped: \"canary \\\"quoted\\\"\"\n");
    let reported = text(&[
        ("canary-in-a-secret", "a: canary-in-a-secret\nb: [x, 'canary-in-a-secret']\n# canary-in-a-secret\n"),
        ("b", "a: \"canary \\\"quoted\\\"\"\nb: 'canary\n  \"quoted\"'\nc: >\n  canary\n  \"quoted\"\n"),
        ("c", "{{ broken: canary-in-a-secret"),
    ]);
    let draft = Draft::of(&reported, &fleet, std::iter::once(&fleet)).expect("a draft");
    let everything = serde_json::to_string(&shown(draft.secret())).expect("JSON")
        + &serde_json::to_string(&draft.secret().metadata).expect("JSON");
    assert!(!everything.contains("canary"), "{everything}");
    assert!(!format!("{draft:?}").contains("redacted"), "its content is not shown");
}
