//! Who may come in, put together: the CA and what it has taken back, the certificates of agents, and the tables of tokens.

use std::sync::Arc;

use opamp_operator::{
    authentication::{self, Authenticator, Feed},
    catalog::CatalogHandle,
    credentials::{certificates::Certificates, trust::Trust},
    events::Publisher,
};
use prometheus_client::registry::Registry;

use super::{
    Clients, PREFIX,
    part::{Alarm, Part},
    settings::Settings,
};

/// What every replica knows of credentials.
pub struct Gate {
    /// The operator's own CA, and what it has taken back.
    pub trust: Trust,
    /// What agents were given.
    pub certificates: Certificates,
    /// Says who somebody is.
    pub authenticator: Arc<Authenticator>,
}

impl Gate {
    /// A gate that admits nobody until its parts run.
    pub fn new(
        settings: &Settings,
        clients: &Clients,
        catalog: &Arc<CatalogHandle>,
        registry: &mut Registry,
    ) -> (Self, Feed) {
        let metrics = authentication::Metrics::register(registry.sub_registry_with_prefix(PREFIX));
        let (trust, certificates) = (Trust::new(), Certificates::new(&settings.scope));
        let surroundings = authentication::Surroundings {
            client: clients.requests.clone(),
            catalog: Arc::clone(catalog),
            trust: trust.clone(),
            certificates: certificates.clone(),
            scope: settings.scope.clone(),
        };
        let (authenticator, feed) = Authenticator::new(surroundings, metrics);
        (Self { trust, certificates, authenticator }, feed)
    }

    /// Waits until it is known who may come in, and who no more: before, a certificate that was taken back or replaced
    /// would count.
    pub async fn synced(&self) {
        // The feed lives as long as the process, so that waiting cannot fail.
        let _ = self.authenticator.synced().wait_for(|synced| *synced).await;
        self.trust.synced().await;
        self.certificates.synced().await;
    }

    /// Keeps it up to date.
    pub fn start(&self, settings: &Settings, clients: &Clients, feed: Feed, alarm: &Alarm) -> Vec<Part> {
        let watches = &clients.watches;
        let publisher = Publisher::new(clients.requests.clone(), &settings.holder.replica);
        let trust = self.trust.clone().run(watches.clone(), settings.namespace.clone());
        let certificates = self.certificates.clone().run(watches.clone(), settings.scope.clone());
        vec![
            Part::start_endless("trusted CAs", alarm, trust),
            Part::start_endless("certificates of agents", alarm, certificates),
            Part::start("credentials", alarm, |stop| feed.run(watches.clone(), publisher, stop)),
        ]
    }
}
