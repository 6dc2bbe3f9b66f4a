//! The leader at work: one task that owns everything it knows, and hands out writes.
//!
//! Events of watches, answers to writes and the clock come in; what is due is planned by pure functions and carried out
//! in tasks of their own, at most one for each object. Nothing is shared, so nothing is locked.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use kube::core::DeserializeGuard;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{self, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Context,
    agenda::Agenda,
    apply::Error,
    chores::{Carried, Housekeeping},
    held::Held,
    metrics::Kind,
    settings::ServedSettings,
    watches::{self, Seen},
};
use crate::{
    api::{agent_fleet::AgentFleet, connection_settings::ConnectionSettings, remote_config::RemoteConfig},
    catalog::{credentials::credentials_secret_name, stored::revision_secret_name},
    connection_settings,
    credentials::registrar::Findings,
    effective_configs::unused::Unused,
    events::Publisher,
    fleets::{census::Census, credentials::Kept, plan::Made},
    kubernetes::{Mirror, Moved, ObjectKey},
    lease::{Presence, Uncounted},
    remote_configs::plan::Examined,
    revisions::inputs::{Concerned, Fetch, Fetched, MovedInputs, WatchedInputs},
};

/// How long writes under way may take once the lead is lost, or the process ends.
const FAREWELL: Duration = Duration::from_secs(5);
/// Agents are counted at most this often.
pub(super) const COUNTING: Duration = Duration::from_secs(1);
/// How often agents without a session are looked after.
pub(super) const ROUNDS: Duration = Duration::from_secs(5);
/// The pause until the watch has shown what made a plan outdated.
const OUTDATED: Duration = Duration::from_millis(200);
/// Tasks under way at the same time, each with one request to the API server at most: with every object due at once
/// after a start, more would make it refuse requests, those of agents' status among them.
pub(super) const AT_ONCE: usize = 16;
/// How long nothing is begun after the API server has asked for it without saying for how long.
const BREATHER: Duration = Duration::from_secs(1);
/// The longest `Retry-After` that is believed.
const LONGEST_BREATHER: Duration = Duration::from_secs(60);
/// Events that are taken in before anything is planned.
const EVENTS_AT_ONCE: usize = 256;

/// A piece of work.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Work {
    /// Bring a RemoteConfig's status up to date.
    RemoteConfig(ObjectKey),
    /// Bring the status of ConnectionSettings up to date.
    ConnectionSettings(ObjectKey),
    /// Bring a fleet up to date.
    Fleet(ObjectKey),
    /// Count the agents of all fleets.
    Count,
    /// Look after agents without a session.
    Chores,
}

/// What a task has ended with.
#[expect(clippy::large_enum_variant, reason = "each is taken apart as soon as it is there")]
pub(super) enum Done {
    Fleet(Written<AgentFleet>),
    RemoteConfig(Written<RemoteConfig>),
    ConnectionSettings(Written<ConnectionSettings>),
    Fetched(Fetch, Fetched),
    Chores(Carried),
}

/// What became of a write.
pub(super) struct Written<K> {
    /// Which object.
    pub(super) key: ObjectKey,
    /// The resourceVersion that the watch had shown when it was planned.
    pub(super) shown: Option<String>,
    /// The object as it is now, if it was written.
    pub(super) outcome: Result<Option<K>, Error>,
}

/// What was made of the inputs of a fleet.
pub(super) struct Prepared {
    pub(super) made: Made,
    pub(super) credentials: Kept,
}

/// Everything that the leader knows.
pub(super) struct Leader {
    pub(super) context: Arc<Context>,
    pub(super) publisher: Publisher,
    pub(super) agenda: Agenda<Work>,
    pub(super) tasks: JoinSet<Done>,
    /// Content that is to be fetched as soon as a task may be begun.
    pub(super) orders: VecDeque<Fetch>,
    /// Nothing is begun before: the API server has asked for it.
    rests_until: Option<Instant>,
    pub(super) inputs: WatchedInputs,
    pub(super) fleets: Mirror<Arc<AgentFleet>>,
    pub(super) held_fleets: BTreeMap<ObjectKey, Held<AgentFleet, Prepared>>,
    pub(super) held_remote_configs: BTreeMap<ObjectKey, Held<RemoteConfig, Examined>>,
    pub(super) held_connection_settings:
        BTreeMap<ObjectKey, Held<ConnectionSettings, connection_settings::plan::Examined>>,
    pub(super) served: ServedSettings,
    pub(super) presence: Presence,
    pub(super) uncounted: Uncounted,
    pub(super) census: BTreeMap<ObjectKey, Census>,
    pub(super) counted: Option<Instant>,
    pub(super) housekeeping: Housekeeping,
    pub(super) unused: Unused,
    /// What people must mend before certificates are given out.
    pub(super) findings: watch::Receiver<Findings>,
}

