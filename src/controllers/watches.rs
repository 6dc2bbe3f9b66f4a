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
    Api, Resource, ResourceExt,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;

use crate::{
    api::agent_fleet::AgentFleet,
    catalog::stored::INPUTS_ANNOTATION,
    kubernetes::{Part, Scope, WatchClient, watch_config},
    lease::replica::{ROLE_LABEL, ROLE_REPLICA, UNCOUNTED_ANNOTATION},
    revisions::inputs::InputEvent,
};

/// What a watch has shown, or that it is broken.
#[expect(clippy::large_enum_variant, reason = "each is taken apart as soon as it is there")]
pub enum Seen {
    /// Of the inputs of revisions.
    Input(Part, InputEvent),
    /// Of fleets.
    Fleet(Part, Event<DeserializeGuard<AgentFleet>>),
    /// Of the Leases of replicas.
    Lease(Event<Lease>),
    /// The watch of Leases is broken, and tried again: nothing is known of replicas meanwhile.
    NoLeases,
}

/// The annotations that anything here reads.
const KEPT_ANNOTATIONS: [&str; 2] = [INPUTS_ANNOTATION, UNCOUNTED_ANNOTATION];

/// A stream that never ends.
pub type Watches = SelectAll<BoxStream<'static, Seen>>;

/// Opens all watches anew: each begins with a list. `namespace` is the operator's own, where the Leases are.
pub fn open(client: &WatchClient, scope: &Scope, namespace: &str) -> Watches {
    let mut watches = Vec::new();
    for part in scope.parts() {
        watches.push(watch(client, &part, watch_config(), |part, event| Some(Seen::Fleet(part, event?))));
        watches.push(watch(client, &part, watch_config(), |part, event| {
            Some(Seen::Input(part, InputEvent::RemoteConfig(event?)))
        }));
        watches.push(watch(client, &part, watch_config(), |part, event| {
            Some(Seen::Input(part, InputEvent::ConnectionSettings(event?)))
        }));
        watches.push(watch(
            client,
            &part,
            watch_config(),
            |part, event: Option<Event<PartialObjectMeta<ConfigMap>>>| {
                Some(Seen::Input(part, InputEvent::ConfigMap(event?)))
            },
        ));
        watches.push(watch(client, &part, watch_config(), |part, event: Option<Event<PartialObjectMeta<Secret>>>| {
            Some(Seen::Input(part, InputEvent::Secret(event?)))
        }));
    }
    let replicas = watch_config().labels(&format!("{ROLE_LABEL}={ROLE_REPLICA}"));
    watches.push(watch(client, &Some(namespace.into()), replicas, |_, event| {
        Some(event.map_or(Seen::NoLeases, Seen::Lease))
    }));
    select_all(watches)
}

/// One watch; `seen` is given nothing where it is broken. Annotations go at once, but for those that are read here:
/// `kubectl apply` leaves the content of a Secret among them, which nothing here may hold.
fn watch<K>(
    client: &WatchClient,
    part: &Part,
    config: watcher::Config,
    seen: impl Fn(Part, Option<Event<K>>) -> Option<Seen> + Send + 'static,
) -> BoxStream<'static, Seen>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let api: Api<K> = match part {
        None => Api::all(client.client().clone()),
        Some(namespace) => Api::namespaced(client.client().clone(), namespace),
    };
    let part = part.clone();
    client
        .watch(api, config)
        .map(move |event| seen(part.clone(), event.map(|event| event.modify(strip))))
        .filter_map(|seen| async move { seen })
        .boxed()
}

fn strip(object: &mut impl Resource) {
    object.managed_fields_mut().clear();
    object.annotations_mut().retain(|name, _| KEPT_ANNOTATIONS.contains(&name.as_str()));
}
