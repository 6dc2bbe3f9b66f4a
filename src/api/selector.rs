//! Selection of agents by the attributes that they report.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which agents are meant: those for which everything listed holds. An empty selector means all agents that have
/// described themselves.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttributeSelector {
    /// Attributes and the exact value that each must have. Identifying and
    /// non-identifying attributes count alike; where an agent reports one key in
    /// both, the identifying value counts. A value that is no string is compared
    /// in its JSON form, as `status.attributes` of the Agent shows it.
    /// At most 32 keys, values of at most 256 characters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 256}))]
    #[x_kube(
        merge_strategy = MapMerge::Atomic,
        validation = Rule::new("!('' in self)").message("matchAttributes: an attribute's name must not be empty")
    )]
    pub match_attributes: BTreeMap<String, String>,
    /// Conditions on attributes; all must hold, together with matchAttributes.
    /// At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub match_expressions: Vec<AttributeRequirement>,
}

/// A condition on one attribute.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)")
        .message("values: the operators In and NotIn need at least one value"),
    validation = Rule::new("!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) == 0")
        .message("values: must be absent, the operators Exists and DoesNotExist compare no value")
)]
pub struct AttributeRequirement {
    /// The attribute's name, such as `os.type`, of 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// How the attribute is compared.
    ///
    /// Possible values:
    /// - `In`: it has one of the values.
    /// - `NotIn`: it has none of the values, or is absent.
    /// - `Exists`: it is present, whatever its value.
    /// - `DoesNotExist`: it is absent.
    pub operator: AttributeOperator,
    /// The values of `In` and `NotIn`, at least one; absent for `Exists` and
    /// `DoesNotExist`. At most 64 values of at most 256 characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 256)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub values: Vec<String>,
}

/// How an attribute is compared.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
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
