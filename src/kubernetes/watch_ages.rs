//! How long ago the API server last opened each watch: the age of what a replica knows.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};
use tokio::time::Instant;

/// The watches that are open, by the path of what they watch. Clones share them.
///
/// A healthy watch is opened anew every half minute, so that its age stays below that.
#[derive(Clone, Debug, Default)]
pub struct WatchAges {
    watches: Arc<Mutex<BTreeMap<String, Watched>>>,
}

#[derive(Debug)]
struct Watched {
    /// How many watch this path.
    watchers: usize,
    heard: Instant,
}

/// A watch that is open until this is dropped: one that was given up has no age.
#[derive(Debug)]
pub(super) struct OpenWatch {
    ages: WatchAges,
    path: String,
}

impl OpenWatch {
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut watches = self.ages.lock();
        if let Some(watched) = watches.get_mut(&self.path) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                watches.remove(&self.path);
            }
        }
    }
}

impl WatchAges {
    /// A watch begins; until the server is heard its age counts from now.
    pub(super) fn open(&self, path: &str) -> OpenWatch {
        let watched = Watched { watchers: 0, heard: Instant::now() };
        self.lock().entry(path.to_owned()).or_insert(watched).watchers += 1;
        OpenWatch { ages: self.clone(), path: path.to_owned() }
    }

    /// The server has opened a watch of this path.
    pub(super) fn heard(&self, path: &str) {
        if let Some(watched) = self.lock().get_mut(path) {
            watched.heard = Instant::now();
        }
    }

    /// The greatest age of each resource, such as `secrets`, over all namespaces in which it is watched.
    #[must_use]
    pub fn oldest(&self) -> BTreeMap<String, Duration> {
        let mut oldest = BTreeMap::new();
        for (path, watched) in &*self.lock() {
            let resource = path.rsplit('/').next().unwrap_or_default().to_owned();
            let age: &mut Duration = oldest.entry(resource).or_default();
            *age = watched.heard.elapsed().max(*age);
        }
        oldest
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Watched>> {
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
        let shop = ages.open(&path("shop"));
        let bank = ages.open(&path("bank"));
        let again = ages.open(&path("bank"));
        advance(Duration::from_secs(20)).await;
        ages.heard(&path("shop"));
        ages.heard("/api/v1/nodes");
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
        let _open = ages.open("/apis/opamp.dev/v1alpha1/agents");
        advance(Duration::from_millis(2_500)).await;
        let mut registry = Registry::default();
        registry.sub_registry_with_prefix("opamp_operator").register_collector(Box::new(ages));
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        assert!(text.contains("opamp_operator_watch_age_seconds{resource=\"agents\"} 2.5"), "{text}");
    }
}
