//! What the leader does about ConnectionSettings and the values that they refer to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    apply::restate,
    leader::{Done, Leader, Work, Written, now},
};
use crate::{
    api::{
        agent_fleet::{AgentFleet, AgentFleetStatus},
        connection_settings::ConnectionSettings,
    },
    catalog::{
        Catalog, Credentials, FleetEntry, Settings, SourceKind,
        credentials::{CREDENTIALS_TYPE, credentials_secret_name},
        settings::CredentialReference,
    },
    connection_settings::plan::{Examined, plan},
    fleets::{
        credentials::{self, Extent, Kept, Known, Stored},
        plan::Made,
    },
    kubernetes::ObjectKey,
    revisions::{
        Compiled,
        content::{Content, Source},
        credentials::{Found, NotFound, judge},
        inputs::{Lookup, RETRY, referenced_by_settings, source_of},
        settings::freeze,
    },
};

/// What was made of something, and when it has to be made anew although nothing moved.
pub(super) struct Lasting<M> {
    pub(super) made: M,
    pub(super) stale_at: Option<Instant>,
}

/// The settings of the revisions that fleets offer, as far as this replica has read these.
#[derive(Debug, Default)]
pub(super) struct ServedSettings(BTreeMap<ObjectKey, Served>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Served {
    settings: Vec<Arc<Settings>>,
    revisions: BTreeSet<String>,
}

impl ServedSettings {
    /// Takes over a snapshot; says which fleets have to be looked at, because values may be missing or too many.
    pub(super) fn follow(&mut self, catalog: &Catalog) -> Vec<ObjectKey> {
        let served: BTreeMap<ObjectKey, Served> = catalog
            .fleets()
            .map(|fleet| (ObjectKey::new(&*fleet.namespace, &*fleet.name), Served::by(fleet)))
            .collect();
        let former = std::mem::replace(&mut self.0, served);
        let refers = |served: &Served| served.settings.iter().any(|settings| settings.references().next().is_some());
        let moved = self.0.iter().filter(|(key, served)| {
            let former = former.get(*key);
            former != Some(*served) && (refers(served) || former.is_some_and(refers))
        });
        moved.map(|(key, _)| key.clone()).collect()
    }
}

impl ServedSettings {
    /// The settings that this fleet offers.
    pub(super) fn of(&self, fleet: &ObjectKey) -> impl Iterator<Item = &Settings> {
        self.0.get(fleet).into_iter().flat_map(|served| served.settings.iter().map(AsRef::as_ref))
    }
}

impl Served {
    fn by(fleet: &FleetEntry) -> Self {
        let mut settings: Vec<Arc<Settings>> =
            fleet.revisions().filter_map(|revision| revision.settings()).cloned().collect();
        settings.dedup();
        Self { settings, revisions: fleet.revisions().map(|revision| revision.hash().short()).collect() }
    }

    /// Whether these are all that a status names.
    fn extent(&self, status: Option<&AgentFleetStatus>) -> Extent {
        let named = status.into_iter().flat_map(|status| status.current_revision.iter().chain(&status.update_revision));
        if named.into_iter().all(|name| self.revisions.contains(name)) { Extent::Complete } else { Extent::Partial }
    }
}

impl Leader {
    pub(super) fn connection_settings_due(&mut self, key: ObjectKey) {
        let Some(watched) = self.inputs.connection_settings(&key).cloned() else {
            self.held_connection_settings.remove(&key);
            return;
        };
        let now = now();
        let held = self.held_connection_settings.entry(key.clone()).or_default();
        let wait = held.settle.wait(now).map(|wait| now + wait);
        if let Some(time) = wait.or_else(|| held.not_before(now)) {
            self.agenda.ask(Work::ConnectionSettings(key), time);
            return;
        }
        let settings = held.latest(&watched);
        let Some(examined) = held.made(now).or_else(|| self.examine_settings(&key, &settings, now)) else { return };
        let fleets: Vec<String> = self.fleets_with_settings(&key).into_iter().map(|fleet| fleet.name).collect();
        let plan = plan(&settings, &examined, &fleets, Timestamp::now());
        if plan.is_empty() {
            return;
        }
        self.agenda.begin(Work::ConnectionSettings(key.clone()));
        let (context, publisher) = (Arc::clone(&self.context), self.publisher.clone());
        self.tasks.spawn(async move {
            let outcome = restate(&context.client, &publisher, &*settings, plan).await;
            Done::ConnectionSettings(Written { key, shown: watched.resource_version(), outcome })
        });
    }

    /// Judges the values that ConnectionSettings refer to; `None` while one has still to be fetched, after which they are
    /// due again.
    fn examine_settings(
        &mut self,
        key: &ObjectKey,
        object: &ConnectionSettings,
        now: Instant,
    ) -> Option<Arc<Examined>> {
        let Lasting { made, stale_at } = match freeze(&key.name, &object.spec.opamp) {
            Err(incomplete) => Lasting { made: Examined::incomplete(&incomplete), stale_at: None },
            Ok(settings) => {
                self.orders.extend(self.inputs.order(referenced_by_settings(object), now));
                let found = self.inputs.credentials(&key.namespace, &settings.references().collect())?;
                Lasting { made: Examined::judged(judge(&settings, &found)), stale_at: stale_at(&found, now) }
            }
        };
        if let Some(time) = stale_at {
            self.agenda.ask(Work::ConnectionSettings(key.clone()), time);
        }
        Some(self.held_connection_settings.entry(key.clone()).or_default().make(made, stale_at))
    }

    /// The fleets that name these ConnectionSettings.
    pub(super) fn fleets_with_settings(&self, settings: &ObjectKey) -> Vec<ObjectKey> {
        let names = |fleet: &AgentFleet| {
            fleet.spec.connection_settings.as_ref().is_some_and(|reference| reference.name == settings.name)
        };
        let all = self.fleets.named(&settings.namespace, "");
        all.filter(|(_, fleet)| names(fleet)).map(|(key, _)| key.clone()).collect()
    }

    /// ConnectionSettings were moved, themselves or by what they refer to.
    pub(super) fn settings_moved(&mut self, key: ObjectKey, now: Instant) {
        for fleet in self.fleets_with_settings(&key) {
            self.fleet_inputs_moved(fleet, now);
        }
        self.held_connection_settings.entry(key.clone()).or_default().settle.moved(now);
        self.agenda.ask(Work::ConnectionSettings(key), now);
    }

    /// A fleet has to be looked at once its inputs are quiet.
    pub(super) fn fleet_inputs_moved(&mut self, fleet: ObjectKey, now: Instant) {
        self.held_fleets.entry(fleet.clone()).or_default().settle.moved(now);
        self.agenda.ask(Work::Fleet(fleet), now);
    }

    /// What was made of a fleet's inputs counts no longer: it has to be looked at.
    pub(super) fn make_fleet_anew(&mut self, fleet: ObjectKey, now: Instant) {
        self.held_fleets.entry(fleet.clone()).or_default().discard();
        self.agenda.ask(Work::Fleet(fleet), now);
    }

    /// The catalog has another snapshot: values may no longer be needed, or be needed after all.
    pub(super) fn catalog_moved(&mut self) {
        let now = now();
        self.agenda.ask(Work::Chores, now);
        for fleet in self.served.follow(&self.context.catalog.load()) {
            self.make_fleet_anew(fleet, now);
        }
    }

    /// What is to be kept of the values that a fleet's members are offered; `None` while one has still to be fetched, after
    /// which the fleet is due again.
    pub(super) fn keep_credentials(
        &mut self,
        key: &ObjectKey,
        fleet: &AgentFleet,
        made: &Made,
        now: Instant,
    ) -> Option<Lasting<Kept>> {
        let served = self.served.0.get(key).cloned().unwrap_or_default();
        let target = match made {
            Made::Revision(Compiled { settings, .. }) => settings.as_ref(),
            Made::Faulty(_) => None,
        };
        let offered: Vec<&Settings> = served.settings.iter().map(AsRef::as_ref).collect();
        let all = offered.iter().copied().chain(target);
        let references: BTreeSet<CredentialReference> = all.flat_map(Settings::references).collect();
        let uid = fleet.uid().unwrap_or_default();
        let own = ObjectKey::new(&*key.namespace, credentials_secret_name(&uid));
        let own = Source { kind: SourceKind::Secret, key: own };
        let sources = references.iter().map(|reference| source_of(&key.namespace, reference));
        let sources: BTreeSet<Source> = sources.chain([own.clone()]).collect();
        self.inputs.offer(key.clone(), sources.clone());
        self.orders.extend(self.inputs.order(sources, now));
        let found = self.inputs.credentials(&key.namespace, &references)?;
        let stored = match self.inputs.lookup(&own) {
            Lookup::Missing => Stored::Missing,
            Lookup::Known(content) => stored(&uid, &content, self.inputs.version(&own).unwrap_or_default()),
            Lookup::Unread => return None,
            // Nothing can be compared: it is left as it is, and looked at again.
            Lookup::Unreadable(_) => return Some(Lasting { made: Kept::default(), stale_at: Some(now + RETRY) }),
        };
        let served_are = served.extent(fleet.status.as_ref());
        let known = Known { target, served: &offered, served_are, found: &found, stored: &stored };
        Some(Lasting { made: credentials::plan(fleet, &known), stale_at: stale_at(&found, now) })
    }
}

fn stored(fleet_uid: &str, content: &Content, version: &str) -> Stored {
    if content.secret_type() != Some(CREDENTIALS_TYPE) {
        return Stored::Foreign;
    }
    let values = content.values().map(|(key, value)| (key.as_str(), &value[..]));
    Stored::Known { version: version.into(), credentials: Credentials::read(fleet_uid, values) }
}

/// When values that could not be read are looked at again.
fn stale_at(found: &Found, now: Instant) -> Option<Instant> {
    let unreadable = found.values().any(|found| matches!(found, Err(NotFound::Unreadable(_))));
    unreadable.then(|| now + RETRY)
}
