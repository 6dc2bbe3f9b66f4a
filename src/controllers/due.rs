//! What the leader does with a piece of work that is due: observe, plan, hand out the writes.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Instant,
};

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    apply::{apply_fleet, restate},
    carry_out::{carry_out, fetch},
    chores::Chore,
    leader::{COUNTING, Done, Leader, Prepared, ROUNDS, Work, Written, now},
    settings::Lasting,
};
use crate::{
    agents::{retention::Kept, summary::AgentSummary},
    api::{
        agent_fleet::{AgentFleet, Retention},
        reasons::FleetReason,
        remote_config::RemoteConfig,
    },
    catalog::stored::revision_secret_name,
    effective_configs,
    fleets::{
        self,
        census::{Given, count},
        plan::{Made, Observed},
    },
    kubernetes::{Mirror, ObjectKey},
    remote_configs::{self, plan::Examined},
    revisions::{
        Bodies, Inputs, compile,
        compile::NamedSettings,
        finding::fleet_reasons,
        inputs::{Concerned, Fetch, Fetched, Gathered, RETRY, referenced},
        inspect,
    },
};

/// Chores that are carried out in one round, so that the next one knows what has changed meanwhile.
const CHORES_AT_ONCE: usize = 200;

impl Leader {
    pub(super) fn fleet_due(&mut self, key: ObjectKey) {
        let Some(watched) = self.fleets.get(&key).cloned() else {
            self.held_fleets.remove(&key);
            self.inputs.offer(key, BTreeSet::new());
            return;
        };
        let now = now();
        let held = self.held_fleets.entry(key.clone()).or_default();
        let wait = held.settle.wait(now).map(|wait| now + wait);
        if let Some(time) = wait.or_else(|| held.not_before(now)) {
            self.agenda.ask(Work::Fleet(key), time);
            return;
        }
        let fleet = held.latest(&watched);
        let Some(prepared) = held.made(now).or_else(|| self.prepare(&key, &fleet, now)) else { return };
        let plan = self.plan(&key, &fleet, &prepared);
        if plan.is_empty() {
            return;
        }
        self.agenda.begin(Work::Fleet(key.clone()));
        let (context, publisher) = (Arc::clone(&self.context), self.publisher.clone());
        self.tasks.spawn(async move {
            let outcome = apply_fleet(&context.client, &publisher, &fleet, plan).await;
            Done::Fleet(Written { key, shown: watched.resource_version(), outcome })
        });
    }

    /// Makes a fleet's revision, and what is kept for it; `None` while content has still to be fetched, after which the
    /// fleet is due again.
    fn prepare(&mut self, key: &ObjectKey, fleet: &AgentFleet, now: Instant) -> Option<Arc<Prepared>> {
        let revision = self.make(key, fleet, now)?;
        let credentials = self.keep_credentials(key, fleet, &revision.made, now)?;
        let stale_at = revision.stale_at.into_iter().chain(credentials.stale_at).min();
        if let Some(time) = stale_at {
            self.agenda.ask(Work::Fleet(key.clone()), time);
        }
        let prepared = Prepared { made: revision.made, credentials: credentials.made };
        Some(self.held_fleets.entry(key.clone()).or_default().make(prepared, stale_at))
    }

    fn make(&mut self, key: &ObjectKey, fleet: &AgentFleet, now: Instant) -> Option<Lasting<Made>> {
        let mut remote_configs = BTreeMap::new();
        let mut bodies = Bodies::new();
        let (mut unread, mut unreadable) = (false, None);
        for entry in &fleet.spec.remote_configs {
            let remote_config = self.inputs.remote_config(&ObjectKey::new(&key.namespace, &entry.name)).cloned();
            let Some(remote_config) = remote_config else { continue };
            match self.gather(&remote_config, now) {
                Gathered::Complete(found) => bodies.extend(found),
                Gathered::Unread => unread = true,
                Gathered::Unreadable(why) => unreadable = Some(why),
            }
            remote_configs.insert(entry.name.clone(), remote_config);
        }
        if unread {
            return None;
        }
        let stale_at = unreadable.as_ref().map(|_| now + RETRY);
        let made = if let Some(why) = unreadable {
            Made::Faulty(vec![(FleetReason::Progressing, why)])
        } else {
            let secrets = self.context.policy.secrets;
            let (entries, remote_configs, bodies) = (&fleet.spec.remote_configs, &remote_configs, &bodies);
            let settings = self.named_settings(key, fleet);
            compile(&Inputs { entries, remote_configs, bodies, settings, secrets })
                .map_or_else(|findings| Made::Faulty(fleet_reasons(&findings)), Made::Revision)
        };
        Some(Lasting { made, stale_at })
    }

