//! What watches have shown, without a reflector's store: each object is reduced to what is needed of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use kube::{Resource, ResourceExt, runtime::watcher};

/// The place of a namespaced object.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ObjectKey {
    /// The key of these names.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object.
    #[must_use]
    pub fn of(object: &impl Resource) -> Self {
        Self::new(object.meta().namespace.clone().unwrap_or_default(), object.name_any())
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// The part of a scope that one watch covers: a namespace, or all.
pub type Part = Option<String>;

/// An object that appeared, changed or vanished.
#[derive(Debug, Eq, PartialEq)]
pub struct Moved<T> {
    /// Which.
    pub key: ObjectKey,
    /// What was known of it before.
    pub former: Option<T>,
}

#[derive(Debug)]
struct Known<T> {
    version: String,
    object: T,
}

/// The objects of one kind, as several watches show them.
#[derive(Debug)]
pub struct Mirror<T> {
    known: BTreeMap<ObjectKey, Known<T>>,
    /// For each part, what its running list has shown so far.
    listings: BTreeMap<Part, BTreeSet<ObjectKey>>,
    unlisted: BTreeSet<Part>,
}

impl<T> Mirror<T> {
    /// An empty mirror, which is complete once each of the parts was listed.
    #[must_use]
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Self {
        Self { known: BTreeMap::new(), listings: BTreeMap::new(), unlisted: parts.into_iter().collect() }
    }

    /// Takes an event of the watch over `part`; says what moved. An object that a new list shows with the same
    /// resourceVersion did not move; one that a new list does not show has vanished, and no other event tells so.
    /// Where `reduce` gives nothing, the object stays as it was known.
    pub fn apply<K: Resource>(
        &mut self,
        part: &Part,
        event: watcher::Event<K>,
        reduce: impl FnOnce(K) -> Option<T>,
    ) -> Vec<Moved<T>> {
        match event {
            watcher::Event::Init => {
                self.listings.insert(part.clone(), BTreeSet::new());
                Vec::new()
            }
            watcher::Event::InitApply(object) => {
                self.listings.entry(part.clone()).or_default().insert(ObjectKey::of(&object));
                self.insert(object, reduce)
            }
            watcher::Event::InitDone => self.finish(part),
            watcher::Event::Apply(object) => self.insert(object, reduce),
            watcher::Event::Delete(object) => self.remove(ObjectKey::of(&object)).into_iter().collect(),
        }
    }

    fn insert<K: Resource>(&mut self, object: K, reduce: impl FnOnce(K) -> Option<T>) -> Vec<Moved<T>> {
        let key = ObjectKey::of(&object);
        let version = object.resource_version().unwrap_or_default();
        if self.known.get(&key).is_some_and(|known| known.version == version) {
            return Vec::new();
        }
        let Some(object) = reduce(object) else { return Vec::new() };
        let former = self.known.insert(key.clone(), Known { version, object });
        vec![Moved { key, former: former.map(|known| known.object) }]
    }

    fn remove(&mut self, key: ObjectKey) -> Option<Moved<T>> {
        let known = self.known.remove(&key)?;
        Some(Moved { key, former: Some(known.object) })
    }

    fn finish(&mut self, part: &Part) -> Vec<Moved<T>> {
        self.unlisted.remove(part);
        let listed = self.listings.remove(part).unwrap_or_default();
        let covered = |key: &ObjectKey| part.as_ref().is_none_or(|namespace| key.namespace == *namespace);
        let vanished: Vec<_> = self.known.keys().filter(|key| covered(key) && !listed.contains(key)).cloned().collect();
        vanished.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Whether every part was listed at least once: before, absence means nothing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// What is known of an object.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<&T> {
        self.known.get(key).map(|known| &known.object)
    }

    /// The resourceVersion of an object.
    #[must_use]
    pub fn version(&self, key: &ObjectKey) -> Option<&str> {
        self.known.get(key).map(|known| known.version.as_str())
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &T)> {
        self.known.iter().map(|(key, known)| (key, &known.object))
    }

    /// The objects of a namespace whose names begin so, by name.
    pub fn named<'a>(&'a self, namespace: &'a str, prefix: &'a str) -> impl Iterator<Item = (&'a ObjectKey, &'a T)> {
        self.known
            .range(ObjectKey::new(namespace, prefix)..)
            .take_while(move |(key, _)| key.namespace == namespace && key.name.starts_with(prefix))
            .map(|(key, known)| (key, &known.object))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    use super::*;

    fn config_map(namespace: &str, name: &str, version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.into());
        object.metadata.name = Some(name.into());
        object.metadata.resource_version = Some(version.into());
        object
    }

    fn names(moved: &[Moved<()>]) -> Vec<&str> {
        moved.iter().map(|moved| moved.key.name.as_str()).collect()
    }

    #[test]
    fn what_a_new_list_does_not_show_has_vanished() {
        let mut mirror = Mirror::new([None]);
        let mut apply = |event, expected: &[&str], case: &str| {
            assert_eq!(names(&mirror.apply(&None, event, |_: ConfigMap| Some(()))), expected, "{case}");
        };
        apply(Init, &[], "a list begins");
        apply(InitApply(config_map("shop", "rules", "1")), &["rules"], "listed");
        apply(Init, &[], "the list broke off");
        apply(InitApply(config_map("shop", "rules", "1")), &[], "listed again, unmoved");
        apply(InitApply(config_map("shop", "routes", "2")), &["routes"], "listed too");
        apply(InitDone, &[], "all are there");
        apply(Apply(config_map("shop", "rules", "3")), &["rules"], "changed");
        apply(Delete(config_map("shop", "unknown", "4")), &[], "never known");
        apply(Init, &[], "a new list");
        apply(InitApply(config_map("shop", "rules", "3")), &[], "still there");
        apply(InitDone, &["routes"], "gone meanwhile");
    }

    #[test]
    fn the_list_of_one_namespace_says_nothing_of_another() {
        let (shop, bank) = (Some("shop".to_owned()), Some("bank".to_owned()));
        let mut mirror = Mirror::new([shop.clone(), bank.clone()]);
        mirror.apply(&shop, Init, |_: ConfigMap| Some(()));
        mirror.apply(&shop, InitApply(config_map("shop", "rules", "1")), |_| Some(()));
        mirror.apply(&bank, Init, |_: ConfigMap| Some(()));
        mirror.apply(&bank, InitDone, |_: ConfigMap| Some(()));
        assert!(!mirror.is_complete());
        mirror.apply(&shop, InitDone, |_: ConfigMap| Some(()));
        assert!(mirror.is_complete());
        assert_eq!(mirror.get(&ObjectKey::new("shop", "rules")), Some(&()));
    }

    #[test]
    fn objects_are_found_by_the_beginning_of_their_name() {
        let mut mirror = Mirror::new([None]);
        for (namespace, name) in [("shop", "a"), ("shop", "b-1"), ("shop", "b-2"), ("shop", "c"), ("zoo", "b-3")] {
            mirror.apply(&None, Apply(config_map(namespace, name, "1")), |_| Some(()));
        }
        let found: Vec<_> = mirror.named("shop", "b-").map(|(key, ())| key.name.as_str()).collect();
        assert_eq!(found, ["b-1", "b-2"]);
    }
}
