//! `opamp-operator run`: starts everything in its order, waits for a signal, ends everything in its order.

mod certificate;
mod definitions;
mod gate;
mod part;
mod settings;

use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use kube::Client;
use opamp_operator::{
    agents::index::AgentIndex,
    authentication::Feed,
    bridge::{self, Bridge},
    catalog::{self, CatalogHandle, Loader},
    controllers,
    credentials::{self, requests::Requests},
    effective_configs,
    kubernetes::{WatchClient, client_without_retry},
    lease::{self, Election, ReplicaLease},
    server::{
        self, ClientCertificates, Server, ServerCertificate, Tls,
        admin::{Admin, Pages, Readiness},
    },
    status::{metrics::Metrics as WriterMetrics, writer::StatusWriter},
};
use prometheus_client::registry::Registry;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    certificate::ListenerCertificate,
    gate::Gate,
    part::{Alarm, Part},
    settings::Settings,
};
use crate::command_line::RunArguments;

/// How long connections may take to end after a signal.
const DRAIN: Duration = Duration::from_secs(18);
/// How long pending status may take to be written after that. Together they stay below the 30 s that Kubernetes gives.
const FLUSH: Duration = Duration::from_secs(5);
/// The prefix of all metrics.
const PREFIX: &str = "opamp_operator";

/// Runs the operator until it is told to stop.
pub async fn run(arguments: RunArguments) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let settings = Settings::gather(arguments).await?;
    let clients = Clients::new(&settings)?;
    definitions::require(&clients.requests, &settings.scope, &settings.namespace).await?;
    Operator::start(settings, clients).await?.serve(&mut signals).await
}

/// The ways to the API server.
struct Clients {
    requests: Client,
    watches: WatchClient,
}

impl Clients {
    fn new(settings: &Settings) -> anyhow::Result<Self> {
        let failed = "cannot make a client of the API server";
        let requests = client_without_retry(&settings.config).context(failed)?;
        Ok(Self { requests, watches: WatchClient::new(&settings.config).context(failed)? })
    }
}

/// The operator at work, from the inside to the outside.
struct Operator {
    settings: Settings,
    bridging: Bridging,
    server: (server::Limits, server::Metrics),
    /// What the listener shows; `None`: it serves plain text.
    certificate: Option<Arc<ServerCertificate>>,
    readiness: Readiness,
    alarm: Alarm,
    /// Runs until the very end.
    background: Vec<Part>,
    sign_of_life: Part,
    election: Part,
    controllers: Part,
    /// Answers until the very end.
    _admin: Admin,
}

impl Operator {
    async fn start(settings: Settings, clients: Clients) -> anyhow::Result<Self> {
        let mut registry = Registry::default();
        let metrics = registry.sub_registry_with_prefix(PREFIX);
        metrics.register_collector(Box::new(clients.watches.ages().clone()));
        let election_metrics = lease::Metrics::register(metrics);
        let leading_metrics =
            (controllers::Metrics::register(metrics), credentials::metrics::Metrics::register(metrics));
        let (bridging, unfed) = Bridging::new(&settings, &clients, &mut registry);
        let server = (settings.server_limits()?, server::Metrics::register(&mut registry));
        let readiness = Readiness::default();
        ["agents", "fleets", "credentials", "listener"].into_iter().for_each(|part| readiness.missing(part));
        let revocations = bridging.gate.trust.clone();
        let pages = Pages {
            readiness: readiness.clone(),
            registry,
            revocations: Box::new(move || revocations.snapshot().revocation_list_pem()),
        };
        let admin = Admin::bind(settings.arguments.admin_listen, pages).await?;

        let alarm = Alarm::default();
        let mut background = bridging.start(&settings, &clients, unfed, &alarm);
        let certificate = settings.tls_secret().map(|secret| {
            readiness.missing("certificate");
            let (shown, part) = show_certificate(ListenerCertificate::new(secret, server.1.clone()), &clients, &alarm);
            background.push(part);
            shown
        });
        let (client, namespace, holder) = (&clients.requests, &settings.namespace, &settings.holder);
        let lease = ReplicaLease::new(client.clone(), namespace, holder.clone(), bridging.writer.uncounted());
        let sign_of_life = Part::start("sign of life", &alarm, |stop| lease.run(stop));
        let (election, leading) = Election::new(client.clone(), namespace, holder.clone(), election_metrics);
        let election = Part::start("election", &alarm, |stop| election.run(stop));
        let context = Arc::new(bridging.controllers(&settings, clients, leading_metrics));
        let controllers = Part::start("controllers", &alarm, |stop| controllers::run(context, leading, stop));
        Ok(Self {
            settings,
            bridging,
            server,
            certificate,
            readiness,
            alarm,
            background,
            sign_of_life,
            election,
            controllers,
            _admin: admin,
        })
    }

