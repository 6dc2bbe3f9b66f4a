//! How the agent is to connect.

use super::{
    super::settings::{Issuance, Party, Ripe, Terms, Wanted},
    Entry,
};
use crate::{
    agents::summary::Acceptance,
    opamp::{
        connection_settings::{Recipient, Transport},
        now::Now,
    },
    status::view::SettingsView,
};

impl Entry {
    /// What the fleet of the agent says of its connection.
    pub(in crate::bridge) fn wanted(&self) -> Wanted<'_> {
        match self.acceptance() {
            Acceptance::Admitted | Acceptance::Pending => self.assigned.wanted(self.seen()),
            Acceptance::Denied | Acceptance::Revoked => Wanted::Unsettled,
        }
    }

    /// Whether a fleet takes the agent, or took it last.
    pub(in crate::bridge) fn is_member(&self) -> bool {
        self.fleet().is_some() || self.object.as_ref().is_some_and(|object| object.fleet_label.is_some())
    }

    /// Whether no fleet takes the agent, although it has said what it is. To a replica that has just started an agent may
    /// say that only when it is asked.
    pub(in crate::bridge) fn is_stranger(&self) -> bool {
        !self.is_member() && self.session.record().description.is_some()
    }

    /// Takes over what the fleet says of the connection now. Says whether that is to be shown.
    pub(in crate::bridge) fn settle(&mut self, issuance: Issuance<'_>, now: Now) -> bool {
        let transport = self.session.stretch().map_or(Transport::Http, |(channel, _)| channel.into());
        let party = Party {
            uid: self.session.uid(),
            recipient: Recipient { capabilities: self.session.record().capabilities, transport },
            acceptance: self.acceptance(),
        };
        let mut terms = std::mem::take(&mut self.terms);
        let is_news = terms.look(self.wanted(), &party, issuance, now);
        self.terms = terms;
        is_news
    }

    /// Takes the request that had to wait, if it can be decided on now.
    pub(in crate::bridge) fn ripe_request(&mut self) -> Ripe {
        let mut terms = std::mem::take(&mut self.terms);
        let ripe = terms.ripe(self.wanted(), self.acceptance());
        self.terms = terms;
        ripe
    }

    pub(in crate::bridge) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(in crate::bridge) fn terms_mut(&mut self) -> &mut Terms {
        &mut self.terms
    }

    /// What is shown of the settings.
    pub(super) fn settings_view(&self) -> SettingsView {
        match self.wanted() {
            Wanted::Unsettled => SettingsView::Unsettled,
            Wanted::Nothing | Wanted::Settings { .. } => self.terms.view(),
        }
    }
}
