//! What revisions and credentials are made from: RemoteConfigs, ConnectionSettings, and the `ConfigMap`s and Secrets that
//! they refer to.
//!
//! `ConfigMap`s and Secrets are watched by their metadata only, in all namespaces in scope; the content of one is asked for
//! only when something refers to it and its resourceVersion has moved. [`WatchedInputs`] itself asks nobody: it says what
//! is to be fetched, and is told what came of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Resource, ResourceExt,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::watcher::Event,
};

use super::{
    content::{Content, Source},
    credentials::{Found, NotFound},
    settings::freeze,
    sources::{Bodies, BodyReference, Missing, SourceKind, references},
};
use crate::{
    api::{connection_settings::ConnectionSettings, remote_config::RemoteConfig},
    catalog::{
        credentials::{CREDENTIALS_PREFIX, Credential},
        settings::{CredentialReference, Settings},
        stored::{INPUTS_ANNOTATION, NAME_PREFIX},
    },
    kubernetes::{Mirror, ObjectKey, Part},
};

/// What is known of a source's content.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Lookup {
    /// It does not exist, or not yet.
    Missing,
    /// It is as it was last seen.
    Known(Arc<Content>),
    /// It exists, and has to be fetched, or is being fetched.
    Unread,
    /// It exists, and could not be fetched: this is what the API server says.
    Unreadable(String),
}

/// The bodies that a RemoteConfig refers to, as far as they can be had.
#[derive(Clone, Eq, PartialEq)]
pub enum Gathered {
    /// What each reference led to.
    Complete(Bodies),
    /// Something has still to be fetched.
    Unread,
    /// Something exists and could not be fetched: a sentence.
    Unreadable(String),
}

/// What came of fetching a source.
#[derive(Debug)]
pub enum Fetched {
    /// It was gone.
    Missing,
    /// It was read.
    Known {
        /// The resourceVersion that was read, maybe a later one than the watch has shown.
        version: String,
        /// Its content.
        content: Arc<Content>,
    },
    /// The API server refused, in its own words.
    Failed(String),
}

/// An order to fetch a source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fetch {
    /// What to fetch.
    pub source: Source,
    /// The resourceVersion that the watch has shown.
    version: String,
}

/// How long a fetch that failed is not ordered again.
pub const RETRY: Duration = Duration::from_secs(5);

/// The last fetch of a source, and the state that the watch had shown when it was ordered.
#[derive(Debug)]
struct Read {
    ordered_for: String,
    outcome: Fetched,
    ended: Instant,
}

/// A revision's Secret, by its metadata. Its name tells which revision it holds: annotations can be changed by hand.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoredRevision {
    /// The Secret's name.
    pub name: String,
    /// The Secret's uid and resourceVersion, for its deletion.
    pub uid: String,
    /// See `uid`.
    pub version: String,
    /// The digest of the inputs that it was made from; empty if somebody has removed it.
    pub inputs: String,
}

/// Objects that a movement concerns.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Concerned {
    /// RemoteConfigs.
    pub remote_configs: BTreeSet<ObjectKey>,
    /// ConnectionSettings.
    pub connection_settings: BTreeSet<ObjectKey>,
    /// Fleets whose members are offered values of what moved.
    pub fleets: BTreeSet<ObjectKey>,
}

/// What an event has moved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MovedInputs {
    /// What was moved, itself or by what it refers to.
    pub moved: Concerned,
    /// Objects of which maybe only the status was written: by the leader, or by somebody who should not have.
    pub restated: Concerned,
    /// Secrets of revisions and credentials that appeared, changed or vanished.
    pub stored: BTreeSet<ObjectKey>,
}

/// An event of one of the watches. Not to be shown: metadata of a Secret may hold its content.
pub enum InputEvent {
    /// Of RemoteConfigs.
    RemoteConfig(Event<DeserializeGuard<RemoteConfig>>),
    /// Of ConnectionSettings.
    ConnectionSettings(Event<DeserializeGuard<ConnectionSettings>>),
    /// Of `ConfigMap`s, metadata only.
    ConfigMap(Event<PartialObjectMeta<ConfigMap>>),
    /// Of Secrets, metadata only.
    Secret(Event<PartialObjectMeta<Secret>>),
}

