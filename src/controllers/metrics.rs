//! What is measured of the leader's work.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::apply::Error;

/// The controllers' metric families.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    plans: Family<PlanLabels, Counter>,
}

#[derive(Clone, Copy, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PlanLabels {
    kind: Kind,
    outcome: Outcome,
}

/// What was planned for.
#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
pub(super) enum Kind {
    AgentFleet,
    RemoteConfig,
    ConnectionSettings,
}

/// What became of a plan.
#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
enum Outcome {
    Applied,
    Outdated,
    Failed,
}

impl Metrics {
    /// Makes them known.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("plans", "Plans of the leader by kind and outcome", metrics.plans.clone());
        metrics
    }

    pub(super) fn planned<T>(&self, kind: Kind, outcome: &Result<T, Error>) {
        let outcome = match outcome {
            Ok(_) => Outcome::Applied,
            Err(Error::Outdated) => Outcome::Outdated,
            Err(Error::TooMany { .. } | Error::Refused(_) | Error::Silent | Error::Occupied(_)) => Outcome::Failed,
        };
        self.plans.get_or_create(&PlanLabels { kind, outcome }).inc();
    }
}