/// How the leader's work ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ended {
    /// It was told to stop.
    Stopped,
    /// A task of it broke: what it knows cannot be relied upon, and is to be built anew.
    Broken,
}

pub(super) fn now() -> Instant {
    time::Instant::now().into_std()
}

impl Leader {
    /// A leader that knows nothing yet, but for what is found where certificates are made.
    pub(super) fn new(context: Arc<Context>, publisher: Publisher, findings: watch::Receiver<Findings>) -> Self {
        let parts = context.scope.parts();
        Self {
            publisher,
            agenda: Agenda::default(),
            tasks: JoinSet::new(),
            orders: VecDeque::new(),
            rests_until: None,
            inputs: WatchedInputs::new(&parts),
            fleets: Mirror::new(parts),
            held_fleets: BTreeMap::new(),
            held_remote_configs: BTreeMap::new(),
            held_connection_settings: BTreeMap::new(),
            served: ServedSettings::default(),
            presence: Presence::default(),
            uncounted: Uncounted::new(),
            census: BTreeMap::new(),
            counted: None,
            housekeeping: Housekeeping::default(),
            unused: Unused::default(),
            findings,
            context,
        }
    }

    /// Leads until `stop`, then lets writes that are under way end.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Ended {
        let watches = watches::open(&self.context.watch_client, &self.context.scope, &self.context.namespace);
        let mut watches = watches.ready_chunks(EVENTS_AT_ONCE);
        let mut agents = self.context.agents.generation();
        let mut catalog = self.context.catalog.generation();
        let (mut cas, mut findings) = (self.context.unusable_cas.clone(), self.findings.clone());
        self.agenda.ask(Work::Count, now());
        self.catalog_moved();
        let ended = loop {
            self.hand_out();
            let alarm = time::Instant::from_std(self.next_time().unwrap_or_else(|| now() + ROUNDS));
            tokio::select! {
                () = stop.cancelled() => break Ended::Stopped,
                Some(seen) = watches.next() => seen.into_iter().for_each(|seen| self.see(seen)),
                Some(done) = self.tasks.join_next() => match done {
                    Ok(done) => self.finish(done),
                    Err(error) => {
                        tracing::error!(%error, "a task of the leader broke, it begins anew");
                        break Ended::Broken;
                    }
                },
                Ok(()) = agents.changed() => self.ask_for_count(),
                Ok(()) = catalog.changed() => self.catalog_moved(),
                Ok(()) = cas.changed() => self.faults_moved(),
                Ok(()) = findings.changed() => self.faults_moved(),
                () = time::sleep_until(alarm) => {}
            }
        };
        let farewell = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(FAREWELL, farewell).await.is_err() {
            tracing::warn!("writes of the former leader were cut short");
        }
        ended
    }

    /// Whether everything was listed once: before, nothing can be said to be missing.
    fn knows_enough(&self) -> bool {
        self.inputs.is_complete()
            && self.fleets.is_complete()
            && self.presence.is_listed()
            && self.context.agents.is_synced()
            && *self.context.catalog.synced().borrow()
    }

    pub(super) fn see(&mut self, seen: Seen) {
        match seen {
            Seen::Input(part, event) => {
                let moved = self.inputs.apply(&part, event);
                self.inputs_moved(moved);
            }
            Seen::Fleet(part, event) => {
                for moved in self.fleets.apply(&part, event, readable) {
                    self.fleet_moved(moved);
                }
            }
            Seen::Lease(event) => {
                self.presence.apply(event, now());
                self.note_uncounted();
            }
            // Nobody can be said to have been silent who could not be heard.
            Seen::NoLeases => self.presence.outage(now()),
        }
    }

    fn inputs_moved(&mut self, moved: MovedInputs) {
        let now = now();
        let MovedInputs { moved, restated, stored } = moved;
        for secret in stored {
            self.stored_moved(&secret, now);
        }
        for key in restated.remote_configs {
            self.agenda.ask(Work::RemoteConfig(key), now);
        }
        for key in restated.connection_settings {
            self.agenda.ask(Work::ConnectionSettings(key), now);
        }
        let Concerned { remote_configs, connection_settings, fleets } = moved;
        for key in remote_configs {
            for fleet in self.fleets_of(&key) {
                self.fleet_inputs_moved(fleet, now);
            }
            self.held_remote_configs.entry(key.clone()).or_default().settle.moved(now);
            self.agenda.ask(Work::RemoteConfig(key), now);
        }
        for key in connection_settings {
            self.settings_moved(key, now);
        }
        for fleet in fleets {
            self.fleet_inputs_moved(fleet, now);
        }
    }

    /// A Secret that the leader keeps for a fleet has appeared, changed or vanished.
    fn stored_moved(&mut self, secret: &ObjectKey, now: Instant) {
        for (fleet, uid) in self.fleets_in(&secret.namespace) {
            if secret.name == credentials_secret_name(&uid) {
                self.make_fleet_anew(fleet, now);
            } else if secret.name.starts_with(&revision_secret_name(&uid, "")) {
                self.agenda.ask(Work::Fleet(fleet), now);
            }
        }
    }

    fn fleets_in(&self, namespace: &str) -> Vec<(ObjectKey, String)> {
        let uid = |fleet: &AgentFleet| fleet.metadata.uid.clone().unwrap_or_default();
        self.fleets.named(namespace, "").map(|(key, fleet)| (key.clone(), uid(fleet))).collect()
    }

    /// The fleets that name a RemoteConfig.
    pub(super) fn fleets_of(&self, remote_config: &ObjectKey) -> Vec<ObjectKey> {
        let names = |fleet: &AgentFleet| fleet.spec.remote_configs.iter().any(|entry| entry.name == remote_config.name);
        let all = self.fleets.named(&remote_config.namespace, "");
        all.filter(|(_, fleet)| names(fleet)).map(|(key, _)| key.clone()).collect()
    }

    fn fleet_moved(&mut self, moved: Moved<Arc<AgentFleet>>) {
        let Moved { key, former } = moved;
        let now = now();
        let present = self.fleets.get(&key).cloned();
        let identity = |fleet: &Arc<AgentFleet>| (fleet.metadata.uid.clone(), fleet.metadata.generation);
        if present.as_ref().map(identity) != former.as_ref().map(identity) {
            let named = [&former, &present].into_iter().flatten().flat_map(|fleet| &fleet.spec.remote_configs);
            for entry in named {
                let remote_config = ObjectKey::new(&key.namespace, &entry.name);
                self.agenda.ask(Work::RemoteConfig(remote_config), now);
            }
            let named =
                [&former, &present].into_iter().flatten().filter_map(|fleet| fleet.spec.connection_settings.as_ref());
            for reference in named {
                let settings = ObjectKey::new(&key.namespace, &reference.name);
                self.agenda.ask(Work::ConnectionSettings(settings), now);
            }
            self.held_fleets.entry(key.clone()).or_default().settle.moved(now);
            self.ask_for_count();
        }
        self.agenda.ask(Work::Fleet(key), now);
    }

    pub(super) fn ask_for_count(&mut self) {
        let now = now();
        self.agenda.ask(Work::Count, self.counted.map_or(now, |counted| now.max(counted + COUNTING)));
    }

    pub(super) fn note_uncounted(&mut self) {
        let uncounted = self.presence.uncounted(now());
        if uncounted != self.uncounted {
            self.uncounted = uncounted;
            self.ask_for_count();
        }
    }

    /// When something may be begun, unless a task or an event comes before.
    pub(super) fn next_time(&self) -> Option<Instant> {
        if !self.knows_enough() || self.tasks.len() >= AT_ONCE {
            return None;
        }
        let due = if self.orders.is_empty() { self.agenda.next_time() } else { Some(now()) };
        due.map(|due| self.rests_until.map_or(due, |rest| due.max(rest)))
    }

    pub(super) fn hand_out(&mut self) {
        while self.knows_enough() && self.tasks.len() < AT_ONCE && self.rests_until.is_none_or(|rest| rest <= now()) {
            if let Some(order) = self.orders.pop_front() {
                self.fetch(order);
                continue;
            }
            match self.agenda.next_due(now()) {
                Some(Work::RemoteConfig(key)) => self.remote_config_due(key),
                Some(Work::ConnectionSettings(key)) => self.connection_settings_due(key),
                Some(Work::Fleet(key)) => self.fleet_due(key),
                Some(Work::Count) => self.count(),
                Some(Work::Chores) => self.do_chores(),
                None => return,
            }
        }
    }

    /// The API server may ask for a rest, and has everybody's writes slowed down by that.
    fn note<T>(&mut self, kind: Kind, outcome: &Result<T, Error>) {
        self.context.note(outcome);
        self.context.metrics.planned(kind, outcome);
        if let Err(Error::TooMany { retry_after }) = outcome {
            self.rests_until = Some(now() + retry_after.unwrap_or(BREATHER).min(LONGEST_BREATHER));
        }
    }

    pub(super) fn finish(&mut self, done: Done) {
        match done {
            Done::Fleet(written) => {
                let work = Work::Fleet(written.key.clone());
                self.note(Kind::AgentFleet, &written.outcome);
                self.agenda.end(&work);
                let held = self.held_fleets.entry(written.key.clone()).or_default();
                let again = conclude(&work, held, written);
                self.agenda.ask(work, again);
                self.ask_for_count();
            }
            Done::RemoteConfig(written) => {
                let work = Work::RemoteConfig(written.key.clone());
                self.note(Kind::RemoteConfig, &written.outcome);
                self.agenda.end(&work);
                let held = self.held_remote_configs.entry(written.key.clone()).or_default();
                let again = conclude(&work, held, written);
                self.agenda.ask(work, again);
            }
            Done::ConnectionSettings(written) => {
                let work = Work::ConnectionSettings(written.key.clone());
                self.note(Kind::ConnectionSettings, &written.outcome);
                self.agenda.end(&work);
                let held = self.held_connection_settings.entry(written.key.clone()).or_default();
                let again = conclude(&work, held, written);
                self.agenda.ask(work, again);
            }
            Done::Fetched(fetch, outcome) => self.fetched(fetch, outcome),
            Done::Chores(carried) => {
                self.agenda.end(&Work::Chores);
                self.housekeeping.carried(carried, now());
                self.agenda.ask(Work::Chores, now() + COUNTING);
            }
        }
    }
}