/// Everything that revisions and credentials are made from, as the watches show it.
#[derive(Debug)]
pub struct WatchedInputs {
    remote_configs: Mirror<Arc<RemoteConfig>>,
    connection_settings: Mirror<Arc<ConnectionSettings>>,
    config_maps: Mirror<()>,
    secrets: Mirror<Option<StoredRevision>>,
    /// What the members of each fleet are offered values of, whether or not an object still refers to it.
    offered: BTreeMap<ObjectKey, BTreeSet<Source>>,
    read: BTreeMap<Source, Read>,
    fetching: BTreeSet<Source>,
}

impl WatchedInputs {
    /// Knows nothing yet of these parts of the scope.
    #[must_use]
    pub fn new(parts: &[Part]) -> Self {
        Self {
            remote_configs: Mirror::new(parts.iter().cloned()),
            connection_settings: Mirror::new(parts.iter().cloned()),
            config_maps: Mirror::new(parts.iter().cloned()),
            secrets: Mirror::new(parts.iter().cloned()),
            offered: BTreeMap::new(),
            read: BTreeMap::new(),
            fetching: BTreeSet::new(),
        }
    }

    /// Whether all kinds have been listed: before, nothing can be said to be missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.remote_configs.is_complete()
            && self.connection_settings.is_complete()
            && self.config_maps.is_complete()
            && self.secrets.is_complete()
    }

    /// Takes an event; says what moved by it.
    pub fn apply(&mut self, part: &Part, event: InputEvent) -> MovedInputs {
        match event {
            InputEvent::RemoteConfig(event) => {
                let [moved, restated] = follow(&mut self.remote_configs, part, event);
                let of = |remote_configs| Concerned { remote_configs, ..Concerned::default() };
                MovedInputs { moved: of(moved), restated: of(restated), ..MovedInputs::default() }
            }
            InputEvent::ConnectionSettings(event) => {
                let [moved, restated] = follow(&mut self.connection_settings, part, event);
                let of = |connection_settings| Concerned { connection_settings, ..Concerned::default() };
                MovedInputs { moved: of(moved), restated: of(restated), ..MovedInputs::default() }
            }
            InputEvent::ConfigMap(event) => {
                let moved = self.config_maps.apply(part, event, |_| Some(()));
                let sources = moved.into_iter().map(|moved| Source { kind: SourceKind::ConfigMap, key: moved.key });
                MovedInputs { moved: self.concerned(sources.collect()), ..MovedInputs::default() }
            }
            InputEvent::Secret(event) => {
                let moved = self.secrets.apply(part, event, |secret| Some(stored_revision(&secret)));
                let (stored, others): (BTreeSet<_>, _) =
                    moved.into_iter().map(|moved| moved.key).partition(|key| is_stored(&key.name));
                let sources = others.into_iter().map(|key| Source { kind: SourceKind::Secret, key });
                MovedInputs { moved: self.concerned(sources.collect()), stored, ..MovedInputs::default() }
            }
        }
    }

    /// What refers to one of these, or offers values of them.
    fn concerned(&self, sources: BTreeSet<Source>) -> Concerned {
        let mut by_namespace: BTreeMap<String, BTreeSet<Source>> = BTreeMap::new();
        for source in sources {
            by_namespace.entry(source.key.namespace.clone()).or_default().insert(source);
        }
        let mut found = Concerned::default();
        for (namespace, sources) in &by_namespace {
            let refers = |referenced: &BTreeSet<Source>| !referenced.is_disjoint(sources);
            let configs = self.remote_configs.named(namespace, "").filter(|(_, object)| refers(&referenced(object)));
            found.remote_configs.extend(configs.map(|(key, _)| key.clone()));
            let settings = self.connection_settings.named(namespace, "");
            let settings = settings.filter(|(_, object)| refers(&referenced_by_settings(object)));
            found.connection_settings.extend(settings.map(|(key, _)| key.clone()));
            let fleets = self.offered.iter().filter(|(key, offered)| key.namespace == *namespace && refers(offered));
            found.fleets.extend(fleets.map(|(key, _)| key.clone()));
        }
        found
    }

    /// Remembers what the members of a fleet are offered values of, so that the fleet is told of when they move.
    pub fn offer(&mut self, fleet: ObjectKey, sources: BTreeSet<Source>) {
        if sources.is_empty() {
            self.offered.remove(&fleet);
        } else {
            self.offered.insert(fleet, sources);
        }
    }

    /// ConnectionSettings.
    #[must_use]
    pub fn connection_settings(&self, key: &ObjectKey) -> Option<&Arc<ConnectionSettings>> {
        self.connection_settings.get(key)
    }

    /// What references lead to; `None`: something has still to be fetched.
    #[must_use]
    pub fn credentials(&self, namespace: &str, references: &BTreeSet<CredentialReference>) -> Option<Found> {
        let mut found = Found::new();
        for reference in references {
            let result = match self.lookup(&source_of(namespace, reference)) {
                Lookup::Missing => Err(NotFound::Object),
                Lookup::Known(content) => content
                    .get(&reference.key)
                    .map(|value| Credential { kind: content.kind(), value: value.clone() })
                    .ok_or(NotFound::Key),
                Lookup::Unread => return None,
                Lookup::Unreadable(why) => Err(NotFound::Unreadable(why)),
            };
            found.insert(reference.clone(), result);
        }
        Some(found)
    }

    /// A RemoteConfig.
    #[must_use]
    pub fn remote_config(&self, key: &ObjectKey) -> Option<&Arc<RemoteConfig>> {
        self.remote_configs.get(key)
    }

    /// All RemoteConfigs.
    pub fn remote_configs(&self) -> impl Iterator<Item = &ObjectKey> {
        self.remote_configs.iter().map(|(key, _)| key)
    }

    /// The Secrets in which revisions of a fleet are kept; `prefix` is how their names begin.
    #[must_use]
    pub fn stored_revisions(&self, namespace: &str, prefix: &str) -> Vec<StoredRevision> {
        self.secrets.named(namespace, prefix).filter_map(|(_, stored)| stored.clone()).collect()
    }

    /// What is known of a source.
    #[must_use]
    pub fn lookup(&self, source: &Source) -> Lookup {
        let Some(version) = self.version(source) else { return Lookup::Missing };
        let Some(read) = self.read.get(source) else { return Lookup::Unread };
        match &read.outcome {
            Fetched::Known { version: found, content } if version == found || version == read.ordered_for => {
                Lookup::Known(Arc::clone(content))
            }
            Fetched::Missing if version == read.ordered_for => Lookup::Missing,
            Fetched::Failed(why) => Lookup::Unreadable(why.clone()),
            Fetched::Known { .. } | Fetched::Missing => Lookup::Unread,
        }
    }

    /// The resourceVersion of a source that the watch has shown.
    #[must_use]
    pub fn version(&self, source: &Source) -> Option<&str> {
        match source.kind {
            SourceKind::ConfigMap => self.config_maps.version(&source.key),
            SourceKind::Secret => self.secrets.version(&source.key),
        }
    }

    /// The bodies that a RemoteConfig refers to.
    #[must_use]
    pub fn bodies(&self, remote_config: &RemoteConfig) -> Gathered {
        let namespace = remote_config.namespace().unwrap_or_default();
        let mut bodies = Bodies::new();
        let mut unreadable = None;
        for reference in references(&remote_config.spec) {
            let source = source(&namespace, &reference);
            let body = match self.lookup(&source) {
                Lookup::Missing => Err(Missing::Object),
                Lookup::Known(content) => content.get(&reference.key).cloned().ok_or(Missing::Key),
                Lookup::Unread => return Gathered::Unread,
                Lookup::Unreadable(why) => {
                    unreadable = Some(format!("{source} could not be read: {why}"));
                    continue;
                }
            };
            bodies.insert(reference, body);
        }
        unreadable.map_or(Gathered::Complete(bodies), Gathered::Unreadable)
    }

    /// Which of these have to be fetched before they can be judged. Each is ordered once, and again some seconds after
    /// that failed.
    pub fn order(&mut self, sources: BTreeSet<Source>, now: Instant) -> Vec<Fetch> {
        let mut orders = Vec::new();
        for source in sources {
            let wanted = match self.lookup(&source) {
                Lookup::Missing | Lookup::Known(_) => false,
                Lookup::Unread => true,
                Lookup::Unreadable(_) => self.read.get(&source).is_none_or(|read| now >= read.ended + RETRY),
            };
            let version = self.version(&source).map(ToOwned::to_owned);
            if let Some(version) = version.filter(|_| wanted)
                && self.fetching.insert(source.clone())
            {
                orders.push(Fetch { source, version });
            }
        }
        orders
    }

    /// A fetch has ended; says who waited for it. Content that nobody refers to any more is forgotten.
    pub fn fetched(&mut self, fetch: Fetch, outcome: Fetched, now: Instant) -> Concerned {
        let Fetch { source, version } = fetch;
        self.fetching.remove(&source);
        let waiting = self.concerned(BTreeSet::from([source.clone()]));
        self.read.insert(source, Read { ordered_for: version, outcome, ended: now });
        self.forget();
        waiting
    }

    fn forget(&mut self) {
        let by_configs = self.remote_configs.iter().flat_map(|(_, object)| referenced(object));
        let by_settings = self.connection_settings.iter().flat_map(|(_, object)| referenced_by_settings(object));
        let by_fleets = self.offered.values().flatten().cloned();
        let wanted: BTreeSet<Source> = by_configs.chain(by_settings).chain(by_fleets).collect();
        self.read.retain(|source, _| wanted.contains(source));
    }
}

