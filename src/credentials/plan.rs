//! What the leader does next: for each agent, and for the list of what was taken back. Made anew from what is stored, so
//! that it does not matter after which write the last leader stopped.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use super::{
    facts::later,
    key::KeyId,
    orphans::Orphans,
    published::PublishedRevocations,
    revocations::{HolderId, Revocation, Revocations},
    roll::{Finalizer, IssuePolicy, Issuer, KeyWish, Member, Roll, Standing},
    serial::Serial,
    stored::{AgentCertificate, Given, Held, Holder, KeyOrigin},
};
use crate::{kubernetes::ObjectKey, opamp::InstanceUid};

/// A Secret may be seen before the Agent that it belongs to, or what its fleet gives, is known; and one that is of no use
/// any more tells for a while how often its agent asks.
const SETTLING: Duration = Duration::from_secs(60);
/// An Agent object may be gone for a moment: somebody has deleted it by mistake, and it is made anew when the agent speaks.
const ORPHANED: Duration = Duration::from_secs(600);
/// The list is signed anew so often, so that it never runs out while the leader is away for days.
const SIGNED_ANEW: Duration = Duration::from_secs(86_400);

/// One step. Each but [`Step::Publish`] is one write, and none needs another to be done first.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A revoked Agent is not to vanish before its certificates are in the list.
    Hold(ObjectKey),
    /// The list must be written: what was taken back, by number of the last list.
    Publish {
        /// What is to be in it.
        revocations: Revocations,
        /// Its number.
        number: u64,
    },
    /// The Agent may vanish.
    Release(ObjectKey),
    /// The Secret is of no use any more.
    Remove(Arc<AgentCertificate>),
    /// There will be no certificate.
    Refuse(Arc<AgentCertificate>, String),
    /// The former certificate beside a new one that was seen in use.
    Settle(Arc<AgentCertificate>),
    /// The answer that is due.
    Answer(Arc<AgentCertificate>, IssuePolicy),
    /// A key and certificate for an agent that makes none itself.
    Make(Holder, IssuePolicy),
}

impl Step {
    /// The Secret that it changes.
    #[must_use]
    pub fn secret(&self) -> Option<&Arc<AgentCertificate>> {
        match self {
            Self::Remove(secret) | Self::Refuse(secret, _) | Self::Settle(secret) | Self::Answer(secret, _) => {
                Some(secret)
            }
            Self::Hold(_) | Self::Publish { .. } | Self::Release(_) | Self::Make(..) => None,
        }
    }
}

/// What is to be done now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The steps, the most urgent first.
    pub steps: Vec<Step>,
    /// When to look again if nothing changes.
    pub look_again: Option<Timestamp>,
    /// How many requests wait for an answer, or for a person.
    pub pending: usize,
    /// How many certificates are taken back, and find no room in the list. Their Agents are held meanwhile.
    pub without_room: usize,
}

/// What is stored, as the plan needs it.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// The Secrets of all certificates.
    pub certificates: &'a [Arc<AgentCertificate>],
    /// The published list.
    pub revocations: Option<&'a PublishedRevocations>,
    /// The key of the CA that signs now.
    pub authority: KeyId,
    /// The keys of all CAs of ours that are trusted.
    pub trusted: &'a BTreeSet<KeyId>,
    /// The end of its certificate, beyond which none is issued.
    pub authority_ends: Timestamp,
    /// Since when Agents are missing.
    pub orphans: &'a Orphans,
}

/// Says what is to be done.
#[must_use]
pub fn plan(roll: &Roll, stored: Stored<'_>, now: Timestamp) -> Plan {
    let mut of_agents: BTreeMap<(&str, InstanceUid), Vec<&Arc<AgentCertificate>>> = BTreeMap::new();
    for member in roll.members.iter().filter(|(_, member)| needs_a_look(member)) {
        of_agents.entry((&member.0.namespace, member.1.agent)).or_default();
    }
    for certificate in stored.certificates {
        of_agents.entry((&certificate.key.namespace, certificate.agent)).or_default().push(certificate);
    }
    let mut planner = Planner::new(roll, stored, now);
    for ((namespace, agent), certificates) in of_agents {
        planner.look_at(namespace, &agent, &certificates);
    }
    planner.finish()
}

/// Whether something may be due for an agent that has no Secret.
fn needs_a_look(member: &Member) -> bool {
    let wants_key = member.standing == Standing::Admitted && member.key_wish == KeyWish::Operators;
    let had_one = member.standing == Standing::Revoked && member.in_use_until.is_some();
    wants_key || had_one || member.finalizer == Finalizer::Present
}

