//! Which replica leads.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

use super::{
    Holder, RENEWAL, RENEWAL_DEADLINE,
    hold::{Dress, Error, Failing, Hold, Standing},
};

/// The Lease that makes its holder the leader.
pub const LEADER_LEASE: &str = "opamp-operator";

/// The pause after a request that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Whether this replica leads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Leading {
    /// It does: the controllers run here.
    Yes,
    /// It does not.
    No,
}

/// What is measured of the election.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    leading: Gauge,
}

impl Metrics {
    /// Makes them known.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("leading", "Whether this replica leads: 1, or 0", metrics.leading.clone());
        metrics
    }

    fn show(&self, now: Leading) {
        self.leading.set(match now {
            Leading::Yes => 1,
            Leading::No => 0,
        });
    }
}

/// The candidate for the lead.
pub struct Election {
    hold: Hold,
    leading: watch::Sender<Leading>,
    metrics: Metrics,
    /// When the last successful renewal was begun.
    renewed: Option<Instant>,
    failing: Failing,
}

impl Election {
    /// A candidate for the lead of the operator that lives in this namespace. `client` must have no retries of its own:
    /// a renewal that comes late is worse than one that failed.
    #[must_use]
    pub fn new(client: Client, namespace: &str, me: Holder, metrics: Metrics) -> (Self, watch::Receiver<Leading>) {
        let (leading, receiver) = watch::channel(Leading::No);
        let api: Api<Lease> = Api::namespaced(client, namespace);
        let hold = Hold::new(api, LEADER_LEASE.into(), me);
        (Self { hold, leading, metrics, renewed: None, failing: Failing::default() }, receiver)
    }

    /// Stands for election until `shutdown`, then gives the lead up. The controllers should have ended before: what
    /// they still write afterwards is held back by its resourceVersion only.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let pause = self.step().await;
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = time::sleep(pause) => {}
            }
        }
        announce(&self.leading, &self.metrics, Leading::No);
        if let Err(error) = self.hold.release().await {
            tracing::warn!(%error, "the lead could not be given up; the next leader waits until the Lease expires");
        }
    }

    /// One attempt; says how long to pause after it.
    async fn step(&mut self) -> Duration {
        let begun = now();
        let result = self.attempt(begun).await;
        let now = now();
        match result {
            Ok(Standing::Held) => {
                self.failing.ended(LEADER_LEASE);
                self.renewed = Some(begun);
                announce(&self.leading, &self.metrics, Leading::Yes);
                RENEWAL.saturating_sub(now - begun)
            }
            Ok(Standing::Others { until }) => {
                self.failing.ended(LEADER_LEASE);
                self.renewed = None;
                announce(&self.leading, &self.metrics, Leading::No);
                until.saturating_duration_since(now).clamp(Duration::from_millis(200), RENEWAL)
            }
            Err(error) => {
                self.failing.again(LEADER_LEASE, &error);
                self.renewed = self.renewed.filter(|renewed| now < *renewed + RENEWAL_DEADLINE);
                let Some(overdue) = self.overdue() else {
                    announce(&self.leading, &self.metrics, Leading::No);
                    return RETRY;
                };
                overdue.saturating_duration_since(now).min(RETRY)
            }
        }
    }

    /// The lead ends in time even while an attempt is under way: it consists of several requests.
    async fn attempt(&mut self, begun: Instant) -> Result<Standing, Error> {
        let overdue = self.overdue();
        let dress = Dress::default();
        let mut attempt = pin!(self.hold.step(&dress, begun));
        if let Some(overdue) = overdue {
            tokio::select! {
                result = &mut attempt => return result,
                () = time::sleep_until(overdue.into()) => announce(&self.leading, &self.metrics, Leading::No),
            }
        }
        attempt.await
    }

    /// When the lead ends unless it is renewed; `None` while this replica has not led.
    fn overdue(&self) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + RENEWAL_DEADLINE)
    }
}

fn now() -> Instant {
    time::Instant::now().into_std()
}

fn announce(leading: &watch::Sender<Leading>, metrics: &Metrics, now: Leading) {
    metrics.show(now);
    leading.send_if_modified(|leading| {
        let changed = *leading != now;
        if changed {
            match now {
                Leading::Yes => tracing::info!("this replica leads"),
                Leading::No => tracing::info!("this replica no longer leads"),
            }
        }
        *leading = now;
        changed
    });
}
