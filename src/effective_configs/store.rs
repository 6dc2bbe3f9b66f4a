//! The store: a handle for those who hand texts in, and the one task that talks to the API server.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{
    StreamExt as _,
    future::ready,
    stream::{BoxStream, FuturesUnordered, SelectAll, select_all},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _, core::PartialObjectMeta, runtime::watcher::Event};
use tokio::{
    sync::Notify,
    time::{MissedTickBehavior, interval, sleep_until},
};

use super::{
    metrics::Metrics,
    shelf::{Handed, News, Next, Shelf},
    stored::{Draft, EFFECTIVE_CONFIG_TYPE, HASH_ANNOTATION, Kept},
    write::Writer,
};
use crate::{
    catalog::FleetEntry,
    kubernetes::{ObjectKey, Part, Scope, WatchClient, watch_config},
    opamp::{InstanceUid, normalise::EffectiveConfigText},
    status::budget::Budget,
};

/// How often agents are asked for whose texts there is room again.
const ROUND: Duration = Duration::from_secs(10);
/// When nothing else is due.
const LONG: Duration = Duration::from_secs(3_600);

/// Who speaks with the agents whose texts are kept. Every method is called from the store's task, holds none of its
/// locks, and must return at once.
pub trait Reporters: Send + Sync + 'static {
    /// The text that was handed in for this agent, and for which it waited, is kept in this Secret, or is not. The agent
    /// may have handed in another one meanwhile.
    fn concluded(&self, news: News);

    /// These Secrets are gone, whoever deleted them: agents whose texts were kept in them are to report anew.
    fn vanished(&self, secrets: &BTreeSet<ObjectKey>);

    /// There is room for the text of this agent now: it is to report anew.
    fn invited(&self, agent: InstanceUid);
}

/// Keeps the configurations that agents report. A clone is another handle of the same store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    /// Locked for the time of a look-up only.
    shelf: Mutex<Shelf>,
    scope: Scope,
    budget: Arc<Mutex<Budget>>,
    metrics: Metrics,
    wake: Notify,
}

impl Store {
    /// A store that takes texts, and writes them as soon as it runs. The budget is the status writer's.
    #[must_use]
    pub fn new(scope: Scope, budget: Arc<Mutex<Budget>>, metrics: Metrics) -> Self {
        let shelf = Mutex::new(Shelf::new(scope.parts()));
        Self { shared: Arc::new(Shared { shelf, scope, budget, metrics, wake: Notify::new() }) }
    }

    /// Hands in what a member of `fleet` reports as running, to be redacted and kept. `secretive` are the fleets whose
    /// Secrets may be in it. Takes time for the redaction only; the text is not held afterwards.
    pub fn put<'f>(
        &self,
        agent: InstanceUid,
        text: &EffectiveConfigText,
        fleet: &FleetEntry,
        secretive: &(impl Iterator<Item = &'f FleetEntry> + Clone),
    ) -> Handed {
        let handed = match Draft::of(text, fleet, secretive) {
            Ok(draft) => locked(&self.shared.shelf).put(draft, agent, now()),
            Err(reason) => {
                self.withdraw(agent);
                Handed::Not(reason)
            }
        };
        match handed {
            Handed::Kept(_) => {}
            Handed::Waits(_) => self.shared.wake.notify_one(),
            Handed::Not(reason) => self.shared.metrics.not_stored(reason),
        }
        handed
    }

    /// Nothing is to be kept of the agent any more.
    pub fn withdraw(&self, agent: InstanceUid) {
        locked(&self.shared.shelf).withdraw(agent);
    }

    /// All Secrets that hold effective configurations; `None` until all have been listed.
    #[must_use]
    pub fn kept(&self) -> Option<Vec<Kept>> {
        locked(&self.shared.shelf).kept()
    }

    /// How many Secrets there are, and how many texts wait to be written.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        locked(&self.shared.shelf).counts()
    }

    /// Watches and writes until the future is dropped; to be run once. `client` is one without retries of its own.
    pub async fn run(self, client: Client, watches: WatchClient, reporters: Arc<dyn Reporters>) {
        let writer = Writer { client, budget: Arc::clone(&self.shared.budget) };
        let mut events = watch(&watches, &self.shared.scope);
        let mut attempts = FuturesUnordered::new();
        let mut rounds = interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut wait_until = now() + LONG;
            // One at a time: a hundred of them take a second, and Agents wait for the same budget.
            if attempts.is_empty() {
                let next = locked(&self.shared.shelf).next(now());
                match next {
                    Next::Write(draft) => attempts.push(writer.clone().write(*draft)),
                    Next::At(time) => wait_until = time,
                    Next::Idle => {}
                }
            }
            tokio::select! {
                Some((part, event)) = events.next() => self.notice(&part, event, &*reporters),
                Some((draft, attempt)) = attempts.next(), if !attempts.is_empty() => {
                    self.shared.metrics.tried(attempt);
                    let news = locked(&self.shared.shelf).tried(&draft, attempt, now());
                    tell(news, &*reporters);
                }
                () = self.shared.wake.notified() => {}
                () = sleep_until(wait_until.into()) => {}
                _ = rounds.tick() => self.look_around(&*reporters),
            }
        }
    }

    fn notice(&self, part: &Part, event: Event<PartialObjectMeta<Secret>>, reporters: &dyn Reporters) {
        let noticed = locked(&self.shared.shelf).apply(part, event, now());
        if !noticed.vanished.is_empty() {
            reporters.vanished(&noticed.vanished);
        }
        tell(noticed.news, reporters);
    }

    fn look_around(&self, reporters: &dyn Reporters) {
        let (invited, counts) = {
            let mut held = locked(&self.shared.shelf);
            (held.invite(), held.counts())
        };
        self.shared.metrics.show(counts);
        invited.into_iter().for_each(|agent| reporters.invited(agent));
    }
}

fn tell(news: Vec<News>, reporters: &dyn Reporters) {
    news.into_iter().for_each(|news| reporters.concluded(news));
}

type Events = SelectAll<BoxStream<'static, (Part, Event<PartialObjectMeta<Secret>>)>>;

/// The metadata of these Secrets alone: their content may hold what was not recognised as secret.
fn watch(watches: &WatchClient, scope: &Scope) -> Events {
    select_all(scope.parts().into_iter().map(|part| {
        let client = watches.client().clone();
        let api: Api<PartialObjectMeta<Secret>> = match &part {
            None => Api::all(client),
            Some(namespace) => Api::namespaced(client, namespace),
        };
        let events = watches.watch(api, watch_config().fields(&format!("type={EFFECTIVE_CONFIG_TYPE}")));
        events.filter_map(move |event| ready(event.map(|event| (part.clone(), event.modify(strip))))).boxed()
    }))
}

fn strip(secret: &mut PartialObjectMeta<Secret>) {
    secret.managed_fields_mut().clear();
    secret.annotations_mut().retain(|name, _| name == HASH_ANNOTATION);
}

/// The clock of the runtime, which tests move by hand.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// No holder of these locks can leave half a change behind, so a panic elsewhere is no reason to stop.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