    fn named_settings<'a>(&'a self, key: &ObjectKey, fleet: &'a AgentFleet) -> NamedSettings<'a> {
        let Some(reference) = &fleet.spec.connection_settings else { return NamedSettings::None };
        let found = self.inputs.connection_settings(&ObjectKey::new(&*key.namespace, &*reference.name));
        found.map_or(NamedSettings::Missing(&reference.name), |object| NamedSettings::Found(object))
    }

    fn plan(&self, key: &ObjectKey, fleet: &AgentFleet, prepared: &Prepared) -> fleets::plan::Plan {
        let uid = fleet.uid().unwrap_or_default();
        let stored = self.inputs.stored_revisions(&key.namespace, &revision_secret_name(&uid, ""));
        let observed = Observed {
            made: &prepared.made,
            credentials: &prepared.credentials,
            stored: &stored,
            census: &self.census.get(key).cloned().unwrap_or_default(),
            uncounted: self.uncounted.get(&uid).copied().unwrap_or_default(),
            admission: &self.admission_faults(key, fleet, &prepared.made),
            policy: &self.context.policy,
        };
        fleets::plan::plan(fleet, &observed, Timestamp::now())
    }

    pub(super) fn remote_config_due(&mut self, key: ObjectKey) {
        let Some(watched) = self.inputs.remote_config(&key).cloned() else {
            self.held_remote_configs.remove(&key);
            return;
        };
        let now = now();
        let held = self.held_remote_configs.entry(key.clone()).or_default();
        let wait = held.settle.wait(now).map(|wait| now + wait);
        if let Some(time) = wait.or_else(|| held.not_before(now)) {
            self.agenda.ask(Work::RemoteConfig(key), time);
            return;
        }
        let remote_config = held.latest(&watched);
        let Some(examined) = held.made(now).or_else(|| self.examine(&key, &remote_config, now)) else { return };
        let fleets: Vec<String> = self.fleets_of(&key).into_iter().map(|fleet| fleet.name).collect();
        let plan = remote_configs::plan::plan(&remote_config, &examined, &fleets, Timestamp::now());
        if plan.is_empty() {
            return;
        }
        self.agenda.begin(Work::RemoteConfig(key.clone()));
        let (context, publisher) = (Arc::clone(&self.context), self.publisher.clone());
        self.tasks.spawn(async move {
            let outcome = restate(&context.client, &publisher, &*remote_config, plan).await;
            Done::RemoteConfig(Written { key, shown: watched.resource_version(), outcome })
        });
    }

    /// Checks a RemoteConfig's files; `None` while content has still to be fetched, after which it is due again.
    fn examine(&mut self, key: &ObjectKey, remote_config: &RemoteConfig, now: Instant) -> Option<Arc<Examined>> {
        let (examined, stale_at) = match self.gather(remote_config, now) {
            Gathered::Complete(bodies) => (Examined::inspected(&inspect(&remote_config.spec, &bodies)), None),
            Gathered::Unread => return None,
            Gathered::Unreadable(why) => (Examined::unreadable(why), Some(now + RETRY)),
        };
        if let Some(time) = stale_at {
            self.agenda.ask(Work::RemoteConfig(key.clone()), time);
        }
        Some(self.held_remote_configs.entry(key.clone()).or_default().make(examined, stale_at))
    }

    /// The bodies of a RemoteConfig; what is missing of them is ordered.
    fn gather(&mut self, remote_config: &RemoteConfig, now: Instant) -> Gathered {
        self.orders.extend(self.inputs.order(referenced(remote_config), now));
        self.inputs.bodies(remote_config)
    }

