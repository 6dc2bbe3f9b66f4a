//! What revisions are made from: RemoteConfigs, and the `ConfigMap`s and Secrets that they refer to.
//!
//! `ConfigMap`s and Secrets are watched by their metadata only, in all namespaces in scope; the content of one is asked for
//! only when a RemoteConfig refers to it and its resourceVersion has moved. [`WatchedInputs`] itself asks nobody: it says what
//! is to be fetched, and is told what came of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    ResourceExt,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::watcher::Event,
};

use super::{
    content::{Content, Source},
    sources::{Bodies, BodyReference, Missing, SourceKind, references},
};
use crate::{
    api::remote_config::RemoteConfig,
    catalog::stored::{INPUTS_ANNOTATION, NAME_PREFIX},
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

/// What an event has moved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MovedInputs {
    /// RemoteConfigs, themselves or by what they refer to.
    pub remote_configs: BTreeSet<ObjectKey>,
    /// RemoteConfigs of which maybe only the status was written: by the leader, or by somebody who should not have.
    pub restated: BTreeSet<ObjectKey>,
    /// Secrets of revisions that appeared, changed or vanished.
    pub revisions: BTreeSet<ObjectKey>,
}

/// An event of one of the watches. Not to be shown: metadata of a Secret may hold its content.
pub enum InputEvent {
    /// Of RemoteConfigs.
    RemoteConfig(Event<DeserializeGuard<RemoteConfig>>),
    /// Of `ConfigMap`s, metadata only.
    ConfigMap(Event<PartialObjectMeta<ConfigMap>>),
    /// Of Secrets, metadata only.
    Secret(Event<PartialObjectMeta<Secret>>),
}

/// Everything that revisions are made from, as the watches show it.
#[derive(Debug)]
pub struct WatchedInputs {
    remote_configs: Mirror<Arc<RemoteConfig>>,
    config_maps: Mirror<()>,
    secrets: Mirror<Option<StoredRevision>>,
    read: BTreeMap<Source, Read>,
    fetching: BTreeSet<Source>,
}

impl WatchedInputs {
    /// Knows nothing yet of these parts of the scope.
    #[must_use]
    pub fn new(parts: &[Part]) -> Self {
        Self {
            remote_configs: Mirror::new(parts.iter().cloned()),
            config_maps: Mirror::new(parts.iter().cloned()),
            secrets: Mirror::new(parts.iter().cloned()),
            read: BTreeMap::new(),
            fetching: BTreeSet::new(),
        }
    }

