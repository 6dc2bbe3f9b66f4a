//! One agent at this replica: its session, who speaks for it, which fleet takes it, and whose its status is.

mod connecting;
mod decision;
mod standing;
mod view;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use self::{decision::Noted, standing::approved_in};
pub(super) use self::{
    decision::{Decision, Novelty},
    standing::Waiting,
};
use super::{
    admission::{self, KeptOut},
    assigned::{Assigned, News},
    claim::{Claim, Holder, Stretch},
    keeping::Keeping,
    settings::Terms,
    timers::Timer,
    wish::{Author, Demand, Wish},
};
use crate::{
    agents::{
        retention::winner,
        summary::{Acceptance, AgentSummary, RevisionSummary},
    },
    api::agent::AgentStatus,
    catalog::{Catalog, Claimant, ConfigHash, FleetEntry, Subject},
    opamp::{
        InstanceUid,
        identity::{Identity, Principal},
        now::Now,
        offer::{CertificateRequests, ConnectionSettingsHash, Offer},
        record::{FailedOffer, OfferState},
        session::{Liveness, Remembered, Session},
    },
    server::Connection,
    status::{queue::Urgency, render::Owner},
};

/// A suspicion is logged once in this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(3600);

/// One agent at this replica.
pub(super) struct Entry {
    pub(super) session: Session,
    pub(super) timer: Timer,
    pub(super) claim: Claim,
    pub(super) keeping: Keeping,
    assigned: Assigned,
    terms: Terms,
    peer: Option<Peer>,
    /// Under which uid it spoke before, if it was given this one here.
    former: Option<Box<InstanceUid>>,
    /// What the watch shows of it; while there are two objects, the one that will stay.
    object: Option<Arc<AgentSummary>>,
    /// The namespaces in which a person has approved of it; hardly ever more than one.
    approved_in: Vec<Arc<str>>,
    /// A person keeps it out.
    kept_out: Option<KeptOut>,
    /// Whether it may take part in what its fleet gives.
    acceptance: Acceptance,
    waiting: Waiting,
    recalled: Recalled,
    wish: Wish,
    warned: Option<Instant>,
    noted: Option<Noted>,
}

/// An offer by its hashes.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Gist {
    remote_config: Option<ConfigHash>,
    connection_settings: Option<ConnectionSettingsHash>,
    certificate_requests: CertificateRequests,
}

/// Who speaks for the agent.
struct Peer {
    principal: Arc<Principal>,
    remote: SocketAddr,
    acquaintance: Acquaintance,
}

/// How it is known who speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Acquaintance {
    /// From the connection.
    Met,
    /// It went on over HTTP without having asked anything since, so it is taken for whoever spoke before.
    Presumed,
}

/// Whether the status that an earlier process or another replica wrote was read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Recalled {
    NotYet,
    Done,
}

impl Entry {
    /// Begins with what the watch shows of the agent.
    pub(super) fn new(uid: InstanceUid, objects: &[Arc<AgentSummary>], owner: &Owner, http_silence: Duration) -> Self {
        let object = winner(objects).cloned();
        let remembered = object.as_deref().map(|object| Remembered {
            last_reported: object.last_reported.as_deref().map(<[u8]>::to_vec),
            failed: object.failed.as_deref().map(failed_with),
            ..remembered_settings(object)
        });
        let mut wish = Wish::None;
        if let Some(object) = &object {
            // The first write of the session writes the wish down.
            let _ = wish.observe(object, author_of(object, owner));
        }
        Self {
            session: Session::new(uid, remembered).with_silence_limit(http_silence),
            timer: Timer::default(),
            claim: Claim::default(),
            keeping: Keeping::default(),
            assigned: Assigned::default(),
            terms: Terms::remembering(object.as_deref().map_or(CertificateRequests::NotServed, served_before)),
            peer: None,
            former: None,
            object,
            approved_in: approved_in(objects),
            kept_out: None,
            acceptance: Acceptance::Admitted,
            waiting: Waiting::No,
            recalled: Recalled::NotYet,
            wish,
            warned: None,
            noted: None,
        }
    }

    /// Whether the agent itself has spoken here, not only somebody who wants another uid.
    pub(super) fn has_spoken(&self) -> bool {
        self.session.liveness() != Liveness::Unheard
    }

    /// A stretch of presence begins, through this connection if it is known.
    pub(super) fn begin(&mut self, stretch: Stretch, connection: Option<&Connection>) {
        self.claim.begin(stretch);
        match (connection, &mut self.peer) {
            (Some(connection), _) => self.meet(connection),
            (None, Some(former)) => former.acquaintance = Acquaintance::Presumed,
            (None, None) => {}
        }
    }