    pub(super) fn fetch(&mut self, order: Fetch) {
        let context = Arc::clone(&self.context);
        self.tasks.spawn(async move {
            let outcome = fetch(&context.client, &order.source).await;
            Done::Fetched(order, outcome)
        });
    }

    /// Content has arrived: whoever waits for it is due, without a further pause.
    pub(super) fn fetched(&mut self, order: Fetch, outcome: Fetched) {
        let now = now();
        let Concerned { remote_configs, connection_settings, fleets } = self.inputs.fetched(order, outcome, now);
        for key in remote_configs {
            for fleet in self.fleets_of(&key) {
                self.make_fleet_anew(fleet, now);
            }
            self.held_remote_configs.entry(key.clone()).or_default().discard();
            self.agenda.ask(Work::RemoteConfig(key), now);
        }
        for key in connection_settings {
            self.held_connection_settings.entry(key.clone()).or_default().discard();
            self.agenda.ask(Work::ConnectionSettings(key), now);
        }
        for fleet in fleets {
            self.make_fleet_anew(fleet, now);
        }
    }

    /// Counts all agents, and has the fleets looked at whose numbers have changed.
    pub(super) fn count(&mut self) {
        let now = now();
        self.counted = Some(now);
        let latest = |key: &ObjectKey, fleet: &Arc<AgentFleet>| {
            self.held_fleets.get(key).map_or_else(|| Arc::clone(fleet), |held| held.latest(fleet))
        };
        let given = self.fleets.iter().map(|(key, fleet)| (key.clone(), Given::by(&latest(key, fleet)))).collect();
        let agents = self.context.agents.all();
        let census = count(agents.iter().map(|agent| &**agent), &given, &self.uncounted);
        let changed = census.iter().filter(|(key, census)| self.census.get(*key) != Some(*census));
        let changed: Vec<ObjectKey> = changed.map(|(key, _)| key.clone()).collect();
        for key in changed {
            self.agenda.ask(Work::Fleet(key), now);
        }
        self.census = census;
    }

    /// Looks after agents without a session.
    pub(super) fn do_chores(&mut self) {
        let agents = self.context.agents.all();
        self.housekeeping.look_at(&self.context.catalog.load(), &agents);
        let fleets = &self.fleets;
        let kept = |agent: &AgentSummary| kept(fleets, agent);
        let mut due = self.housekeeping.due(&agents, &mut self.presence, kept, (now(), Timestamp::now()));
        self.note_uncounted();
        due.chores.extend(self.unused_configs(&agents).into_iter().map(Chore::DeleteConfig));
        if due.chores.is_empty() {
            self.agenda.ask(Work::Chores, now() + ROUNDS);
            return;
        }
        due.chores.truncate(CHORES_AT_ONCE);
        self.agenda.begin(Work::Chores);
        self.agenda.ask(Work::Chores, now() + COUNTING);
        let context = Arc::clone(&self.context);
        self.tasks.spawn(async move { Done::Chores(carry_out(context, due).await) });
    }

    /// The Secrets with effective configurations that no agent runs any more.
    fn unused_configs(&mut self, agents: &[Arc<AgentSummary>]) -> Vec<effective_configs::stored::Kept> {
        // Without a complete list nothing can be said to be unused, and it is not counted either.
        let Some(kept) = self.context.texts.kept() else { return Vec::new() };
        let named: HashSet<(&str, &str)> =
            agents.iter().filter_map(|agent| Some((&*agent.namespace, agent.effective_config.as_deref()?))).collect();
        self.unused.due(kept, |key| named.contains(&(key.namespace.as_str(), key.name.as_str())), now())
    }
}

/// How long the last fleet of an agent wants its object kept. A fleet that is gone says nothing: the default counts.
fn kept(fleets: &Mirror<Arc<AgentFleet>>, agent: &AgentSummary) -> Kept {
    let label = agent.fleet_label.as_deref().unwrap_or_default();
    let fleet = fleets.get(&ObjectKey::new(&*agent.namespace, label));
    let period = fleet.map_or_else(|| Retention::default().period(), |fleet| fleet.spec.retention.period());
    period.map_or(Kept::Always, Kept::For)
}
