//! What the status writer asks of the sessions, and tells them.

use std::sync::Arc;

use super::{
    Bridge,
    claim::{Holder, Rival},
    entry::Entry,
    gate::Expulsion,
    now,
};
use crate::{
    agents::summary::of_status,
    api::agent::AgentStatus,
    opamp::{InstanceUid, session::Remembered},
    status::{
        queue::Urgency,
        recall::{recall, settings_taken},
        view::AgentView,
        writer::AgentViews,
    },
};

impl AgentViews for Bridge {
    fn view(&self, uid: &InstanceUid) -> Option<AgentView> {
        self.sessions.with(*uid, |entry| entry.view(&self.settings.own_namespace)).flatten()
    }

    fn remembered(&self, uid: &InstanceUid, namespace: &str, status: &AgentStatus) {
        let summary = of_status(*uid, namespace, status).map(Arc::new);
        let former = recall(status);
        let remembered = Remembered {
            last_reported: former.remote_config.map(|report| report.hash),
            failed: former.failed_config,
            description: former.description,
            available_components: former.available_components,
            connection_settings_reported: former.connection_settings.map(|report| report.hash),
            connection_settings_offered: settings_taken(status),
            failed_connection_settings: former.failed_connection_settings.map(|failed| *failed),
        };
        let owner = &self.settings.owner;
        self.sessions.with(*uid, |entry| {
            if summary.is_some_and(|object| self.give_way(entry, object)) {
                return;
            }
            entry.recall(remembered);
            if let Some(holder) = Holder::of(status, owner) {
                let liveness = entry.session.liveness();
                let rival = entry.claim.found(holder, &owner.replica, liveness, now().instant);
                self.meet(entry, rival, holder);
            }
            if entry.claim.over_since().is_none() {
                self.look_and_push(entry, now());
            }
        });
    }

    fn written(&self, uid: &InstanceUid, _session: u64, status: &AgentStatus) {
        self.sessions.with(*uid, |entry| {
            let demand = entry.written(status);
            self.fulfil(entry, demand);
        });
    }

    fn superseded(&self, uid: &InstanceUid, session: u64, by: &AgentStatus) {
        let owner = &self.settings.owner;
        let used = by.certificate.as_ref().and_then(|used| Some((&*used.serial, used.in_use_since.as_ref()?.0)));
        let Some(by) = Holder::of(by, owner) else { return };
        self.sessions.with(*uid, |entry| {
            if used.is_some_and(|(serial, since)| entry.is_succeeded_by_another(serial, since)) {
                self.expel(entry, Expulsion::Succeeded, now());
                return;
            }
            let liveness = entry.session.liveness();
            let rival = entry.claim.superseded(session, by, &owner.replica, liveness, now().instant);
            self.meet(entry, rival, by);
        });
    }

    fn released(&self, uid: &InstanceUid, session: u64) {
        self.sessions.with(*uid, |entry| entry.released(session, now()));
    }
}

impl Bridge {
    /// Does what follows from a session elsewhere that has claimed the agent.
    pub(super) fn meet(&self, entry: &mut Entry, rival: Rival, by: Holder<'_>) {
        let uid = entry.session.uid();
        match rival {
            Rival::None => entry.forget_if_over(),
            Rival::Gone => self.touch(entry, Some(Urgency::Connection)),
            Rival::Younger(connection) => self.challenge(uid, connection),
            Rival::Older => {
                tracing::info!(%uid, replica = by.replica, "another agent uses this uid at another replica");
                self.rename(entry, "Duplicate", now());
            }
        }
    }
}
