//! How much an agent could run.

use std::collections::BTreeMap;

use crate::opamp::messages::ComponentDetails;

/// Leaves and inner nodes of the map (CMPN-07).
#[must_use]
pub fn count(components: &BTreeMap<String, ComponentDetails>) -> usize {
    components.values().map(|details| 1 + count(&details.sub_component_map)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_and_inner_nodes_are_counted() {
        let leaf = ComponentDetails::default;
        let receivers = ComponentDetails {
            sub_component_map: [("otlp".into(), leaf()), ("hostmetrics".into(), leaf())].into(),
            ..leaf()
        };
        assert_eq!(count(&[("receivers".into(), receivers), ("service".into(), leaf())].into()), 4);
        assert_eq!(count(&BTreeMap::new()), 0);
    }
}
