//! Who speaks for an agent, and whether it may take part.

use std::{sync::Arc, time::Instant};

use jiff::Timestamp;

use super::{
    super::{
        admission::KeptOut,
        audit::{FleetName, Who},
        gate::Here,
        wish::Author,
    },
    Acquaintance, Entry, Peer, author_of,
};
use crate::{
    agents::{
        summary::{Acceptance, AgentSummary},
        written::hex,
    },
    api::agent::Access,
    catalog::{Catalog, FleetEntry},
    opamp::{
        InstanceUid,
        identity::{Identity, Principal, Proof},
    },
    server::Connection,
    status::render::Owner,
};

/// Whether an agent waits for its object, without which nobody can approve of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::bridge) enum Waiting {
    /// It has one, or needs none.
    No,
    /// It is being made.
    Since(Instant),
    /// Too many wait already.
    InVain,
}

impl Entry {
    /// Whether somebody else speaks than was known, or it was only presumed who does. A credential that was renewed is
    /// taken over without more.
    pub(in crate::bridge) fn is_met_by(&mut self, connection: &Connection) -> bool {
        let Some(peer) = &mut self.peer else { return true };
        let (known, shown) = (&peer.principal, &connection.principal);
        if peer.acquaintance == Acquaintance::Presumed || known.identity != shown.identity {
            return true;
        }
        if !Arc::ptr_eq(known, shown) {
            if known.audiences != shown.audiences {
                self.assigned.anew();
            }
            peer.principal = Arc::clone(shown);
        }
        false
    }

    /// The agent speaks through this connection.
    pub(in crate::bridge) fn meet(&mut self, connection: &Connection) {
        let principal = Arc::clone(&connection.principal);
        let is_same = |former: &Peer| {
            (&former.principal.identity, &former.principal.audiences) == (&principal.identity, &principal.audiences)
        };
        if !self.peer.as_ref().is_some_and(is_same) {
            self.assigned.anew();
        }
        self.peer = Some(Peer { principal, remote: connection.remote, acquaintance: Acquaintance::Met });
    }

    /// Who speaks for the agent, or has done so last and may not be written yet. `None`: its object tells.
    pub(in crate::bridge) fn speaker(&self) -> Option<&Arc<Principal>> {
        self.peer.as_ref().filter(|_| self.has_spoken() && self.claim.is_ours()).map(|peer| &peer.principal)
    }

