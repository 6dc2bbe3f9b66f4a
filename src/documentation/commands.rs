//! The commands that the pages give as evidence run at least one test.

use std::fs;

use super::{files_below, names::all_tests, root};

/// What stands in front of the part of a test's name, and in front of the names of such tests.
const COMMANDS: &[(&str, &str)] = &[("cargo test --lib ", ""), ("make e2e TEST=", "e2e::")];

#[test]
fn each_command_that_is_given_runs_a_test() {
    let tests = all_tests();
    let mut idle = Vec::new();
    for page in files_below("docs", "md") {
        let text = fs::read_to_string(&page).unwrap();
        for (command, place) in COMMANDS {
            for after in text.split(command).skip(1) {
                let filter = after.split(|letter: char| letter.is_whitespace() || letter == '`').next().unwrap();
                if !tests.iter().any(|test| test.starts_with(place) && test.contains(filter)) {
                    idle.push(format!("{}: {command}{filter}", page.strip_prefix(root()).unwrap().display()));
                }
            }
        }
    }
    assert_eq!(idle, Vec::<String>::new());
}
