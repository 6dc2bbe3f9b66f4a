//! What a replica knows of fleets and revisions, and which revisions it still has to read. No client, no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Resource, ResourceExt, core::DeserializeGuard, runtime::watcher::Event};

use super::{
    credentials::{Credentials, credentials_secret_name},
    fleet::{FleetEntry, NamedRevisions, Offering, Revisions},
    offers::LoadedRevision,
    stored::revision_secret_name,
};
use crate::{
    api::agent_fleet::AgentFleet,
    kubernetes::{Mirror, ObjectKey, Part},
};

/// A fleet as it comes from the API server: perhaps written by a later version of the operator, with values that this
/// one does not know. One such object must not end the watch for all.
pub type GuardedFleet = DeserializeGuard<AgentFleet>;

/// Namespace and name of a fleet.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct FleetKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A revision that a fleet's status names.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct RevisionKey {
    /// The fleet that names it.
    pub fleet: FleetKey,
    /// That fleet's uid: another fleet of its name has other revisions.
    pub fleet_uid: String,
    /// The first 10 hexadecimal digits of its hash.
    pub short_hash: String,
}

impl RevisionKey {
    /// The Secret that holds it, in the fleet's namespace.
    #[must_use]
    pub fn secret_name(&self) -> String {
        revision_secret_name(&self.fleet_uid, &self.short_hash)
    }
}

/// A revision was read under a name that is not its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("it is not the revision that the fleet's status names")]
pub struct NotTheNamedOne;

/// Fleets, the revisions that they name, and those that are loaded.
///
/// Selectors, priorities and methods of a fleet count at once. What it offers changes only when everything that its
/// status names is loaded: until then its members are served as before.
#[derive(Debug)]
pub struct Library {
    fleets: BTreeMap<FleetKey, Holding>,
    /// By the Secrets that hold them.
    credentials: Mirror<Arc<Credentials>>,
    /// By the scope that is being listed: what was seen so far.
    listing: BTreeMap<usize, BTreeSet<FleetKey>>,
    /// Scopes that were listed in full at least once.
    listed: BTreeSet<usize>,
    changed: bool,
}

#[derive(Debug)]
struct Holding {
    scope: usize,
    resource_version: Option<String>,
    entry: Arc<FleetEntry>,
    named: NamedRevisions,
    /// Whole hashes from the status: what a revision must be to count as the one that is named.
    recorded: Vec<String>,
    loaded: BTreeMap<String, Arc<LoadedRevision>>,
}

impl Library {
    /// Knows nothing yet of these parts of the scope.
    #[must_use]
    pub fn new(parts: &[Part]) -> Self {
        Self {
            fleets: BTreeMap::new(),
            credentials: Mirror::new(parts.iter().cloned()),
            listing: BTreeMap::new(),
            listed: BTreeSet::new(),
            changed: false,
        }
    }

    /// Takes one event of a watch of the Secrets with credentials. A fleet whose Secret is gone or unreadable goes on with
    /// what it had: what is to be offered no more is taken out of the Secret, which stays as long as anything refers to it.
    pub fn apply_credentials(&mut self, part: &Part, event: Event<Secret>) {
        for moved in self.credentials.apply(part, event, |secret| readable(&secret)) {
            let of = |(key, holding): (&FleetKey, &Holding)| {
                let names = credentials_secret_name(&holding.entry.uid) == moved.key.name;
                (key.namespace == moved.key.namespace && names).then(|| key.clone())
            };
            let fleets: Vec<FleetKey> = self.fleets.iter().filter_map(of).collect();
            for fleet in fleets {
                self.changed |= self.supply(&fleet);
            }
        }
    }

    /// Gives a fleet its credentials, and says whether they are others than before.
    fn supply(&mut self, fleet: &FleetKey) -> bool {
        let Some(holding) = self.fleets.get_mut(fleet) else { return false };
        let secret = ObjectKey::new(&*fleet.namespace, credentials_secret_name(&holding.entry.uid));
        let found = self.credentials.get(&secret).filter(|found| found.owner() == holding.entry.uid);
        let Some(found) = found.filter(|found| holding.entry.credentials.as_ref() != Some(found)) else { return false };
        Arc::make_mut(&mut holding.entry).credentials = Some(Arc::clone(found));
        true
    }

