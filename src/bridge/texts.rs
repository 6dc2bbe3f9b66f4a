//! What agents report as running, on its way to where it is kept.

use std::{collections::BTreeSet, sync::Arc};

use super::{Bridge, entry::Entry, keeping::keeps_texts};
use crate::{
    effective_configs::{Handed, News, Reporters},
    kubernetes::ObjectKey,
    opamp::{InstanceUid, normalise::EffectiveConfigText, now::Now},
    status::queue::Urgency,
};

impl Bridge {
    /// Hands in a text that an agent has just reported, if its fleet wants that.
    pub(super) fn keep_text(&self, entry: &mut Entry, text: &EffectiveConfigText, now: Now) {
        let Some(fleet) = entry.joined().filter(|fleet| keeps_texts(fleet)).map(Arc::clone) else { return };
        let Some(reported) = entry.session.record().effective_config.clone() else { return };
        if !entry.keeping.takes(&fleet, &reported, now.instant) {
            return;
        }
        let uid = entry.session.uid();
        let fate = self.texts.put(uid, text, &fleet, &entry.quotable(&self.catalog.load()).into_iter());
        match fate {
            Handed::Waits(_) => {}
            Handed::Kept(_) | Handed::Not(_) => self.touch(entry, Some(Urgency::Rest)),
        }
        entry.keeping.handed(&fleet, &reported, fate);
    }

    /// Has the agent asked to report in full if its text is wanted and was not kept when it was reported: its fleet has
    /// begun to ask for it, or the Secret is gone.
    pub(super) fn want_text(entry: &mut Entry, now: Now) {
        let fleet = entry.joined().map(Arc::clone);
        let reported = entry.session.record().effective_config.clone();
        if entry.keeping.asks(fleet.as_deref(), reported.as_ref(), now.instant) {
            entry.session.want_full_report();
        }
    }

    /// What is kept of the agent's text is another thing now.
    fn text_changed(&self, uid: InstanceUid, change: impl FnOnce(&mut Entry) -> bool) {
        self.sessions.with(uid, |entry| {
            if change(entry) {
                self.touch(entry, Some(Urgency::Rest));
                // Its socket's own task asks for the text, if that is wanted.
                self.wake(entry);
            }
        });
    }
}

impl Reporters for Bridge {
    fn concluded(&self, news: News) {
        self.text_changed(news.agent, |entry| entry.keeping.concluded(&news));
    }

    fn vanished(&self, secrets: &BTreeSet<ObjectKey>) {
        for uid in self.sessions.uids() {
            self.text_changed(uid, |entry| entry.keeping.lost(secrets));
        }
    }

    fn invited(&self, agent: InstanceUid) {
        self.text_changed(agent, |entry| {
            entry.keeping.forget();
            true
        });
    }
}
