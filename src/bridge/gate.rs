//! The gate before the sessions: who gets in, what those are told that do not, and who is put out again.

use std::{sync::Arc, time::Duration};

use super::{
    Bridge,
    admission::{Applicant, Conflict, Credential, KeptOut, Known, Verdict, decide, kept_out},
    audit::{self, FleetName, Who},
    connections::Carried,
    entry::{Decision, Entry, Novelty, Waiting},
    lock,
    pending::Seat,
    quiet::Turn,
    renamings::{Origin, Telling, Visitor},
};
use crate::{
    agents::summary::AgentSummary,
    api::enrollment::Approval,
    authentication::{self, audit::Outcome},
    catalog::{Catalog, Claimant},
    credentials::{serial::Serial, stored::Signer},
    opamp::{
        InstanceUid,
        identity::Principal,
        now::Now,
        session::{self, Channel, Outbound},
    },
    server::{CloseReason, Connection, Exchange, Then, Transport},
    status::queue::Urgency,
};

/// When an agent that a person keeps out may ask again. It is not closed: it would come back without delay.
const KEPT_OUT: Duration = Duration::from_secs(300);
/// So much later at most, so that not all ask at once (AMB-44).
const SPREAD: Duration = Duration::from_secs(30);
/// How long an agent that needs approval may take part without an object, which is being made.
const OBJECT_IS_DUE: Duration = Duration::from_secs(10);

/// Why the session of an agent ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Expulsion {
    /// A person keeps it out.
    KeptOut(KeptOut),
    /// The credential by which it was admitted does not count any more.
    CredentialGone,
    /// No fleet takes its identity any more.
    NotAdmitted,
    /// Its gateway is none any more.
    NoGateway,
    /// It has newer credentials, and speaks elsewhere.
    Succeeded,
}

impl Expulsion {
    /// For the audit line.
    fn word(self) -> &'static str {
        match self {
            Self::KeptOut(kept_out) => kept_out.word(),
            Self::CredentialGone => "CredentialGone",
            Self::NotAdmitted => "NotAdmitted",
            Self::NoGateway => "NoGateway",
            Self::Succeeded => "Succeeded",
        }
    }

    /// For the agent.
    fn reason(self) -> &'static str {
        match self {
            Self::KeptOut(kept_out) => kept_out.reason(),
            Self::CredentialGone => "the credential does not count any more",
            Self::NotAdmitted => "no fleet admits this identity",
            Self::NoGateway => "this identity may not speak for other agents any more",
            Self::Succeeded => "the agent has newer credentials, and uses them on another connection",
        }
    }

    fn close_reason(self) -> CloseReason {
        match self {
            Self::KeptOut(_) | Self::CredentialGone | Self::NotAdmitted | Self::NoGateway => CloseReason::Revoked,
            Self::Succeeded => CloseReason::Superseded,
        }
    }
}

/// What is known of a uid at this replica and not by its objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here<'a> {
    /// Who speaks for it already.
    pub(super) speaker: Option<&'a Principal>,
    /// Under which uid whoever was given this one spoke before.
    pub(super) former: Option<InstanceUid>,
}

impl Bridge {
    /// What becomes of a message under this uid.
    pub(super) fn judge(
        &self,
        connection: &Connection,
        uid: InstanceUid,
        carried: Carried,
        here: Here<'_>,
        now: Now,
    ) -> Verdict {
        match self.weigh(&connection.principal, uid, here, now) {
            // Its fleet may have been replaced; whether it was shut out is found when the catalog changes.
            Verdict::NotAdmitted if carried == Carried::Already => Verdict::Admitted,
            verdict => verdict,
        }
    }

    fn weigh(&self, principal: &Principal, uid: InstanceUid, here: Here<'_>, now: Now) -> Verdict {
        self.weigh_against(&self.index.get(&uid), principal, uid, here, now)
    }

