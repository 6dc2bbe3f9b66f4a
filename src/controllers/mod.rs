//! Everything that runs on the leader only, started and stopped with the lead.
//!
//! [`run`] waits for the lead. While this replica has it, [`leader`] owns all that the leader knows: what [`watches`]
//! show, an [`agenda`] of what is due, and for each object what was [`held`] from the last look. What is to be written
//! is planned by pure functions of [`crate::fleets`], [`crate::remote_configs`], [`crate::connection_settings`] and
//! [`chores`]; [`apply`] and
//! [`carry_out`] are the only places that write. With the lead all of that goes: the next term lists and plans anew.

mod agenda;
mod apply;
mod carry_out;
mod certificates;
mod chores;
mod due;
mod faults;
mod held;
mod leader;
mod metrics;
pub mod roll;
mod settings;
#[cfg(test)]
mod tests;
mod watches;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use kube::Client;
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

use self::leader::{Ended, Leader};
pub use self::metrics::Metrics;
use crate::{
    agents::index::AgentIndex,
    catalog::{CatalogHandle, Policy},
    credentials::{self, certificates::Certificates, registrar::RegistrarSettings, trust::Trust},
    effective_configs,
    events::Publisher,
    kubernetes::{ObjectKey, Scope, WatchClient},
    lease::Leading,
    status::budget::{Budget, Heard},
};

/// What the controllers need of the process around them.
pub struct Context {
    /// For requests, without retries of its own.
    pub client: Client,
    /// For watches.
    pub watch_client: WatchClient,
    /// The namespaces that are served.
    pub scope: Scope,
    /// The operator's own namespace, where the Leases are.
    pub namespace: String,
    /// The name of this replica, for events.
    pub replica: String,
    /// What the command line permits.
    pub policy: Policy,
    /// All Agents.
    pub agents: AgentIndex,
    /// All fleets as bridges see them, for agents that are not connected.
    pub catalog: Arc<CatalogHandle>,
    /// The Secrets with effective configurations.
    pub texts: effective_configs::Store,
    /// What this replica may write about Agents; its bridge spends from the same.
    pub budget: Arc<Mutex<Budget>>,
    /// The certificates of agents.
    pub certificates: Certificates,
    /// Whom this replica believes.
    pub trust: Trust,
    /// The Secrets with CAs for clients that vouch for nobody, each with the reason.
    pub unusable_cas: watch::Receiver<BTreeMap<ObjectKey, String>>,
    /// How certificates are made.
    pub registrar: RegistrarSettings,
    /// What is measured of that.
    pub certificate_metrics: credentials::metrics::Metrics,
    /// What is measured of the controllers.
    pub metrics: Metrics,
}

impl Context {
    /// Waits until the budget has a token, and takes it.
    async fn spend(&self) {
        loop {
            let taken = self.budget.lock().unwrap_or_else(PoisonError::into_inner).take(leader::now());
            match taken {
                Ok(()) => return,
                Err(again) => time::sleep_until(time::Instant::from_std(again)).await,
            }
        }
    }

    /// Tells the budget how the API server took a write.
    fn note<T>(&self, outcome: &Result<T, apply::Error>) {
        let heard = match outcome {
            Err(apply::Error::TooMany { retry_after }) => Heard::TooMany { retry_after: *retry_after },
            Err(apply::Error::Refused(kube::Error::Api(_)) | apply::Error::Outdated | apply::Error::Occupied(_))
            | Ok(_) => Heard::Answer,
            Err(apply::Error::Refused(_) | apply::Error::Silent) => Heard::Nothing,
        };
        self.budget.lock().unwrap_or_else(PoisonError::into_inner).heard(heard, leader::now());
    }
}

/// Runs the controllers whenever this replica leads, until `shutdown`. Losing the lead stops them and nothing else.
pub async fn run(context: Arc<Context>, mut leading: watch::Receiver<Leading>, shutdown: CancellationToken) {
    let publisher = Publisher::new(context.client.clone(), &context.replica);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            known = becomes(&mut leading, Leading::Yes) => if known == Known::Never { return },
        }
        let stop = shutdown.child_token();
        let registrar = certificates::registrar(&context);
        let term = Leader::new(Arc::clone(&context), publisher.clone(), registrar.findings()).run(stop.clone());
        let mut term = std::pin::pin!(term);
        let certificates = certificates::run(&context, registrar);
        let ended = tokio::select! {
            ended = &mut term => ended,
            () = certificates => Ended::Stopped,
            _ = becomes(&mut leading, Leading::No) => {
                stop.cancel();
                term.await
            }
        };
        match ended {
            Ended::Stopped => {}
            // Not at once: what broke it is likely to be there still.
            Ended::Broken => {
                let _ = time::timeout(leader::ROUNDS, shutdown.cancelled()).await;
            }
        }
    }
}

/// Whether it will ever be known again who leads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Known {
    /// It became so.
    Now,
    /// The election has ended.
    Never,
}

/// Waits until this replica leads, or does not. The guard that `wait_for` gives must not outlive a line of a `select!`.
async fn becomes(leading: &mut watch::Receiver<Leading>, wanted: Leading) -> Known {
    if leading.wait_for(|leading| *leading == wanted).await.is_ok() { Known::Now } else { Known::Never }
}
