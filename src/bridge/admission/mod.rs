//! Whose uid somebody may use: a pure function of the credential and of what is known of that uid.
//!
//! It is asked before a message reaches a session, so that whoever may not speak for an agent changes nothing of it:
//! neither its status, nor its sequence, nor whether it counts as alive. What an agent says of itself is no argument.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::{entry::author_of, wish::Author};
use crate::{
    agents::summary::{Acceptance, AgentSummary},
    api::{agent::Access, enrollment::Approval},
    catalog::{Catalog, Claimant, FleetEntry},
    opamp::{
        InstanceUid,
        identity::{Identity, Principal},
    },
    status::render::Owner,
};

/// How long an agent that was given a new uid may go on with the certificate of its former one: it asks for its own at
/// once (CSR-11, AMB-13).
const RENAMING_GRACE: Duration = Duration::from_secs(600);

/// Somebody who speaks under a uid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Applicant<'a> {
    pub(super) uid: InstanceUid,
    pub(super) principal: &'a Principal,
    pub(super) credential: Credential,
}

/// Whether a credential still counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Credential {
    Valid,
    Gone,
}

/// What is known of that uid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    /// Its objects, of all namespaces.
    pub(super) objects: &'a [Arc<AgentSummary>],
    /// Who speaks for it at this replica, or was the last to do so and is not written yet.
    pub(super) live: Option<&'a Principal>,
    /// Whether the agent's own certificate, as its object or whoever is live shows it, still counts: its CA may have been
    /// replaced, or it may have been taken back.
    pub(super) own_certificate: Credential,
    /// Under which uid whoever was given this one spoke before.
    pub(super) former: Option<InstanceUid>,
    /// This replica, in this run.
    pub(super) owner: &'a Owner,
    /// The operator's own namespace.
    pub(super) own_namespace: &'a str,
    pub(super) catalog: &'a Catalog,
    pub(super) now: Timestamp,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// It goes to the session.
    Admitted,
    /// The credential has been taken away.
    CredentialGone,
    /// A person keeps this agent out, whoever speaks for it.
    KeptOut(KeptOut),
    /// The uid is another's: the one that speaks has to use another.
    Renamed(Conflict),
    /// No fleet takes this identity.
    NotAdmitted,
}

/// How a person keeps an agent out.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum KeptOut {
    Denied,
    Revoked,
}

/// Why a uid is another's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Conflict {
    /// The certificate was issued to this agent, and speaks for no other (CSR-10).
    IssuedTo(InstanceUid),
    /// The agent has a certificate and uses it: nothing else speaks for it until that ends (AMB-28).
    CertificateInUse,
    /// Somebody else has spoken for it before.
    OtherIdentity,
}

impl Conflict {
    /// For the audit line.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::IssuedTo(_) => "IssuedToAnother",
            Self::CertificateInUse => "CertificateInUse",
            Self::OtherIdentity => "OtherIdentity",
        }
    }
}

impl KeptOut {
    /// For the audit line.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Denied => "Denied",
            Self::Revoked => "Revoked",
        }
    }

    /// For the agent.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Denied => "this agent has been denied",
            Self::Revoked => "this agent has been revoked",
        }
    }

    /// What its status shows.
    pub(super) fn acceptance(self) -> Acceptance {
        match self {
            Self::Denied => Acceptance::Denied,
            Self::Revoked => Acceptance::Revoked,
        }
    }
}

/// What becomes of a message: the first of these that applies.
pub(super) fn decide(applicant: Applicant<'_>, known: Known<'_>) -> Verdict {
    if applicant.credential == Credential::Gone {
        return Verdict::CredentialGone;
    }
    let who = Claimant::present(applicant.principal);
    if let Some(kept_out) = kept_out(who, known.objects, known.own_namespace, known.catalog) {
        return Verdict::KeptOut(kept_out);
    }
    if let Err(conflict) = may_speak(applicant, known) {
        return Verdict::Renamed(conflict);
    }
    if known.catalog.admits(who) { Verdict::Admitted } else { Verdict::NotAdmitted }
}

/// Whether a person keeps the agent out: in the operator's namespace, where the agent is or was, or where whoever speaks
/// for it may join. An object elsewhere is the word of people who have no say in this agent.
pub(super) fn kept_out(
    who: Claimant<'_>,
    objects: &[Arc<AgentSummary>],
    own_namespace: &str,
    catalog: &Catalog,
) -> Option<KeptOut> {
    let counts = |object: &AgentSummary| {
        *object.namespace == *own_namespace || object.epoch() > 0 || catalog.admits_in(&object.namespace, who)
    };
    let decision = |object: &AgentSummary| match object.access {
        Some(Access::Denied) => Some(KeptOut::Denied),
        Some(Access::Revoked) => Some(KeptOut::Revoked),
        Some(Access::Approved) | None => None,
    };
    objects.iter().filter(|object| counts(object)).filter_map(|object| decision(object)).max()
}

/// Whether a member of this fleet may take part, or waits for a person. What people of another namespace have approved
/// does not count here.
pub(super) fn acceptance(fleet: &FleetEntry, approved_in: &[Arc<str>]) -> Acceptance {
    match fleet.enrollment.approval {
        Approval::Automatic => Acceptance::Admitted,
        Approval::Manual if approved_in.iter().any(|namespace| **namespace == *fleet.namespace) => Acceptance::Admitted,
        Approval::Manual => Acceptance::Pending,
    }
}