    fn weigh_against(
        &self,
        objects: &[Arc<AgentSummary>],
        principal: &Principal,
        uid: InstanceUid,
        Here { speaker, former }: Here<'_>,
        now: Now,
    ) -> Verdict {
        let is_valid = self.credentials.is_valid(principal, now.wall);
        let credential = if is_valid { Credential::Valid } else { Credential::Gone };
        let known = Known {
            objects,
            live: speaker,
            own_certificate: self.own_certificate(objects, principal, uid, speaker, now),
            former,
            owner: &self.settings.owner,
            own_namespace: &self.settings.own_namespace,
            catalog: &self.catalog.load(),
            now: now.wall,
        };
        decide(Applicant { uid, principal, credential }, known)
    }

    /// Whether the certificate of the agent still counts, as far as that matters to somebody else who speaks under its uid.
    fn own_certificate(
        &self,
        objects: &[Arc<AgentSummary>],
        principal: &Principal,
        uid: InstanceUid,
        speaker: Option<&Principal>,
        now: Now,
    ) -> Credential {
        if principal.identity.issued_to() == Some(uid) {
            return Credential::Valid;
        }
        let is_gone = match speaker.filter(|speaker| speaker.identity.issued_to() == Some(uid)) {
            Some(speaker) => !self.credentials.is_valid(speaker, now.wall),
            None => objects.iter().filter(|object| object.epoch() > 0).any(|object| self.is_taken_back(object)),
        };
        if is_gone { Credential::Gone } else { Credential::Valid }
    }

    /// Whether the certificate that an agent was seen to use has been taken back, or is of a CA that is trusted no more. A
    /// replica that does not know yet says no.
    fn is_taken_back(&self, object: &AgentSummary) -> bool {
        let trust = self.trust.snapshot();
        let used = object.certificate.as_ref().filter(|certificate| certificate.in_use_since.is_some());
        let Some(serial) = used.and_then(|used| Serial::parse(&used.serial)) else { return false };
        if trust.cluster().is_none() || !self.certificates.is_synced() {
            return false;
        }
        let known = self.certificates.of(&object.uid);
        let mut known = known.iter().filter(|it| *it.key.namespace == *object.namespace).peekable();
        if known.peek().is_none() {
            return false;
        }
        // One that no Secret holds any more was made anew, because its CA is trusted no more.
        !known.any(|it| {
            let is_others = it.given.as_ref().is_some_and(|given| given.signer == Signer::Other);
            it.held().any(|held| {
                held.serial == serial
                    && (is_others || trust.trusts(&held.issuer))
                    && !trust.is_revoked(&held.issuer, &held.serial)
            })
        })
    }

    /// Answers a message that is not let in.
    pub(super) fn turn_away(
        &self,
        connection: &Arc<Connection>,
        uid: InstanceUid,
        carried: Carried,
        verdict: Verdict,
        now: Now,
    ) -> Exchange {
        match verdict {
            Verdict::Admitted => Exchange::default(),
            Verdict::CredentialGone => self.turn_out(connection, uid),
            Verdict::KeptOut(kept_out) => self.turn_down(connection, uid, Expulsion::KeptOut(kept_out), now),
            Verdict::NotAdmitted => self.turn_down(connection, uid, Expulsion::NotAdmitted, now),
            Verdict::Renamed(conflict) => self.give_other_uid(connection, uid, carried, conflict, now),
        }
    }

    fn turn_out(&self, connection: &Arc<Connection>, uid: InstanceUid) -> Exchange {
        let why = Expulsion::CredentialGone;
        audit::record(Outcome::Ended, Who::behind(connection, uid), FleetName::default(), why.word());
        self.metrics.turned_away.inc();
        match connection.transport {
            Transport::WebSocket => Exchange { then: Then::Close(CloseReason::Revoked), ..Exchange::default() },
            // It was checked a moment ago; the next request is refused before it comes here.
            Transport::Http => {
                Exchange { send: vec![unavailable(uid, why.reason(), super::retry_after())], ..Exchange::default() }
            }
        }
    }