struct Planner<'a> {
    roll: &'a Roll,
    stored: Stored<'a>,
    now: Timestamp,
    revocations: Revocations,
    /// Whose certificates are in the published list.
    listed: HashMap<HolderId, Timestamp>,
    is_list_changed: bool,
    without_room: usize,
    holds: Vec<Step>,
    others: Vec<Step>,
    issues: Vec<Step>,
    removed: BTreeSet<ObjectKey>,
    look_again: Option<Timestamp>,
    pending: usize,
}

impl<'a> Planner<'a> {
    fn new(roll: &'a Roll, stored: Stored<'a>, now: Timestamp) -> Self {
        let mut revocations = stored.revocations.map(|known| known.revocations.clone()).unwrap_or_default();
        revocations.tidy(now);
        let listed = revocations.holders();
        Self {
            roll,
            stored,
            now,
            revocations,
            listed,
            is_list_changed: false,
            without_room: 0,
            holds: Vec::new(),
            others: Vec::new(),
            issues: Vec::new(),
            removed: BTreeSet::new(),
            look_again: None,
            pending: 0,
        }
    }

    fn look_at(&mut self, namespace: &str, agent: &InstanceUid, certificates: &[&Arc<AgentCertificate>]) {
        let member = self.roll.member(namespace, agent);
        if self.roll.is_revoked(namespace, agent) {
            self.revoke(namespace, member, certificates);
            return;
        }
        let departed = self.roll.departed(namespace, agent);
        let (left, certificates): (Vec<_>, Vec<_>) =
            certificates.iter().copied().partition(|it| departed.is_some_and(|at| it.created_at <= at));
        if !left.is_empty() {
            // Its object is gone, or is another one by now.
            self.revoke(namespace, None, &left);
        }
        self.look_after(namespace, agent, &certificates);
    }

    fn look_after(&mut self, namespace: &str, agent: &InstanceUid, certificates: &[&Arc<AgentCertificate>]) {
        let member = self.roll.member(namespace, agent);
        let place = Roll::place(namespace, agent);
        let Some(member) = member else {
            let due = later(self.stored.orphans.since(&place).unwrap_or(self.now), ORPHANED);
            certificates.iter().for_each(|certificate| self.remove_at(certificate, due));
            return;
        };
        if member.finalizer == Finalizer::Present {
            self.others.push(Step::Release(place));
        }
        match member.standing {
            Standing::Admitted => self.serve(namespace, member, certificates),
            Standing::Waiting => self.pending += certificates.iter().filter(|it| it.is_due()).count(),
            Standing::Denied | Standing::Revoked => {
                let due = certificates.iter().filter(|it| it.is_due());
                let refuse = |it: &&Arc<AgentCertificate>| Step::Refuse(Arc::clone(it), "the agent is denied".into());
                self.others.extend(due.map(refuse));
            }
        }
        self.remove_outlived(certificates);
    }

    /// What has expired is of use to nobody; a refusal tells for a while, then it is looked at anew.
    fn remove_outlived(&mut self, certificates: &[&Arc<AgentCertificate>]) {
        for certificate in certificates.iter().filter(|it| !it.is_due()) {
            match (&certificate.given, &certificate.refused) {
                (Some(_), _) if certificate.held().all(|held| held.not_after <= self.now) => self.remove(certificate),
                (None, Some(refused)) => self.remove_at(certificate, later(refused.at, ORPHANED)),
                (Some(_), _) | (None, None) => {}
            }
        }
    }

