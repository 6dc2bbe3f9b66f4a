//! What a Secret of a certificate holds, checked: whoever may write Secrets may have put it there.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};

use super::{
    super::{
        facts::{CertificateFacts, Role, is_signed_by},
        key::{KeyId, PrivateKey},
        name::AgentName,
        pem::{PemError, read_certificates, write_certificates},
        request::MAX_REQUEST,
    },
    CA_KEY, CERTIFICATE_KEY, FORMER_KEY, Given, Held, ISSUER_ANNOTATION, LONGEST_REASON, NAME_PREFIX, PRIVATE_KEY,
    REFUSED_ANNOTATION, REFUSED_AT_ANNOTATION, REQUEST_KEY, Refused, Signer, StoredError, secret_name,
};
use crate::opamp::InstanceUid;

/// Most bytes of a chain: four certificates with the largest keys have a third of it. Each replica holds all of them.
const LONGEST_CHAIN: usize = 32 << 10;
/// Most bytes of a private key in PEM.
const LONGEST_KEY: usize = 16 << 10;

/// The values of a Secret, each checked against its name.
pub(super) struct Values<'a> {
    pub(super) secret: &'a Secret,
    pub(super) agent: InstanceUid,
}

impl<'a> Values<'a> {
    fn get(&self, key: &str) -> Option<&'a [u8]> {
        self.secret.data.as_ref()?.get(key).map(|value| value.0.as_slice()).filter(|value| !value.is_empty())
    }

    fn fits(&self, key: &KeyId) -> bool {
        self.secret.metadata.name.as_deref() == Some(secret_name(&self.agent, key).as_str())
    }

    pub(super) fn request(&self) -> Result<Option<&'a [u8]>, StoredError> {
        let prefix = format!("{NAME_PREFIX}{}-", self.agent);
        if !self.secret.metadata.name.as_deref().is_some_and(|name| name.starts_with(&prefix)) {
            return Err(StoredError::Name);
        }
        let request = self.get(REQUEST_KEY);
        if request.is_some_and(|request| request.len() > MAX_REQUEST) {
            return Err(StoredError::TooLarge(REQUEST_KEY));
        }
        Ok(request)
    }

    pub(super) fn private_key(&self) -> Result<Option<PrivateKey>, StoredError> {
        let Some(bytes) = self.get(PRIVATE_KEY) else { return Ok(None) };
        if bytes.len() > LONGEST_KEY {
            return Err(StoredError::TooLarge(PRIVATE_KEY));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| StoredError::Key)?;
        let key = PrivateKey::from_pem(text.to_owned());
        let id = key.id().ok_or(StoredError::Key)?;
        if self.fits(&id) { Ok(Some(key)) } else { Err(StoredError::Key) }
    }

    pub(super) fn refused(&self) -> Option<Refused> {
        let annotations = self.secret.annotations();
        let why = annotations.get(REFUSED_ANNOTATION)?.chars().take(LONGEST_REASON).collect();
        let at = annotations.get(REFUSED_AT_ANNOTATION).and_then(|text| text.parse().ok());
        Some(Refused { why, at: at.unwrap_or(Timestamp::UNIX_EPOCH) })
    }

    pub(super) fn given(&self) -> Result<Option<Given>, StoredError> {
        let Some(chain) = self.get(CERTIFICATE_KEY) else { return Ok(None) };
        let certificates = Self::certificates(CERTIFICATE_KEY, chain)?;
        let ca = self.get(CA_KEY).map_or(Ok(Vec::new()), |ca| Self::certificates(CA_KEY, ca))?;
        let issuers = [ca.first(), certificates.get(1)];
        let certificate = self.held(CERTIFICATE_KEY, &certificates[0], issuers)?;
        let former = match self.get(FORMER_KEY) {
            None => None,
            Some(former) => {
                let former = Self::certificates(FORMER_KEY, former)?;
                Some(self.held(FORMER_KEY, &former[0], [former.get(1), None])?)
            }
        };
        let (chain, ca) = (write_certificates(&certificates).into(), write_certificates(&ca).into());
        let signer = Signer::read(self.secret.annotations().get(ISSUER_ANNOTATION));
        Ok(Some(Given { chain, ca, signer, certificate, former }))
    }

    /// Whether the certificate names an agent, and that is not the one that the Secret is for.
    fn is_of_another(&self, facts: &CertificateFacts) -> bool {
        let namespace = self.secret.metadata.namespace.as_deref();
        let mut names = facts.uris.iter().filter_map(|uri| AgentName::parse(uri));
        names.any(|name| name.uid != self.agent || Some(name.namespace.as_str()) != namespace)
    }

    fn certificates(key: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, StoredError> {
        if pem.len() > LONGEST_CHAIN {
            return Err(StoredError::TooLarge(key));
        }
        read_certificates(pem).map_err(|error| match error {
            PemError::TooLarge => StoredError::TooLarge(key),
            PemError::Empty | PemError::Malformed => StoredError::Certificate(key),
        })
    }

    /// What identifies a certificate. Whoever may write Secrets could put a certificate here that has the number of another
    /// tenant's, and have that revoked: an issuer counts only if it has signed, and a name only if it is this agent's.
    fn held(
        &self,
        key: &'static str,
        certificate: &CertificateDer<'static>,
        issuers: [Option<&CertificateDer<'static>>; 2],
    ) -> Result<Held, StoredError> {
        let wrong = StoredError::Certificate(key);
        let facts = CertificateFacts::read(certificate).map_err(|_| wrong)?;
        if facts.role != Role::Holder || !self.fits(&facts.key) || self.is_of_another(&facts) {
            return Err(wrong);
        }
        let issuer = match issuers.into_iter().flatten().find(|issuer| is_signed_by(certificate, issuer)) {
            Some(issuer) => CertificateFacts::read(issuer).map_err(|_| wrong)?.key,
            None => facts.issuer_name,
        };
        let CertificateFacts { serial, not_before, not_after, .. } = facts;
        Ok(Held { digest: Sha256::digest(certificate).into(), issuer, serial, not_before, not_after })
    }
}
