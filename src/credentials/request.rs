//! Requests for certificates (CSR, PKCS #10) as agents send them: what the operator's CA takes from one is its public key.
//! Other issuers get it as it came, so that it must not say more than it may.

use std::collections::BTreeSet;

use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData as _};
use rustls_pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
use uuid::Uuid;
use x509_parser::{
    certification_request::X509CertificationRequest,
    extensions::{GeneralName, ParsedExtension},
    oid_registry::{
        OID_PKCS1_RSASSAPSS, OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA,
        OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ED25519, OID_X509_COMMON_NAME,
        OID_X509_ORGANIZATIONAL_UNIT, OID_X509_SERIALNUMBER, Oid,
    },
    prelude::FromDer as _,
    public_key::PublicKey as ParsedKey,
};

use super::{
    authority::AuthorityError,
    key::KeyId,
    name::AgentName,
    own_names::{Foreign, check_request},
    profile::agent_profile,
};
use crate::opamp::InstanceUid;

/// Most bytes of a request. One with an RSA key of 8,192 bits has about 3 kB.
pub const MAX_REQUEST: usize = 16 << 10;
/// RSA keys are of so many bits; below they are weak, above each check of a signature costs too much.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;
/// The smallest public exponent of FIPS 186-5 §A.1.1.
const RSA_EXPONENT: u32 = 65_537;
/// Most identifiers that are looked for in one request.
const MOST_IDENTIFIERS: usize = 16;

/// Why a request is refused (CSR-03, CSR-07, CSR-09). The texts are for the people who run the agent; no variant quotes
/// the request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// More bytes than any honest request has.
    #[error("the certificate request has {0} bytes, the limit is {MAX_REQUEST}")]
    TooLarge(usize),
    /// It is not PEM.
    #[error("the certificate request is not PEM: one block CERTIFICATE REQUEST is expected")]
    NotPem,
    /// It holds more than one request.
    #[error("the certificate request must be one block CERTIFICATE REQUEST and nothing else")]
    SeveralBlocks,
    /// The block is no request.
    #[error("the certificate request cannot be read as PKCS #10")]
    Malformed,
    /// The key is of a kind that is not served.
    #[error("the key of the certificate request must be ECDSA on P-256 or P-384, Ed25519, or RSA")]
    KeyKind,
    /// The key is too weak, or so large that it is a burden.
    #[error("an RSA key of a certificate request must have 2048 to 8192 bits, and an odd exponent from 65537 on")]
    KeyStrength,
    /// The signature is made in a way that is not served.
    #[error("the certificate request must be signed with SHA-256, SHA-384, SHA-512 or Ed25519")]
    SignatureKind,
    /// The sender does not have the key.
    #[error("the certificate request is not signed with its own key")]
    Signature,
    /// It speaks of other agents.
    #[error("the certificate request names an instance_uid, and it is not that of the agent which sent it")]
    AnotherAgent,
    /// It speaks of more agents than one could be.
    #[error("the certificate request names more than {MOST_IDENTIFIERS} identifiers")]
    TooManyIdentifiers,
    /// It asks for more than the agent's own name, and whoever is to sign would copy that.
    #[error("the fleet's issuer takes names from the certificate request: {0}")]
    Foreign(#[from] Foreign),
}

/// A public key of a kind and strength that a certificate is issued for.
#[derive(Clone, Eq, PartialEq)]
pub struct PublicKey {
    key: rcgen::SubjectPublicKeyInfo,
    id: KeyId,
}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("PublicKey").field(&self.id).finish()
    }
}

impl PublicKey {
    fn read(subject_public_key_info: &[u8]) -> Option<Self> {
        let key = rcgen::SubjectPublicKeyInfo::from_der(subject_public_key_info).ok()?;
        let served = [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519, &PKCS_RSA_SHA256];
        // What goes into the certificate is written anew; it must be the key that was asked about.
        let is_same = key.subject_public_key_info() == subject_public_key_info;
        (is_same && served.contains(&key.algorithm())).then(|| Self { key, id: KeyId::of(subject_public_key_info) })
    }

