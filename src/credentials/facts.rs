//! What is read of a certificate, whoever made it.

use std::time::Duration;

use jiff::Timestamp;
use time::OffsetDateTime;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _};

use super::{key::KeyId, serial::Serial};

/// The certificate cannot be read. Its content is not quoted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("it is no X.509 certificate")]
pub struct Unreadable;

/// What matters of a certificate. Nothing of it is believed until its chain has been checked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificateFacts {
    /// Its number.
    pub serial: Serial,
    /// Its key.
    pub key: KeyId,
    /// SHA-256 of the name of its issuer.
    pub issuer_name: KeyId,
    /// It counts from then.
    pub not_before: Timestamp,
    /// It counts until then.
    pub not_after: Timestamp,
    /// The URIs among its alternative names.
    pub uris: Vec<String>,
    /// Whether it may certify others.
    pub role: Role,
}

/// Whether a certificate may certify others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// It may: `CA:TRUE`, and its key usage, if any, allows it.
    Authority,
    /// It may not.
    Holder,
}

impl CertificateFacts {
    /// Reads a certificate in DER.
    pub fn read(der: &[u8]) -> Result<Self, Unreadable> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| Unreadable)?;
        if !rest.is_empty() {
            return Err(Unreadable);
        }
        let validity = certificate.validity();
        Ok(Self {
            serial: Serial::from_der(certificate.raw_serial()).ok_or(Unreadable)?,
            key: KeyId::of(certificate.public_key().raw),
            issuer_name: KeyId::of(certificate.issuer().as_raw()),
            not_before: timestamp(validity.not_before.timestamp())?,
            not_after: timestamp(validity.not_after.timestamp())?,
            uris: uris(&certificate)?,
            role: role(&certificate)?,
        })
    }

    /// Whether the moment lies within its dates.
    #[must_use]
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before <= now && now < self.not_after
    }
}

/// Whether the key of this issuer has signed this certificate, both in DER.
#[must_use]
pub fn is_signed_by(certificate: &[u8], issuer: &[u8]) -> bool {
    let (Ok((_, certificate)), Ok((_, issuer))) =
        (X509Certificate::from_der(certificate), X509Certificate::from_der(issuer))
    else {
        return false;
    };
    certificate.verify_signature(Some(issuer.public_key())).is_ok()
}

fn timestamp(seconds: i64) -> Result<Timestamp, Unreadable> {
    Timestamp::from_second(seconds).map_err(|_| Unreadable)
}

fn uris(certificate: &X509Certificate<'_>) -> Result<Vec<String>, Unreadable> {
    let Some(names) = certificate.subject_alternative_name().map_err(|_| Unreadable)? else { return Ok(Vec::new()) };
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        // The foreign enum: names of other kinds are not looked at.
        _ => None,
    };
    Ok(names.value.general_names.iter().filter_map(uri).collect())
}

fn role(certificate: &X509Certificate<'_>) -> Result<Role, Unreadable> {
    let constraints = certificate.basic_constraints().map_err(|_| Unreadable)?;
    let usage = certificate.key_usage().map_err(|_| Unreadable)?;
    let is_authority = constraints.is_some_and(|constraints| constraints.value.ca);
    let may_certify = usage.is_none_or(|usage| usage.value.key_cert_sign());
    Ok(if is_authority && may_certify { Role::Authority } else { Role::Holder })
}

/// A moment as rcgen takes it, in whole seconds.
pub(super) fn date(moment: Timestamp) -> Result<OffsetDateTime, rcgen::Error> {
    OffsetDateTime::from_unix_timestamp(moment.as_second()).map_err(|_| rcgen::Error::Time)
}

/// So much later, and never beyond the end of time.
pub(super) fn later(moment: Timestamp, by: Duration) -> Timestamp {
    moment.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// So much earlier, and never before its beginning.
pub(super) fn earlier(moment: Timestamp, by: Duration) -> Timestamp {
    moment.checked_sub(by).unwrap_or(Timestamp::MIN)
}

/// The time from one moment to another; none if that is past.
pub(super) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_no_certificate_whatever_its_length() {
        let whole = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.der().to_vec();
        assert!(CertificateFacts::read(&whole).is_ok());
        for length in 0..whole.len() {
            assert_eq!(CertificateFacts::read(&whole[..length]), Err(Unreadable), "{length} bytes");
        }
        assert_eq!(CertificateFacts::read(&[&whole[..], b"x"].concat()), Err(Unreadable), "and more");
    }
}
