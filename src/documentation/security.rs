//! `docs/security.md` gives a test for each attack, and each test that it names is there.

use super::{names::all_tests, text_of};

const PAGE: &str = "docs/security.md";

/// Attacks that a security team would ask about: fewer, and rows were lost.
const FEWEST_ATTACKS: usize = 40;

/// The names of tests in a text: what stands in code style and has `::` in it, but for the target of the audit line.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter(|name| name.contains("::") && *name != "e2e::" && *name != "integration::")
        .filter(|name| !name.starts_with("opamp_operator::"))
}

#[test]
fn each_test_that_is_named_exists() {
    let (tests, page) = (all_tests(), text_of(PAGE));
    let prose = page.lines().filter(|line| !line.starts_with("```"));
    let missing: Vec<_> = prose.flat_map(tests_in).filter(|name| !tests.contains(*name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn each_attack_is_shown_by_a_test() {
    let page = text_of(PAGE);
    let (_, after) = page.split_once("\n## The attacks\n").unwrap();
    let table = after.split("\n## ").next().unwrap();
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() >= FEWEST_ATTACKS, "{} attacks", rows.len());
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").collect();
        let [_, _, shown_by] = cells[..] else { panic!("{row}: three cells") };
        assert!(tests_in(shown_by).next().is_some(), "{row}");
    }
}