    /// Takes back what the agent has. Its Secrets go once the list is published, and the finalizer when they are gone: what
    /// is left when the Agent vanishes would be taken for that of one who may return. Where the list has no room they stay
    /// until it has, or the certificate ends, so that the agent is kept out meanwhile. What none of our CAs has signed
    /// counts only as long as its Secret is there, and has no place in the list: else whoever may write Secrets could put
    /// any number into it.
    fn revoke(&mut self, namespace: &str, member: Option<&Member>, certificates: &[&Arc<AgentCertificate>]) {
        let (now, trusted) = (self.now, self.stored.trusted);
        let mut is_published = true;
        for certificate in certificates {
            let mut is_listed = true;
            let is_ours = |held: &&Held| trusted.contains(&held.issuer);
            for held in certificate.held().filter(|held| held.not_after > now).filter(is_ours) {
                let known = self.stored.revocations;
                if !known.is_some_and(|known| known.revocations.contains(&held.issuer, &held.serial)) {
                    let holder = HolderId::of(namespace, &certificate.agent);
                    self.list(holder, held.issuer, held.serial.clone(), held.not_after);
                    is_listed = false;
                }
            }
            if is_listed {
                self.remove(certificate);
            }
            is_published &= is_listed;
        }
        if let Some(member) = member.filter(|_| is_published) {
            is_published = self.has_listed(namespace, member);
        }
        match member.map(|member| (member, member.finalizer)) {
            Some((member, Finalizer::Absent)) if !is_published => {
                self.holds.push(Step::Hold(Roll::place(namespace, &member.agent)));
            }
            Some((member, Finalizer::Present)) if is_published && certificates.is_empty() => {
                self.others.push(Step::Release(Roll::place(namespace, &member.agent)));
            }
            Some((_, Finalizer::Absent | Finalizer::Present | Finalizer::TooLate)) | None => {}
        }
    }

    fn list(&mut self, holder: HolderId, issuer: KeyId, serial: Serial, not_after: Timestamp) {
        if self.revocations.is_full() {
            self.without_room += 1;
        } else {
            self.revocations.revoke(issuer, serial, Revocation { holder, at: self.now, not_after });
            self.is_list_changed = true;
        }
    }

    /// Whether the list tells of a member that has used a certificate. If somebody has deleted its Secret nothing has brought
    /// it there, and what the status says of its number is not to be believed: whoever may write that could name another's.
    fn has_listed(&mut self, namespace: &str, member: &Member) -> bool {
        let (holder, until) = (HolderId::of(namespace, &member.agent), member.in_use_until);
        let Some(until) = until.filter(|until| *until > self.now && !self.listed.contains_key(&holder)) else {
            return true;
        };
        let Some(stand_in) = holder.stand_in() else { return true };
        self.list(holder, self.stored.authority, stand_in, until.min(self.stored.authority_ends));
        false
    }

    /// Gives a member what it needs, and removes what it needs no more.
    fn serve(&mut self, namespace: &str, member: &Member, certificates: &[&Arc<AgentCertificate>]) {
        let fleet = member.fleet.as_deref();
        let (current, former): (Vec<_>, Vec<_>) =
            certificates.iter().copied().partition(|it| fleet.is_none_or(|fleet| it.fleet == fleet));
        for certificate in &current {
            if certificate.given.as_ref().is_some_and(|given| is_settled(given, member, self.now)) {
                // An answer that is due comes after that: it leaves a former certificate where it is.
                self.others.push(Step::Settle(Arc::clone(certificate)));
            } else {
                self.answer(certificate);
            }
        }
        let best = self.best(&current);
        self.tidy(member, &current, &former, best);
        if let (Some(holder), Some(fleet)) = (member.holder(namespace), fleet)
            && let Some(policy) = self.roll.policy(namespace, fleet)
        {
            let is_prepared = current.iter().any(|it| it.origin == KeyOrigin::Operator && it.given.is_none());
            if !is_prepared && self.wants_new_key(member, best, policy) {
                self.pending += 1;
                self.issues.push(Step::Make(holder, policy.clone()));
            }
        }
    }

    fn answer(&mut self, certificate: &Arc<AgentCertificate>) {
        if !certificate.is_due() {
            return;
        }
        if let Some(policy) = self.roll.policy(&certificate.key.namespace, &certificate.fleet) {
            self.pending += 1;
            self.issues.push(Step::Answer(Arc::clone(certificate), policy.clone()));
            return;
        }
        // The replica that has let the request through may know more than this one yet.
        let due = later(certificate.created_at, SETTLING);
        if self.now < due {
            self.pending += 1;
            self.look_at_again(due);
        } else {
            let why = format!("the fleet {} gives out no certificates", certificate.fleet);
            self.others.push(Step::Refuse(Arc::clone(certificate), why));
        }
    }