/// Whether this identity may speak for this uid.
fn may_speak(Applicant { uid, principal, .. }: Applicant<'_>, known: Known<'_>) -> Result<(), Conflict> {
    let identity = &principal.identity;
    let holder = Holder::of(uid, known);
    let is_its_own = identity.issued_to() == Some(uid);
    if let Some(owner) = identity.issued_to().filter(|owner| *owner != uid)
        && !is_gateway(identity, known.catalog)
        && !is_renamed(owner, identity, known)
    {
        return Err(Conflict::IssuedTo(owner));
    }
    if is_its_own && holder.as_ref().is_none_or(|holder| holder.may_have_got(identity, known.own_namespace)) {
        return Ok(());
    }
    if holder.as_ref().is_some_and(|holder| holder.identity.as_ref() == Some(identity)) {
        return if holds(uid, known) && !is_its_own { Err(Conflict::CertificateInUse) } else { Ok(()) };
    }
    if holds(uid, known) {
        return Err(Conflict::CertificateInUse);
    }
    match holder {
        Some(holder) if !holder.has_lapsed_for(Claimant::present(principal), known.catalog) => {
            Err(Conflict::OtherIdentity)
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether the agent's own certificate is in use and still counts.
fn holds(uid: InstanceUid, known: Known<'_>) -> bool {
    let written = known.objects.iter().any(|object| {
        object.epoch() > 0 && object.certificate.as_ref().is_some_and(|certificate| certificate.holds(known.now))
    });
    let is_live = known.live.is_some_and(|live| {
        live.identity.issued_to() == Some(uid) && live.expires.is_none_or(|expires| known.now < expires)
    });
    known.own_certificate == Credential::Valid && (written || is_live)
}

fn is_gateway(identity: &Identity, catalog: &Catalog) -> bool {
    match identity {
        Identity::Certificate { namespace, fleet, .. } => {
            catalog.fleet(namespace, fleet).is_some_and(|fleet| fleet.is_gateway(identity))
        }
        Identity::Anonymous
        | Identity::EnrollmentToken { .. }
        | Identity::Basic { .. }
        | Identity::ServiceAccount { .. }
        | Identity::ClientCa { .. } => false,
    }
}

/// Whether the uid was given to the agent of this certificate, which has none for the new uid yet (CSR-11).
fn is_renamed(owner: InstanceUid, identity: &Identity, known: Known<'_>) -> bool {
    let grace = SignedDuration::try_from(RENAMING_GRACE).unwrap_or_default();
    let is_lately = |made: Timestamp| known.now.duration_since(made) < grace;
    let text = || identity.to_string();
    known.former == Some(owner)
        // Another replica gave it the uid, and has written what it said under that. What this one has written is no
        // proof: a certificate may have been a gateway's then.
        || known.objects.iter().any(|object| {
            author_of(object, known.owner) == Author::Another
                && object.created.is_some_and(is_lately)
                && object.identity.as_deref().is_some_and(|it| *it == *text())
        })
}

/// Who has spoken for an agent last.
struct Holder {
    /// `None`: of a method that this version does not know.
    identity: Option<Identity>,
    /// Where its object is; `None` if it has none yet.
    home: Option<Arc<str>>,
    /// Whether this was the agent's own certificate, and that counts no more.
    has_ended: bool,
}

impl Holder {
    /// Whoever speaks now; else whoever the object names that was claimed last.
    fn of(uid: InstanceUid, known: Known<'_>) -> Option<Self> {
        let object = known.objects.iter().filter(|object| object.epoch() > 0).max_by_key(|object| object.epoch());
        let home = object.map(|object| Arc::clone(&object.namespace));
        if let Some(live) = known.live {
            let has_ended =
                known.own_certificate == Credential::Gone || live.expires.is_some_and(|expires| expires <= known.now);
            let is_its_own = live.identity.issued_to() == Some(uid);
            return Some(Self { identity: Some(live.identity.clone()), home, has_ended: has_ended && is_its_own });
        }
        let object = object?;
        let identity = Identity::parse(object.identity.as_deref()?);
        let is_its_own = identity.as_ref().and_then(Identity::issued_to) == Some(uid);
        let has_ended = known.own_certificate == Credential::Gone
            || object.certificate.as_ref().is_some_and(|certificate| certificate.not_after <= known.now);
        Some(Self { identity, home, has_ended: has_ended && is_its_own })
    }

    /// Whether this certificate may have been issued to the agent where it is. One of another namespace was issued by
    /// people who have no say in it.
    fn may_have_got(&self, certificate: &Identity, own_namespace: &str) -> bool {
        let Identity::Certificate { namespace, .. } = certificate else { return false };
        let before = self.identity.as_ref().and_then(namespace_of);
        match &self.home {
            Some(home) if **home != *own_namespace => **home == **namespace,
            Some(_) | None => before.is_none_or(|before| before == namespace),
        }
    }

    /// Whether its certificate has ended, so that whoever its fleet admits may enrol it anew.
    fn has_lapsed_for(&self, who: Claimant<'_>, catalog: &Catalog) -> bool {
        let Some(Identity::Certificate { namespace, fleet, .. }) = self.identity.as_ref().filter(|_| self.has_ended)
        else {
            return false;
        };
        match catalog.fleet(namespace, fleet) {
            Some(_) => catalog.fleet_admits(namespace, fleet, who),
            None => catalog.admits_in(namespace, who),
        }
    }
}

/// The namespace to which an identity is bound.
fn namespace_of(identity: &Identity) -> Option<&String> {
    match identity {
        Identity::Anonymous | Identity::ServiceAccount { .. } => None,
        Identity::EnrollmentToken { namespace, .. }
        | Identity::Basic { namespace, .. }
        | Identity::Certificate { namespace, .. }
        | Identity::ClientCa { namespace, .. } => Some(namespace),
    }
}

#[cfg(test)]
mod tests;
