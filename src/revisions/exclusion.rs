//! Whether two selectors can never select the same agent.

use std::collections::BTreeSet;

use crate::api::selector::{AttributeOperator, AttributeRequirement, AttributeSelector};

/// Whether no agent can be selected by both; an absent selector selects all. The answer is exact: keys are independent
/// of each other, so two selectors exclude each other if and only if they do so on one key.
#[must_use]
pub fn exclude_each_other(first: Option<&AttributeSelector>, second: Option<&AttributeSelector>) -> bool {
    let selectors: Vec<&AttributeSelector> = first.into_iter().chain(second).collect();
    keys(&selectors).into_iter().any(|key| {
        let mut values = Values::default();
        for selector in &selectors {
            if let Some(value) = selector.match_attributes.get(key) {
                values.permit(BTreeSet::from([value.as_str()]));
            }
            let requirements = selector.match_expressions.iter().filter(|requirement| requirement.key == key);
            requirements.for_each(|requirement| values.require(requirement));
        }
        values.is_empty()
    })
}

fn keys<'a>(selectors: &[&'a AttributeSelector]) -> BTreeSet<&'a str> {
    let attributes = selectors.iter().flat_map(|selector| selector.match_attributes.keys().map(String::as_str));
    let expressions = selectors.iter().flat_map(|selector| selector.match_expressions.iter().map(|r| r.key.as_str()));
    attributes.chain(expressions).collect()
}

/// What one attribute may still be under all requirements on it.
#[derive(Default)]
struct Values<'a> {
    /// It must be one of these; `None`: any of the endlessly many.
    permitted: Option<BTreeSet<&'a str>>,
    denied: BTreeSet<&'a str>,
    must_be_present: bool,
    must_be_absent: bool,
}

impl<'a> Values<'a> {
    fn require(&mut self, requirement: &'a AttributeRequirement) {
        let listed = requirement.values.iter().map(String::as_str);
        match requirement.operator {
            AttributeOperator::In => self.permit(listed.collect()),
            AttributeOperator::NotIn => self.denied.extend(listed),
            AttributeOperator::Exists => self.must_be_present = true,
            AttributeOperator::DoesNotExist => self.must_be_absent = true,
        }
    }

    fn permit(&mut self, values: BTreeSet<&'a str>) {
        self.must_be_present = true;
        self.permitted = Some(match self.permitted.take() {
            None => values,
            Some(before) => before.intersection(&values).copied().collect(),
        });
    }

    fn is_empty(&self) -> bool {
        let no_value_left = self.permitted.as_ref().is_some_and(|permitted| permitted.is_subset(&self.denied));
        self.must_be_present && (self.must_be_absent || no_value_left)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn requirement(key: &str, operator: AttributeOperator, values: &[&str]) -> AttributeRequirement {
        AttributeRequirement { key: key.into(), operator, values: values.iter().map(|v| (*v).into()).collect() }
    }

    fn selector(attributes: &[(&str, &str)], expressions: Vec<AttributeRequirement>) -> AttributeSelector {
        AttributeSelector {
            match_attributes: attributes.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            match_expressions: expressions,
        }
    }

    #[test]
    fn selectors_exclude_each_other_on_a_key() {
        use AttributeOperator::{DoesNotExist, Exists, In, NotIn};
        let linux = || selector(&[("os", "linux")], vec![]);
        let with = |operator, values: &[&str]| selector(&[], vec![requirement("os", operator, values)]);
        for (case, second, expected) in [
            ("another value", selector(&[("os", "windows")], vec![]), true),
            ("the same value", linux(), false),
            ("another key", selector(&[("arch", "arm64")], vec![]), false),
            ("In with it", with(In, &["linux", "windows"]), false),
            ("In without it", with(In, &["darwin", "windows"]), true),
            ("NotIn with it", with(NotIn, &["linux"]), true),
            ("NotIn without it", with(NotIn, &["windows"]), false),
            ("Exists", with(Exists, &[]), false),
            ("DoesNotExist", with(DoesNotExist, &[]), true),
        ] {
            assert_eq!(exclude_each_other(Some(&linux()), Some(&second)), expected, "{case}");
            assert_eq!(exclude_each_other(Some(&second), Some(&linux())), expected, "{case}, the other way");
        }
        assert!(!exclude_each_other(None, Some(&linux())), "no selector selects all");
        assert!(!exclude_each_other(None, None));
        assert!(exclude_each_other(Some(&with(Exists, &[])), Some(&with(DoesNotExist, &[]))));
        let both = [requirement("os", In, &["a", "b"]), requirement("os", NotIn, &["a", "b"])];
        assert!(exclude_each_other(Some(&selector(&[], both.to_vec())), None), "it selects nobody");
    }

    fn any_requirement() -> impl Strategy<Value = AttributeRequirement> {
        let operator = prop::sample::select(vec![
            AttributeOperator::In,
            AttributeOperator::NotIn,
            AttributeOperator::Exists,
            AttributeOperator::DoesNotExist,
        ]);
        (
            prop::sample::select(vec!["k", "l"]),
            operator,
            prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 0..4),
        )
            .prop_map(|(key, operator, values)| requirement(key, operator, &values))
    }

    fn any_selector() -> impl Strategy<Value = AttributeSelector> {
        let attributes = prop::collection::btree_map("[kl]", "[abc]", 0..2);
        (attributes, prop::collection::vec(any_requirement(), 0..3))
            .prop_map(|(match_attributes, match_expressions)| AttributeSelector { match_attributes, match_expressions })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn the_answer_is_that_of_trying_all_agents(first in any_selector(), second in any_selector()) {
            // `d` stands for every value that no selector names.
            let values = [None, Some("a"), Some("b"), Some("c"), Some("d")];
            let someone = values.iter().any(|k| values.iter().any(|l| {
                let agent = |key: &str| if key == "k" { *k } else { *l };
                first.matches(agent) && second.matches(agent)
            }));
            prop_assert_eq!(exclude_each_other(Some(&first), Some(&second)), !someone);
        }
    }
}
