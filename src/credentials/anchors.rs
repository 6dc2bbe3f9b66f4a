//! Which certificates of agents are believed: those that one of our CAs, active or former, has signed itself.

use std::time::Duration;

use jiff::Timestamp;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::{
    facts::{CertificateFacts, Role},
    key::KeyId,
    name::AgentName,
    serial::Serial,
};
use crate::opamp::identity::{Identity, Proof};

/// `id-kp-clientAuth`, 1.3.6.1.5.5.7.3.2, without which a certificate is not taken from a client (RFC 5280 §4.2.1.12).
const CLIENT_AUTHENTICATION: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// Why a certificate of a client is not believed. For the log; the client is told none of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ChainError {
    /// None was shown.
    #[error("no certificate was shown")]
    Missing,
    /// It cannot be read.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// No CA of ours has signed it, or not as a certificate for clients.
    #[error("the certificate is of no CA that is trusted")]
    Untrusted,
    /// It may certify others, or is not meant for clients.
    #[error("the certificate is not meant for a client")]
    Usage,
    /// Its time is over.
    #[error("the certificate has expired")]
    Expired,
    /// Its time has not come.
    #[error("the certificate is not yet valid")]
    NotYetValid,
    /// It names nobody, or more than one.
    #[error("the certificate does not have exactly one name of an agent")]
    NoName,
    /// It was issued in another cluster.
    #[error("the certificate is of another cluster")]
    AnotherCluster,
    /// The agent has connected with a later one.
    #[error("the agent has used a later certificate")]
    Superseded,
    /// It was taken back.
    #[error("the certificate has been revoked")]
    Revoked,
}

/// A certificate that is believed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClientCertificate {
    /// Whose it is.
    pub identity: Identity,
    /// The key of the CA that has signed it.
    pub issuer: KeyId,
    /// Its number.
    pub serial: Serial,
    /// It counts from then.
    pub not_before: Timestamp,
    /// It counts until then.
    pub not_after: Timestamp,
}

impl ClientCertificate {
    /// What its holder is admitted by.
    #[must_use]
    pub fn proof(&self) -> Proof {
        Proof::Certificate { issuer: self.issuer.0, serial: self.serial.as_bytes().into() }
    }
}

#[derive(Clone, Debug)]
struct Anchor {
    facts: CertificateFacts,
    anchor: TrustAnchor<'static>,
}

/// The CAs whose certificates are believed.
#[derive(Clone, Debug, Default)]
pub struct Anchors {
    anchors: Vec<Anchor>,
}

impl Anchors {
    /// Trusts those of these certificates that may certify others; what cannot be read is left out.
    pub fn new<'a>(certificates: impl IntoIterator<Item = &'a CertificateDer<'static>>) -> Self {
        let anchor = |certificate: &CertificateDer<'static>| {
            let facts = CertificateFacts::read(certificate).ok().filter(|facts| facts.role == Role::Authority)?;
            Some(Anchor { facts, anchor: anchor_from_trusted_cert(certificate).ok()?.to_owned() })
        };
        Self { anchors: certificates.into_iter().filter_map(anchor).collect() }
    }

    /// The keys of the CAs.
    pub fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.anchors.iter().map(|anchor| anchor.facts.key)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    /// Checks a certificate that its holder has proved to own in a handshake: signed by one of the CAs itself, in its
    /// time and theirs, meant for clients, and with one name, of this cluster. What else the client has sent to lead to
    /// a root is not looked at, since nobody below our CAs may name agents.
    pub fn identify(
        &self,
        certificate: &CertificateDer<'_>,
        cluster: &str,
        now: Timestamp,
    ) -> Result<ClientCertificate, ChainError> {
        let facts = CertificateFacts::read(certificate).map_err(|_| ChainError::Unreadable)?;
        let issuer = self.issuer(certificate, now)?;
        // The path was checked to the second: whoever was let in within the last one would be closed at once.
        if facts.not_after <= now {
            return Err(ChainError::Expired);
        }
        let Ok([name]) = <[String; 1]>::try_from(facts.uris) else { return Err(ChainError::NoName) };
        let name = AgentName::parse(&name).ok_or(ChainError::NoName)?;
        if name.cluster != cluster {
            return Err(ChainError::AnotherCluster);
        }
        let CertificateFacts { serial, not_before, not_after, .. } = facts;
        Ok(ClientCertificate { identity: name.identity(), issuer, serial, not_before, not_after })
    }

    fn issuer(&self, certificate: &CertificateDer<'_>, now: Timestamp) -> Result<KeyId, ChainError> {
        let seconds = u64::try_from(now.as_second()).unwrap_or_default();
        let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let certificate = EndEntityCert::try_from(certificate).map_err(|_| ChainError::Unreadable)?;
        // The path is checked without the dates of anchors: an expired CA is left out here. One after the other, so that
        // it is known which of them has signed.
        let mut last = ChainError::Untrusted;
        for Anchor { facts, anchor } in self.anchors.iter().filter(|anchor| anchor.facts.is_valid_at(now)) {
            let anchors = std::slice::from_ref(anchor);
            let usage = KeyUsage::required(CLIENT_AUTHENTICATION);
            match certificate.verify_for_usage(ALL_VERIFICATION_ALGS, anchors, &[], time, usage, None, None) {
                Ok(_) => return Ok(facts.key),
                Err(webpki::Error::UnknownIssuer) => {}
                Err(error) => last = refusal(&error),
            }
        }
        Err(last)
    }
}

