//! Files of one name that one member could get twice.

use super::{exclusion::exclude_each_other, finding::Finding};
use crate::api::{reasons::FleetReason, selector::AttributeSelector};

/// Most clashes that are told apart; the author corrects the first ones first.
const MOST_FINDINGS: usize = 8;

/// The names of an entry's files, and who gets them.
pub(super) struct Names<'a> {
    /// The name of the `RemoteConfig`.
    pub remote_config: &'a str,
    /// Which members get it.
    pub selector: Option<&'a AttributeSelector>,
    /// The names of its files.
    pub files: Vec<&'a str>,
}

/// Each pair of entries that could give one member two files of one name, or the empty name beside another: on the
/// wire names are the keys of a map (CFG-12), and the empty one is for an only file (CFG-13).
pub(super) fn find_clashes(entries: &[Names<'_>]) -> Vec<Finding> {
    let within = entries.iter().filter_map(clash_within);
    let pairs = entries
        .iter()
        .enumerate()
        .flat_map(|(index, first)| entries[index + 1..].iter().filter_map(move |second| clash_between(first, second)));
    let messages = within.chain(pairs).take(MOST_FINDINGS);
    messages.map(|message| Finding::fleet(FleetReason::FileNameClash, message)).collect()
}

fn clash_within(entry: &Names<'_>) -> Option<String> {
    let name = entry.files.iter().enumerate().find_map(|(index, name)| {
        let others = &entry.files[index + 1..];
        others.iter().any(|other| clash(name, other)).then_some(name)
    })?;
    Some(format!("RemoteConfig {} has the file {name:?} twice, or beside a file without a name", entry.remote_config))
}

fn clash_between(first: &Names<'_>, second: &Names<'_>) -> Option<String> {
    let (one, other) = first
        .files
        .iter()
        .find_map(|one| second.files.iter().find(|other| clash(one, other)).map(|other| (*one, *other)))?;
    if exclude_each_other(first.selector, second.selector) {
        return None;
    }
    let what = if one == other {
        format!("the file {one:?}")
    } else {
        format!("{one:?} and {other:?} (a file without a name must be the only one)")
    };
    Some(format!(
        "a member could get {what} from RemoteConfig {} and RemoteConfig {}: rename one, or give both entries selectors that \
         exclude each other on a key",
        first.remote_config, second.remote_config,
    ))
}

fn clash(one: &str, other: &str) -> bool {
    one == other || one.is_empty() || other.is_empty()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn os(value: &str) -> AttributeSelector {
        AttributeSelector { match_attributes: BTreeMap::from([("os.type".into(), value.into())]), ..Default::default() }
    }

    #[test]
    fn files_clash_unless_no_member_could_get_both() {
        let (linux, windows) = (os("linux"), os("windows"));
        for (case, first, second, expected) in [
            ("different names", (None, vec!["a"]), (None, vec!["b"]), 0),
            ("one name for all", (None, vec!["x", "a"]), (None, vec!["a"]), 1),
            ("one name, one selector", (Some(&linux), vec!["a"]), (None, vec!["a"]), 1),
            ("one name, the same selector", (Some(&linux), vec!["a"]), (Some(&linux), vec!["a"]), 1),
            ("one name, selectors that exclude each other", (Some(&linux), vec!["a"]), (Some(&windows), vec!["a"]), 0),
            ("no name beside another", (None, vec![""]), (Some(&linux), vec!["a"]), 1),
            ("no name elsewhere", (Some(&windows), vec![""]), (Some(&linux), vec!["a"]), 0),
            ("twice in itself", (None, vec!["a", "a"]), (None, vec!["b"]), 1),
            ("no name in itself", (None, vec!["a", ""]), (Some(&linux), vec![]), 1),
        ] {
            let entries = [("first", first), ("second", second)].map(|(remote_config, (selector, files))| Names {
                remote_config,
                selector,
                files,
            });
            assert_eq!(find_clashes(&entries).len(), expected, "{case}");
        }
    }

    #[test]
    fn the_message_names_the_file_and_both_remote_configs() {
        let names = |remote_config| Names { remote_config, selector: None, files: vec!["rules.yaml"] };
        let [Finding::Fleet { reason, message }] = &find_clashes(&[names("base"), names("gpu")])[..] else {
            panic!("one finding on the fleet")
        };
        assert_eq!(*reason, FleetReason::FileNameClash);
        assert!(["\"rules.yaml\"", "base", "gpu"].iter().all(|word| message.contains(word)), "{message}");
    }

    #[test]
    fn many_clashes_are_told_up_to_a_number() {
        let entries: Vec<_> = (0..64).map(|_| Names { remote_config: "x", selector: None, files: vec!["a"] }).collect();
        assert_eq!(find_clashes(&entries).len(), MOST_FINDINGS);
    }
}
