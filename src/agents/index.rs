//! All Agents that the API server knows, as summaries, kept up by a plain watch.
//!
//! One task feeds the index; everybody else reads. A reader never waits for the API server, and the lock is held for a
//! look-up or a copy of pointers only.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::{Api, Resource as _, core::ApiResource, runtime::watcher::Event};
use tokio::sync::{broadcast, watch};

use super::{
    departures::{Departure, Departures},
    summary::{AgentSummary, Interner, ObservedAgent, named_uid, summarise},
};
use crate::{
    api::agent::Agent,
    kubernetes::{Scope, WatchClient, watch_config},
    opamp::InstanceUid,
};

/// How many changes a slow listener may be behind. Whoever falls further behind is told so, and reads everything.
const CHANGES_KEPT: usize = 1024;

/// A change of one Agent object.
#[derive(Clone, Debug)]
pub struct Change {
    /// Whose object it is.
    pub uid: InstanceUid,
    /// What was known before; `None`: the object is new.
    pub before: Option<Arc<AgentSummary>>,
    /// What is known now; `None`: the object is gone.
    pub after: Option<Arc<AgentSummary>>,
}

/// How many Agent objects there are.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// All of them.
    pub agents: usize,
    /// Those that no fleet ever took.
    pub never_matched: usize,
    /// Those that wait for a person's approval.
    pub pending: usize,
}

/// All Agents that the API server knows. A clone reads the same index.
#[derive(Clone)]
pub struct AgentIndex {
    shared: Arc<Shared>,
}

struct Shared {
    known: RwLock<Known>,
    changes: broadcast::Sender<Change>,
    generation: watch::Sender<u64>,
    synced: watch::Sender<bool>,
    departures: Mutex<Departures>,
}

impl AgentIndex {
    /// An index that knows nothing until [`Self::run`] has listed the Agents of this scope.
    #[must_use]
    pub fn new(scope: &Scope) -> Self {
        Self {
            shared: Arc::new(Shared {
                known: RwLock::new(Known::new(scope)),
                changes: broadcast::Sender::new(CHANGES_KEPT),
                generation: watch::Sender::new(0),
                synced: watch::Sender::new(false),
                departures: Mutex::default(),
            }),
        }
    }

    /// Watches the Agents of the scope that the index was made for, until the future is dropped.
    pub async fn run(self, watches: WatchClient, scope: Scope) {
        let resource = ApiResource::erase::<Agent>(&());
        let client = watches.client();
        let apis: Vec<Api<ObservedAgent>> = match &scope {
            Scope::All => vec![Api::all_with(client.clone(), &resource)],
            Scope::Namespaces(namespaces) => {
                namespaces.iter().map(|namespace| Api::namespaced_with(client.clone(), namespace, &resource)).collect()
            }
        };
        let mut events = stream::select_all(
            apis.into_iter()
                .enumerate()
                .map(|(part, api)| watches.watch(api, watch_config()).map(move |event| (part, event))),
        );
        while let Some((part, event)) = events.next().await {
            if let Some(event) = event {
                self.take(part, event);
            }
        }
    }

    fn take(&self, part: usize, event: Event<ObservedAgent>) {
        let (changes, synced) = {
            let mut known = self.shared.known.write().unwrap_or_else(PoisonError::into_inner);
            (known.take(part, event), known.is_synced())
        };
        self.shared.synced.send_if_modified(|was| std::mem::replace(was, synced) != synced);
        if changes.is_empty() {
            return;
        }
        self.locked_departures().follow(&changes, Timestamp::now());
        self.shared.generation.send_modify(|generation| *generation += 1);
        for change in changes {
            // An error means that nobody listens.
            let _ = self.shared.changes.send(change);
        }
    }

