//! Issuers that are not ours: how they are asked, and what is taken from their answer.
//!
//! The request is an object of the API server, named after the Secret that it is for, so that it is the same however often
//! it is looked at. Somebody else approves and signs. What comes back must be a certificate for the key that was asked
//! about, and say no more of its holder than it was asked to ([`super::own_names`]). Its names are that issuer's word all the
//! same, and not believed: such a certificate is known by being the very one that the Secret holds.

mod asked;
pub(super) mod cert_manager;
mod cluster_signer;

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use super::{
    authority::Issued,
    facts::{CertificateFacts, Role, later},
    key::KeyId,
    name::AgentName,
    own_names::{Foreign, check_certificate},
    pem::{read_certificates, write_certificates},
    request::CertificateRequest,
    roll::{IssuePolicy, Issuer},
    stored::AgentCertificate,
    writes::{WriteError, Writes},
};

/// How far a request has come.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Progress {
    /// Somebody else must act; a finding, if it is a person who must mend something.
    Waits(Option<String>),
    /// There is a certificate.
    Issued(Box<Issued>),
    /// There will be none.
    Refused(String),
}

/// Asks issuers.
pub(super) struct Issuers<'a> {
    pub(super) client: &'a Client,
    pub(super) writes: &'a Writes,
    /// The `<cluster>` of names in certificates.
    pub(super) cluster: &'a str,
}

impl Issuers<'_> {
    /// Asks the issuer of this policy, or looks at what has become of it.
    pub(super) async fn ask(
        &self,
        certificate: &AgentCertificate,
        request: &CertificateRequest,
        policy: &IssuePolicy,
        now: Timestamp,
    ) -> Result<Progress, WriteError> {
        let asked = match &policy.issuer {
            // It is not asked: its key is at hand.
            Issuer::Internal => return Ok(Progress::Waits(None)),
            Issuer::CertificateSigningRequest => {
                cluster_signer::ask(self, certificate, request, policy.validity.duration).await?
            }
            Issuer::CertManager { name, kind, group } => {
                let issuer = cert_manager::IssuerReference { name, kind, group };
                cert_manager::ask(self, certificate, request, issuer, policy.validity.duration).await?
            }
        };
        Ok(match asked {
            asked::Asked::Waits(finding) => Progress::Waits(finding),
            asked::Asked::Refused(why) => Progress::Refused(why),
            asked::Asked::Signed { chain, ca } => {
                let wanted = Wanted { key: request.key().id(), name: certificate.holder().name(self.cluster) };
                match accept(&chain, &ca, &wanted, now) {
                    Ok(issued) => Progress::Issued(Box::new(issued)),
                    Err(Unfit::Early) => Progress::Waits(None),
                    Err(unfit) => Progress::Refused(format!("the issuer's answer cannot be used: {unfit}")),
                }
            }
        })
    }
}

/// That an issuer could not be asked, and the role that the operator lacks if it may not.
pub(super) fn not_asked(issuer: &Issuer, error: &str) -> String {
    let failure = format!("the issuer {} could not be asked: {error}", issuer.label());
    match issuer {
        Issuer::CertManager { .. } if error.starts_with("403") => {
            format!("{failure}; the operator needs the Role of config/rbac/cert-manager.yaml in this namespace")
        }
        Issuer::CertificateSigningRequest if error.starts_with("403") => {
            format!("{failure}; the operator needs the ClusterRole of config/rbac/cluster-signer.yaml")
        }
        Issuer::Internal | Issuer::CertificateSigningRequest | Issuer::CertManager { .. } => failure,
    }
}

/// The name of the object that asks this signer for the certificate of this Secret: another one for each renewal, and
/// after a refusal, which an object that was refused once would repeat for ever.
fn object_name(certificate: &AgentCertificate, signer: &str) -> String {
    let AgentCertificate { key, object_uid, attempt, .. } = certificate;
    let former = certificate.given.as_ref().map(|given| given.certificate.serial.to_string());
    let subject = format!("{key}/{object_uid}/{}/{attempt}/{signer}", former.unwrap_or_default());
    format!("opamp-cert-{}", KeyId(Sha256::digest(subject).into()).short())
}

/// How far the clocks of two machines of a cluster may be apart.
const CLOCKS_APART: Duration = Duration::from_secs(300);