    /// Of what was given the best stays, what is in use, and what a former fleet gave while there is nothing else.
    fn tidy(
        &mut self,
        member: &Member,
        current: &[&Arc<AgentCertificate>],
        former: &[&Arc<AgentCertificate>],
        best: Option<&Arc<AgentCertificate>>,
    ) {
        let is_used = |it: &AgentCertificate| member.in_use.as_ref().is_some_and(|serial| holds(it, serial));
        for certificate in current.iter().filter(|it| it.given.is_some() && !it.is_due()) {
            let is_best = best.is_some_and(|best| best.key == certificate.key);
            if !is_best && !is_used(certificate) {
                self.remove_after(certificate, SETTLING);
            }
        }
        let is_best_used = best.is_some_and(|best| is_used(best));
        for certificate in former {
            if certificate.given.is_none() || is_best_used {
                self.remove_after(certificate, SETTLING);
            }
        }
    }

    /// Whether the operator is to make a key and certificate: the agent wants one and has none; or the one that was made
    /// so before nears its end, and a new one would last longer.
    fn wants_new_key(&mut self, member: &Member, best: Option<&Arc<AgentCertificate>>, policy: &IssuePolicy) -> bool {
        let Some((best, given)) = best.and_then(|best| best.given.as_ref().map(|given| (best, given))) else {
            return member.key_wish == KeyWish::Operators;
        };
        if best.origin == KeyOrigin::Agent {
            return false;
        }
        let held = &given.certificate;
        let due = policy.validity.renewal_time(&member.agent, given);
        if self.now < due {
            self.look_at_again(due);
            return false;
        }
        let would_end = match policy.issuer {
            Issuer::Internal => later(self.now, policy.validity.duration).min(self.stored.authority_ends),
            Issuer::CertificateSigningRequest | Issuer::CertManager { .. } => later(self.now, policy.validity.duration),
        };
        would_end > later(held.not_after, policy.validity.duration / 20)
    }

    /// What would be offered of these: as [`super::certificates::Certificates::offered`] has it.
    fn best<'c>(&self, certificates: &[&'c Arc<AgentCertificate>]) -> Option<&'c Arc<AgentCertificate>> {
        let counting = |it: &&'c Arc<AgentCertificate>| {
            it.counting(|issuer| self.stored.trusted.contains(issuer), self.now).is_some()
        };
        certificates.iter().copied().filter(counting).max_by(|one, other| one.rank().cmp(&other.rank()))
    }

    fn remove(&mut self, certificate: &Arc<AgentCertificate>) {
        if self.removed.insert(certificate.key.clone()) {
            self.others.retain(|step| step.secret().is_none_or(|other| other.key != certificate.key));
            self.others.push(Step::Remove(Arc::clone(certificate)));
        }
    }

    fn remove_after(&mut self, certificate: &Arc<AgentCertificate>, age: Duration) {
        self.remove_at(certificate, later(certificate.created_at, age));
    }

    fn remove_at(&mut self, certificate: &Arc<AgentCertificate>, due: Timestamp) {
        if due <= self.now {
            self.remove(certificate);
        } else {
            self.look_at_again(due);
        }
    }

    fn look_at_again(&mut self, at: Timestamp) {
        self.look_again = Some(self.look_again.map_or(at, |known| known.min(at)));
    }

    fn finish(mut self) -> Plan {
        let publish = self.publish();
        let mut steps = self.holds;
        steps.extend(publish);
        steps.append(&mut self.others);
        steps.append(&mut self.issues);
        let Self { look_again, pending, without_room, .. } = self;
        Plan { steps, look_again, pending, without_room }
    }

    fn publish(&mut self) -> Option<Step> {
        let last = self.stored.revocations;
        let next = last.map(|last| later(last.signed_at, SIGNED_ANEW));
        let is_stale = last.is_none_or(|last| last.signed_by != self.stored.authority);
        if !self.is_list_changed && !is_stale && next.is_some_and(|next| self.now < next) {
            self.look_again = [self.look_again, next].into_iter().flatten().min();
            return None;
        }
        // Numbers grow even if the last list was lost: they are not below the seconds since 1970.
        let seconds = u64::try_from(self.now.as_second()).unwrap_or_default();
        let number = last.map_or(0, |last| last.number.saturating_add(1)).max(seconds);
        Some(Step::Publish { revocations: std::mem::take(&mut self.revocations), number })
    }
}

fn holds(certificate: &AgentCertificate, serial: &Serial) -> bool {
    certificate.held().any(|held| held.serial == *serial)
}

/// Whether the former certificate beside a new one is of no use any more.
fn is_settled(given: &Given, member: &Member, now: Timestamp) -> bool {
    let is_used = member.in_use.as_ref() == Some(&given.certificate.serial);
    given.former.as_ref().is_some_and(|former| is_used || former.not_after <= now)
}
