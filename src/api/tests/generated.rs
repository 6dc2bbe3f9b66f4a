//! Files that are generated from the types and checked in.

use std::{env, fs, path::Path};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::reference;
use crate::api::crds;

/// Set it to write the files anew: `UPDATE_GENERATED=1 cargo test --lib api::tests::generated`.
const UPDATE: &str = "UPDATE_GENERATED";

/// The most that a definition may have: client-side `kubectl apply` keeps it in an annotation of 256 KiB.
const DEFINITION_LIMIT: usize = 256 * 1024;

fn assert_up_to_date(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if env::var_os(UPDATE).is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, expected).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{path} is not what the types say; write it anew with {UPDATE}=1");
}

#[test]
fn crds_are_up_to_date() {
    for definition in crds::all() {
        let path = format!("crds/{}_{}.yaml", definition.spec.group, definition.spec.names.plural);
        let text = crds::document(&definition);
        assert!(text.len() < DEFINITION_LIMIT, "{path} has {} bytes", text.len());
        assert_up_to_date(&path, &text);
    }
}

#[test]
fn crds_hold_what_the_types_say_after_a_way_through_yaml() {
    let read: Vec<CustomResourceDefinition> = serde_saphyr::from_multiple(&crds::yaml()).unwrap();
    assert_eq!(read, crds::all());
}

#[test]
fn the_reference_is_up_to_date() {
    assert_up_to_date("docs/reference.md", &reference::markdown());
}
