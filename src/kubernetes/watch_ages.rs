//! How long ago the API server last opened each watch: the age of what a replica knows.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::Uri;
use kube::runtime::watcher;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};
use tokio::time::Instant;

/// What a watch is of. Of one resource there are several, that select other objects each: the API server may serve one and
/// not the next.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Scene {
    path: String,
    labels: Option<String>,
    fields: Option<String>,
}

impl Scene {
    /// What is watched with these settings.
    pub(super) fn new(path: &str, config: &watcher::Config) -> Self {
        Self { path: path.to_owned(), labels: config.label_selector.clone(), fields: config.field_selector.clone() }
    }

    /// What a request wants to watch; `None` if it does not open a watch.
    pub(super) fn wanted(uri: &Uri) -> Option<Self> {
        let query: BTreeMap<_, _> = form_urlencoded::parse(uri.query()?.as_bytes()).into_owned().collect();
        let selector = |name: &str| query.get(name).filter(|selector| !selector.is_empty()).cloned();
        (query.get("watch").is_some_and(|watch| watch == "true")).then(|| Self {
            path: uri.path().to_owned(),
            labels: selector("labelSelector"),
            fields: selector("fieldSelector"),
        })
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

/// The watches that are open, by what they are of. Clones share them.
///
/// A healthy watch is opened anew every half minute, so that its age stays below that.
#[derive(Clone, Debug, Default)]
pub struct WatchAges {
    watches: Arc<Mutex<BTreeMap<Scene, Watched>>>,
}

#[derive(Debug)]
struct Watched {
    /// How many watch the same.
    watchers: usize,
    heard: Instant,
}

/// A watch that is open until this is dropped: one that was given up has no age.
#[derive(Debug)]
pub(super) struct OpenWatch {
    ages: WatchAges,
    scene: Scene,
}

impl OpenWatch {
    pub(super) fn path(&self) -> &str {
        &self.scene.path
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut watches = self.ages.lock();
        if let Some(watched) = watches.get_mut(&self.scene) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                watches.remove(&self.scene);
            }
        }
    }
}

impl WatchAges {
    /// A watch begins; until the server is heard its age counts from now.
    pub(super) fn open(&self, scene: Scene) -> OpenWatch {
        let watched = Watched { watchers: 0, heard: Instant::now() };
        self.lock().entry(scene.clone()).or_insert(watched).watchers += 1;
        OpenWatch { ages: self.clone(), scene }
    }

    /// The server has opened a watch.
    pub(super) fn heard(&self, scene: &Scene) {
        if let Some(watched) = self.lock().get_mut(scene) {
            watched.heard = Instant::now();
        }
    }

    /// The greatest age of each resource, such as `secrets`, over all namespaces and selectors with which it is watched.
    #[must_use]
    pub fn oldest(&self) -> BTreeMap<String, Duration> {
        let mut oldest = BTreeMap::new();
        for (scene, watched) in &*self.lock() {
            let resource = scene.path().rsplit('/').next().unwrap_or_default().to_owned();
            let age: &mut Duration = oldest.entry(resource).or_default();
            *age = watched.heard.elapsed().max(*age);
        }
        oldest
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Scene, Watched>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for WatchAges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Time since the API server last opened the watch of a resource; healthy below 35 s";
        let mut family = encoder.encode_descriptor("watch_age_seconds", help, None, MetricType::Gauge)?;
        for (resource, age) in self.oldest() {
            ConstGauge::new(age.as_secs_f64()).encode(family.encode_family(&[("resource", resource)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text::encode, registry::Registry};
    use tokio::time::advance;

    use super::*;

    fn shown(ages: &WatchAges) -> Vec<(String, u64)> {
        ages.oldest().into_iter().map(|(resource, age)| (resource, age.as_secs())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_watch_of_a_resource_counts_and_one_that_was_given_up_does_not() {
        let ages = WatchAges::default();
        let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/secrets");
        let scene = |namespace: &str| Scene::new(&path(namespace), &watcher::Config::default());
        let shop = ages.open(scene("shop"));
        let bank = ages.open(scene("bank"));
        let again = ages.open(scene("bank"));
        advance(Duration::from_secs(20)).await;
        ages.heard(&scene("shop"));
        ages.heard(&Scene::new("/api/v1/nodes", &watcher::Config::default()));
        advance(Duration::from_secs(3)).await;
        assert_eq!(shown(&ages), [("secrets".into(), 23)]);
        drop(bank);
        assert_eq!(shown(&ages), [("secrets".into(), 23)], "somebody else watches it still");
        drop(again);
        assert_eq!(shown(&ages), [("secrets".into(), 3)]);
        drop(shop);
        assert_eq!(shown(&ages), []);
    }

    #[tokio::test(start_paused = true)]
    async fn ages_are_a_metric_in_seconds() {
        let ages = WatchAges::default();
        let _open = ages.open(Scene::new("/apis/opamp.dev/v1alpha1/agents", &watcher::Config::default()));
        advance(Duration::from_millis(2_500)).await;
        let mut registry = Registry::default();
        registry.sub_registry_with_prefix("opamp_operator").register_collector(Box::new(ages));
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        assert!(text.contains("opamp_operator_watch_age_seconds{resource=\"agents\"} 2.5"), "{text}");
    }
}
