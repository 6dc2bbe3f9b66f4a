//! The four objects of the operator's own namespace that the registrar keeps, as their watches show them.

use futures::{StreamExt as _, stream, stream::BoxStream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, runtime::watcher::Event};

use super::Trouble;
use crate::{
    credentials::{
        published::{AUTHORITY_NAME, REVOCATIONS_NAME},
        server_certificate::SERVER_NAME,
    },
    kubernetes::{WatchClient, watch_config},
};

/// One object, which is there or is not.
#[derive(Debug)]
pub(super) struct Single<K> {
    /// Before the first list is complete absence means nothing.
    is_listed: bool,
    found: Option<K>,
    listing: Option<K>,
}

impl<K> Default for Single<K> {
    fn default() -> Self {
        Self { is_listed: false, found: None, listing: None }
    }
}

impl<K> Single<K> {
    fn take(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.listing = None,
            Event::InitApply(object) => self.listing = Some(object),
            Event::InitDone => (self.is_listed, self.found) = (true, self.listing.take()),
            Event::Apply(object) => self.put(object),
            Event::Delete(_) => self.found = None,
        }
    }

    /// It was written just now; the watch will show the same.
    pub(super) fn put(&mut self, object: K) {
        self.found = Some(object);
    }

    /// The object, if it is there.
    pub(super) fn known(&self) -> Result<Option<&K>, Trouble> {
        if self.is_listed { Ok(self.found.as_ref()) } else { Err(Trouble::NotListed) }
    }
}

/// An event of one of the four watches.
pub(super) enum Seen {
    Authority(Event<Secret>),
    Server(Event<Secret>),
    Published(Event<ConfigMap>),
    Revocations(Event<ConfigMap>),
}

/// The four objects.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) authority: Single<Secret>,
    pub(super) server: Single<Secret>,
    pub(super) published: Single<ConfigMap>,
    pub(super) revocations: Single<ConfigMap>,
}

impl Observed {
    pub(super) fn take(&mut self, seen: Seen) {
        match seen {
            Seen::Authority(event) => self.authority.take(event),
            Seen::Server(event) => self.server.take(event),
            Seen::Published(event) => self.published.take(event),
            Seen::Revocations(event) => self.revocations.take(event),
        }
    }
}

/// Watches the four objects, each by its name, so that no other Secret need be readable.
pub(super) fn watch(watches: &WatchClient, namespace: &str) -> BoxStream<'static, Seen> {
    let secrets: Api<Secret> = Api::namespaced(watches.client().clone(), namespace);
    let config_maps: Api<ConfigMap> = Api::namespaced(watches.client().clone(), namespace);
    let named = |name: &str| watch_config().fields(&format!("metadata.name={name}"));
    let secret = |name: &str| watches.watch(secrets.clone(), named(name));
    let config_map = |name: &str| watches.watch(config_maps.clone(), named(name));
    stream::select_all([
        secret(AUTHORITY_NAME).map(|event| event.map(Seen::Authority)).boxed(),
        secret(SERVER_NAME).map(|event| event.map(Seen::Server)).boxed(),
        config_map(AUTHORITY_NAME).map(|event| event.map(Seen::Published)).boxed(),
        config_map(REVOCATIONS_NAME).map(|event| event.map(Seen::Revocations)).boxed(),
    ])
    .filter_map(std::future::ready)
    .boxed()
}
