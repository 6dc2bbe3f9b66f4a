//! `docs/operations.md` has a line for each metric.

use std::{collections::BTreeSet, fs};

use super::{files_below, text_of};

/// The names in `registry.register("name", …)` and `encoder.encode_descriptor("name", …)`; all have the prefix `opamp_operator_`. A family without a label yet is
/// not shown by the registry itself, so that the source is read.
fn registered() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files_below("src", "rs").into_iter().filter(|file| !file.ends_with(file!())) {
        let source = fs::read_to_string(file).unwrap();
        let calls = source.split("registry.register(").skip(1);
        let collectors = source.split("encoder.encode_descriptor(").skip(1);
        names.extend(calls.chain(collectors).map(|call| format!("opamp_operator_{}", call.split('"').nth(1).unwrap())));
    }
    names
}

#[test]
fn the_page_on_operations_tells_every_metric_and_no_other() {
    let page = text_of("docs/operations.md");
    let names = page.lines().filter_map(|line| line.strip_prefix("| `opamp_operator_")?.split('`').next());
    let told: BTreeSet<_> = names.map(|name| format!("opamp_operator_{}", name.trim_end_matches("_total"))).collect();
    assert_eq!(told, registered());
}