/// Why an answer is of no use.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
enum Unfit {
    #[error("it holds no certificate in PEM")]
    NoCertificate,
    #[error("the certificate is for another key")]
    AnotherKey,
    #[error("the certificate may certify others")]
    Authority,
    #[error("the certificate is not valid now")]
    NotValid,
    /// The issuer's clock is ahead of ours.
    #[error("the certificate is valid in a moment")]
    Early,
    #[error("the certificate says more than it was asked to: {0}")]
    Foreign(#[from] Foreign),
}

/// What was asked for.
struct Wanted {
    key: KeyId,
    name: AgentName,
}

/// Takes a certificate of somebody else, if it is the one that was wanted. Where the CA is not given apart it is taken from the
/// end of the chain.
fn accept(chain: &str, ca: &str, wanted: &Wanted, now: Timestamp) -> Result<Issued, Unfit> {
    let certificates = read_certificates(chain.as_bytes()).map_err(|_| Unfit::NoCertificate)?;
    let facts = CertificateFacts::read(&certificates[0]).map_err(|_| Unfit::NoCertificate)?;
    if facts.key != wanted.key {
        return Err(Unfit::AnotherKey);
    }
    if facts.role == Role::Authority {
        return Err(Unfit::Authority);
    }
    if !facts.is_valid_at(now) {
        let is_early = now < facts.not_before && facts.not_before <= later(now, CLOCKS_APART);
        return Err(if is_early { Unfit::Early } else { Unfit::NotValid });
    }
    let (_, parsed) = X509Certificate::from_der(&certificates[0]).map_err(|_| Unfit::NoCertificate)?;
    check_certificate(&parsed, &wanted.name)?;
    let given = read_certificates(ca.as_bytes()).unwrap_or_default();
    let above: Vec<CertificateDer<'static>> = certificates.iter().skip(1).cloned().collect();
    let ca = if given.is_empty() { above } else { given };
    Ok(Issued {
        chain: write_certificates(&certificates),
        ca: write_certificates(&ca),
        serial: facts.serial,
        not_after: facts.not_after,
    })
}

/// The usages that are asked for, as both kinds of request spell them.
const USAGES: [&str; 2] = ["digital signature", "client auth"];

/// Whole seconds; no issuer takes fractions.
fn whole(duration: Duration) -> u64 {
    duration.as_secs().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::tests::{at, authority, issue, name};

    #[test]
    fn an_issuer_that_the_operator_may_not_ask_is_told_with_the_role_that_it_lacks() {
        let cert_manager = Issuer::CertManager { name: "agents".into(), kind: "Issuer".into(), group: "g".into() };
        let role = "; the operator needs the Role of config/rbac/cert-manager.yaml in this namespace";
        let cluster_role = "; the operator needs the ClusterRole of config/rbac/cluster-signer.yaml";
        for (issuer, error, expected) in [
            (&cert_manager, "403 Forbidden", role),
            (&Issuer::CertificateSigningRequest, "403 Forbidden", cluster_role),
            (&cert_manager, "500 InternalError", ""),
        ] {
            let told = format!("the issuer {} could not be asked: {error}{expected}", issuer.label());
            assert_eq!(not_asked(issuer, error), told);
        }
    }

    #[test]
    fn only_a_certificate_for_the_key_that_was_asked_about_is_taken() {
        let authority = authority();
        let issued = issue(&authority, 0).unwrap();
        let leaf = read_certificates(issued.chain.as_bytes()).unwrap().remove(0);
        let key = CertificateFacts::read(&leaf).unwrap().key;
        let own = authority.facts().key;
        for (case, chain, key, seconds, expected) in [
            ("nothing", "", key, 0, Some(Unfit::NoCertificate)),
            ("garbage", "canary", key, 0, Some(Unfit::NoCertificate)),
            ("another key", &issued.chain, own, 0, Some(Unfit::AnotherKey)),
            ("a CA", &authority.chain(), own, 0, Some(Unfit::Authority)),
            ("expired", &issued.chain, key, 604_800, Some(Unfit::NotValid)),
            // It is dated back by 300 s.
            ("of a clock that is ahead", &issued.chain, key, -302, Some(Unfit::Early)),
            ("of another day", &issued.chain, key, -86_400, Some(Unfit::NotValid)),
            ("good", &issued.chain, key, 0, None),
        ] {
            let wanted = Wanted { key, name: name(1) };
            assert_eq!(accept(chain, &issued.ca, &wanted, at(seconds)).err(), expected, "{case}");
        }
        let wanted = Wanted { key, name: name(1) };
        assert_eq!(accept(&issued.chain, &issued.ca, &wanted, at(0)).unwrap(), issued);
        let whole_chain = issued.chain.clone() + &issued.ca;
        assert_eq!(accept(&whole_chain, "", &wanted, at(0)).unwrap().ca, issued.ca);
        let another = Wanted { key, name: name(2) };
        let unfit = accept(&issued.chain, &issued.ca, &another, at(0)).unwrap_err();
        assert_eq!(unfit, Unfit::Foreign(Foreign::Subject), "another's name");
    }
}