    /// Whether the credentials of all fleets were listed at least once.
    #[must_use]
    pub fn credentials_are_listed(&self) -> bool {
        self.credentials.is_complete()
    }

    /// Takes one event of a watch; `scope` tells watches over several namespaces apart.
    pub fn apply(&mut self, scope: usize, event: Event<GuardedFleet>) {
        match event {
            Event::Init => {
                self.listing.insert(scope, BTreeSet::new());
            }
            Event::InitApply(fleet) => {
                if let (Some(key), Some(seen)) = (key_of(&fleet), self.listing.get_mut(&scope)) {
                    seen.insert(key);
                }
                self.observe(scope, fleet);
            }
            Event::InitDone => {
                let seen = self.listing.remove(&scope).unwrap_or_default();
                let gone: Vec<_> = self
                    .fleets
                    .iter()
                    .filter(|(key, holding)| holding.scope == scope && !seen.contains(key))
                    .map(|(key, _)| key.clone())
                    .collect();
                for key in gone {
                    self.forget(&key);
                }
                self.listed.insert(scope);
            }
            Event::Apply(fleet) => self.observe(scope, fleet),
            Event::Delete(fleet) => {
                if let Some(key) = key_of(&fleet) {
                    self.forget(&key);
                }
            }
        }
    }

    /// Takes a fleet that was read outside the watch, unless the watch has brought a newer state already.
    pub fn reread(&mut self, fleet: AgentFleet) {
        let Some((key, version)) = key_of(&fleet).zip(version_of(fleet.resource_version().as_deref())) else { return };
        let Some(holding) = self.fleets.get(&key) else { return };
        if version_of(holding.resource_version.as_deref()).is_some_and(|known| known < version) {
            self.observe(holding.scope, DeserializeGuard(Ok(fleet)));
        }
    }

    /// How many scopes were listed in full at least once.
    #[must_use]
    pub fn scopes_listed(&self) -> usize {
        self.listed.len()
    }

    /// The revisions that are named and not loaded.
    #[must_use]
    pub fn missing(&self) -> BTreeSet<RevisionKey> {
        let missing_of = |(key, holding): (&FleetKey, &Holding)| {
            let hashes = holding.named.hashes().filter(|hash| !holding.loaded.contains_key(*hash)).cloned();
            let (fleet, fleet_uid) = (key.clone(), holding.entry.uid.clone());
            hashes
                .map(|short_hash| RevisionKey { fleet: fleet.clone(), fleet_uid: fleet_uid.clone(), short_hash })
                .collect::<Vec<_>>()
        };
        self.fleets.iter().flat_map(missing_of).collect()
    }

    /// Takes a revision that was read. One that is no longer asked for is dropped.
    pub fn shelve(&mut self, key: &RevisionKey, revision: Arc<LoadedRevision>) -> Result<(), NotTheNamedOne> {
        let Some(holding) = self.fleets.get_mut(&key.fleet).filter(|holding| holding.entry.uid == key.fleet_uid) else {
            return Ok(());
        };
        let whole = revision.hash().to_string();
        let recorded = holding.recorded.iter().find(|hash| hash.starts_with(&key.short_hash));
        if revision.hash().short() != key.short_hash || recorded.is_some_and(|hash| *hash != whole) {
            return Err(NotTheNamedOne);
        }
        if holding.named.hashes().any(|hash| *hash == key.short_hash) {
            holding.loaded.insert(key.short_hash.clone(), revision);
            self.changed |= holding.settle();
        }
        Ok(())
    }

    /// The fleets, if anything about them has changed since the last call.
    pub fn take_changes(&mut self) -> Option<Vec<Arc<FleetEntry>>> {
        std::mem::take(&mut self.changed)
            .then(|| self.fleets.values().map(|holding| Arc::clone(&holding.entry)).collect())
    }

