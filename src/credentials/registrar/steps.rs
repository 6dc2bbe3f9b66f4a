//! What the leader must know of a step to give it its turn.

use std::collections::BTreeMap;

use crate::{
    credentials::{
        carry::Write,
        plan::Step,
        roll::{IssuePolicy, Issuer, Roll},
        stored::{AgentCertificate, REFUSED_ANNOTATION},
    },
    kubernetes::ObjectKey,
};

/// What a step is about: the Secret, or the Agent.
pub(super) fn subject(step: &Step) -> ObjectKey {
    match step {
        Step::Hold(agent) | Step::Release(agent) => agent.clone(),
        Step::Publish { .. } => ObjectKey::new("", ""),
        Step::Remove(secret) | Step::Refuse(secret, _) | Step::Settle(secret) | Step::Answer(secret, _) => {
            secret.key.clone()
        }
        Step::Make(holder, _) => Roll::place(&holder.namespace, &holder.agent),
    }
}

/// The first of each fleet, then the second of each: else one fleet with much to do, or with an issuer that does not
/// answer, would leave nothing to others. The fleets are in another order each time.
pub(super) fn take_turns(issues: Vec<Step>) -> Vec<Step> {
    let mut fleets: BTreeMap<Option<ObjectKey>, (usize, u64)> = BTreeMap::new();
    let mut numbered: Vec<_> = issues
        .into_iter()
        .map(|step| {
            let (turn, order) = fleets.entry(beneficiary(&step)).or_insert_with(|| (0, rand::random()));
            *turn += 1;
            ((*turn, *order), step)
        })
        .collect();
    numbered.sort_by_key(|(turn, _)| *turn);
    numbered.into_iter().map(|(_, step)| step).collect()
}

/// The fleet whose member gets a certificate by this.
fn beneficiary(step: &Step) -> Option<ObjectKey> {
    match step {
        Step::Make(holder, _) => Some(ObjectKey::new(&holder.namespace, &holder.fleet)),
        Step::Answer(..)
        | Step::Hold(_)
        | Step::Publish { .. }
        | Step::Release(_)
        | Step::Remove(_)
        | Step::Refuse(..)
        | Step::Settle(_) => fleet(step),
    }
}

pub(super) fn is_by_cert_manager(policy: &IssuePolicy) -> bool {
    match policy.issuer {
        Issuer::CertManager { .. } => true,
        Issuer::Internal | Issuer::CertificateSigningRequest => false,
    }
}

/// Whether nothing comes of a step while cert-manager is not there.
pub(super) fn needs_cert_manager(step: &Step) -> bool {
    answer(step).is_some_and(|(_, policy)| is_by_cert_manager(policy))
}

pub(super) fn issuer(step: &Step) -> Option<Issuer> {
    match step {
        Step::Answer(_, policy) | Step::Make(_, policy) => Some(policy.issuer.clone()),
        Step::Hold(_)
        | Step::Publish { .. }
        | Step::Release(_)
        | Step::Remove(_)
        | Step::Refuse(..)
        | Step::Settle(_) => None,
    }
}

/// The fleet for which an issuer is asked with this.
pub(super) fn fleet(step: &Step) -> Option<ObjectKey> {
    answer(step).map(|(certificate, _)| ObjectKey::new(&certificate.key.namespace, &certificate.fleet))
}

/// What is answered with this, and by which policy.
fn answer(step: &Step) -> Option<(&AgentCertificate, &IssuePolicy)> {
    match step {
        Step::Answer(certificate, policy) => Some((certificate, policy)),
        Step::Hold(_)
        | Step::Publish { .. }
        | Step::Release(_)
        | Step::Remove(_)
        | Step::Refuse(..)
        | Step::Settle(_)
        | Step::Make(..) => None,
    }
}

pub(super) fn is_refusal(write: &Write) -> bool {
    match write {
        Write::Patch(certificate, patch) => {
            !patch["metadata"]["annotations"][REFUSED_ANNOTATION].is_null() && certificate.is_due()
        }
        Write::Create(_) | Write::Delete(_) | Write::Hold(_) | Write::Release(_) | Write::Publish(_) => false,
    }
}
