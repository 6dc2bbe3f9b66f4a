//! `opamp-operator run`: starts everything in its order, waits for a signal, ends everything in its order.

use std::{
    env,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use kube::{Api, Config, api::ListParams};
use opamp_operator::{
    agents::index::AgentIndex,
    api::agent_fleet::AgentFleet,
    bridge::{self, Bridge},
    catalog::{self, CatalogHandle, Loader, Policy, SecretContent},
    controllers,
    kubernetes::{Scope, WatchClient, client_without_retry, describe},
    lease::{Election, Holder, Incarnation, ReplicaLease},
    server::{
        self, Server,
        admin::{Admin, Readiness},
        raise_descriptor_limit,
    },
    status::{
        budget::BudgetLimits,
        metrics::Metrics as WriterMetrics,
        render::Owner,
        room::ObjectLimits,
        writer::{StatusWriter, WriterLimits},
    },
};
use prometheus_client::registry::Registry;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::command_line::{RunArguments, anonymous_namespaces};

/// How long connections may take to end after a signal.
const DRAIN: Duration = Duration::from_secs(18);
/// How long pending status may take to be written after that. Together they stay below the 30 s that Kubernetes gives.
const FLUSH: Duration = Duration::from_secs(5);
/// How long the controllers, the election and the replica's Lease may each take to end.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the operator is, once its arguments are understood.
struct Operator {
    arguments: RunArguments,
    config: Config,
    namespace: String,
    scope: Scope,
    holder: Holder,
}

/// Runs the operator until it is told to stop.
pub async fn run(arguments: RunArguments) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    Operator::new(arguments).await?.serve(&mut signals).await
}

impl Operator {
    async fn new(arguments: RunArguments) -> anyhow::Result<Self> {
        let config = Config::infer().await.context(
            "no cluster to work with: KUBECONFIG names no usable file, and this is no pod with a service account",
        )?;
        let namespace = arguments
            .namespace
            .clone()
            .or_else(|| env::var("POD_NAMESPACE").ok().filter(|name| !name.is_empty()))
            .unwrap_or_else(|| config.default_namespace.clone());
        let replica = arguments
            .replica_name
            .clone()
            .or_else(|| env::var("POD_NAME").ok().filter(|name| !name.is_empty()))
            .or_else(host_name)
            .context("this replica has no name: give --replica-name")?;
        let scope = Scope::new(arguments.namespaces.iter().cloned(), &namespace);
        let holder = Holder { replica, incarnation: Incarnation::random() };
        Ok(Self { arguments, config, namespace, scope, holder })
    }

    async fn serve(self, signals: &mut Signals) -> anyhow::Result<ExitCode> {
        let client = client_without_retry(&self.config).context("cannot make a client of the API server")?;
        let watch_client = WatchClient::new(&self.config).context("cannot make a client of the API server")?;
        self.require_definitions(&client).await?;

        let mut registry = Registry::default();
        let ages = Box::new(watch_client.ages().clone());
        registry.sub_registry_with_prefix("opamp_operator").register_collector(ages);
        let readiness = Readiness::default();
        for part in ["agents", "fleets", "listener"] {
            readiness.missing(part);
        }
        let limits = self.limits()?;
        let policy = self.policy();
        let index = AgentIndex::new(&self.scope);
        let (loader, catalog) = Loader::new(
            watch_client.clone(),
            self.scope.clone(),
            policy.clone(),
            catalog::loader::Metrics::register(registry.sub_registry_with_prefix("opamp_operator")),
        );
        let writer = self.writer(&mut registry);
        let bridge = Bridge::new(
            self.bridge_settings(),
            Arc::clone(&catalog),
            index.clone(),
            writer.clone(),
            bridge::Metrics::register(registry.sub_registry_with_prefix("opamp_operator")),
        );
        let server_metrics = server::Metrics::register(&mut registry);
        let _admin = Admin::bind(self.arguments.admin_listen, readiness.clone(), Arc::new(registry)).await?;

        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        tasks.spawn(cancellable(stop.clone(), index.clone().run(watch_client.clone(), self.scope.clone())));
        tasks.spawn(loader.run(stop.clone()));
        tasks.spawn(cancellable(stop.clone(), writer.clone().run(client.clone(), index.clone(), bridge.clone())));
        tasks.spawn(Arc::clone(&bridge).run(stop.clone()));

        let replica_lease = ReplicaLease::new(client.clone(), &self.namespace, self.holder.clone(), writer.uncounted());
        let sign_of_life = Part::start(|stop| replica_lease.run(stop));
        let (election, leading) = Election::new(client.clone(), &self.namespace, self.holder.clone());
        let election = Part::start(|stop| election.run(stop));
        let context = controllers::Context {
            client,
            watch_client,
            scope: self.scope.clone(),
            namespace: self.namespace.clone(),
            replica: self.holder.replica.clone(),
            policy,
            agents: index.clone(),
            catalog: Arc::clone(&catalog),
            budget: writer.budget(),
        };
        let controllers = Part::start(|stop| controllers::run(Arc::new(context), leading, stop));

        let server = tokio::select! {
            server = self.bind(limits, &bridge, &catalog, &index, &readiness, server_metrics) => Some(server?),
            () = signals.received() => None,
        };
        if let Some(server) = &server {
            let address = server.local_address();
            tracing::info!(%address, path = self.arguments.path, "serving agents over plain text");
            signals.received().await;
        }
        tracing::info!("stopping");
        readiness.missing("the operator is stopping");
        // Another replica is to lead at once; agents are served here until each has its turn to leave.
        controllers.end().await;
        election.end().await;
        if let Some(server) = server {
            let drained = server.drain(DRAIN).await;
            tracing::info!(?drained, "connections have ended");
        }
        let left = writer.flush(Instant::now() + FLUSH).await;
        if left > 0 {
            tracing::warn!(agents = left, "the status of some agents could not be written in time");
        }
        // Without this Lease the leader counts the agents of this replica as gone: not before they are written.
        sign_of_life.end().await;
        stop.cancel();
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    }

