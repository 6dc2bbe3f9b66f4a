//! Whether values are the certificates and keys that they must be. Nothing of a value is ever quoted.

use rustls::{Error as TlsError, crypto::aws_lc_rs::default_provider, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use x509_parser::parse_x509_certificate;

/// The longest list of certificates: the values of two revisions together must fit into one Secret.
const LONGEST_LIST: usize = 128 << 10;
/// The longest certificate with what its verification needs.
const LONGEST_CHAIN: usize = 32 << 10;
/// The longest private key.
const LONGEST_KEY: usize = 16 << 10;

/// Why a value cannot be used; follows the name of the reference in a sentence.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unusable {
    /// Somebody has still to fill it in.
    #[error("is empty")]
    Empty,
    /// It is too long.
    #[error("has more than {0} bytes")]
    TooLong(usize),
    /// It is not UTF-8.
    #[error("is not UTF-8 text")]
    NotText,
    /// No header can have it.
    #[error("has control characters, which a header must not have; a line break at its end is one")]
    ControlCharacters,
    /// There is a private key where a certificate ought to be: it would be sent to every agent.
    #[error("holds a private key; it must hold certificates alone")]
    PrivateKey,
    /// It is no certificate.
    #[error("is no certificate in PEM")]
    NoCertificate,
    /// It is no key.
    #[error("is no private key in PEM that TLS could use")]
    NoKey,
    /// The two are not a pair.
    #[error("does not belong to the certificate")]
    NoPair,
}

/// Checks a list of CAs.
pub(super) fn check_authorities(pem: &[u8]) -> Result<(), Unusable> {
    certificates(pem, LONGEST_LIST).map(|_| ())
}

/// Checks a certificate, followed by intermediate ones or not.
pub(super) fn check_certificate(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    certificates(pem, LONGEST_CHAIN)
}

fn certificates(pem: &[u8], longest: usize) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let text = text(pem, longest)?;
    if text.contains("PRIVATE KEY") {
        return Err(Unusable::PrivateKey);
    }
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| Unusable::NoCertificate)?;
    let is_whole = |der: &CertificateDer<'_>| parse_x509_certificate(der).is_ok_and(|(rest, _)| rest.is_empty());
    if certificates.is_empty() || !certificates.iter().all(is_whole) {
        return Err(Unusable::NoCertificate);
    }
    Ok(certificates)
}

/// Checks that a private key is that of the first certificate.
pub(super) fn check_pair(chain: &[CertificateDer<'static>], key: &[u8]) -> Result<(), Unusable> {
    text(key, LONGEST_KEY)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| Unusable::NoKey)?;
    match CertifiedKey::from_der(chain.to_vec(), key, &default_provider()) {
        Ok(_) => Ok(()),
        Err(TlsError::InconsistentKeys(_)) => Err(Unusable::NoPair),
        Err(_) => Err(Unusable::NoKey),
    }
}

/// Whether no CA signed the first certificate.
pub(super) fn is_self_signed(chain: &[CertificateDer<'static>]) -> bool {
    let parsed = chain.first().map(|der| parse_x509_certificate(der));
    matches!(parsed, Some(Ok((_, certificate))) if certificate.issuer() == certificate.subject())
}

fn text(value: &[u8], longest: usize) -> Result<&str, Unusable> {
    if value.is_empty() {
        return Err(Unusable::Empty);
    }
    if value.len() > longest {
        return Err(Unusable::TooLong(longest));
    }
    std::str::from_utf8(value).map_err(|_| Unusable::NotText)
}
