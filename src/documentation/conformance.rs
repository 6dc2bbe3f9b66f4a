//! `docs/conformance.md` names every row of the conformance matrix once, and each test that it names is there.

use std::collections::BTreeMap;

use super::{names::all_tests, text_of};

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
