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
    catalog::stored::INPUTS_ANNOTATION,
    kubernetes::{Part, QuickBackoff, Scope, describe_watch, watch_config},
    lease::replica::{ROLE_LABEL, ROLE_REPLICA, UNCOUNTED_ANNOTATION},
    revisions::inputs::InputEvent,
};

/// What a watch has shown, or that it is broken.
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
pub fn open(client: &Client, scope: &Scope, namespace: &str) -> Watches {
    let mut watches = Vec::new();
    for part in scope.parts() {
        watches.push(watch(client, &part, watch_config(), |part, event| Some(Seen::Fleet(part, event?))));
        watches.push(watch(client, &part, watch_config(), |part, event| {
            Some(Seen::Input(part, InputEvent::RemoteConfig(event?)))
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

/// One watch; `seen` is given nothing where it is broken. Annotations go at once, but for those of revisions: `kubectl apply` leaves the content of a Secret among
/// them, which nothing here may hold.
fn watch<K>(
    client: &Client,
    part: &Part,
    config: watcher::Config,
    seen: impl Fn(Part, Option<Event<K>>) -> Option<Seen> + Send + 'static,
) -> BoxStream<'static, Seen>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let api: Api<K> = match part {
        None => Api::all(client.clone()),
        Some(namespace) => Api::namespaced(client.clone(), namespace),
    };
    let part = part.clone();
    let mut health = Health::Well;
    watcher(api, config)
        .backoff(QuickBackoff::default())
        .modify(|object| {
            object.managed_fields_mut().clear();
            object.annotations_mut().retain(|name, _| KEPT_ANNOTATIONS.contains(&name.as_str()));
        })
        .map(move |event| {
            health = health.after(&K::kind(&()), &event);
            seen(part.clone(), event.ok())
        })
        .filter_map(|seen| async move { seen })
        .boxed()
}

/// Whether a watch works, so that an outage is told of twice and not at each attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Health {
    Well,
    Broken,
}

impl Health {
    fn after<K>(self, kind: &str, event: &Result<Event<K>, watcher::Error>) -> Self {
        match (self, event) {
            (Self::Well, Err(error)) => {
                tracing::warn!(kind, error = describe_watch(error), "a watch is broken, and tried again");
                Self::Broken
            }
            (Self::Broken, Ok(Event::InitApply(_) | Event::InitDone | Event::Apply(_) | Event::Delete(_))) => {
                tracing::info!(kind, "a watch is back");
                Self::Well
            }
            // `Init` comes before the server was asked, and tells nothing.
            (Self::Broken, Ok(Event::Init) | Err(_)) | (Self::Well, Ok(_)) => self,
        }
    }
}
