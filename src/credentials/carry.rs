//! What a step of the plan writes: the only place where certificates of agents are made.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::Value;

use super::{
    authority::{Authority, AuthorityError},
    key::PrivateKey,
    name::AgentName,
    plan::Step,
    published::PublishedRevocations,
    request::{CertificateRequest, PublicKey},
    revocations::Revocations,
    roll::{IssuePolicy, Issuer, Roll},
    stored::{AgentCertificate, Holder},
};
use crate::kubernetes::ObjectKey;

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A Secret that is to be there; one of that name is as good.
    Create(Box<Secret>),
    /// A change of a Secret as it was seen.
    Patch(Arc<AgentCertificate>, Value),
    /// The end of a Secret as it was seen.
    Delete(Arc<AgentCertificate>),
    /// The finalizer of an Agent is to be there.
    Hold(ObjectKey),
    /// The finalizer of an Agent is to be gone.
    Release(ObjectKey),
    /// The ConfigMap of what was taken back.
    Publish(Box<ConfigMap>),
}

/// What follows from a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Carried {
    /// One write.
    Write(Write),
    /// Somebody else is to sign: ask, and ask again later.
    Ask(Arc<AgentCertificate>, CertificateRequest, IssuePolicy),
}

/// What is needed to carry out steps.
#[derive(Clone, Copy, Debug)]
pub struct Desk<'a> {
    /// The CA that signs.
    pub authority: &'a Authority,
    /// The `<cluster>` of names in certificates.
    pub cluster: &'a str,
    /// The operator's own namespace.
    pub namespace: &'a str,
    /// Who is known.
    pub roll: &'a Roll,
}

impl Desk<'_> {
    /// Carries out a step as far as it can be without the API server.
    pub fn carry(&self, step: Step, now: Timestamp) -> Result<Carried, AuthorityError> {
        let write = match step {
            Step::Hold(agent) => Write::Hold(agent),
            Step::Release(agent) => Write::Release(agent),
            Step::Publish { revocations, number } => self.publish(revocations, number, now)?,
            Step::Remove(certificate) => Write::Delete(certificate),
            Step::Refuse(certificate, why) => refuse(certificate, &why, now),
            Step::Settle(certificate) => {
                let patch = certificate.settle();
                Write::Patch(certificate, patch)
            }
            Step::Answer(certificate, policy) => return self.answer(certificate, &policy, now),
            Step::Make(holder, policy) => self.make(&holder, &policy, now)?,
        };
        Ok(Carried::Write(write))
    }

    fn publish(&self, revocations: Revocations, number: u64, now: Timestamp) -> Result<Write, AuthorityError> {
        let list = revocations.sign(self.authority, number, now)?;
        let signed_by = self.authority.facts().key;
        let published = PublishedRevocations { number, signed_at: now, signed_by, revocations, list };
        Ok(Write::Publish(Box::new(published.to_config_map(self.namespace))))
    }

    /// Answers a request. It is checked again: whoever may write Secrets in that namespace could have put it there.
    fn answer(
        &self,
        certificate: Arc<AgentCertificate>,
        policy: &IssuePolicy,
        now: Timestamp,
    ) -> Result<Carried, AuthorityError> {
        let key = match (&certificate.request, &certificate.private_key) {
            (Some(pem), _) => match CertificateRequest::check(pem, certificate.agent, |uid| self.roll.is_known(uid)) {
                Ok(request) if policy.issuer != Issuer::Internal && certificate.is_for(&request.key().id()) => {
                    return Ok(match request.check_names(&self.name(&certificate.holder())) {
                        Ok(()) => Carried::Ask(certificate, request, policy.clone()),
                        Err(error) => Carried::Write(refuse(certificate, &error.to_string(), now)),
                    });
                }
                Ok(request) => Some(request.key().clone()),
                Err(error) => return Ok(Carried::Write(refuse(certificate, &error.to_string(), now))),
            },
            (None, Some(key)) => key.pair().ok().and_then(|pair| PublicKey::of(&pair)),
            (None, None) => None,
        };
        let Some(key) = key.filter(|key| certificate.is_for(&key.id())) else {
            return Ok(Carried::Write(refuse(certificate, "the request is for another key than its Secret", now)));
        };
        let name = self.name(&certificate.holder());
        let issued = self.authority.issue_agent(&name, &key, policy.validity.duration, now)?;
        let patch = certificate.answer_with(&issued, &Issuer::Internal);
        Ok(Carried::Write(Write::Patch(certificate, patch)))
    }

    /// Makes a key; and the certificate too, unless somebody else is to sign it: then key and request are kept first.
    fn make(&self, holder: &Holder, policy: &IssuePolicy, now: Timestamp) -> Result<Write, AuthorityError> {
        let (key, pair) = PrivateKey::generate()?;
        let public = PublicKey::of(&pair).ok_or(AuthorityError::Signing)?;
        let secret = match policy.issuer {
            Issuer::Internal => {
                let name = self.name(holder);
                let issued = self.authority.issue_agent(&name, &public, policy.validity.duration, now)?;
                holder.issued(&key, &public.id(), &issued)
            }
            Issuer::CertificateSigningRequest | Issuer::CertManager { .. } => {
                let request = CertificateRequest::make(&self.name(holder), &pair)?;
                holder.prepared(&key, &request)
            }
        };
        Ok(Write::Create(Box::new(secret)))
    }

    fn name(&self, holder: &Holder) -> AgentName {
        holder.name(self.cluster)
    }
}

pub(super) fn refuse(certificate: Arc<AgentCertificate>, why: &str, now: Timestamp) -> Write {
    let patch = certificate.refuse(why, now);
    Write::Patch(certificate, patch)
}
