//! Keeps the catalog up to date: watches fleets and their credentials, reads revisions, swaps the snapshot.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::{
    Stream, StreamExt,
    stream::{self, FuturesUnordered},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, runtime::watcher::Event};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    assignment::Catalog,
    credentials::CREDENTIALS_TYPE,
    fleet::{FleetEntry, Policy},
    library::{FleetKey, GuardedFleet, Library, NotTheNamedOne, RevisionKey},
    offers::LoadedRevision,
    revision::Revision,
    stored::RevisionError,
};
use crate::{
    api::agent_fleet::AgentFleet,
    kubernetes::{Part, QuickBackoff, Scope, WatchClient, watch_config},
};

/// Revisions that are read at once: enough to start a replica fast, few enough not to crowd out the status writer.
const READS_AT_ONCE: usize = 8;
/// Attempts to read a revision that follow each other within a second, for a Secret that is about to be made again, or
/// an API server that is about to be back.
const QUICK_ATTEMPTS: u32 = 20;
/// The pause between later attempts: a Secret that is gone for good must not keep the API server busy.
const SLOW_PAUSE: Duration = Duration::from_secs(10);
/// How long one read may take before it is tried again.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Events that are taken together before a new snapshot is made.
const EVENTS_AT_ONCE: usize = 256;
/// Wishes to read a fleet again that may wait; more are dropped, the watch brings the state as well.
const REREADS_WAITING: usize = 64;

/// The catalog as everybody else sees it.
#[derive(Debug)]
pub struct CatalogHandle {
    catalog: ArcSwap<Catalog>,
    policy: Policy,
    generation: watch::Sender<u64>,
    synced: watch::Sender<bool>,
    rereads: mpsc::Sender<FleetKey>,
}

impl CatalogHandle {
    fn new(policy: Policy) -> (Arc<Self>, mpsc::Receiver<FleetKey>) {
        let (rereads, wishes) = mpsc::channel(REREADS_WAITING);
        let catalog = ArcSwap::from_pointee(Catalog::new(Vec::new(), policy.clone(), 0));
        let (generation, synced) = (watch::Sender::new(0), watch::Sender::new(false));
        (Arc::new(Self { catalog, policy, generation, synced, rereads }), wishes)
    }

    /// A catalog of these fleets that nobody keeps up to date.
    #[must_use]
    pub fn fixed(fleets: Vec<Arc<FleetEntry>>, policy: Policy) -> Arc<Self> {
        let (handle, _) = Self::new(policy);
        handle.publish(fleets);
        handle.synced.send_replace(true);
        handle
    }

    /// The present snapshot.
    #[must_use]
    pub fn load(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Moves after each new snapshot.
    #[must_use]
    pub fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// True once all fleets and credentials are known and each revision that they name was read, or at least tried. It
    /// stays true.
    #[must_use]
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// Asks for a fleet to be read anew: an agent was given a later epoch of it than this replica knows.
    pub fn reread(&self, namespace: &str, name: &str) {
        let wish = FleetKey { namespace: namespace.into(), name: name.into() };
        if self.rereads.try_send(wish).is_err() {
            tracing::debug!(namespace, fleet = name, "too many fleets are to be read anew, the watch has to do");
        }
    }

    /// Puts a new snapshot in place and tells everybody.
    pub fn publish(&self, fleets: Vec<Arc<FleetEntry>>) {
        let generation = *self.generation.borrow() + 1;
        self.catalog.store(Arc::new(Catalog::new(fleets, self.policy.clone(), generation)));
        self.generation.send_replace(generation);
    }
}

/// What is measured of the catalog.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    fleets: Gauge,
    revisions_missing: Gauge,
    revisions_read: Counter,
    revision_read_failures: Counter,
}

impl Metrics {
    /// Makes them known.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("catalog_fleets", "Fleets in the catalog", metrics.fleets.clone());
        registry.register(
            "catalog_revisions_missing",
            "Revisions that fleets name and that are not loaded; their members are served as before",
            metrics.revisions_missing.clone(),
        );
        registry.register(
            "catalog_revisions_read",
            "Revisions read from their Secrets",
            metrics.revisions_read.clone(),
        );
        registry.register(
            "catalog_revision_read_failures",
            "Attempts to read a revision that failed",
            metrics.revision_read_failures.clone(),
        );
        metrics
    }
}