    fn read<T>(&self, question: impl FnOnce(&Known) -> T) -> T {
        question(&self.shared.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The objects of one agent, by namespace: rarely two, while it moves or when two replicas made one each.
    #[must_use]
    pub fn get(&self, uid: &InstanceUid) -> Vec<Arc<AgentSummary>> {
        self.read(|known| known.of(*uid))
    }

    /// Every object, ordered by uid and namespace.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<AgentSummary>> {
        self.read(|known| known.agents.values().map(Arc::clone).collect())
    }

    /// Agents that were revoked when their objects vanished, not long ago.
    #[must_use]
    pub fn departures(&self) -> Vec<Departure> {
        self.locked_departures().remembered(Timestamp::now())
    }

    fn locked_departures(&self) -> MutexGuard<'_, Departures> {
        self.shared.departures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many objects there are in all.
    #[must_use]
    pub fn total(&self) -> usize {
        self.read(|known| known.agents.len())
    }

    /// How many objects one namespace has.
    #[must_use]
    pub fn counts(&self, namespace: &str) -> Counts {
        self.read(|known| known.counts.get(namespace).copied().unwrap_or_default())
    }

    /// Whether every object of the scope has been listed once.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// Waits until [`Self::is_synced`].
    pub async fn synced(&self) {
        // The sender lives as long as the index, so that waiting cannot fail.
        let _ = self.shared.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// A number that grows with every change: for those who read everything again after it.
    #[must_use]
    pub fn generation(&self) -> watch::Receiver<u64> {
        self.shared.generation.subscribe()
    }

    /// Each change from now on. A listener that lags behind by more than 1,024 changes is told so by the channel, and
    /// has to read what it cares for anew; the first listing of a large cluster does that to most.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.shared.changes.subscribe()
    }
}

type Key = (InstanceUid, Arc<str>);

/// The core of the index: events in, changes out.
struct Known {
    agents: BTreeMap<Key, Arc<AgentSummary>>,
    counts: HashMap<Arc<str>, Counts>,
    parts: Vec<Part>,
    interner: Interner,
    first: Arc<str>,
}

/// One watch of the scope.
struct Part {
    /// The namespace that it watches; `None`: all.
    namespace: Option<Arc<str>>,
    /// While it lists: what it has listed so far.
    listing: Option<HashSet<Key>>,
    /// Whether it has listed everything once.
    synced: bool,
}

impl Known {
    fn new(scope: &Scope) -> Self {
        let mut interner = Interner::default();
        let part = |namespace| Part { namespace, listing: None, synced: false };
        let parts = match scope {
            Scope::All => vec![part(None)],
            Scope::Namespaces(namespaces) => {
                namespaces.iter().map(|namespace| part(Some(interner.share(namespace)))).collect()
            }
        };
        Self { agents: BTreeMap::new(), counts: HashMap::new(), parts, interner, first: "".into() }
    }

    fn is_synced(&self) -> bool {
        self.parts.iter().all(|part| part.synced)
    }

    fn of(&self, uid: InstanceUid) -> Vec<Arc<AgentSummary>> {
        self.agents
            .range((uid, Arc::clone(&self.first))..)
            .take_while(|((other, _), _)| *other == uid)
            .map(|(_, summary)| Arc::clone(summary))
            .collect()
    }

    fn take(&mut self, part: usize, event: Event<ObservedAgent>) -> Vec<Change> {
        match event {
            // It may come again before `InitDone`: the listing starts over.
            Event::Init => {
                if let Some(part) = self.parts.get_mut(part) {
                    part.listing = Some(HashSet::new());
                }
                Vec::new()
            }
            Event::InitApply(agent) => {
                let Some(summary) = summarise(agent, &mut self.interner) else { return Vec::new() };
                let listing = self.parts.get_mut(part).and_then(|part| part.listing.as_mut());
                if let Some(listing) = listing {
                    listing.insert((summary.uid, Arc::clone(&summary.namespace)));
                }
                self.put(summary).into_iter().collect()
            }
            Event::InitDone => self.listed(part),
            Event::Apply(agent) => {
                summarise(agent, &mut self.interner).and_then(|summary| self.put(summary)).into_iter().collect()
            }
            Event::Delete(agent) => {
                let Some(uid) = named_uid(agent.meta()) else { return Vec::new() };
                let namespace = self.interner.share(agent.metadata.namespace.as_deref().unwrap_or_default());
                self.remove(&(uid, namespace)).into_iter().collect()
            }
        }
    }

    /// What was not listed any more was deleted while the watch was broken: there is no other sign of that.
    fn listed(&mut self, part: usize) -> Vec<Change> {
        let Some(part) = self.parts.get_mut(part) else { return Vec::new() };
        part.synced = true;
        let Some(seen) = part.listing.take() else { return Vec::new() };
        let watched = part.namespace.clone();
        let vanished: Vec<Key> = self
            .agents
            .keys()
            .filter(|(_, namespace)| watched.as_ref().is_none_or(|watched| watched == namespace))
            .filter(|key| !seen.contains(*key))
            .cloned()
            .collect();
        let changes = vanished.iter().filter_map(|key| self.remove(key)).collect();
        self.interner.sweep();
        changes
    }

