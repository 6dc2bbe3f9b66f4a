//! The names of all tests, read from the source: those of `tests/` are in other binaries.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use super::{files_below, root};

/// Every test of the package by the name that `cargo test` gives it; before those of `tests/` stands the binary.
pub(super) fn all_tests() -> BTreeSet<String> {
    let files = [files_below("src", "rs"), files_below("tests", "rs")].concat();
    let mut modules: BTreeMap<PathBuf, String> = files.iter().map(|file| (file.clone(), module_of(file))).collect();
    for file in &files {
        for (path, name) in modules_elsewhere(&fs::read_to_string(file).unwrap()) {
            let module = join(&modules[file], &name);
            modules.insert(file.with_file_name(path), module);
        }
    }
    modules.iter().flat_map(|(file, module)| tests_in(&fs::read_to_string(file).unwrap(), module)).collect()
}

/// `src/opamp/session/mod.rs` is `opamp::session`, `tests/e2e/crowds.rs` is `e2e::crowds`.
fn module_of(file: &Path) -> String {
    let relative = file.strip_prefix(root()).unwrap().with_extension("");
    let names: Vec<_> = relative.iter().skip(1).map(|name| name.to_str().unwrap()).collect();
    let end = names.len() - usize::from(["mod", "main", "lib"].contains(names.last().unwrap()));
    names[..end].join("::")
}

/// Modules whose file has another name: `#[path = "decoder_tests.rs"]` before `mod tests;`.
fn modules_elsewhere(text: &str) -> Vec<(String, String)> {
    let lines: Vec<_> = text.lines().collect();
    let named = lines.windows(2).filter_map(|pair| {
        let path = pair[0].trim().strip_prefix("#[path = \"")?.strip_suffix("\"]")?;
        let name = pair[1].trim().strip_prefix("mod ")?.strip_suffix(';')?;
        (!path.contains('/')).then(|| (path.to_owned(), name.to_owned()))
    });
    named.collect()
}

/// The functions behind `#[test]` and `#[tokio::test]`, inside and outside of `mod name { … }` at the margin.
fn tests_in(text: &str, module: &str) -> Vec<String> {
    let (mut tests, mut inner, mut is_test) = (Vec::new(), None, false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
            inner = Some(name);
        } else if line == "}" {
            inner = None;
        }
        let line = line.trim_start();
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some(name) = function.and_then(|rest| rest.split('(').next())
            && std::mem::take(&mut is_test)
        {
            tests.push(join(&inner.map_or_else(|| module.to_owned(), |inner| join(module, inner)), name));
        }
    }
    tests
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}
