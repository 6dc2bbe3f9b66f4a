//! What an operator of the operator sees of the writer.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The writer's metric families.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    writes: Family<WriteLabels, Counter>,
    budget: Gauge<f64, AtomicU64>,
    waiting: Gauge,
    in_flight: Gauge,
    without_object: Gauge,
    superseded: Counter,
}

#[derive(Clone, Copy, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct WriteLabels {
    operation: Operation,
    outcome: Outcome,
}

/// A request to the API server.
#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
pub(super) enum Operation {
    Get,
    Create,
    Status,
    Labels,
    Delete,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
pub(super) enum Outcome {
    Done,
    Conflict,
    AlreadyExists,
    NotFound,
    Throttled,
    Unreachable,
    NoAnswer,
    Uncertain,
    Refused,
}

impl Metrics {
    /// Fresh families, shown by `registry` with the prefix `opamp_operator_`.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("opamp_operator");
        registry.register(
            "agent_writes",
            "Requests about Agent objects by operation and outcome",
            metrics.writes.clone(),
        );
        registry.register(
            "agent_write_budget",
            "Writes of Agent objects that may be made at once now",
            metrics.budget.clone(),
        );
        registry.register("agent_writes_waiting", "Agents whose object waits to be written", metrics.waiting.clone());
        registry.register("agent_writes_in_flight", "Agents whose object is being written", metrics.in_flight.clone());
        registry.register(
            "agents_without_object",
            "Connected agents that are served without an object, because there are as many as permitted",
            metrics.without_object.clone(),
        );
        registry.register(
            "agents_superseded",
            "Agents whose object was claimed by a session elsewhere",
            metrics.superseded.clone(),
        );
        metrics
    }

    pub(super) fn requested(&self, operation: Operation, outcome: Outcome) {
        self.writes.get_or_create(&WriteLabels { operation, outcome }).inc();
    }

    pub(super) fn superseded(&self) {
        self.superseded.inc();
    }

    pub(super) fn show_budget(&self, level: f64) {
        self.budget.set(level);
    }

    pub(super) fn show_queue(&self, waiting: usize, in_flight: usize) {
        self.waiting.set(count(waiting));
        self.in_flight.set(count(in_flight));
    }

    pub(super) fn show_without_object(&self, agents: usize) {
        self.without_object.set(count(agents));
    }
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn families_appear_with_prefix_and_labels() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.requested(Operation::Status, Outcome::Conflict);
        metrics.show_budget(1_999.5);
        metrics.show_queue(3, 1);
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        for line in [
            "opamp_operator_agent_writes_total{operation=\"Status\",outcome=\"Conflict\"} 1",
            "opamp_operator_agent_write_budget 1999.5",
            "opamp_operator_agent_writes_waiting 3",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