    /// The agent has been heard. If a session elsewhere took it and has lost it since, it has come back: says so, once.
    pub(super) fn comes_back(&mut self, owner: &Owner) -> Option<Urgency> {
        let object = self.object.as_deref().filter(|_| self.claim.is_theirs())?;
        let holder = Holder::shown_by(object, owner);
        if object.is_connected() && holder.is_some() {
            return None;
        }
        self.claim.win_back(holder);
        Some(Urgency::Connection)
    }

    /// Whether a suspicion may be logged again.
    pub(super) fn may_warn(&mut self, now: Now) -> bool {
        let due = self.warned.is_none_or(|warned| now.instant.saturating_duration_since(warned) >= WARNING_INTERVAL);
        if due {
            self.warned = Some(now.instant);
        }
        due
    }

    /// The agent has gone. What follows from that if the status is not this replica's any more.
    pub(super) fn departed(&mut self, now: Now) {
        if self.session.liveness().channel().is_none() {
            self.claim.departed(now.instant);
            self.forget_if_over();
        }
    }

    /// It is written that the stretch of this claim is over.
    pub(super) fn released(&mut self, number: u64, now: Now) {
        self.claim.released(number, self.session.liveness(), now.instant);
        self.forget_if_over();
    }

    pub(super) fn forget_if_over(&mut self) {
        if self.claim.over_since().is_some() {
            self.assigned.forget();
            self.terms.forget();
        }
    }

    /// Whether nothing would be lost without the session. What it keeps of an agent that has gone spares a full report
    /// when it returns (STS-02), unless it has spoken elsewhere since.
    pub(super) fn may_be_dropped(&self, kept_for: Duration, owner: &Owner, now: Now) -> bool {
        if !self.session.is_deserted(now) {
            return false;
        }
        match (self.session.liveness(), self.claim.over_since()) {
            (Liveness::Unheard, _) => true,
            (Liveness::Connected { .. }, _) | (Liveness::Disconnected { .. }, None) => false,
            (Liveness::Disconnected { .. }, Some(over)) => {
                now.instant.saturating_duration_since(over) >= kept_for || self.is_held_elsewhere(owner)
            }
        }
    }

    /// What the watch shows of it.
    pub(super) fn object(&self) -> Option<&Arc<AgentSummary>> {
        self.object.as_ref()
    }

    /// Whether another replica, or another run of this one, was the last to claim the status.
    fn is_held_elsewhere(&self, owner: &Owner) -> bool {
        self.object
            .as_deref()
            .is_some_and(|object| object.connection.is_some() && author_of(object, owner) == Author::Another)
    }

    /// The assignment must be made anew.
    pub(super) fn reassign(&mut self) {
        self.assigned.anew();
    }

    /// Looks up which fleet takes the agent, if that may have changed.
    pub(super) fn look(&mut self, catalog: &Catalog, now: Now) -> News {
        let subject = Subject {
            uid: self.session.uid(),
            who: self
                .peer
                .as_ref()
                .map_or_else(|| Claimant::recorded(&Identity::Anonymous), |peer| Claimant::present(&peer.principal)),
            attributes: self.session.record().description.as_ref(),
            home: self.object.as_deref().map(|object| &*object.namespace),
        };
        let seen = self.object.as_deref().and_then(|object| object.revision.as_ref());
        let mut news = self.assigned.look(catalog, &subject, seen, now.instant);
        let acceptance =
            self.fleet().map_or(Acceptance::Admitted, |fleet| admission::acceptance(fleet, &self.approved_in));
        if std::mem::replace(&mut self.acceptance, acceptance) != acceptance {
            news.urgency = Some(news.urgency.map_or(Urgency::Configuration, |other| other.min(Urgency::Configuration)));
        }
        if self.assigned.has_formers() && self.runs_what_it_is_given() {
            self.assigned.forget_formers();
        }
        news
    }

    fn runs_what_it_is_given(&self) -> bool {
        let report = self.session.record().remote_config.as_ref();
        report
            .filter(|report| report.state == OfferState::Applied)
            .is_some_and(|report| self.hash().is_some_and(|hash| report.hash == hash.as_bytes()))
    }

    /// The revision that the agent was given last, by whichever replica.
    fn seen(&self) -> Option<&RevisionSummary> {
        self.object.as_deref()?.revision.as_ref()
    }

    /// What the agent is to have now.
    pub(super) fn offer(&self) -> Offer {
        match self.acceptance() {
            Acceptance::Admitted => Offer {
                connection_settings: self.terms.offer().cloned(),
                certificate_requests: self.terms.requests(),
                ..self.assigned.offer(self.seen())
            },
            // A request for a certificate is not refused for that: it waits, too (CSR-04).
            Acceptance::Pending => Offer { certificate_requests: self.terms.requests(), ..Offer::default() },
            Acceptance::Denied | Acceptance::Revoked => Offer::default(),
        }
    }