    pub(super) fn of(pair: &rcgen::KeyPair) -> Option<Self> {
        Self::read(&pair.subject_public_key_info())
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }
}

impl rcgen::PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        self.key.der_bytes()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        self.key.algorithm()
    }
}

/// A request that was found good for the agent that sent it. Its text is kept as it came; the operator's CA uses nothing but
/// the key.
#[derive(Clone, Eq, PartialEq)]
pub struct CertificateRequest {
    pem: Box<[u8]>,
    key: PublicKey,
}

impl std::fmt::Debug for CertificateRequest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("CertificateRequest").field(&self.key.id).finish()
    }
}

impl CertificateRequest {
    /// Checks what the agent `sender` has sent. `is_known` tells whether an agent has such an `instance_uid`: a UUID of
    /// nobody may be in a request for reasons of its own, such as a tenant's (AMB-31).
    pub fn check(
        pem: &[u8],
        sender: InstanceUid,
        is_known: impl Fn(&InstanceUid) -> bool,
    ) -> Result<Self, RequestError> {
        let (key, named) = read(pem)?;
        let names_sender = named.contains(&sender);
        if !named.is_empty() && (!names_sender || named.iter().any(|uid| *uid != sender && is_known(uid))) {
            return Err(RequestError::AnotherAgent);
        }
        Ok(Self { pem: pem.into(), key })
    }

    /// Checks that it asks for nothing but this name, or for none: to be done before somebody else is asked to sign it as it
    /// stands.
    pub fn check_names(&self, own: &AgentName) -> Result<(), RequestError> {
        let der = only_block(&self.pem)?;
        let (_, request) = X509CertificationRequest::from_der(&der).map_err(|_| RequestError::Malformed)?;
        Ok(check_request(&request, own)?)
    }

    /// The request for a key that the operator has made, for an issuer that is not its own CA.
    pub(super) fn make(name: &AgentName, pair: &rcgen::KeyPair) -> Result<Self, AuthorityError> {
        let parameters = agent_profile(name)?;
        let pem = parameters.serialize_request(pair)?.pem()?;
        let key = PublicKey::of(pair).ok_or(AuthorityError::Signing)?;
        Ok(Self { pem: pem.into_bytes().into(), key })
    }

    /// The request as it came.
    #[must_use]
    pub fn pem(&self) -> &[u8] {
        &self.pem
    }

    /// The key that it is about.
    #[must_use]
    pub fn key(&self) -> &PublicKey {
        &self.key
    }
}

fn read(pem: &[u8]) -> Result<(PublicKey, BTreeSet<InstanceUid>), RequestError> {
    if pem.len() > MAX_REQUEST {
        return Err(RequestError::TooLarge(pem.len()));
    }
    let der = only_block(pem)?;
    let (rest, request) = X509CertificationRequest::from_der(&der).map_err(|_| RequestError::Malformed)?;
    if !rest.is_empty() {
        return Err(RequestError::Malformed);
    }
    let key = checked_key(&request)?;
    check_signature(&request)?;
    Ok((key, identifiers(&request)?))
}

/// The one request of the text. Other text around it is refused as well: it would be kept and handed on.
fn only_block(pem: &[u8]) -> Result<CertificateSigningRequestDer<'static>, RequestError> {
    let text = std::str::from_utf8(pem).map_err(|_| RequestError::NotPem)?.trim();
    let begins = text.matches("-----BEGIN ").count();
    if begins > 1 {
        return Err(RequestError::SeveralBlocks);
    }
    if begins == 0 {
        return Err(RequestError::NotPem);
    }
    if !text.starts_with("-----BEGIN ") || !text.ends_with("-----") {
        return Err(RequestError::SeveralBlocks);
    }
    CertificateSigningRequestDer::from_pem_slice(text.as_bytes()).map_err(|_| RequestError::NotPem)
}

