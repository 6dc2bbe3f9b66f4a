//! All Agents that the API server knows, as summaries, kept up by a plain watch.
//!
//! One task feeds the index; everybody else reads. A reader never waits for the API server, and the lock is held for a
//! look-up or a copy of pointers only.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use kube::{Api, core::ApiResource, runtime::watcher::Event};
use tokio::sync::{broadcast, watch};

use super::summary::{AgentSummary, Interner, ObservedAgent, summarise};
use crate::{
    api::agent::{Access, Agent},
    kubernetes::{Scope, WatchClient, watch_config},
    opamp::InstanceUid,
};

/// How many changes a slow listener may be behind. Whoever falls further behind is told so, and reads everything.
const CHANGES_KEPT: usize = 1024;

/// How long an agent counts as revoked whose object is deleted: by then its certificates are in the list, also if another
/// leader had to be found before.
const REVOKED_FOR: Duration = Duration::from_secs(60);

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
            (known.take(part, event, clock()), known.is_synced())
        };
        self.shared.synced.send_if_modified(|was| std::mem::replace(was, synced) != synced);
        if changes.is_empty() {
            return;
        }
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

    /// The objects of this agent that were revoked when they were deleted, a moment ago.
    #[must_use]
    pub fn lately_revoked(&self, uid: &InstanceUid) -> Vec<Arc<AgentSummary>> {
        let now = clock();
        self.read(|known| known.lately_revoked(now).filter(|object| object.uid == *uid).map(Arc::clone).collect())
    }

    /// Those of all agents.
    #[must_use]
    pub fn all_lately_revoked(&self) -> Vec<Arc<AgentSummary>> {
        let now = clock();
        self.read(|known| known.lately_revoked(now).map(Arc::clone).collect())
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

/// The clock of the runtime, which tests move by hand.
fn clock() -> Instant {
    tokio::time::Instant::now().into_std()
}

type Key = (InstanceUid, Arc<str>);

/// The core of the index: events in, changes out.
struct Known {
    agents: BTreeMap<Key, Arc<AgentSummary>>,
    counts: HashMap<Arc<str>, Counts>,
    /// Objects that were revoked when they were deleted, and until when that counts.
    revoked: Vec<(Instant, Arc<AgentSummary>)>,
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
        Self { agents: BTreeMap::new(), counts: HashMap::new(), revoked: Vec::new(), parts, interner, first: "".into() }
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

    fn lately_revoked(&self, now: Instant) -> impl Iterator<Item = &Arc<AgentSummary>> {
        self.revoked.iter().filter(move |(until, _)| now < *until).map(|(_, object)| object)
    }

    fn take(&mut self, part: usize, event: Event<ObservedAgent>, now: Instant) -> Vec<Change> {
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
            Event::InitDone => self.listed(part, now),
            Event::Apply(agent) => {
                summarise(agent, &mut self.interner).and_then(|summary| self.put(summary)).into_iter().collect()
            }
            Event::Delete(agent) => {
                let Some(last) = summarise(agent, &mut self.interner) else { return Vec::new() };
                let key = (last.uid, Arc::clone(&last.namespace));
                if self.agents.contains_key(&key) {
                    // What it said last may be news.
                    let _ = self.put(last);
                }
                self.remove(&key, now).into_iter().collect()
            }
        }
    }

    /// What was not listed any more was deleted while the watch was broken: there is no other sign of that.
    fn listed(&mut self, part: usize, now: Instant) -> Vec<Change> {
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
        let changes = vanished.iter().filter_map(|key| self.remove(key, now)).collect();
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

    fn remove(&mut self, key: &Key, now: Instant) -> Option<Change> {
        let before = self.agents.remove(key)?;
        self.uncount(&before);
        if before.access == Some(Access::Revoked) {
            self.revoked.retain(|(until, _)| now < *until);
            self.revoked.push((now + REVOKED_FOR, Arc::clone(&before)));
        }
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
pub(crate) mod tests;
