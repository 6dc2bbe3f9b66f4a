//! The tree of `ComponentHealth` → what people are shown of it.

use jiff::Timestamp;

use super::{cut, shorten};
use crate::opamp::{
    messages::ComponentHealth,
    record::{Health, UnhealthyComponent},
};

/// Unhealthy components that are named; the others are counted.
const COMPONENTS_LIMIT: usize = 10;
/// Bytes of a status in the agent's own words.
const STATUS_LIMIT: usize = 128;
/// Bytes of the agent's own error, and of one component's.
const ERROR_LIMIT: usize = 512;
const COMPONENT_ERROR_LIMIT: usize = 256;
/// Bytes of a path.
const PATH_LIMIT: usize = 256;

/// Flattens the tree: the root's own words, and the components that are not healthy, parents before children.
#[must_use]
pub fn health(root: &ComponentHealth) -> Health {
    let mut health = Health {
        healthy: root.healthy,
        status: shorten(&root.status, STATUS_LIMIT),
        last_error: shorten(&root.last_error, ERROR_LIMIT),
        started_at: moment(root.start_time_unix_nano),
        unhealthy_components: Vec::new(),
        unhealthy_left_out: 0,
    };
    visit(root, &mut Vec::new(), &mut health);
    health
}

/// 0 means that it does not run.
fn moment(unix_nanoseconds: u64) -> Option<Timestamp> {
    if unix_nanoseconds == 0 { None } else { Timestamp::from_nanosecond(i128::from(unix_nanoseconds)).ok() }
}

fn visit<'a>(parent: &'a ComponentHealth, path: &mut Vec<&'a str>, health: &mut Health) {
    for (name, component) in &parent.component_health_map {
        path.push(name);
        if !component.healthy {
            if health.unhealthy_components.len() < COMPONENTS_LIMIT {
                health.unhealthy_components.push(unhealthy(component, path));
            } else {
                health.unhealthy_left_out += 1;
            }
        }
        visit(component, path, health);
        path.pop();
    }
}

fn unhealthy(component: &ComponentHealth, path: &[&str]) -> UnhealthyComponent {
    // Each name is cut before they are joined: there can be a hundred, each as long as a message.
    let path = path.iter().map(|name| cut(name, PATH_LIMIT)).collect::<Vec<_>>().join("/");
    UnhealthyComponent {
        path: shorten(&path, PATH_LIMIT),
        status: shorten(&component.status, STATUS_LIMIT),
        last_error: shorten(&component.last_error, COMPONENT_ERROR_LIMIT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Healthy without an error, else not.
    fn component(error: &str, children: Vec<(&str, ComponentHealth)>) -> ComponentHealth {
        ComponentHealth {
            healthy: error.is_empty(),
            last_error: error.into(),
            status: "Status".into(),
            component_health_map: children.into_iter().map(|(name, child)| (name.into(), child)).collect(),
            ..ComponentHealth::default()
        }
    }

    #[test]
    fn an_unhealthy_component_is_named_by_its_place_in_the_tree() {
        // STS-10
        let exporter = component("connection refused", vec![]);
        let pipeline = component("", vec![("exporter:otlp", exporter), ("receiver:otlp", component("", vec![]))]);
        let root = component("degraded", vec![("pipeline:traces", pipeline)]);
        assert_eq!(
            health(&root),
            Health {
                healthy: false,
                status: "Status".into(),
                last_error: "degraded".into(),
                started_at: None,
                unhealthy_components: vec![UnhealthyComponent {
                    path: "pipeline:traces/exporter:otlp".into(),
                    status: "Status".into(),
                    last_error: "connection refused".into(),
                }],
                unhealthy_left_out: 0,
            }
        );
    }

    #[test]
    fn ten_unhealthy_components_are_named_and_the_others_counted() {
        let names: Vec<String> = (0..25).map(|index| format!("c{index:02}")).collect();
        let children = names.iter().map(|name| (name.as_str(), component("down", vec![]))).collect();
        let health = health(&component("", children));
        assert_eq!((health.unhealthy_components.len(), health.unhealthy_left_out), (10, 15));
        assert_eq!(health.unhealthy_components[9].path, "c09");
    }

    #[test]
    fn times_at_the_edges_are_taken_as_they_are() {
        // STS-10: fixed64 extremes
        assert_eq!(moment(0), None, "it does not run");
        assert_eq!(moment(1_000_000_000).map(Timestamp::as_second), Some(1));
        assert_eq!(moment(u64::MAX).map(Timestamp::as_second), Some(18_446_744_073));
    }

    #[test]
    fn a_hostile_tree_leaves_little_behind() {
        let long = "x".repeat(100_000);
        let mut tree = component(&long, vec![]);
        for _ in 0..90 {
            tree = component(&long, vec![(long.as_str(), tree)]);
        }
        let health = health(&tree);
        assert_eq!((health.last_error.len(), health.last_error.ends_with('…')), (512, true));
        assert_eq!((health.unhealthy_components.len(), health.unhealthy_left_out), (10, 80));
        assert!(health.unhealthy_components.iter().all(|it| it.path.len() <= 256 && it.last_error.len() <= 256));
    }
}