fn checked_key(request: &X509CertificationRequest<'_>) -> Result<PublicKey, RequestError> {
    let subject = &request.certification_request_info.subject_pki;
    let key = PublicKey::read(subject.raw).ok_or(RequestError::KeyKind)?;
    if key.key.algorithm() == &PKCS_RSA_SHA256 {
        let Ok(ParsedKey::RSA(rsa)) = subject.parsed() else { return Err(RequestError::Malformed) };
        let exponent = rsa.try_exponent().ok().and_then(|exponent| u32::try_from(exponent).ok());
        let is_strong = exponent.is_some_and(|exponent| exponent >= RSA_EXPONENT && exponent % 2 == 1);
        if !RSA_BITS.contains(&bits(rsa.modulus)) || !is_strong {
            return Err(RequestError::KeyStrength);
        }
    }
    Ok(key)
}

/// The length of a number in bits; leading zeros do not count.
fn bits(number: &[u8]) -> usize {
    let significant = number.iter().skip_while(|byte| **byte == 0);
    let leading = significant.clone().next().map_or(0, |byte| byte.leading_zeros() as usize);
    significant.count() * 8 - leading
}

fn check_signature(request: &X509CertificationRequest<'_>) -> Result<(), RequestError> {
    let served: [&Oid<'_>; 7] = [
        &OID_PKCS1_SHA256WITHRSA,
        &OID_PKCS1_SHA384WITHRSA,
        &OID_PKCS1_SHA512WITHRSA,
        &OID_PKCS1_RSASSAPSS,
        &OID_SIG_ECDSA_WITH_SHA256,
        &OID_SIG_ECDSA_WITH_SHA384,
        &OID_SIG_ED25519,
    ];
    if !served.contains(&&request.signature_algorithm.algorithm) {
        return Err(RequestError::SignatureKind);
    }
    request.verify_signature().map_err(|_| RequestError::Signature)
}

/// The UUIDs at the places where an `instance_uid` may stand: the specification names none (AMB-31).
fn identifiers(request: &X509CertificationRequest<'_>) -> Result<BTreeSet<InstanceUid>, RequestError> {
    let mut found = BTreeSet::new();
    let places: [Oid<'_>; 3] = [OID_X509_COMMON_NAME, OID_X509_SERIALNUMBER, OID_X509_ORGANIZATIONAL_UNIT];
    for attribute in request.certification_request_info.subject.iter_attributes() {
        if places.contains(attribute.attr_type()) {
            found.extend(attribute.as_str().ok().and_then(uuid));
        }
    }
    for name in request.requested_extensions().into_iter().flatten().flat_map(alternative_names) {
        match name {
            GeneralName::URI(uri) => found.extend(uri.strip_prefix("urn:uuid:").and_then(uuid).or_else(|| issued(uri))),
            GeneralName::DNSName(name) => found.extend(uuid(name)),
            // The foreign enum: no other kind of name is a place for an instance_uid.
            _ => {}
        }
    }
    if found.len() > MOST_IDENTIFIERS { Err(RequestError::TooManyIdentifiers) } else { Ok(found) }
}

fn alternative_names<'a>(extension: &'a ParsedExtension<'a>) -> &'a [GeneralName<'a>] {
    match extension {
        ParsedExtension::SubjectAlternativeName(names) => &names.general_names,
        // The foreign enum: what else is asked for is not granted.
        _ => &[],
    }
}

/// An agent may repeat the name of its former certificate.
fn issued(uri: &str) -> Option<InstanceUid> {
    AgentName::parse(uri).map(|name| name.uid)
}

/// Canonical text only, in either case: 36 characters.
pub(super) fn uuid(text: &str) -> Option<InstanceUid> {
    let uuid = Uuid::try_parse(text).ok().filter(|_| text.len() == 36)?;
    InstanceUid::from_wire(uuid.as_bytes())
}