    /// Whether all kinds have been listed: before, nothing can be said to be missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.remote_configs.is_complete() && self.config_maps.is_complete() && self.secrets.is_complete()
    }

    /// Takes an event; says what moved by it.
    pub fn apply(&mut self, part: &Part, event: InputEvent) -> MovedInputs {
        match event {
            InputEvent::RemoteConfig(event) => {
                let moved = self.remote_configs.apply(part, event, readable);
                let generation = |object: &Arc<RemoteConfig>| (object.metadata.uid.clone(), object.metadata.generation);
                let (spec_moved, restated): (Vec<_>, Vec<_>) = moved.into_iter().partition(|moved| {
                    moved.former.as_ref().map(generation) != self.remote_configs.get(&moved.key).map(generation)
                });
                MovedInputs {
                    remote_configs: spec_moved.into_iter().map(|moved| moved.key).collect(),
                    restated: restated.into_iter().map(|moved| moved.key).collect(),
                    ..MovedInputs::default()
                }
            }
            InputEvent::ConfigMap(event) => {
                let moved = self.config_maps.apply(part, event, |_| Some(()));
                let sources = moved.into_iter().map(|moved| Source { kind: SourceKind::ConfigMap, key: moved.key });
                MovedInputs { remote_configs: self.referring(sources), ..MovedInputs::default() }
            }
            InputEvent::Secret(event) => {
                let moved = self.secrets.apply(part, event, |secret| Some(stored_revision(&secret)));
                let revisions = moved.iter().map(|moved| &moved.key).filter(|key| key.name.starts_with(NAME_PREFIX));
                let revisions = revisions.cloned().collect();
                let sources = moved.into_iter().map(|moved| Source { kind: SourceKind::Secret, key: moved.key });
                MovedInputs { remote_configs: self.referring(sources), revisions, ..MovedInputs::default() }
            }
        }
    }

    /// The RemoteConfigs that refer to one of these.
    fn referring(&self, sources: impl Iterator<Item = Source>) -> BTreeSet<ObjectKey> {
        let mut by_namespace: BTreeMap<String, BTreeSet<Source>> = BTreeMap::new();
        for source in sources {
            by_namespace.entry(source.key.namespace.clone()).or_default().insert(source);
        }
        let mut found = BTreeSet::new();
        for (namespace, sources) in &by_namespace {
            let all = self.remote_configs.named(namespace, "");
            let refer = all.filter(|(_, object)| referenced(object).iter().any(|source| sources.contains(source)));
            found.extend(refer.map(|(key, _)| key.clone()));
        }
        found
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

    fn version(&self, source: &Source) -> Option<&str> {
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

    /// What a RemoteConfig refers to and has to be fetched before it can be judged. Each is ordered once, and again
    /// some seconds after that failed.
    pub fn order(&mut self, remote_config: &RemoteConfig, now: Instant) -> Vec<Fetch> {
        let mut orders = Vec::new();
        for source in referenced(remote_config) {
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

    /// A fetch has ended; says which RemoteConfigs waited for it. Content that nobody refers to any more is forgotten.
    pub fn fetched(&mut self, fetch: Fetch, outcome: Fetched, now: Instant) -> BTreeSet<ObjectKey> {
        let Fetch { source, version } = fetch;
        self.fetching.remove(&source);
        let waiting = self.referring(std::iter::once(source.clone()));
        self.read.insert(source, Read { ordered_for: version, outcome, ended: now });
        self.forget();
        waiting
    }

    fn forget(&mut self) {
        let wanted: BTreeSet<Source> = self.remote_configs.iter().flat_map(|(_, object)| referenced(object)).collect();
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

/// An object that this version cannot read leaves its former state in force; a later version may have written it.
fn readable(object: DeserializeGuard<RemoteConfig>) -> Option<Arc<RemoteConfig>> {
    object
        .0
        .inspect_err(|error| {
            let (namespace, name) = (error.metadata.namespace.as_deref(), error.metadata.name.as_deref());
            tracing::warn!(namespace, name, "a RemoteConfig cannot be read, its former state counts");
        })
        .ok()
        .map(Arc::new)
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
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;

    fn remote_config(generation: i64, secret: &str) -> RemoteConfig {
        serde_json::from_value(json!({
            "apiVersion": "opamp.dev/v1alpha1",
            "kind": "RemoteConfig",
            "metadata": {"name": "base", "namespace": "telemetry", "generation": generation,
                "resourceVersion": generation.to_string()},
            "spec": {"files": [
                {"name": "collector.yaml", "bodyFrom": {"configMapKeyRef": {"name": "collector", "key": "yaml"}}},
                {"name": "token", "bodyFrom": {"secretKeyRef": {"name": secret, "key": "token"}}},
            ]},
        }))
        .expect("a RemoteConfig")
    }

    fn guarded(generation: i64, secret: &str) -> DeserializeGuard<RemoteConfig> {
        DeserializeGuard(Ok(remote_config(generation, secret)))
    }

    fn metadata<K>(name: &str, version: &str) -> PartialObjectMeta<K> {
        serde_json::from_value(json!({
            "apiVersion": "meta.k8s.io/v1",
            "kind": "PartialObjectMetadata",
            "metadata": {"name": name, "namespace": "telemetry", "resourceVersion": version},
        }))
        .expect("metadata")
    }

    fn secret(name: &str) -> Source {
        Source { kind: SourceKind::Secret, key: ObjectKey::new("telemetry", name) }
    }

    fn base() -> BTreeSet<ObjectKey> {
        BTreeSet::from([ObjectKey::new("telemetry", "base")])
    }

    fn known(version: &str) -> Fetched {
        let data = BTreeMap::from([("token".to_owned(), ByteString(b"canary".to_vec()))]);
        let content = Arc::new(Content::from(Secret { data: Some(data), ..Secret::default() }));
        Fetched::Known { version: version.into(), content }
    }

    fn moved(inputs: &mut WatchedInputs, event: InputEvent) -> BTreeSet<ObjectKey> {
        inputs.apply(&None, event).remote_configs
    }

    fn inputs() -> WatchedInputs {
        let mut inputs = WatchedInputs::new(&[None]);
        assert_eq!(moved(&mut inputs, InputEvent::RemoteConfig(Event::Apply(guarded(1, "token")))), base());
        inputs
    }

    fn seen(inputs: &mut WatchedInputs, name: &str, version: &str) -> BTreeSet<ObjectKey> {
        moved(inputs, InputEvent::Secret(Event::Apply(metadata(name, version))))
    }

    #[test]
    fn only_what_is_referred_to_moves_anything() {
        let mut inputs = inputs();
        assert_eq!(seen(&mut inputs, "token", "1"), base());
        assert_eq!(seen(&mut inputs, "token", "1"), BTreeSet::new(), "listed again");
        assert_eq!(seen(&mut inputs, "unrelated", "1"), BTreeSet::new());
        let collector = InputEvent::ConfigMap(Event::Apply(metadata("collector", "1")));
        assert_eq!(moved(&mut inputs, collector), base());
        let mut written = remote_config(1, "token");
        written.metadata.resource_version = Some("9".into());
        let status = InputEvent::RemoteConfig(Event::Apply(DeserializeGuard(Ok(written))));
        let moved_by_status = inputs.apply(&None, status);
        assert_eq!((moved_by_status.remote_configs, moved_by_status.restated), (BTreeSet::new(), base()));
        assert_eq!(moved(&mut inputs, InputEvent::RemoteConfig(Event::Apply(guarded(2, "token")))), base());
    }

    #[test]
    fn content_is_fetched_once_for_each_version_that_the_watch_shows() {
        let now = Instant::now();
        let mut inputs = inputs();
        let base = remote_config(1, "token");
        assert_eq!((inputs.lookup(&secret("token")), inputs.order(&base, now)), (Lookup::Missing, vec![]));
        seen(&mut inputs, "token", "1");
        assert_eq!(inputs.lookup(&secret("token")), Lookup::Unread);
        let orders = inputs.order(&base, now);
        assert_eq!(orders.len(), 1);
        assert_eq!(inputs.order(&base, now), [], "already under way");
        assert_eq!(inputs.fetched(orders[0].clone(), known("2"), now), self::base());
        assert!(matches!(inputs.lookup(&secret("token")), Lookup::Known(_)), "newer than the watch");
        seen(&mut inputs, "token", "2");
        assert!(matches!(inputs.lookup(&secret("token")), Lookup::Known(_)), "what was read already");
        seen(&mut inputs, "token", "3");
        assert_eq!(inputs.lookup(&secret("token")), Lookup::Unread);
        assert_eq!(inputs.order(&base, now).len(), 1);
        inputs.apply(&None, InputEvent::Secret(Event::Delete(metadata("token", "4"))));
        assert_eq!(inputs.lookup(&secret("token")), Lookup::Missing);
    }

    #[test]
    fn a_fetch_that_failed_is_ordered_again_after_a_while() {
        let now = Instant::now();
        let mut inputs = inputs();
        seen(&mut inputs, "token", "1");
        let order = inputs.order(&remote_config(1, "token"), now).remove(0);
        inputs.fetched(order, Fetched::Failed("403 Forbidden".into()), now);
        assert_eq!(inputs.lookup(&secret("token")), Lookup::Unreadable("403 Forbidden".into()));
        assert_eq!(inputs.order(&remote_config(1, "token"), now + RETRY / 2), []);
        assert_eq!(inputs.order(&remote_config(1, "token"), now + RETRY).len(), 1);
    }

    #[test]
    fn content_that_nobody_refers_to_any_more_is_forgotten() {
        let now = Instant::now();
        let mut inputs = inputs();
        seen(&mut inputs, "token", "1");
        let order = inputs.order(&remote_config(1, "token"), now).remove(0);
        inputs.fetched(order, known("1"), now);
        inputs.apply(&None, InputEvent::RemoteConfig(Event::Apply(guarded(2, "other"))));
        seen(&mut inputs, "other", "1");
        let order = inputs.order(&remote_config(2, "other"), now).remove(0);
        inputs.fetched(order, known("1"), now);
        assert_eq!(inputs.read.keys().cloned().collect::<Vec<_>>(), [secret("other")]);
    }

    #[test]
    fn a_revision_that_appears_or_vanishes_is_told_by_its_name() {
        let mut inputs = inputs();
        let name = "opamp-revision-0c1d2e3f-3f9a1c2b07";
        let revision = BTreeSet::from([ObjectKey::new("telemetry", name)]);
        let mut revisions = |event| inputs.apply(&None, InputEvent::Secret(event)).revisions;
        assert_eq!(revisions(Event::Apply(metadata(name, "1"))), revision);
        assert_eq!(revisions(Event::Apply(metadata("token", "1"))), BTreeSet::new());
        assert_eq!(revisions(Event::Delete(metadata(name, "2"))), revision);
        assert_eq!(revisions(Event::Delete(metadata("token", "1"))), BTreeSet::new());
    }
}