    /// Agents are served once it is known which there are and what they are to have: nobody is given less than before.
    async fn bind(
        &self,
        limits: server::Limits,
        bridge: &Arc<Bridge>,
        catalog: &Arc<CatalogHandle>,
        index: &AgentIndex,
        readiness: &Readiness,
        metrics: server::Metrics,
    ) -> anyhow::Result<Server> {
        index.synced().await;
        readiness.obtained("agents");
        // The loader lives as long as the process, so that waiting cannot fail.
        let _ = catalog.synced().wait_for(|synced| *synced).await;
        readiness.obtained("fleets");
        let agents: Arc<dyn server::Agents> = bridge.clone();
        let (listen, path) = (self.arguments.listen, &self.arguments.path);
        let server = Server::bind(listen, path, limits, agents, catalog.generation(), metrics)?;
        readiness.obtained("listener");
        Ok(server)
    }

    /// Without the definitions every watch fails, and says so in words that do not help.
    async fn require_definitions(&self, client: &kube::Client) -> anyhow::Result<()> {
        let fleets: Api<AgentFleet> = match &self.scope {
            Scope::All => Api::all(client.clone()),
            Scope::Namespaces(_) => Api::namespaced(client.clone(), &self.namespace),
        };
        match fleets.list(&ListParams::default().limit(1)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => bail!(
                "the custom resource definitions are not installed in this cluster; install them with: opamp-operator \
                 crds | kubectl apply --server-side -f -"
            ),
            Err(error) => tracing::warn!(error = describe(&error), "the API server does not answer yet"),
            Ok(_) => {}
        }
        Ok(())
    }

    fn policy(&self) -> Policy {
        let over_loopback = self.arguments.listen.ip().is_loopback();
        let secrets = if over_loopback || self.arguments.plaintext_secrets {
            SecretContent::Offered
        } else {
            SecretContent::Withheld
        };
        let anonymous = anonymous_namespaces(&self.arguments.anonymous_namespaces, &self.namespace);
        Policy { anonymous: anonymous.into_iter().collect(), secrets }
    }

    fn limits(&self) -> anyhow::Result<server::Limits> {
        let given = &self.arguments.limits;
        let limits = server::Limits {
            connections: given.max_connections,
            handshakes_per_second: u32::try_from(given.handshake_rate).unwrap_or(u32::MAX),
            unreported: given.max_silent_connections,
            message_bytes: given.max_message_size,
            ..server::Limits::default()
        };
        let descriptors = raise_descriptor_limit()?;
        Ok(limits.within_descriptors(descriptors))
    }

    fn budget_limits(&self) -> BudgetLimits {
        let given = &self.arguments.limits;
        BudgetLimits {
            per_second: u32::try_from(given.write_rate).unwrap_or(u32::MAX),
            burst: u32::try_from(given.write_burst).unwrap_or(u32::MAX),
        }
    }

    fn writer(&self, registry: &mut Registry) -> StatusWriter {
        let given = &self.arguments.limits;
        let objects = ObjectLimits { agents: given.max_agents, unmatched: given.max_unmatched_agents };
        let limits = WriterLimits { budget: self.budget_limits(), objects, ..WriterLimits::default() };
        StatusWriter::new(self.owner(), &self.namespace, limits, WriterMetrics::register(registry))
    }

    fn owner(&self) -> Owner {
        Owner { replica: self.holder.replica.clone(), incarnation: self.holder.incarnation.to_string() }
    }

    fn bridge_settings(&self) -> bridge::Settings {
        let given = &self.arguments.limits;
        bridge::Settings {
            own_namespace: self.namespace.clone(),
            owner: self.owner(),
            // Room for all connections and for as many that have just gone.
            max_sessions: given.max_connections.saturating_mul(2),
            http_silence: Duration::from_secs(given.http_silence_seconds as u64),
        }
    }
}

/// A part that is ended in its turn.
struct Part {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Part {
    fn start<F>(run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(stop.clone()));
        Self { stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        // What does not end in time is cut off with the process; every write of it carries a resourceVersion.
        let _ = tokio::time::timeout(FAREWELL, self.task).await;
    }
}

/// Ends with the future, or when told to.
async fn cancellable(stop: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

fn host_name() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
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