    fn turn_down(&self, connection: &Connection, uid: InstanceUid, why: Expulsion, now: Now) -> Exchange {
        self.metrics.turned_away.inc();
        let _ = self.tell_now_and_then(Outcome::Refused, Who::behind(connection, uid), why.word(), now);
        let retry_after = KEPT_OUT + rand::random_range(Duration::ZERO..SPREAD);
        // Whoever is answered so has reported: the connection stays.
        Exchange { send: vec![unavailable(uid, why.reason(), retry_after)], speaker: Some(uid), ..Exchange::default() }
    }

    /// Writes down what is decided again and again, once an hour of each agent. Says whether it was its turn.
    fn tell_now_and_then(&self, outcome: Outcome, who: Who<'_>, word: &'static str, now: Now) -> Turn {
        let turn = lock(&self.quiet).turn(who.uid, now.instant);
        let access = || audit::access(outcome, who, FleetName::default(), word);
        match turn {
            Turn::Speak => authentication::audit::record(&access()),
            // Else whoever makes up uids would cover up what others do.
            Turn::Crowd => self.journal.refused(&access(), now.instant),
            Turn::Silence => {}
        }
        turn
    }

    /// The uid is another's. What carries that other agent already is its own older connection, which it has left, unless
    /// it was told already that it is another.
    fn give_other_uid(
        &self,
        connection: &Connection,
        uid: InstanceUid,
        carried: Carried,
        conflict: Conflict,
        now: Now,
    ) -> Exchange {
        let visitor = Visitor { uid, origin: origin(connection) };
        if carried == Carried::Already && lock(&self.renamings).told(&visitor).is_none() {
            let here = Some(Channel::WebSocket(connection.id));
            self.sessions.with(uid, |entry| {
                if entry.session.liveness().channel() == here {
                    self.expel(entry, Expulsion::Succeeded, now);
                }
            });
            let told = unavailable(uid, Expulsion::Succeeded.reason(), KEPT_OUT);
            self.connections.expel(connection.id, uid, told, CloseReason::Superseded);
            return Exchange { speaker: Some(uid), ..Exchange::default() };
        }
        let who = Who::behind(connection, uid);
        let (new_uid, is_news) = match conflict {
            Conflict::IssuedTo(owner) => {
                (owner, self.tell_now_and_then(Outcome::Renamed, who, conflict.word(), now) == Turn::Speak)
            }
            Conflict::CertificateInUse | Conflict::OtherIdentity => {
                let (new_uid, telling) = lock(&self.renamings).tell(&visitor, now.instant);
                if telling == Telling::First {
                    audit::record(Outcome::Renamed, who, FleetName::default(), conflict.word());
                }
                (new_uid, telling == Telling::First)
            }
        };
        if is_news {
            self.metrics.renamed.inc();
        }
        Exchange { send: vec![session::rename(uid, new_uid)], speaker: Some(uid), ..Exchange::default() }
    }

    /// Whoever spoke for the agent has got newer credentials and comes over them now: its older socket is left behind,
    /// alive or not.
    pub(super) fn leave_older_socket(&self, entry: &mut Entry, connection: &Connection, now: Now) {
        let Some(Channel::WebSocket(older)) = entry.session.liveness().channel() else { return };
        if older == connection.id || !entry.is_succeeded_by(&connection.principal) {
            return;
        }
        let effects = entry.session.closed(older, now);
        let _ = self.carry_out(entry, effects, None, now);
        self.connections.release(older, entry.session.uid());
    }

