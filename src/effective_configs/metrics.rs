//! What is measured of effective configurations.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::shelf::Attempt;
use crate::api::agent::NotStored;

/// Metrics of the store.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    kept: Gauge,
    waiting: Gauge,
    writes: Family<WriteLabels, Counter>,
    not_stored: Family<NotStoredLabels, Counter>,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct WriteLabels {
    outcome: WriteOutcome,
}

#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
enum WriteOutcome {
    Done,
    Occupied,
    Refused,
    Postponed,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct NotStoredLabels {
    reason: Reason,
}

#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
enum Reason {
    TooLarge,
    NotText,
    TooMany,
    Refused,
}

impl Metrics {
    /// Makes them known.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("effective_configs", "Secrets that hold effective configurations", metrics.kept.clone());
        registry.register(
            "effective_configs_waiting",
            "Effective configurations that wait to be written",
            metrics.waiting.clone(),
        );
        registry.register(
            "effective_config_writes",
            "Attempts to write an effective configuration by outcome",
            metrics.writes.clone(),
        );
        registry.register(
            "effective_configs_not_stored",
            "Reported configurations that were not stored by reason",
            metrics.not_stored.clone(),
        );
        metrics
    }

    pub(super) fn tried(&self, attempt: Attempt) {
        let outcome = match attempt {
            Attempt::Done => WriteOutcome::Done,
            Attempt::Occupied => WriteOutcome::Occupied,
            Attempt::Refused => WriteOutcome::Refused,
            Attempt::Postponed => WriteOutcome::Postponed,
        };
        self.writes.get_or_create(&WriteLabels { outcome }).inc();
    }

    pub(super) fn not_stored(&self, reason: NotStored) {
        let reason = match reason {
            NotStored::TooLarge => Reason::TooLarge,
            NotStored::NotText => Reason::NotText,
            NotStored::TooMany => Reason::TooMany,
            NotStored::Refused => Reason::Refused,
        };
        self.not_stored.get_or_create(&NotStoredLabels { reason }).inc();
    }

    pub(super) fn show(&self, (kept, waiting): (usize, usize)) {
        self.kept.set(i64::try_from(kept).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }
}
