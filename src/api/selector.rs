//! Selection of agents by the attributes that they report.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Which agents are meant: those for which every listed condition holds. An empty selector selects all agents that
/// have described themselves.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttributeSelector {
    /// Attributes and the values that they must have, identifying or not; an
    /// identifying attribute wins over another of the same name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    pub match_attributes: BTreeMap<String, String>,
    /// Conditions on attributes; all must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_expressions: Vec<AttributeRequirement>,
}

/// A condition on one attribute.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttributeRequirement {
    /// The attribute's name, such as `os.type`.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// How the attribute is compared.
    ///
    /// Possible values:
    /// - `In`: it has one of the values.
    /// - `NotIn`: it has none of the values, or is absent.
    /// - `Exists`: it is present.
    /// - `DoesNotExist`: it is absent.
    pub operator: AttributeOperator,
    /// The values of `In` and `NotIn`; absent for the other operators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 256)))]
    pub values: Vec<String>,
}

/// How an attribute is compared.
#[derive(Clone, Copy, Debug, Deserialize, Eq, schemars::JsonSchema, PartialEq, Serialize)]
pub enum AttributeOperator {
    /// One of the values.
    In,
    /// None of the values, or absent.
    NotIn,
    /// Present.
    Exists,
    /// Absent.
    DoesNotExist,
}

impl AttributeSelector {
    /// Whether an agent with these attributes is meant; `attribute` gives the value of a key.
    #[must_use]
    pub fn matches<'a>(&self, attribute: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.match_attributes.iter().all(|(key, value)| attribute(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(attribute(&requirement.key)))
    }
}

impl AttributeRequirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let listed = || value.is_some_and(|value| self.values.iter().any(|listed| listed == value));
        match self.operator {
            AttributeOperator::In => listed(),
            AttributeOperator::NotIn => !listed(),
            AttributeOperator::Exists => value.is_some(),
            AttributeOperator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_holds_as_kubernetes_selectors_do() {
        let values = vec!["linux".to_owned(), "windows".to_owned()];
        for (operator, value, expected) in [
            (AttributeOperator::In, Some("linux"), true),
            (AttributeOperator::In, Some("darwin"), false),
            (AttributeOperator::In, None, false),
            (AttributeOperator::NotIn, Some("linux"), false),
            (AttributeOperator::NotIn, None, true),
            (AttributeOperator::Exists, Some(""), true),
            (AttributeOperator::Exists, None, false),
            (AttributeOperator::DoesNotExist, None, true),
            (AttributeOperator::DoesNotExist, Some("x"), false),
        ] {
            let requirement = AttributeRequirement { key: "os.type".into(), operator, values: values.clone() };
            assert_eq!(requirement.matches(value), expected, "{operator:?} on {value:?}");
        }
    }
}