    /// Ends the session of an agent. A socket that carries no other is closed; on one that does the agent alone is told
    /// (AMB-15). Over HTTP its next request is refused.
    pub(super) fn expel(&self, entry: &mut Entry, why: Expulsion, now: Now) {
        let Some(channel) = entry.session.liveness().channel() else { return };
        let uid = entry.session.uid();
        if let Some(who) = entry.who() {
            audit::record(Outcome::Ended, who, entry.fleet_name(), why.word());
        }
        self.metrics.expelled.inc();
        let effects = entry.session.dismiss(now);
        let _ = self.carry_out(entry, effects, None, now);
        if let Channel::WebSocket(connection) = channel {
            let told = unavailable(uid, why.reason(), KEPT_OUT);
            self.connections.expel(connection, uid, told, why.close_reason());
        }
    }

    /// An object has been read that the watch has not shown yet, before anything was written into it. If it is another
    /// identity's, which came first to another replica, whoever speaks here has to use another uid.
    pub(super) fn give_way(&self, entry: &mut Entry, read: Arc<AgentSummary>) -> bool {
        let Some(principal) = entry.speaker().cloned().filter(|_| entry.is_news(&read, &self.settings.owner)) else {
            return false;
        };
        let uid = entry.session.uid();
        if read.identity.as_deref().is_none_or(|recorded| *recorded == *principal.identity.to_string()) {
            return false;
        }
        let now = super::now();
        let here = entry.here_but_for_who_speaks();
        let Verdict::Renamed(conflict) = self.weigh_against(&[read], &principal, uid, here, now) else { return false };
        entry.claim.give_up(now.instant);
        self.rename(entry, conflict.word(), now);
        entry.forget_if_over();
        true
    }

    /// Whoever speaks here is another agent than the one of this uid, and is given another.
    pub(super) fn rename(&self, entry: &mut Entry, word: &'static str, now: Now) {
        let mut effects = entry.session.give_new_uid(now);
        let given = std::mem::take(&mut effects.reidentified);
        if let Some(who) = entry.who().filter(|_| !given.is_empty()) {
            audit::record(Outcome::Renamed, who, entry.fleet_name(), word);
        }
        self.note_renamings(entry.session.uid(), given, now);
        // Without an asking connection everything is delivered to where it belongs.
        let _ = self.carry_out(entry, effects, None, now);
    }

    /// Puts the agent out if what the watch shows of it says so. Otherwise notes that it may come back.
    pub(super) fn keep_out(&self, entry: &mut Entry, now: Now) {
        let Some(principal) = entry.principal().cloned() else { return };
        let objects = self.index.get(&entry.session.uid());
        let own = &self.settings.own_namespace;
        let kept_out = kept_out(Claimant::present(&principal), &objects, own, &self.catalog.load());
        if entry.keep_out(kept_out) {
            self.touch(entry, Some(Urgency::Configuration));
        }
        if let Some(kept_out) = kept_out {
            self.expel(entry, Expulsion::KeptOut(kept_out), now);
        } else if entry.is_succeeded_elsewhere(&self.settings.owner) {
            self.expel(entry, Expulsion::Succeeded, now);
        }
    }

    /// Puts the agent out if no fleet admits it any more, or not by this identity.
    pub(super) fn shut_out(&self, entry: &mut Entry, catalog: &Catalog, now: Now) {
        if entry.is_shut_out(catalog) {
            self.expel(entry, Expulsion::NotAdmitted, now);
            return;
        }
        let uid = entry.session.uid();
        let Some(principal) = entry.principal().cloned() else { return };
        if principal.identity.issued_to().is_some_and(|owner| owner != uid)
            && matches!(self.weigh(&principal, uid, entry.here(), now), Verdict::Renamed(Conflict::IssuedTo(_)))
        {
            self.expel(entry, Expulsion::NoGateway, now);
        }
    }