/// An object that this version cannot read leaves its former state in force; a later version may have written it.
fn readable(object: DeserializeGuard<AgentFleet>) -> Option<Arc<AgentFleet>> {
    object
        .0
        .inspect_err(|error| {
            let (namespace, name) = (error.metadata.namespace.as_deref(), error.metadata.name.as_deref());
            tracing::warn!(namespace, name, "an AgentFleet cannot be read, its former state counts");
        })
        .ok()
        .map(Arc::new)
}

/// Notes what became of a write; says when to look again.
fn conclude<K: kube::Resource, M>(work: &Work, held: &mut Held<K, M>, written: Written<K>) -> Instant {
    let Written { key: _, shown, outcome } = written;
    let now = now();
    match outcome {
        Ok(answer) => {
            held.applied(shown, answer, now);
            now
        }
        Err(Error::Outdated) => {
            held.outdated();
            now + OUTDATED
        }
        Err(error @ (Error::TooMany { .. } | Error::Refused(_) | Error::Silent | Error::Occupied(_))) => {
            tell_of(work, &error);
            held.failed(now)
        }
    }
}

fn tell_of(work: &Work, error: &Error) {
    const TEXT: &str = "a plan was not applied, it is made anew";
    match work {
        Work::Fleet(ObjectKey { namespace, name }) => tracing::warn!(namespace, fleet = name, %error, "{TEXT}"),
        Work::RemoteConfig(ObjectKey { namespace, name }) => {
            tracing::warn!(namespace, remote_config = name, %error, "{TEXT}");
        }
        Work::ConnectionSettings(ObjectKey { namespace, name }) => {
            tracing::warn!(namespace, connection_settings = name, %error, "{TEXT}");
        }
        Work::Count | Work::Chores => tracing::warn!(%error, "{TEXT}"),
    }
}
