//! What changes on the API server: every write, or none.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
    discovery::{ApiGroup, Discovery, verbs},
};
use tokio::task::JoinHandle;

use super::Scenario;
use super::resources::{Kind, text};

/// Counts every write to the Agents of a scenario from the moment it was made.
pub struct AgentWrites {
    counts: Arc<Mutex<Writes>>,
    task: JoinHandle<()>,
}

/// Writes, by the name of the Agent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Writes {
    /// Objects made.
    pub created: BTreeMap<String, usize>,
    /// Objects changed.
    pub changed: BTreeMap<String, usize>,
    /// Objects deleted.
    pub deleted: BTreeMap<String, usize>,
}

impl AgentWrites {
    /// Begins to count.
    pub async fn from_now_on(scenario: &Scenario) -> Self {
        let api = scenario.api(Kind::Agent);
        let now = api.list_metadata(&ListParams::default()).await.expect("the API server lists");
        let version = now.metadata.resource_version.expect("a list has a version");
        let counts = Arc::new(Mutex::new(Writes::default()));
        let task = tokio::spawn(count(api, version, Arc::clone(&counts)));
        Self { counts, task }
    }

    /// What was written so far.
    pub fn so_far(&self) -> Writes {
        assert!(!self.task.is_finished(), "the watch still runs");
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets what was written so far.
    pub fn forget(&self) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = Writes::default();
    }
}

impl Drop for AgentWrites {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn count(api: Api<DynamicObject>, mut version: String, counts: Arc<Mutex<Writes>>) {
    loop {
        // The server ends a watch after some minutes; the next one goes on where it ended.
        let events = api.watch(&WatchParams::default(), &version).await.expect("the API server watches");
        let mut events = events.boxed();
        while let Some(event) = events.try_next().await.expect("no version is missed") {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            let (writes, object) = match event {
                WatchEvent::Added(object) => (&mut counts.created, object),
                WatchEvent::Modified(object) => (&mut counts.changed, object),
                WatchEvent::Deleted(object) => (&mut counts.deleted, object),
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => panic!("the watch failed: {status:?}"),
            };
            version = object.metadata.resource_version.unwrap_or(version);
            *writes.entry(object.metadata.name.unwrap_or_default()).or_default() += 1;
        }
    }
}

/// The resourceVersion of every object but Leases: of the whole cluster if it is ours alone, else of the scenario's
/// two namespaces.
pub async fn everything_but_leases(scenario: &Scenario) -> BTreeMap<String, String> {
    let discovery = Discovery::new(scenario.client.clone()).run().await.expect("the API server tells its kinds");
    let mut versions = BTreeMap::new();
    for (resource, capabilities) in discovery.groups().flat_map(ApiGroup::recommended_resources) {
        if resource.kind == "Lease" || !capabilities.supports_operation(verbs::LIST) {
            continue;
        }
        let api: Api<DynamicObject> = Api::all_with(scenario.client.clone(), &resource);
        let Ok(listed) = api.list_metadata(&ListParams::default()).await else { continue }; // gone since, or not listable
        for object in listed.items {
            let namespace = object.metadata.namespace.unwrap_or_default();
            let ours = namespace == scenario.namespace || namespace == scenario.system;
            if scenario.cluster.is_local() || ours {
                let name = object.metadata.name.unwrap_or_default();
                let version = object.metadata.resource_version.unwrap_or_default();
                versions.insert(format!("{} {namespace}/{name}", resource.kind), version);
            }
        }
    }
    versions
}

/// Every event in the scenario's namespaces, as text.
pub async fn events(client: &Client, namespace: &str) -> Vec<String> {
    let api: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(client.clone(), namespace);
    let listed = api.list(&ListParams::default()).await.expect("the API server lists events");
    listed
        .items
        .iter()
        .map(|event| serde_json::to_value(event).map_or_else(|_| String::new(), |e| text(&e["note"])))
        .collect()
}