/// The `ConfigMap`s and Secrets that a RemoteConfig refers to.
#[must_use]
pub fn referenced(remote_config: &RemoteConfig) -> BTreeSet<Source> {
    let namespace = remote_config.namespace().unwrap_or_default();
    references(&remote_config.spec).iter().map(|reference| source(&namespace, reference)).collect()
}

fn source(namespace: &str, reference: &BodyReference) -> Source {
    Source { kind: reference.kind, key: ObjectKey::new(namespace, &reference.name) }
}

/// The `ConfigMap`s and Secrets that ConnectionSettings refer to.
#[must_use]
pub fn referenced_by_settings(object: &ConnectionSettings) -> BTreeSet<Source> {
    let namespace = object.namespace().unwrap_or_default();
    let settings = freeze(&object.name_any(), &object.spec.opamp);
    settings.iter().flat_map(Settings::references).map(|it| source_of(&namespace, &it)).collect()
}

/// The object that a reference names.
#[must_use]
pub fn source_of(namespace: &str, reference: &CredentialReference) -> Source {
    Source { kind: reference.kind, key: ObjectKey::new(namespace, &reference.name) }
}

/// Takes an event of objects that people write; tells those that moved from those of which maybe only the status did.
fn follow<K: Resource<DynamicType = ()>>(
    mirror: &mut Mirror<Arc<K>>,
    part: &Part,
    event: Event<DeserializeGuard<K>>,
) -> [BTreeSet<ObjectKey>; 2] {
    let moved = mirror.apply(part, event, readable);
    let generation = |object: &Arc<K>| (object.meta().uid.clone(), object.meta().generation);
    let (moved, restated): (Vec<_>, Vec<_>) = moved
        .into_iter()
        .partition(|moved| moved.former.as_ref().map(generation) != mirror.get(&moved.key).map(generation));
    [moved, restated].map(|all| all.into_iter().map(|moved| moved.key).collect())
}

/// An object that this version cannot read leaves its former state in force; a later version may have written it.
fn readable<K: Resource<DynamicType = ()>>(object: DeserializeGuard<K>) -> Option<Arc<K>> {
    object
        .0
        .inspect_err(|error| {
            let (namespace, name) = (error.metadata.namespace.as_deref(), error.metadata.name.as_deref());
            tracing::warn!(namespace, name, "{} cannot be read, the former state counts", K::kind(&()));
        })
        .ok()
        .map(Arc::new)
}

/// Whether a Secret is one of those that the leader keeps for fleets.
fn is_stored(name: &str) -> bool {
    name.starts_with(NAME_PREFIX) || name.starts_with(CREDENTIALS_PREFIX)
}

fn stored_revision(secret: &PartialObjectMeta<Secret>) -> Option<StoredRevision> {
    let name = secret.name_any();
    name.starts_with(NAME_PREFIX).then(|| StoredRevision {
        name,
        uid: secret.uid().unwrap_or_default(),
        version: secret.resource_version().unwrap_or_default(),
        inputs: secret.annotations().get(INPUTS_ANNOTATION).cloned().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