    /// The hash of what the agent is to have now.
    pub(super) fn hash(&self) -> Option<ConfigHash> {
        self.offer().remote_config.map(|config| config.hash)
    }

    /// What the agent is to be told now, for comparisons.
    pub(super) fn gist(&self) -> Gist {
        let offer = self.offer();
        Gist {
            remote_config: offer.remote_config.map(|config| config.hash),
            connection_settings: offer.connection_settings.map(|settings| settings.hash),
            certificate_requests: offer.certificate_requests,
        }
    }

    /// The fleet that takes the agent.
    pub(super) fn fleet(&self) -> Option<&Arc<FleetEntry>> {
        self.assigned.fleet()
    }

    /// The fleets whose Secrets the agent may quote.
    pub(super) fn quotable<'a>(&'a self, catalog: &'a Catalog) -> Vec<&'a FleetEntry> {
        self.assigned.quotable(catalog)
    }

    /// When the agent is to be looked at again unless something happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.session.deadline(), self.assigned.deadline(), self.terms.deadline()].into_iter().flatten().min()
    }

    /// What the watch shows of the agent's object now. Says whether, and how urgently, the writer has to look at it: it
    /// has gone, its spec has changed, or another replica has claimed it. What this replica has written itself comes
    /// back, too, and is no reason.
    pub(super) fn learn(&mut self, objects: &[Arc<AgentSummary>], owner: &Owner) -> (Option<Urgency>, Demand) {
        let former = std::mem::replace(&mut self.object, winner(objects).cloned());
        self.approved_in = approved_in(objects);
        let home = |object: &Option<Arc<AgentSummary>>| object.as_ref().map(|object| Arc::clone(&object.namespace));
        if home(&former) != home(&self.object) || self.seen().is_some_and(|seen| self.assigned.is_behind(seen)) {
            self.assigned.anew();
        }
        let Some(object) = self.object.as_deref() else {
            return (former.map(|_| Urgency::Rest), Demand::Nothing);
        };
        // A new object has generation 1.
        let is_respecified = object.generation != former.as_ref().map_or(1, |former| former.generation);
        let is_claimed = object.connection != former.as_ref().and_then(|former| former.connection.clone())
            && self.is_held_elsewhere(owner);
        let demand = self.wish.observe(object, author_of(object, owner));
        let urgency = match demand {
            Demand::Write => Some(Urgency::Configuration),
            Demand::Nothing | Demand::Offer => (is_respecified || is_claimed).then_some(Urgency::Rest),
        };
        (urgency, demand)
    }

    /// A status of this agent was read that was written before this process met it.
    pub(super) fn recall(&mut self, remembered: Remembered) {
        self.recalled = Recalled::Done;
        self.session.remember(remembered);
        self.assigned.anew();
    }

    /// This status was written.
    pub(super) fn written(&mut self, status: &AgentStatus) -> Demand {
        self.wish.written(status.reoffer.as_ref().map(|reoffer| reoffer.requested_at.0))
    }
}

/// Who wrote the status of an object.
pub(super) fn author_of(object: &AgentSummary, owner: &Owner) -> Author {
    let is_ours = object.connection.as_ref().is_some_and(|connection| {
        *connection.replica == *owner.replica && *connection.incarnation == *owner.incarnation
    });
    if is_ours { Author::ThisReplica } else { Author::Another }
}

/// Whether the agent was told that it may ask for certificates, as far as its object shows: it is not told the contrary
/// in the moments until its fleet is known again.
fn served_before(object: &AgentSummary) -> CertificateRequests {
    match object.certificate {
        Some(_) => CertificateRequests::Served,
        None => CertificateRequests::NotServed,
    }
}

/// What became of the agent's connection settings, as its object says: without it every agent that is silent about them
/// would be offered them anew after a restart.
fn remembered_settings(object: &AgentSummary) -> Remembered {
    let Some(known) = object.connection_settings.as_deref() else { return Remembered::default() };
    Remembered {
        connection_settings_reported: known.last_reported.as_ref().map(|hash| hash.to_vec()),
        connection_settings_offered: known.offered,
        failed_connection_settings: known.failed.as_deref().map(failed_with),
        ..Remembered::default()
    }
}

/// What failed at the agent, as its object says. Why and when is read later.
fn failed_with(hash: &[u8]) -> FailedOffer {
    FailedOffer { hash: hash.to_vec(), error: String::new(), at: Timestamp::UNIX_EPOCH }
}