    fn observe(&mut self, scope: usize, fleet: GuardedFleet) {
        let Some(key) = key_of(&fleet) else { return };
        let fleet = match fleet.0 {
            Ok(fleet) => fleet,
            Err(invalid) => {
                tracing::warn!(
                    namespace = key.namespace,
                    fleet = key.name,
                    error = invalid.error,
                    "the fleet cannot be read, its former state counts"
                );
                return;
            }
        };
        let former = self.fleets.remove(&key).filter(|former| Some(&former.entry.uid) == fleet.metadata.uid.as_ref());
        let Some(mut holding) = Holding::new(scope, &fleet, former.as_ref()) else { return };
        holding.settle();
        self.changed |= former.is_none_or(|former| former.entry != holding.entry);
        self.fleets.insert(key.clone(), holding);
        self.changed |= self.supply(&key);
    }

    fn forget(&mut self, key: &FleetKey) {
        self.changed |= self.fleets.remove(key).is_some();
    }
}

impl Holding {
    /// The fleet as it is now, still offering what the former state of it did.
    fn new(scope: usize, fleet: &AgentFleet, former: Option<&Self>) -> Option<Self> {
        let offering = former.map_or(Offering::NotLoaded, |former| former.entry.offering.clone());
        let credentials = former.and_then(|former| former.entry.credentials.clone());
        let entry = FleetEntry { credentials, ..FleetEntry::new(fleet, offering)? };
        let named = NamedRevisions::of(fleet).unwrap_or_else(|error| {
            tracing::warn!(namespace = entry.namespace, fleet = entry.name, %error, "status.rollout.threshold cannot be read, the former state counts");
            former.map_or(NamedRevisions::NONE, |former| former.named.clone())
        });
        let recorded = fleet.status.iter().flat_map(|status| &status.revisions).map(|record| record.hash.clone());
        Some(Self {
            scope,
            resource_version: fleet.resource_version(),
            entry: Arc::new(entry),
            named,
            recorded: recorded.collect(),
            loaded: former.map(|former| former.loaded.clone()).unwrap_or_default(),
        })
    }

    /// Offers what is named if all of it is loaded, and says whether that is something new.
    fn settle(&mut self) -> bool {
        let loaded = |name: &Option<String>| match name {
            None => Some(None),
            Some(hash) => self.loaded.get(hash).cloned().map(Some),
        };
        let NamedRevisions { current, update, threshold, epoch } = &self.named;
        let offering = match (loaded(current), loaded(update)) {
            (Some(None), Some(None)) => Offering::NoRevision,
            (Some(current), Some(update)) => {
                Offering::Revisions(Revisions { current, update, threshold: *threshold, epoch: *epoch })
            }
            (None, _) | (_, None) => match &self.entry.offering {
                former @ Offering::Revisions(_) => former.clone(),
                Offering::NoRevision | Offering::NotLoaded => Offering::NotLoaded,
            },
        };
        self.loaded.retain(|hash, _| self.named.hashes().any(|named| named == hash));
        if self.entry.offering == offering {
            return false;
        }
        Arc::make_mut(&mut self.entry).offering = offering;
        true
    }
}

/// A Secret that holds no credentials leaves the former ones in force.
fn readable(secret: &Secret) -> Option<Arc<Credentials>> {
    Credentials::from_secret(secret)
        .inspect_err(|error| {
            let (namespace, name) = (secret.metadata.namespace.as_deref(), secret.metadata.name.as_deref());
            tracing::warn!(namespace, name, %error, "a Secret with credentials cannot be used, its former state counts");
        })
        .ok()
        .map(Arc::new)
}

fn key_of<K: Resource>(object: &K) -> Option<FleetKey> {
    let metadata = object.meta();
    Some(FleetKey { namespace: metadata.namespace.clone()?, name: metadata.name.clone()? })
}

/// Versions of one object are numbers that grow (Kubernetes 1.35 promises it).
fn version_of(text: Option<&str>) -> Option<u64> {
    text?.parse().ok()
}

#[cfg(test)]
mod tests;