    /// What is known of the agent here and not by its objects.
    pub(in crate::bridge) fn here(&self) -> Here<'_> {
        Here { speaker: self.speaker().map(AsRef::as_ref), former: self.former.as_deref().copied() }
    }

    /// The same of an agent about which somebody else has written: whoever speaks here has no say in that.
    pub(in crate::bridge) fn here_but_for_who_speaks(&self) -> Here<'_> {
        Here { speaker: None, former: self.former.as_deref().copied() }
    }

    /// Notes under which uid it spoke before, if that is known: for as long as the session lasts, the certificate of
    /// that uid speaks for it (CSR-11).
    pub(in crate::bridge) fn note_former(&mut self, former: Option<InstanceUid>) {
        if let Some(former) = former.filter(|former| self.former.as_deref() != Some(former)) {
            self.former = Some(Box::new(former));
        }
    }

    /// Who was seen to speak for the agent.
    pub(in crate::bridge) fn principal(&self) -> Option<&Arc<Principal>> {
        self.peer.as_ref().map(|peer| &peer.principal)
    }

    /// Whom a decision is about.
    pub(in crate::bridge) fn who(&self) -> Option<Who<'_>> {
        let peer = self.peer.as_ref()?;
        Some(Who { uid: self.session.uid(), identity: &peer.principal.identity, remote: peer.remote })
    }

    /// Whether the agent was known by a certificate of its own, and comes with another credential: that one has ended,
    /// for otherwise it would not have been let in.
    pub(in crate::bridge) fn is_enrolled_anew(&self) -> bool {
        let is_its_own = |identity: &Identity| identity.issued_to() == Some(self.session.uid());
        let recorded = self.object().and_then(|object| Identity::parse(object.identity.as_deref()?));
        recorded.is_some_and(|recorded| is_its_own(&recorded))
            && self.principal().is_some_and(|principal| !is_its_own(&principal.identity))
    }

    /// The fleet that takes the agent, for the log.
    pub(in crate::bridge) fn fleet_name(&self) -> FleetName<'_> {
        self.fleet()
            .map_or_else(FleetName::default, |fleet| FleetName { namespace: &fleet.namespace, name: &fleet.name })
    }

    /// Whether whoever speaks now has got these newer credentials: the agent comes over them as soon as it has them, and
    /// those before are no longer its own (AMB-28).
    pub(in crate::bridge) fn is_succeeded_by(&self, newer: &Principal) -> bool {
        let uid = self.session.uid();
        let Some(older) = self.principal().filter(|_| newer.identity.issued_to() == Some(uid)) else { return false };
        let is_renewed = match (&older.proof, &newer.proof) {
            (Proof::Certificate { serial: older, .. }, Proof::Certificate { serial: newer, .. }) => older != newer,
            (Proof::None | Proof::Secret { .. } | Proof::Reviewed | Proof::Certificate { .. }, _) => false,
        };
        older.identity.issued_to() != Some(uid) || is_renewed && older.expires < newer.expires
    }

    /// Whether the watch shows that the agent has got newer credentials elsewhere, and uses them.
    pub(in crate::bridge) fn is_succeeded_elsewhere(&self, owner: &Owner) -> bool {
        let Some(object) = self.object.as_deref() else { return false };
        let used = object.certificate.as_deref().and_then(|certificate| Some((certificate, certificate.in_use_since?)));
        author_of(object, owner) == Author::Another
            && used.is_some_and(|(certificate, since)| self.is_succeeded_by_another(&certificate.serial, since))
    }

    /// Whether a certificate of the agent that is in use elsewhere since then is newer than what it speaks with here.
    pub(in crate::bridge) fn is_succeeded_by_another(&self, serial: &str, since: Timestamp) -> bool {
        let (Some(own), Some(stretch)) = (self.principal(), self.claim.stretch()) else { return false };
        let has_this = match &own.proof {
            Proof::Certificate { serial: own_serial, .. } => {
                own.identity.issued_to() == Some(self.session.uid()) && hex(own_serial) == serial
            }
            Proof::None | Proof::Secret { .. } | Proof::Reviewed => false,
        };
        !has_this && since.as_second() >= stretch.since.as_second()
    }

    /// Whether an object that has been read tells more of the agent than the watch has shown, and was written elsewhere.
    pub(in crate::bridge) fn is_news(&self, read: &AgentSummary, owner: &Owner) -> bool {
        let known = self.object.as_ref().map_or(0, |object| object.epoch());
        author_of(read, owner) == Author::Another && read.epoch() >= known.max(1)
    }

    /// Whether it may take part.
    pub(in crate::bridge) fn acceptance(&self) -> Acceptance {
        self.kept_out.map_or(self.acceptance, KeptOut::acceptance)
    }

    /// Notes whether a person keeps it out, and says whether that is news.
    pub(in crate::bridge) fn keep_out(&mut self, kept_out: Option<KeptOut>) -> bool {
        std::mem::replace(&mut self.kept_out, kept_out) != kept_out
    }

    /// Whether it waits for its object.
    pub(in crate::bridge) fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// It waits for its object from now on, or not any more.
    pub(in crate::bridge) fn wait(&mut self, waiting: Waiting) {
        self.waiting = match (self.waiting, waiting) {
            (since @ Waiting::Since(_), Waiting::Since(_)) => since,
            (Waiting::No | Waiting::Since(_) | Waiting::InVain, waiting) => waiting,
        };
    }

    /// The namespace in which somebody has to approve of the agent, if it has no object there that says so.
    pub(in crate::bridge) fn wants_object_in(&self) -> Option<&str> {
        let fleet = self.fleet().filter(|_| self.acceptance() == Acceptance::Pending)?;
        let shows = |object: &Arc<AgentSummary>| *object.namespace == *fleet.namespace && object.is_pending();
        (!self.object.as_ref().is_some_and(shows)).then_some(&fleet.namespace)
    }

    /// The fleet that takes the agent, unless it has to wait for approval.
    pub(in crate::bridge) fn joined(&self) -> Option<&Arc<FleetEntry>> {
        self.fleet().filter(|_| self.acceptance() == Acceptance::Admitted)
    }

    /// Whether no fleet takes the agent's identity any more although the one that took it last is there: people have
    /// changed whom it admits. Of a fleet that is gone nothing is concluded (it may have been replaced).
    pub(in crate::bridge) fn is_shut_out(&self, catalog: &Catalog) -> bool {
        let Some(object) = self.object.as_deref() else { return self.assigned.is_not_admitted() };
        // The label is for everybody to change who may write the object, and the status is not.
        let mut last = object.fleet.iter().chain(&object.fleet_label).peekable();
        let is_there = last.peek().is_none() || last.any(|name| catalog.fleet(&object.namespace, name).is_some());
        self.assigned.is_not_admitted() && is_there
    }
}

/// Where a person has approved of an agent.
pub(in crate::bridge) fn approved_in(objects: &[Arc<AgentSummary>]) -> Vec<Arc<str>> {
    let is_approved = |object: &&Arc<AgentSummary>| object.access == Some(Access::Approved);
    objects.iter().filter(is_approved).map(|object| Arc::clone(&object.namespace)).collect()
}