/// Why a revision could not be read. Texts of the API server are left out: they may quote objects.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("the API server answered {0}")]
    Refused(u16),
    #[error("the API server could not be reached")]
    Unreachable,
    #[error("the API server did not answer in time")]
    Timeout,
    #[error("the Secret does not hold a revision: {0}")]
    Revision(#[from] RevisionError),
    #[error(transparent)]
    Name(#[from] NotTheNamedOne),
}

impl From<kube::Error> for ReadError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status.code),
            _ => Self::Unreachable,
        }
    }
}

/// The pauses between attempts to read one revision.
#[derive(Clone, Debug, Default)]
struct Pauses {
    quick: QuickBackoff,
    attempts: u32,
}

impl Pauses {
    fn next(&mut self) -> Duration {
        self.attempts = self.attempts.saturating_add(1);
        let quick = self.quick.next().filter(|_| self.attempts <= QUICK_ATTEMPTS);
        quick.unwrap_or_else(|| SLOW_PAUSE.mul_f64(rand::random_range(0.75..=1.25)))
    }
}

/// A read that has ended.
struct Read {
    key: RevisionKey,
    pauses: Pauses,
    result: Result<Arc<LoadedRevision>, ReadError>,
}

/// The task behind a [`CatalogHandle`].
pub struct Loader {
    watches: WatchClient,
    scope: Scope,
    handle: Arc<CatalogHandle>,
    wishes: mpsc::Receiver<FleetKey>,
    metrics: Metrics,
    library: Library,
    permits: Arc<Semaphore>,
    /// Revisions that a read is under way or waiting for.
    reading: BTreeSet<RevisionKey>,
    /// Revisions whose first read has failed: they do not hold up readiness.
    failed: BTreeSet<RevisionKey>,
}

impl Loader {
    /// Over the fleets in scope.
    #[must_use]
    pub fn new(watches: WatchClient, scope: Scope, policy: Policy, metrics: Metrics) -> (Self, Arc<CatalogHandle>) {
        let (handle, wishes) = CatalogHandle::new(policy);
        let library = Library::new(&scope.parts());
        let loader = Self {
            watches,
            scope,
            handle: Arc::clone(&handle),
            wishes,
            metrics,
            library,
            permits: Arc::new(Semaphore::new(READS_AT_ONCE)),
            reading: BTreeSet::new(),
            failed: BTreeSet::new(),
        };
        (loader, handle)
    }

