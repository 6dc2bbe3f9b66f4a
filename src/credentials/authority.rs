//! The certificate authority that signs at this moment: made here, or put there by people.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use super::{
    facts::{CertificateFacts, Role, date, earlier, later},
    key::{KeyId, PrivateKey},
    pem::{PemError, read_certificates, write_certificates},
    serial::Serial,
};

/// How long a CA counts that is made here. It is replaced by people or on their wish, long before.
const LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How far certificates are dated back, for clocks of agents that are slow.
pub(super) const BACKDATED: Duration = Duration::from_secs(300);

/// Why there is no authority to sign with. No variant holds a key.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum AuthorityError {
    /// `tls.crt` is no list of certificates.
    #[error("tls.crt: {0}")]
    Certificate(#[from] PemError),
    /// The first certificate of `tls.crt` cannot be read.
    #[error("tls.crt: the first certificate cannot be read")]
    Unreadable,
    /// It may not certify others.
    #[error("tls.crt: the first certificate may not certify others (CA:TRUE and key usage keyCertSign are needed)")]
    NotAuthority,
    /// `tls.key` cannot be used.
    #[error("tls.key: it is no private key in PEM of a kind that can be used (ECDSA, RSA or Ed25519)")]
    Key,
    /// Certificate and key are of different keys.
    #[error("tls.key is not the key of the first certificate of tls.crt")]
    KeyMismatch,
    /// The name of the CA has parts that cannot be written into what it issues as they are.
    #[error(
        "tls.crt: the subject of the first certificate has several parts of one kind, or of a kind that cannot be written"
    )]
    Subject,
    /// Its time is over, or has not come.
    #[error("the CA's certificate is valid from {not_before} to {not_after}, and not now")]
    NotValid {
        /// It counts from then.
        not_before: Timestamp,
        /// It counts until then.
        not_after: Timestamp,
    },
    /// A signature could not be made.
    #[error("a certificate could not be signed")]
    Signing,
}

impl From<rcgen::Error> for AuthorityError {
    /// The texts of the library are not passed on: they may quote what could not be read.
    fn from(_: rcgen::Error) -> Self {
        Self::Signing
    }
}

/// A certificate that was made, in PEM with the certificates that lead to the root, and what is to be known of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Issued {
    /// The certificate, then those of the CA that are not roots.
    pub chain: String,
    /// The certificate of the CA, and of those above it.
    pub ca: String,
    /// Its number.
    pub serial: Serial,
    /// It counts until then.
    pub not_after: Timestamp,
}

/// A CA with its key.
pub struct Authority {
    /// Its own certificate first, then the way to the root.
    chain: Vec<CertificateDer<'static>>,
    facts: CertificateFacts,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Authority").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a root: a P-256 key, named after the cluster, valid for ten years.
    pub fn generate(cluster: &str, now: Timestamp) -> Result<(Self, PrivateKey), AuthorityError> {
        let (key, pair) = PrivateKey::generate()?;
        let serial = Serial::random();
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = common_name(&format!("opamp-operator {cluster}"));
        // Two generations have different names, so that nobody who builds chains by name confuses them.
        parameters.distinguished_name.push(DnType::OrganizationalUnitName, serial.to_string()[..16].to_owned());
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        parameters.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
        parameters.not_before = date(earlier(now, BACKDATED))?;
        parameters.not_after = date(later(now, LIFETIME))?;
        let certificate = parameters.self_signed(&pair)?.der().clone();
        Ok((Self::new(vec![certificate], pair)?, key))
    }

    /// Reads what is in a Secret of type `kubernetes.io/tls`: the CA's certificate, perhaps with those above it, and its
    /// key. That it has expired is no fault here: then nothing can be signed with it.
    pub fn load(certificates: &[u8], key: &PrivateKey) -> Result<Self, AuthorityError> {
        let chain = read_certificates(certificates)?;
        Self::new(chain, key.pair().map_err(|_| AuthorityError::Key)?)
    }