    fn put(&mut self, summary: AgentSummary) -> Option<Change> {
        let key = (summary.uid, Arc::clone(&summary.namespace));
        if self.agents.get(&key).is_some_and(|known| known.resource_version == summary.resource_version) {
            return None;
        }
        let after = Arc::new(summary);
        let before = self.agents.insert(key, Arc::clone(&after));
        if let Some(before) = &before {
            self.uncount(before);
        }
        let counts = self.counts.entry(Arc::clone(&after.namespace)).or_default();
        counts.agents += 1;
        counts.never_matched += usize::from(after.never_matched());
        counts.pending += usize::from(after.is_pending());
        Some(Change { uid: after.uid, before, after: Some(after) })
    }

    fn remove(&mut self, key: &Key) -> Option<Change> {
        let before = self.agents.remove(key)?;
        self.uncount(&before);
        Some(Change { uid: before.uid, before: Some(before), after: None })
    }

    fn uncount(&mut self, summary: &AgentSummary) {
        if let Some(counts) = self.counts.get_mut(&summary.namespace) {
            counts.agents -= 1;
            counts.never_matched -= usize::from(summary.never_matched());
            counts.pending -= usize::from(summary.is_pending());
            if counts.agents == 0 {
                self.counts.remove(&summary.namespace);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::{
        super::summary::tests::{UID, observed},
        *,
    };

    const OTHER: &str = "01900000-0000-7000-8000-000000000002";

    impl AgentIndex {
        /// An index of all namespaces that has listed these Agents and watches nothing.
        pub(crate) fn holding(agents: impl IntoIterator<Item = Value>) -> Self {
            let index = Self::new(&Scope::All);
            index.relist(agents);
            index
        }

        /// As if the watch had listed these, and no others.
        pub(crate) fn relist(&self, agents: impl IntoIterator<Item = Value>) {
            self.take(0, Event::Init);
            for agent in agents {
                self.take(0, Event::InitApply(serde_json::from_value(agent).expect("an Agent")));
            }
            self.take(0, Event::InitDone);
        }
    }

    fn at(version: &str, mut agent: ObservedAgent) -> ObservedAgent {
        agent.metadata.resource_version = Some(version.into());
        agent
    }

    fn uid(name: &str) -> InstanceUid {
        InstanceUid::from_name(name).expect("a uid")
    }

    fn in_all_namespaces() -> Known {
        Known::new(&Scope::All)
    }

    #[test]
    fn what_is_not_listed_any_more_is_gone() {
        let mut known = in_all_namespaces();
        for name in [UID, OTHER] {
            known.take(0, Event::Apply(observed(name, "telemetry", &json!({}))));
        }
        known.take(0, Event::Init);
        known.take(0, Event::InitApply(observed(OTHER, "telemetry", &json!({}))));
        known.take(0, Event::Init);
        known.take(0, Event::InitApply(observed(UID, "telemetry", &json!({}))));
        assert_eq!(known.agents.len(), 2, "nothing is gone before the list is complete");
        assert!(!known.is_synced());
        let changes = known.take(0, Event::InitDone);
        assert!(known.is_synced());
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].before.as_ref().map(|before| before.uid), Some(uid(OTHER)));
        assert!(changes[0].after.is_none());
        assert_eq!(known.counts.get("telemetry"), Some(&Counts { agents: 1, ..Counts::default() }));
    }

    #[test]
    fn a_listing_speaks_for_its_own_namespace_only() {
        let scope = Scope::new(["telemetry".to_owned()], "opamp-system");
        let mut known = Known::new(&scope);
        known.take(0, Event::Apply(observed(UID, "opamp-system", &json!({}))));
        known.take(1, Event::Apply(observed(UID, "telemetry", &json!({}))));
        assert_eq!(known.of(uid(UID)).len(), 2, "one agent with an object in each");
        known.take(1, Event::Init);
        known.take(1, Event::InitDone);
        assert!(!known.is_synced(), "the other namespace has not been listed");
        let left: Vec<_> = known.of(uid(UID)).iter().map(|summary| summary.namespace.to_string()).collect();
        assert_eq!(left, ["opamp-system"]);
    }

    #[test]
    fn the_same_object_again_is_no_change() {
        let mut known = in_all_namespaces();
        assert_eq!(known.take(0, Event::Apply(observed(UID, "telemetry", &json!({})))).len(), 1);
        assert_eq!(known.take(0, Event::Apply(observed(UID, "telemetry", &json!({})))).len(), 0);
        let changes = known.take(0, Event::Apply(at("18", observed(UID, "telemetry", &json!({"fleet": "edge"})))));
        let change = &changes[0];
        assert_eq!(change.before.as_ref().and_then(|before| before.fleet.clone()), None);
        assert_eq!(change.after.as_ref().and_then(|after| after.fleet.as_deref()), Some("edge"));
    }

    #[test]
    fn counts_follow_labels_and_deletions() {
        let mut known = in_all_namespaces();
        let mut stray = observed(UID, "opamp-system", &json!({}));
        stray.metadata.labels = None;
        known.take(0, Event::Apply(stray.clone()));
        assert_eq!(known.counts.get("opamp-system"), Some(&Counts { agents: 1, never_matched: 1, pending: 0 }));
        known.take(0, Event::Apply(at("18", observed(UID, "opamp-system", &json!({})))));
        assert_eq!(known.counts.get("opamp-system"), Some(&Counts { agents: 1, ..Counts::default() }));
        known.take(0, Event::Delete(stray.clone()));
        known.take(0, Event::Delete(stray));
        assert_eq!(known.counts.get("opamp-system"), None);
    }

    #[test]
    fn who_vanishes_revoked_is_remembered() {
        let mut agent = serde_json::to_value(observed(UID, "telemetry", &json!({}))).expect("JSON");
        agent["spec"] = json!({"access": "Revoked"});
        let index = AgentIndex::holding([agent]);
        assert_eq!(index.departures(), []);
        index.relist([]);
        let departed: Vec<_> = index.departures().into_iter().map(|it| (it.namespace, it.uid)).collect();
        assert_eq!(departed, [("telemetry".into(), uid(UID))]);
    }

    #[tokio::test]
    async fn listeners_hear_each_change_and_when_the_list_is_complete() {
        let index = AgentIndex::new(&Scope::All);
        let mut changes = index.changes();
        let generation = index.generation();
        assert!(!index.is_synced());
        index.relist([serde_json::to_value(observed(UID, "telemetry", &json!({}))).expect("JSON")]);
        index.synced().await;
        assert_eq!(*generation.borrow(), 1);
        assert_eq!(changes.recv().await.expect("a change").after.map(|after| after.uid), Some(uid(UID)));
        assert_eq!((index.total(), index.counts("telemetry").agents, index.get(&uid(OTHER)).len()), (1, 1, 0));
    }

    /// Ten thousand of these have to stay below 13 MB, each with a certificate, connection settings and the allocator's
    /// overhead.
    #[test]
    fn a_summary_is_small() {
        const ALLOCATION: usize = 16;
        let hash = "ab".repeat(32);
        let condition = |kind: &str| {
            json!({"type": kind, "status": "True", "reason": "SessionOpen", "message": "",
            "lastTransitionTime": "2026-11-29T12:40:00Z"})
        };
        let status = json!({
            "fleet": "edge",
            "connection": {"replica": "opamp-1", "incarnation": "ab12", "epoch": 4, "since": "2026-11-29T12:30:00Z",
                "identity": format!("certificate:telemetry/edge/{UID}")},
            "certificate": {"serial": "ab".repeat(16), "notAfter": "2026-12-06T12:00:00Z",
                "inUseSince": "2026-11-29T12:30:00Z"},
            "connectionSettings": {"offered": hash, "lastReported": hash, "status": "Applied"},
            "revision": {"hash": "3f9a1c2b07", "fleetUID": "fleet-uid", "epoch": 9},
            "remoteConfig": {"offered": hash, "lastReported": hash, "status": "Applied"},
            "conditions": [condition("Matched"), condition("Connected"), condition("Healthy"), condition("ConfigApplied")],
        });
        let summary = summarise(observed(UID, "telemetry", &status), &mut Interner::default()).expect("a summary");
        let settings = summary.connection_settings.as_deref().expect("settings");
        let boxed = [
            summary.offered.as_deref(),
            summary.last_reported.as_deref(),
            summary.failed.as_deref(),
            settings.last_reported.as_deref(),
        ];
        let heap =
            boxed.into_iter().flatten().map(|bytes| bytes.len() + ALLOCATION).sum::<usize>() + 36 + 10 + 2 * ALLOCATION; // the object's uid, and a resourceVersion of ten digits
        let certificate = summary.certificate.as_deref().expect("a certificate");
        let credentials = summary.identity.as_deref().map_or(0, str::len)
            + size_of_val(certificate)
            + certificate.serial.len()
            + 2 * size_of::<usize>() // counts of the shared identity
            + 3 * ALLOCATION;
        let key_and_node = 2 * (size_of::<Key>() + size_of::<Arc<AgentSummary>>()); // B-tree nodes are half empty at worst
        let credentials = credentials + size_of_val(settings) + ALLOCATION;
        let total = size_of::<AgentSummary>() + ALLOCATION + ALLOCATION + heap + credentials + key_and_node;
        assert!(total <= 1_250, "{total} bytes");
    }
}
