//! Everything that the leader watches, as one stream.

use std::fmt::Debug;

use futures::{
    StreamExt as _,
    stream::{BoxStream, SelectAll, select_all},
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        coordination::v1::Lease,
        core::v1::{ConfigMap, Secret},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;

use crate::{
    api::agent_fleet::AgentFleet,
    catalog::stored::{HASH_ANNOTATION, INPUTS_ANNOTATION},
    kubernetes::{Part, QuickBackoff, Scope, watch_config},
    lease::replica::{ROLE_LABEL, ROLE_REPLICA, UNCOUNTED_ANNOTATION},
    revisions::inputs::InputEvent,
};

/// What a watch has shown, or that it is broken.
pub enum Seen {
    /// Of the inputs of revisions.
    Input(Part, InputEvent),
    /// Of AgentFleets.
    Fleet(Part, Event<DeserializeGuard<AgentFleet>>),
    /// Of the Leases of replicas.
    Lease(Event<Lease>),
    /// A watch is broken, and tried again.
    Broken {
        /// What it is over.
        kind: String,
        /// Why.
        error: watcher::Error,
    },
}

/// The annotations that anything here reads.
const KEPT_ANNOTATIONS: [&str; 3] = [HASH_ANNOTATION, INPUTS_ANNOTATION, UNCOUNTED_ANNOTATION];

/// A stream that never ends.
pub type Watches = SelectAll<BoxStream<'static, Seen>>;

/// The parts into which a scope is watched.
#[must_use]
pub fn parts(scope: &Scope) -> Vec<Part> {
    match scope {
        Scope::All => vec![None],
        Scope::Namespaces(namespaces) => namespaces.iter().cloned().map(Some).collect(),
    }
}

/// Opens all watches anew: each begins with a list. `namespace` is the operator's own, where the Leases are.
#[must_use]
pub fn open(client: &Client, scope: &Scope, namespace: &str) -> Watches {
    let mut watches = Vec::new();
    for part in parts(scope) {
        watches.push(watch(client, &part, watch_config(), Seen::Fleet));
        watches.push(watch(client, &part, watch_config(), |part, event| {
            Seen::Input(part, InputEvent::RemoteConfig(event))
        }));
        watches.push(watch(client, &part, watch_config(), |part, event: Event<PartialObjectMeta<ConfigMap>>| {
            Seen::Input(part, InputEvent::ConfigMap(event))
        }));
        watches.push(watch(client, &part, watch_config(), |part, event: Event<PartialObjectMeta<Secret>>| {
            Seen::Input(part, InputEvent::Secret(event))
        }));
    }
    let replicas = watch_config().labels(&format!("{ROLE_LABEL}={ROLE_REPLICA}"));
    watches.push(watch(client, &Some(namespace.into()), replicas, |_, event| Seen::Lease(event)));
    select_all(watches)
}

/// One watch. Annotations go at once, but for those of revisions: `kubectl apply` leaves the content of a Secret among
/// them, which nothing here may hold.
fn watch<K>(
    client: &Client,
    part: &Part,
    config: watcher::Config,
    seen: impl Fn(Part, Event<K>) -> Seen + Send + 'static,
) -> BoxStream<'static, Seen>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let api: Api<K> = match part {
        None => Api::all(client.clone()),
        Some(namespace) => Api::namespaced(client.clone(), namespace),
    };
    let part = part.clone();
    watcher(api, config)
        .backoff(QuickBackoff::default())
        .modify(|object| {
            object.managed_fields_mut().clear();
            object.annotations_mut().retain(|name, _| KEPT_ANNOTATIONS.contains(&name.as_str()));
        })
        .map(move |event| match event {
            Ok(event) => seen(part.clone(), event),
            Err(error) => Seen::Broken { kind: K::kind(&()).into_owned(), error },
        })
        .boxed()
}