    /// Runs until it is told to stop. With the API server away the last snapshot stays.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut events = self.events().ready_chunks(EVENTS_AT_ONCE);
        let mut credentials = self.credentials().ready_chunks(EVENTS_AT_ONCE);
        let mut reads = FuturesUnordered::new();
        let mut fleets = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(events) = events.next() => {
                    for (scope, event) in events {
                        self.library.apply(scope, event);
                    }
                }
                Some(events) = credentials.next() => {
                    for (part, event) in events {
                        self.library.apply_credentials(&part, event);
                    }
                }
                Some(read) = reads.next(), if !reads.is_empty() => {
                    if let Some(again) = self.take(read) {
                        reads.push(self.read(again.0, again.1));
                    }
                }
                Some(wish) = self.wishes.recv() => fleets.push(self.read_fleet(wish)),
                Some(fleet) = fleets.next(), if !fleets.is_empty() => {
                    if let Some(fleet) = fleet {
                        self.library.reread(fleet);
                    }
                }
            }
            for key in self.library.missing() {
                if self.reading.insert(key.clone()) {
                    reads.push(self.read(key, None));
                }
            }
            self.publish();
        }
    }

    /// How many watches there are.
    fn parts(&self) -> usize {
        match &self.scope {
            Scope::All => 1,
            Scope::Namespaces(namespaces) => namespaces.len(),
        }
    }

    fn events(&self) -> impl Stream<Item = (usize, Event<GuardedFleet>)> + Unpin + use<> {
        let apis: Vec<Api<GuardedFleet>> = self.scope.apis(self.watches.client());
        let watches = apis.into_iter().enumerate().map(|(scope, api)| {
            let events = self.watches.watch(api, watch_config());
            events.filter_map(move |event| async move { Some((scope, event?)) }).boxed()
        });
        stream::select_all(watches)
    }

    /// The Secrets with credentials, whole: their type keeps all others out.
    fn credentials(&self) -> impl Stream<Item = (Part, Event<Secret>)> + Unpin + use<> {
        let apis: Vec<Api<Secret>> = self.scope.apis(self.watches.client());
        let watches = self.scope.parts().into_iter().zip(apis).map(|(part, api)| {
            let of_type = watch_config().fields(&format!("type={CREDENTIALS_TYPE}"));
            let events = self.watches.watch(api, of_type);
            events.filter_map(move |event| std::future::ready(event.map(|event| (part.clone(), event)))).boxed()
        });
        stream::select_all(watches)
    }

    /// Reads a revision, after a pause if an attempt has failed.
    fn read(&self, key: RevisionKey, mut pauses: Option<Pauses>) -> impl Future<Output = Read> + Send + use<> {
        let secrets = Api::<Secret>::namespaced(self.watches.client().clone(), &key.fleet.namespace);
        let permits = Arc::clone(&self.permits);
        async move {
            if let Some(pause) = pauses.as_mut().map(Pauses::next) {
                tokio::time::sleep(pause).await;
            }
            let result = {
                let _permit = permits.acquire().await;
                read_revision(&secrets, &key.secret_name()).await
            };
            Read { key, pauses: pauses.unwrap_or_default(), result }
        }
    }

    /// Takes the outcome of a read, and says whether it is to be tried again.
    fn take(&mut self, Read { key, pauses, result }: Read) -> Option<(RevisionKey, Option<Pauses>)> {
        let (namespace, fleet) = (key.fleet.namespace.as_str(), key.fleet.name.as_str());
        let result = result.and_then(|revision| Ok(self.library.shelve(&key, revision)?));
        match result {
            Ok(()) => {
                self.metrics.revisions_read.inc();
                tracing::info!(namespace, fleet, revision = key.short_hash, "revision loaded");
            }
            Err(error) => {
                self.metrics.revision_read_failures.inc();
                if self.failed.insert(key.clone()) {
                    tracing::warn!(namespace, fleet, revision = key.short_hash, %error, "revision cannot be read, members are served as before");
                }
                if self.library.missing().contains(&key) {
                    return Some((key, Some(pauses)));
                }
            }
        }
        self.reading.remove(&key);
        self.failed.remove(&key);
        None
    }

    fn read_fleet(&self, wish: FleetKey) -> impl Future<Output = Option<AgentFleet>> + Send + use<> {
        let fleets = Api::<AgentFleet>::namespaced(self.watches.client().clone(), &wish.namespace);
        async move {
            let fleet = timeout(READ_TIMEOUT, fleets.get(&wish.name)).await.ok().and_then(Result::ok);
            if fleet.is_none() {
                tracing::debug!(namespace = wish.namespace, fleet = wish.name, "the fleet could not be read anew");
            }
            fleet
        }
    }

    fn publish(&mut self) {
        if let Some(fleets) = self.library.take_changes() {
            self.metrics.fleets.set(i64::try_from(fleets.len()).unwrap_or(i64::MAX));
            self.handle.publish(fleets);
        }
        let missing = self.library.missing();
        self.metrics.revisions_missing.set(i64::try_from(missing.len()).unwrap_or(i64::MAX));
        let scopes = self.parts();
        let listed = self.library.scopes_listed() == scopes && self.library.credentials_are_listed();
        if !*self.handle.synced.borrow() && listed && missing.is_subset(&self.failed) {
            tracing::info!(fleets = self.handle.load().fleets().count(), "catalog is complete");
            self.handle.synced.send_replace(true);
        }
    }
}

async fn read_revision(secrets: &Api<Secret>, name: &str) -> Result<Arc<LoadedRevision>, ReadError> {
    let secret = timeout(READ_TIMEOUT, secrets.get(name)).await.map_err(|_| ReadError::Timeout)??;
    let (hash, revision) = Revision::from_secret(&secret)?;
    Ok(Arc::new(LoadedRevision::new(hash, revision)))
}

#[cfg(test)]
mod tests;