    fn new(chain: Vec<CertificateDer<'static>>, pair: KeyPair) -> Result<Self, AuthorityError> {
        let own = chain.first().ok_or(AuthorityError::Unreadable)?;
        let facts = CertificateFacts::read(own).map_err(|_| AuthorityError::Unreadable)?;
        if facts.role != Role::Authority {
            return Err(AuthorityError::NotAuthority);
        }
        if facts.key != KeyId::of(&pair.subject_public_key_info()) {
            return Err(AuthorityError::KeyMismatch);
        }
        let issuer = Issuer::from_ca_cert_der(own, pair).map_err(|_| AuthorityError::Subject)?;
        let authority = Self { chain, facts, issuer };
        authority.check_subject()?;
        Ok(authority)
    }

    /// Whether what it signs carries its name byte for byte, as chains are built by. The library writes the name anew.
    fn check_subject(&self) -> Result<(), AuthorityError> {
        let probe = CertificateParams::default().signed_by(self.issuer.key(), &self.issuer)?;
        let (_, own) = X509Certificate::from_der(self.certificate()).map_err(|_| AuthorityError::Unreadable)?;
        let (_, probe) = X509Certificate::from_der(probe.der()).map_err(|_| AuthorityError::Signing)?;
        if probe.issuer().as_raw() == own.subject().as_raw() { Ok(()) } else { Err(AuthorityError::Subject) }
    }

    /// Its own certificate.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        // `new` refuses an empty chain.
        &self.chain[0]
    }

    /// What is known of its certificate.
    #[must_use]
    pub fn facts(&self) -> &CertificateFacts {
        &self.facts
    }

    /// Its certificates in PEM: its own first, then those above it.
    #[must_use]
    pub fn chain(&self) -> String {
        write_certificates(&self.chain)
    }

    /// The same in DER.
    #[must_use]
    pub fn chain_der(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    pub(super) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    /// Signs a certificate that counts for so long, and never longer than the CA itself. The caller gives the profile;
    /// number, dates and the mark that it is no CA are set here.
    pub(super) fn sign(
        &self,
        mut profile: CertificateParams,
        key: &impl PublicKeyData,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Issued, AuthorityError> {
        self.check_dates(now)?;
        let serial = Serial::random();
        let not_after = self.not_after_of(lifetime, now);
        profile.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
        profile.not_before = date(earlier(now, BACKDATED).max(self.facts.not_before))?;
        profile.not_after = date(not_after)?;
        profile.is_ca = IsCa::ExplicitNoCa;
        profile.use_authority_key_identifier_extension = true;
        let certificate = profile.signed_by(key, &self.issuer)?.der().clone();
        let intermediates = self.chain.iter().filter(|above| !is_self_issued(above));
        Ok(Issued {
            chain: write_certificates(std::iter::once(&certificate).chain(intermediates)),
            ca: self.chain(),
            serial,
            not_after: Timestamp::from_second(not_after.as_second()).map_err(|_| AuthorityError::Signing)?,
        })
    }

    /// When a certificate would end that is made now.
    #[must_use]
    pub fn not_after_of(&self, lifetime: Duration, now: Timestamp) -> Timestamp {
        later(now, lifetime).min(self.facts.not_after)
    }

    /// Whether it may sign at this moment.
    pub fn check_dates(&self, now: Timestamp) -> Result<(), AuthorityError> {
        let CertificateFacts { not_before, not_after, .. } = self.facts;
        if self.facts.is_valid_at(now) { Ok(()) } else { Err(AuthorityError::NotValid { not_before, not_after }) }
    }
}

fn is_self_issued(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, certificate)| certificate.issuer().as_raw() == certificate.subject().as_raw())
}

