//! What the status writer asks of the sessions, and tells them.

use super::Bridge;
use crate::{
    api::agent::{AgentStatus, ConnectionStatus},
    opamp::{InstanceUid, now::Now, session::Remembered},
    status::{recall::recall, view::AgentView, writer::AgentViews},
};

impl AgentViews for Bridge {
    fn view(&self, uid: &InstanceUid) -> Option<AgentView> {
        self.sessions.with(*uid, |entry| entry.view(&self.settings.own_namespace)).flatten()
    }

    fn remembered(&self, uid: &InstanceUid, status: &AgentStatus) {
        let former = recall(status);
        let remembered = Remembered {
            last_reported: former.remote_config.map(|report| (report.hash, report.state)),
            failed: former.failed_config,
            description: former.description,
            available_components: former.available_components,
        };
        self.sessions.with(*uid, |entry| {
            entry.session.remember(remembered);
            entry.reassign();
            if let Some(urgency) = entry.assign(&self.catalog.load(), None, Now::read()) {
                self.writer.touch(*uid, urgency);
            }
            self.wake(entry);
        });
    }

    fn written(&self, uid: &InstanceUid, _session: u64, status: &AgentStatus) {
        let granted = status.reoffer.as_ref().map(|reoffer| reoffer.requested_at.0);
        self.sessions.with(*uid, |entry| {
            if entry.reoffer_is_written(granted) {
                self.wake(entry);
            }
        });
    }

    fn superseded(&self, uid: &InstanceUid, session: u64, by: &ConnectionStatus) {
        self.sessions.with(*uid, |entry| match entry.superseded(session, by.since.0) {
            super::entry::Rival::None => {}
            super::entry::Rival::Younger(connection) => self.connections.ping(connection),
            super::entry::Rival::Older => {
                tracing::info!(%uid, replica = by.replica, "another agent uses this uid at another replica");
                let now = Now::read();
                let effects = entry.session.give_new_uid(now);
                // Without an asking connection everything is delivered to where it belongs.
                let _ = self.carry_out(entry, effects, None, now);
            }
        });
    }

    fn released(&self, uid: &InstanceUid, session: u64) {
        self.sessions.with(*uid, |entry| entry.hand_over(session));
    }
}
