//! What is measured of sessions.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

/// Metrics of the bridge.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub(super) sessions: Gauge,
    pub(super) sessions_refused: Counter,
    pub(super) turned_away: Counter,
    pub(super) expelled: Counter,
    pub(super) pending_refused: Counter,
    pub(super) renamed: Counter,
    pub(super) suspicions: Counter,
    pub(super) pushes: Counter,
    pub(super) requests: Counter,
    pub(super) requests_refused: Counter,
}

impl Metrics {
    /// Makes them known.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("sessions", "Agents that this replica holds a session of", metrics.sessions.clone());
        registry.register(
            "sessions_refused",
            "Messages of agents for which there was no room",
            metrics.sessions_refused.clone(),
        );
        registry.register(
            "messages_turned_away",
            "Messages of agents that are denied or revoked, or whose credential does not count any more",
            metrics.turned_away.clone(),
        );
        registry.register(
            "agents_expelled",
            "Live sessions that were ended because the agent or its credential does not count any more",
            metrics.expelled.clone(),
        );
        registry.register(
            "pending_agents_refused",
            "Messages of agents that need approval and cannot have an object to be approved of",
            metrics.pending_refused.clone(),
        );
        registry.register("agents_renamed", "Agents that were given a new instance_uid", metrics.renamed.clone());
        registry.register(
            "duplicate_suspicions",
            "Signs of several agents behind one instance_uid over HTTP",
            metrics.suspicions.clone(),
        );
        registry.register("pushes", "Messages that agents were sent without having asked", metrics.pushes.clone());
        registry.register(
            "certificate_requests",
            "Certificate requests of agents that were found good",
            metrics.requests.clone(),
        );
        registry.register(
            "certificate_requests_refused",
            "Certificate requests of agents that were refused, at once or later",
            metrics.requests_refused.clone(),
        );
        metrics
    }
}