pub(super) fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::tests::{AGENT_LIFETIME, at, intermediate, issue};

    #[test]
    fn an_authority_is_read_back_from_its_secret() {
        let (made, key) = Authority::generate("4f1c0a9be2", at(0)).unwrap();
        let read = Authority::load(made.chain().as_bytes(), &key).unwrap();
        assert_eq!(read.facts(), made.facts());
        assert_eq!(read.facts().role, Role::Authority);
        assert_eq!(read.facts().not_after, at(315_360_000), "ten years");
        assert_eq!(issue(&read, 0).unwrap().ca, made.chain());
    }

    #[test]
    fn two_generations_have_different_names_and_keys() {
        let [one, two] = [0, 1].map(|_| Authority::generate("c", at(0)).unwrap().0);
        assert_ne!(one.facts().key, two.facts().key);
        let subject =
            |authority: &Authority| X509Certificate::from_der(authority.certificate()).unwrap().1.subject().to_string();
        assert_ne!(subject(&one), subject(&two));
    }

    #[test]
    fn an_intermediate_of_people_signs_and_hands_out_its_chain() {
        let (authority, root) = intermediate(at(0));
        let issued = issue(&authority, 0).unwrap();
        let chain = read_certificates(issued.chain.as_bytes()).unwrap();
        assert_eq!(chain.len(), 2, "the certificate and the intermediate; agents have the root");
        assert_eq!(&chain[1], authority.certificate());
        assert_eq!(read_certificates(issued.ca.as_bytes()).unwrap()[1], root);
    }

    #[test]
    fn what_is_no_authority_is_an_error_that_tells_why() {
        let (made, key) = Authority::generate("c", at(0)).unwrap();
        let (_, other) = Authority::generate("c", at(0)).unwrap();
        let plain = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let plain_key = PrivateKey::from_pem(plain.signing_key.serialize_pem());
        let no_key = PrivateKey::from_pem("canary".into());
        for (case, certificate, key, expected) in [
            ("empty", String::new(), &key, AuthorityError::Certificate(PemError::Empty)),
            ("garbage", crate::credentials::pem::write_block("CERTIFICATE", b"x"), &key, AuthorityError::Unreadable),
            ("no CA", plain.cert.pem(), &plain_key, AuthorityError::NotAuthority),
            ("no key", made.chain(), &no_key, AuthorityError::Key),
            ("another's key", made.chain(), &other, AuthorityError::KeyMismatch),
        ] {
            let error = Authority::load(certificate.as_bytes(), key).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("canary"), "{case}");
            assert_eq!(error, expected, "{case}");
        }
    }

    #[test]
    fn a_name_that_cannot_be_repeated_is_refused_before_it_issues() {
        let (pair, mut parameters) = (KeyPair::generate().unwrap(), CertificateParams::default());
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // The library keeps one value a kind of name: such a subject is made by hand from two of equal length.
        parameters.distinguished_name = common_name("first");
        parameters.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "second");
        let mut der = parameters.self_signed(&pair).unwrap().der().to_vec();
        for at in 0..der.len() - 3 {
            if der[at..at + 3] == [0x55, 4, 10] {
                der[at + 2] = 3;
            }
        }
        let pem = crate::credentials::pem::write_block("CERTIFICATE", &der);
        let error = Authority::load(pem.as_bytes(), &PrivateKey::from_pem(pair.serialize_pem())).unwrap_err();
        assert_eq!(error, AuthorityError::Subject);
    }

    #[test]
    fn nothing_is_signed_outside_the_dates_of_the_authority_or_beyond_them() {
        let (authority, _) = Authority::generate("c", at(0)).unwrap();
        let end = authority.facts().not_after.as_second() - at(0).as_second();
        for (case, seconds, expected) in [
            ("before it counts", -301, None),
            ("dated back", -300, Some(-300 + AGENT_LIFETIME)),
            ("in its time", 0, Some(AGENT_LIFETIME)),
            ("near its end", end - 60, Some(end)),
            ("at its end", end, None),
        ] {
            let not_after = issue(&authority, seconds).ok().map(|issued| issued.not_after);
            assert_eq!(not_after, expected.map(at), "{case}");
        }
    }
}
