//! `docs/conformance.md` names every row of the conformance matrix once, and each test that it names is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use super::{files_below, root, text_of};

/// The rows of the matrix, in order: each group with the number of its last row.
const ROWS: &[(&str, usize)] = &[
    ("TRN", 5),
    ("WS", 8),
    ("HTTP", 12),
    ("A2S", 8),
    ("S2A", 10),
    ("CMD", 4),
    ("STS", 10),
    ("CMP", 11),
    ("CFG", 14),
    ("CON", 24),
    ("HB", 6),
    ("TEL", 3),
    ("CSR", 12),
    ("PKG", 18),
    ("CUS", 7),
    ("CMPN", 7),
    ("CONN", 8),
    ("DUP", 4),
    ("AUTH", 4),
    ("ERR", 6),
    ("RTY", 4),
    ("THR", 5),
    ("SEC", 4),
    ("INT", 6),
];

/// What is unclear in the specification, and what was chosen.
const AMBIGUITIES: &[(&str, usize)] = &[("AMB", 46)];

/// One line of a table of the page.
struct Row {
    id: String,
    state: State,
    tests: Vec<String>,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum State {
    /// The server's part, and it does it.
    Done,
    /// The client's part; the server lives with whatever comes.
    Tolerated,
    /// Something is missing.
    NotYet,
}

impl Row {
    /// `| id | what | state | tests |`; other lines are none.
    fn read(line: &str) -> Option<Self> {
        let cells: Vec<_> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").map(str::trim).collect();
        let (group, number) = cells.first()?.split_once('-')?;
        let is_id = number.len() == 2 && number.chars().all(|digit| digit.is_ascii_digit());
        if !is_id || !group.chars().all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit()) {
            return None;
        }
        let [id, what, state, tests] = cells[..] else { panic!("{line}: four cells") };
        assert!(!what.is_empty(), "{id} says what it asks for");
        let state = match state {
            "done" => State::Done,
            "tolerated" => State::Tolerated,
            missing => {
                let what = missing.strip_prefix("not yet: ").unwrap_or_else(|| panic!("{id}: the state {missing:?}"));
                assert!(!what.is_empty(), "{id} says what is missing");
                State::NotYet
            }
        };
        let tests = tests.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Some(Self { id: id.into(), state, tests })
    }
}

fn page() -> String {
    text_of("docs/conformance.md")
}

fn ids(groups: &[(&str, usize)]) -> Vec<String> {
    groups.iter().flat_map(|(group, last)| (1..=*last).map(move |number| format!("{group}-{number:02}"))).collect()
}

#[test]
fn every_row_and_every_ambiguity_is_listed_once_and_in_order() {
    assert_eq!(ids(ROWS).len(), 200, "the matrix has so many rows");
    let listed: Vec<_> = page().lines().filter_map(Row::read).map(|row| row.id).collect();
    assert_eq!(listed, [ids(ROWS), ids(AMBIGUITIES)].concat());
}

#[test]
fn what_is_done_or_tolerated_is_shown_by_a_test() {
    let shown_by_none: Vec<_> = page()
        .lines()
        .filter_map(Row::read)
        .filter(|row| row.state != State::NotYet && row.tests.is_empty())
        .map(|row| row.id)
        .collect();
    assert_eq!(shown_by_none, Vec::<String>::new());
}

#[test]
fn each_test_that_is_named_exists() {
    let tests = all_tests();
    let mut missing = Vec::new();
    for row in page().lines().filter_map(Row::read) {
        missing.extend(row.tests.into_iter().filter(|test| !tests.contains(test)).map(|test| (row.id.clone(), test)));
    }
    assert_eq!(missing, []);
}

#[test]
fn the_sums_of_the_page_are_right() {
    let page = page();
    let (mut rows, mut ambiguities) = (BTreeMap::<_, usize>::new(), BTreeMap::<_, usize>::new());
    for row in page.lines().filter_map(Row::read) {
        let sums = if row.id.starts_with("AMB-") { &mut ambiguities } else { &mut rows };
        *sums.entry(row.state).or_default() += 1;
    }
    for (name, sums) in [("rows", rows), ("ambiguities", ambiguities)] {
        let of = |state| sums.get(&state).copied().unwrap_or_default();
        let (done, tolerated, not_yet) = (of(State::Done), of(State::Tolerated), of(State::NotYet));
        let line = format!("| {name} | {done} | {tolerated} | {not_yet} | {} |", done + tolerated + not_yet);
        assert!(page.lines().any(|found| found == line), "the page has the line {line}");
    }
}

/// Every test of the package by the name that `cargo test` gives it; before those of `tests/` stands the binary.
fn all_tests() -> BTreeSet<String> {
    let files = [files_below("src"), files_below("tests")].concat();
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
