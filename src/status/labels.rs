//! The labels of an Agent: what people select by.

use std::collections::BTreeMap;

use super::view::AgentView;
use crate::api::FLEET_LABEL;

/// The attributes that become labels.
const LABELS: [(&str, &str); 5] = [
    ("opamp.dev/service-name", "service.name"),
    ("opamp.dev/service-version", "service.version"),
    ("opamp.dev/os-type", "os.type"),
    ("opamp.dev/host-arch", "host.arch"),
    ("opamp.dev/host-name", "host.name"),
];
/// The limit of a label's value in Kubernetes.
const VALUE_LIMIT: usize = 63;

/// What an agent's labels have to be: a value, or `None` for a label that must go. Those that are not named stay as they
/// are: the last fleet of an agent that lost it, and all of an agent that has not described itself.
#[must_use]
pub fn labels(view: &AgentView) -> BTreeMap<&'static str, Option<String>> {
    let fleet = view.fleet().map(|fleet| (FLEET_LABEL, Some(fleet.name.clone())));
    let described = view.record.description.iter().flat_map(|description| {
        LABELS.iter().map(|(label, attribute)| {
            (*label, description.get(attribute).filter(|value| is_legal(value)).map(ToOwned::to_owned))
        })
    });
    fleet.into_iter().chain(described).collect()
}

/// Whether Kubernetes takes it as the value of a label; an empty one says nothing.
fn is_legal(value: &str) -> bool {
    let inner = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let outer = |character: Option<char>| character.is_some_and(|character| character.is_ascii_alphanumeric());
    value.len() <= VALUE_LIMIT
        && value.chars().all(inner)
        && outer(value.chars().next())
        && outer(value.chars().next_back())
}

#[cfg(test)]
mod tests {
    use super::{super::view::tests::view, *};
    use crate::status::view::{AssignmentView, UnmatchedBecause};

    #[test]
    fn only_values_that_kubernetes_takes_become_labels() {
        for (value, expected) in [
            ("otelcol-contrib_1.2", true),
            ("A", true),
            (&"a".repeat(63), true),
            (&"a".repeat(64), false),
            ("", false),
            ("-a", false),
            ("a.", false),
            ("a b", false),
            ("é", false),
        ] {
            assert_eq!(is_legal(value), expected, "{value:?}");
        }
    }

    #[test]
    fn labels_follow_the_attributes() {
        let labels = labels(&view());
        assert_eq!(labels["opamp.dev/fleet"].as_deref(), Some("edge"));
        assert_eq!(labels["opamp.dev/service-version"].as_deref(), Some("0.140.0"));
        assert_eq!(labels["opamp.dev/host-name"], None, "node 1 is no legal value: the label must go");
        assert_eq!(labels["opamp.dev/host-arch"], None, "it has not said");
    }

    #[test]
    fn the_label_of_the_last_fleet_stays_and_so_do_all_before_a_description() {
        let mut view = view();
        view.assignment = AssignmentView::Unmatched(UnmatchedBecause::NoFleetSelects);
        assert!(!labels(&view).contains_key(FLEET_LABEL));
        view.record.description = None;
        assert!(labels(&view).is_empty());
    }
}