    /// Sees to it that no more agents wait for approval than may.
    pub(super) fn find_room(&self, entry: &mut Entry, now: Now) {
        let uid = entry.session.uid();
        let Some(namespace) = entry.wants_object_in() else {
            if entry.waiting() != Waiting::No {
                lock(&self.pending).leave(uid);
                entry.wait(Waiting::No);
            }
            return;
        };
        let shown = self.index.counts(namespace).pending;
        let was_in_vain = entry.waiting() == Waiting::InVain;
        let waiting = match lock(&self.pending).enter(uid, namespace, shown) {
            Seat::Taken => Waiting::Since(now.instant),
            Seat::None => Waiting::InVain,
        };
        entry.wait(waiting);
        if was_in_vain && waiting != Waiting::InVain {
            self.touch(entry, Some(Urgency::FirstSight));
        }
    }

    /// What an agent is answered that needs an object to be approved of, and has none.
    pub(super) fn without_object(&self, entry: &Entry, now: Now) -> Option<Outbound> {
        let reason = match entry.waiting() {
            Waiting::No => return None,
            Waiting::Since(since) if now.instant.saturating_duration_since(since) < OBJECT_IS_DUE => return None,
            Waiting::Since(_) => "the agent has no object yet, without which nobody can approve of it",
            Waiting::InVain => "too many agents wait for approval",
        };
        self.metrics.pending_refused.inc();
        Some(unavailable(entry.session.uid(), reason, super::retry_after()))
    }

    /// Forgets the places of agents that have gone without an object.
    pub(super) fn sweep_pending(&self) {
        let all = lock(&self.pending).all();
        for uid in all {
            let waits =
                self.sessions.with(uid, |entry| entry.waiting() != Waiting::No && entry.claim.over_since().is_none());
            if waits != Some(true) {
                lock(&self.pending).leave(uid);
            }
        }
    }

    /// Closes the connections whose credentials do not count any more. Those that poll are refused at their next request;
    /// what is shown of them changes now.
    pub(super) async fn check_credentials(&self) {
        let open = self.connections.all();
        super::run::in_rows(open, |connection| {
            if !self.credentials.is_valid(&connection.principal, super::now().wall) {
                connection.close(CloseReason::Revoked);
            }
        })
        .await;
        self.for_all(|uid| {
            self.sessions.with(uid, |entry| self.check_credential(entry, super::now()));
        })
        .await;
    }

    /// Puts the agent out if the credential of whoever speaks for it does not count any more.
    pub(super) fn check_credential(&self, entry: &mut Entry, now: Now) {
        let is_gone = |principal: &Arc<Principal>| !self.credentials.is_valid(principal, now.wall);
        if entry.session.liveness().channel().is_some() && entry.principal().is_some_and(is_gone) {
            self.expel(entry, Expulsion::CredentialGone, now);
        }
    }

    /// Writes down what was decided about whoever speaks for the agent, if it is another decision than the last.
    pub(super) fn note_decision(&self, entry: &mut Entry) {
        let Some(Decision { outcome, novelty, approval }) = entry.decision() else { return };
        let Some(who) = entry.who() else { return };
        let is_return = novelty == Novelty::Begins && outcome == Outcome::Granted && entry.is_enrolled_anew();
        let reason = match (outcome, approval) {
            (Outcome::Held, _) => "PendingApproval",
            _ if is_return => "CertificateEnded",
            (_, Some(Approval::Manual)) => "Approved",
            (_, Some(Approval::Automatic) | None) => "",
        };
        if let (true, Some(fleet)) = (is_return, entry.fleet()) {
            self.credentials.enrolled_anew((&fleet.namespace, &fleet.name), who.uid, who.identity);
        }
        audit::record(outcome, who, entry.fleet_name(), reason);
    }
}

fn unavailable(uid: InstanceUid, reason: &str, retry_after: Duration) -> Outbound {
    session::refuse(Some(uid), &session::Refusal::Unavailable { reason, retry_after: Some(retry_after) })
}

fn origin(connection: &Connection) -> Origin {
    match connection.transport {
        Transport::WebSocket => Origin::WebSocket(connection.id),
        Transport::Http => Origin::Http(connection.principal.identity.clone(), connection.remote.ip()),
    }
}