fn refusal(error: &webpki::Error) -> ChainError {
    match error {
        webpki::Error::CertExpired { .. } => ChainError::Expired,
        webpki::Error::CertNotValidYet { .. } => ChainError::NotYetValid,
        webpki::Error::RequiredEkuNotFoundContext(_) | webpki::Error::CaUsedAsEndEntity => ChainError::Usage,
        // The foreign enum has a variant for each fault of the encoding or the path.
        _ => ChainError::Untrusted,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType};

    use super::*;
    use crate::credentials::{
        authority::Authority,
        facts::date,
        pem::read_certificates,
        profile::server_names,
        tests::{at, authority, intermediate, issue, name},
    };

    fn leaf(chain: &str) -> CertificateDer<'static> {
        read_certificates(chain.as_bytes()).unwrap().remove(0)
    }

    fn anchors(authorities: &[&Authority]) -> Anchors {
        Anchors::new(authorities.iter().map(|authority| authority.certificate()))
    }

    /// A certificate of agent 1 as this CA would never make it.
    fn forged(authority: &Authority, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut parameters = CertificateParams::default();
        (parameters.not_before, parameters.not_after) = (date(at(0)).unwrap(), date(at(60)).unwrap());
        parameters.subject_alt_names = vec![SanType::URI(name(1).to_string().try_into().unwrap())];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut parameters);
        parameters.signed_by(&KeyPair::generate().unwrap(), authority.issuer()).unwrap().der().clone()
    }

    #[test]
    fn an_issued_certificate_says_who_holds_it() {
        let authority = authority();
        let issued = issue(&authority, 0).unwrap();
        let found = anchors(&[&authority]).identify(&leaf(&issued.chain), "c", at(0)).unwrap();
        let expected = ClientCertificate {
            identity: name(1).identity(),
            issuer: authority.facts().key,
            serial: issued.serial,
            not_before: at(-300),
            not_after: issued.not_after,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_certificate_counts_in_its_time_only() {
        let authority = authority();
        let certificate = leaf(&issue(&authority, 0).unwrap().chain);
        for (seconds, expected) in
            [(-301, ChainError::Untrusted), (604_801, ChainError::Expired), (400_000_000, ChainError::Untrusted)]
        {
            let found = anchors(&[&authority]).identify(&certificate, "c", at(seconds));
            assert_eq!(found.unwrap_err(), expected, "{seconds} s after its issue");
        }
        let early = forged(&authority, |parameters| parameters.not_before = date(at(30)).unwrap());
        assert_eq!(anchors(&[&authority]).identify(&early, "c", at(29)).unwrap_err(), ChainError::NotYetValid);
    }

    #[test]
    fn certificates_of_former_authorities_count_while_they_are_trusted() {
        let (former, active) = (authority(), authority());
        let certificate = leaf(&issue(&former, 0).unwrap().chain);
        let found = anchors(&[&active, &former]).identify(&certificate, "c", at(0)).unwrap();
        assert_eq!(found.issuer, former.facts().key);
        assert_eq!(anchors(&[&active]).identify(&certificate, "c", at(0)).unwrap_err(), ChainError::Untrusted);
    }

    #[test]
    fn a_sister_below_the_same_root_may_not_name_agents() {
        let (active, root) = intermediate(at(0));
        let (sister, _) = intermediate(at(0));
        let certificate = leaf(&issue(&sister, 0).unwrap().chain);
        assert!(anchors(&[&active]).identify(&leaf(&issue(&active, 0).unwrap().chain), "c", at(0)).is_ok());
        let error = anchors(&[&active]).identify(&certificate, "c", at(0)).unwrap_err();
        assert_eq!(error, ChainError::Untrusted);
        assert_ne!(&root, active.certificate());
    }

    #[test]
    fn what_no_authority_of_ours_would_issue_is_not_believed() {
        let authority = authority();
        let trusted = anchors(&[&authority]);
        let uri = |text: &str| vec![SanType::URI(text.to_owned().try_into().unwrap())];
        let own = name(1).to_string();
        let mut broken = leaf(&issue(&authority, 0).unwrap().chain).to_vec();
        *broken.last_mut().unwrap() ^= 1;
        let (server, _) = authority.issue_server(&server_names(&[], "opamp-system"), at(0)).unwrap();
        let self_signed = {
            let mut parameters = CertificateParams::default();
            parameters.subject_alt_names = uri(&own);
            parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        for (case, certificate, expected) in [
            (
                "of a foreign CA",
                leaf(&issue(&super::super::tests::authority(), 0).unwrap().chain),
                ChainError::Untrusted,
            ),
            ("self-signed", self_signed, ChainError::Untrusted),
            ("the CA itself", authority.certificate().clone(), ChainError::Usage),
            ("the server's", leaf(&server.chain), ChainError::Usage),
            ("signature broken", broken.into(), ChainError::Untrusted),
            ("no certificate", vec![0x30, 0].into(), ChainError::Unreadable),
            ("no usage", forged(&authority, |it| it.extended_key_usages.clear()), ChainError::Usage),
            (
                "for servers",
                forged(&authority, |it| it.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
                ChainError::Usage,
            ),
            (
                "CA:TRUE",
                forged(&authority, |it| it.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
                ChainError::Usage,
            ),
            ("no name", forged(&authority, |it| it.subject_alt_names.clear()), ChainError::NoName),
            (
                "two names",
                forged(&authority, |it| it.subject_alt_names.extend(uri(&name(2).to_string()))),
                ChainError::NoName,
            ),
            ("another scheme", forged(&authority, |it| it.subject_alt_names = uri("spiffe://c/x")), ChainError::NoName),
            (
                "another cluster",
                forged(&authority, |it| it.subject_alt_names = uri(&own.replace("opamp://c/", "opamp://d/"))),
                ChainError::AnotherCluster,
            ),
        ] {
            assert_eq!(trusted.identify(&certificate, "c", at(0)).unwrap_err(), expected, "{case}");
        }
    }
}
