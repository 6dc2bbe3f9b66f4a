//! What the status of an agent is made of.

use super::{super::shown::Shown, Entry, Recalled, Waiting};
use crate::{
    agents::{summary::Acceptance, written::hex},
    api::agent::Transport as ShownTransport,
    opamp::{
        identity::Proof,
        session::{Channel, Ending, Liveness},
    },
    status::view::{
        AgentView, AssignmentView, CertificateInUse, ConnectionView, Departure, LivenessView, UnmatchedBecause,
    },
};

impl Entry {
    /// What is to be written; `None`: it is not this replica's to write, or nothing can be said of the agent yet.
    pub(in crate::bridge) fn view(&self, own_namespace: &str) -> Option<AgentView> {
        let (peer, stretch) = (self.peer.as_ref()?, self.claim.stretch()?);
        let shown = if self.claim.is_ours() { self.shown()? } else { return None };
        let liveness = match self.session.liveness() {
            Liveness::Unheard => return None,
            Liveness::Connected { .. } => LivenessView::Connected,
            Liveness::Disconnected { since, how } => LivenessView::Disconnected { since, how: departure(how) },
        };
        let home = self.object.as_ref().map(|object| &*object.namespace);
        let (namespace, assignment) = match self.acceptance() {
            _ if self.waiting == Waiting::InVain => {
                (home?, AssignmentView::Unmatched(UnmatchedBecause::NoFleetSelects))
            }
            Acceptance::Admitted => (shown.namespace().or(home).unwrap_or(own_namespace), shown.view()),
            Acceptance::Pending => (shown.namespace().or(home).unwrap_or(own_namespace), shown.view_without_offer()),
            // It stays where it is.
            Acceptance::Denied | Acceptance::Revoked => (
                home.or_else(|| shown.namespace()).unwrap_or(own_namespace),
                AssignmentView::Unmatched(UnmatchedBecause::KeptOut),
            ),
        };
        Some(AgentView {
            uid: self.session.uid(),
            namespace: namespace.into(),
            session: self.claim.number(),
            record: self.session.record().clone(),
            assignment,
            acceptance: self.acceptance(),
            certificate: self.certificate_in_use(),
            connection_settings: self.settings_view(),
            settings_taken: self.session.connection_settings_offered(),
            issued: self.terms.issued(),
            connection: ConnectionView {
                transport: match stretch.channel {
                    Channel::WebSocket(_) => ShownTransport::WebSocket,
                    Channel::Http => ShownTransport::Http,
                },
                identity: peer.principal.identity.clone(),
                remote_address: peer.remote,
                since: stretch.since,
                liveness,
            },
            effective_config: self
                .keeping
                .view(self.joined().map(AsRef::as_ref), self.session.record().effective_config.as_ref()),
            reoffer_granted: self.wish.granted(),
        })
    }

    /// The certificate with which the agent connects, if it is its own.
    fn certificate_in_use(&self) -> Option<CertificateInUse> {
        let (principal, stretch) = (self.principal()?, self.claim.stretch()?);
        let Proof::Certificate { serial, .. } = &principal.proof else { return None };
        let not_after = principal.expires.filter(|_| principal.identity.issued_to() == Some(self.session.uid()))?;
        Some(CertificateInUse { serial: hex(serial), not_after, since: stretch.since })
    }

    /// What is shown of the assignment. An agent that has an object and has not described itself here is shown to the
    /// writer until the writer has read what the object says of it: those attributes count.
    fn shown(&self) -> Option<&Shown> {
        const UNDESCRIBED: &Shown = &Shown::Unmatched(UnmatchedBecause::DescriptionMissing);
        let is_unread = self.object.is_some() && self.recalled == Recalled::NotYet;
        let nothing = || (is_unread && self.session.record().description.is_none()).then_some(UNDESCRIBED);
        self.assigned.shown().or_else(nothing)
    }
}

fn departure(how: Ending) -> Departure {
    match how {
        Ending::Goodbye | Ending::Reidentified => Departure::Goodbye,
        Ending::SocketClosed => Departure::ConnectionClosed,
        Ending::Silent => Departure::Silent,
    }
}