    /// Serves until a signal comes, or a part breaks.
    async fn serve(self, signals: &mut Signals) -> anyhow::Result<ExitCode> {
        let alarm = self.alarm.clone();
        let server = tokio::select! {
            server = self.bind() => Some(server?),
            () = signals.received() => None,
            () = alarm.rung() => None,
        };
        if let Some(server) = &server {
            let (address, path) = (server.local_address(), &self.settings.arguments.path);
            let namespaces = &self.settings.scope;
            if self.certificate.is_some() {
                tracing::info!(%address, path, %namespaces, "serving agents with TLS");
            } else {
                tracing::warn!(%address, path, %namespaces, "serving agents without TLS, as --plaintext says");
            }
            tokio::select! {
                () = signals.received() => {}
                () = alarm.rung() => {}
            }
        }
        let broke = alarm.is_ringing();
        self.end(server).await;
        if broke {
            bail!("a part of the operator has broken; the log tells which");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Agents are served once it is known which there are and what they are to have: nobody is given less than before.
    async fn bind(&self) -> anyhow::Result<Server> {
        let Bridging { index, catalog, gate, bridge, .. } = &self.bridging;
        index.synced().await;
        self.readiness.obtained("agents");
        // The loader lives as long as the process, so that waiting cannot fail.
        let _ = catalog.synced().wait_for(|synced| *synced).await;
        self.readiness.obtained("fleets");
        gate.synced().await;
        self.readiness.obtained("credentials");
        let tls = match &self.certificate {
            Some(certificate) => {
                certificate.available().await;
                self.readiness.obtained("certificate");
                let clients: Arc<dyn ClientCertificates> = gate.authenticator.clone();
                Some(Tls::new(Arc::clone(certificate), Some(clients))?)
            }
            None => None,
        };
        let agents: Arc<dyn server::Agents> = bridge.clone();
        let (endpoint, (limits, metrics)) = (self.settings.endpoint(tls), self.server.clone());
        let server = Server::bind(endpoint, limits, agents, catalog.generation(), metrics)?;
        self.readiness.obtained("listener");
        Ok(server)
    }

    async fn end(self, server: Option<Server>) {
        tracing::info!("stopping");
        self.readiness.missing("the operator is stopping");
        // Another replica is to lead at once; agents are served here until each has its turn to leave.
        self.controllers.end().await;
        self.election.end().await;
        if let Some(server) = server {
            let drained = server.drain(DRAIN).await;
            tracing::info!(?drained, "connections have ended");
        }
        let left = self.bridging.writer.flush(Instant::now() + FLUSH).await;
        if left > 0 {
            tracing::warn!(agents = left, "the status of some agents could not be written in time");
        }
        // Without this Lease the leader counts the agents of this replica as gone: not before they are written.
        self.sign_of_life.end().await;
        futures::future::join_all(self.background.into_iter().map(Part::end)).await;
        tracing::info!("stopped");
    }
}

/// Has the listener show what its Secret holds.
fn show_certificate(
    certificate: ListenerCertificate,
    clients: &Clients,
    alarm: &Alarm,
) -> (Arc<ServerCertificate>, Part) {
    let shown = Arc::clone(certificate.shown());
    let part = Part::start_endless("certificate of the listener", alarm, certificate.run(clients.watches.clone()));
    (shown, part)
}

/// What serves agents, in every replica.
struct Bridging {
    index: AgentIndex,
    catalog: Arc<CatalogHandle>,
    writer: StatusWriter,
    texts: effective_configs::Store,
    gate: Gate,
    bridge: Arc<Bridge>,
}

/// What keeps the parts of [`Bridging`] up to date, and has not begun.
struct Unfed {
    loader: Loader,
    feed: Feed,
}

impl Bridging {
    fn new(settings: &Settings, clients: &Clients, registry: &mut Registry) -> (Self, Unfed) {
        let index = AgentIndex::new(&settings.scope);
        let limits = settings.writer_limits();
        let writer =
            StatusWriter::new(settings.owner(), &settings.namespace, limits, WriterMetrics::register(registry));
        let metrics = registry.sub_registry_with_prefix(PREFIX);
        let (loader, catalog) = Loader::new(
            clients.watches.clone(),
            settings.scope.clone(),
            settings.policy(),
            catalog::loader::Metrics::register(metrics),
        );
        let texts = effective_configs::Store::new(
            settings.scope.clone(),
            writer.budget(),
            effective_configs::Metrics::register(metrics),
        );
        let (gate, feed) = Gate::new(settings, clients, &catalog, registry);
        let surroundings = bridge::Surroundings {
            catalog: Arc::clone(&catalog),
            index: index.clone(),
            writer: writer.clone(),
            texts: texts.clone(),
            credentials: gate.authenticator.clone(),
            certificates: gate.certificates.clone(),
            trust: gate.trust.clone(),
            requests: Arc::new(Requests::new(clients.requests.clone(), gate.certificates.clone(), gate.trust.clone())),
        };
        let metrics = bridge::Metrics::register(registry.sub_registry_with_prefix(PREFIX));
        let bridge = Bridge::new(settings.bridge(), surroundings, metrics);
        (Self { index, catalog, writer, texts, gate, bridge }, Unfed { loader, feed })
    }

    fn start(&self, settings: &Settings, clients: &Clients, unfed: Unfed, alarm: &Alarm) -> Vec<Part> {
        let Clients { requests, watches } = clients;
        let Unfed { loader, feed } = unfed;
        let Self { index, catalog: _, writer, texts, gate, bridge } = self;
        let index_run = index.clone().run(watches.clone(), settings.scope.clone());
        let writer_run = writer.clone().run(requests.clone(), index.clone(), bridge.clone());
        let texts_run = texts.clone().run(requests.clone(), watches.clone(), bridge.clone());
        let mut parts = gate.start(settings, clients, feed, alarm);
        parts.extend([
            Part::start_endless("index of Agents", alarm, index_run),
            Part::start("catalog", alarm, |stop| loader.run(stop)),
            Part::start_endless("status writer", alarm, writer_run),
            Part::start_endless("effective configurations", alarm, texts_run),
            Part::start("bridge", alarm, |stop| Arc::clone(bridge).run(stop)),
        ]);
        parts
    }

    fn controllers(
        &self,
        settings: &Settings,
        clients: Clients,
        (metrics, certificate_metrics): (controllers::Metrics, credentials::metrics::Metrics),
    ) -> controllers::Context {
        controllers::Context {
            client: clients.requests,
            watch_client: clients.watches,
            scope: settings.scope.clone(),
            namespace: settings.namespace.clone(),
            replica: settings.holder.replica.clone(),
            policy: settings.policy(),
            agents: self.index.clone(),
            catalog: Arc::clone(&self.catalog),
            texts: self.texts.clone(),
            budget: self.writer.budget(),
            certificates: self.gate.certificates.clone(),
            trust: self.gate.trust.clone(),
            unusable_cas: self.gate.authenticator.unusable_cas(),
            registrar: settings.registrar(),
            certificate_metrics,
            metrics,
        }
    }
}

/// The signals that end the operator.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
