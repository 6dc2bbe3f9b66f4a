//! The server's own certificate.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use rustls::{
    Error, InconsistentKeys,
    crypto::aws_lc_rs,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::sync::watch;
use x509_parser::parse_x509_certificate;

/// The certificate that the server shows, whatever name a client asks for. It can be replaced at any time: handshakes that
/// begin later show the new one, and what is connected stays so.
pub struct ServerCertificate {
    current: ArcSwapOption<CertifiedKey>,
    not_after: watch::Sender<Option<Timestamp>>,
}

/// Why a certificate is not shown. Nothing of what was given stands in it: that may be a private key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ServerCertificateError {
    /// It is no PEM with at least one certificate.
    #[error("the certificate is no PEM text with a certificate in it")]
    Chain,
    /// It cannot be read as an X.509 certificate.
    #[error("the first certificate cannot be read")]
    Unreadable,
    /// Every client would refuse it.
    #[error("the certificate expired at {0}")]
    Expired(Timestamp),
    /// It is no PEM with a private key.
    #[error("the key is no PEM text with a private key in it")]
    Key,
    /// It is of a kind or size that TLS has no use for.
    #[error(
        "the private key is of a kind that is not supported; use ECDSA P-256, P-384, Ed25519, or RSA from 2048 bits"
    )]
    UnsupportedKey,
    /// The key is another certificate's.
    #[error("the private key does not belong to the first certificate")]
    Mismatch,
}

impl ServerCertificateError {
    /// One fixed word a variant, for metrics and conditions.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Chain => "Chain",
            Self::Unreadable => "Unreadable",
            Self::Expired(_) => "Expired",
            Self::Key => "Key",
            Self::UnsupportedKey => "UnsupportedKey",
            Self::Mismatch => "Mismatch",
        }
    }
}

impl Default for ServerCertificate {
    /// None yet: every handshake would fail.
    fn default() -> Self {
        Self { current: ArcSwapOption::empty(), not_after: watch::Sender::new(None) }
    }
}

impl ServerCertificate {
    /// Shows this chain from now on, the server's own certificate first. Should anything be wrong with it, what was shown
    /// before stays.
    pub fn replace(&self, chain_pem: &[u8], key_pem: &[u8], now: Timestamp) -> Result<(), ServerCertificateError> {
        let (key, not_after) = read(chain_pem, key_pem)?;
        if not_after <= now {
            return Err(ServerCertificateError::Expired(not_after));
        }
        self.current.store(Some(Arc::new(key)));
        self.not_after.send_replace(Some(not_after));
        Ok(())
    }

    /// Until when the certificate counts that is shown; `None` as long as there is none.
    #[must_use]
    pub fn not_after(&self) -> Option<Timestamp> {
        *self.not_after.borrow()
    }

    /// Waits until there is one.
    pub async fn available(&self) {
        // The sender is here, so that waiting cannot fail.
        let _ = self.not_after.subscribe().wait_for(Option::is_some).await;
    }
}

fn read(chain_pem: &[u8], key_pem: &[u8]) -> Result<(CertifiedKey, Timestamp), ServerCertificateError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(chain_pem)
        .collect::<Result<_, _>>()
        .map_err(|_| ServerCertificateError::Chain)?;
    let first = chain.first().ok_or(ServerCertificateError::Chain)?;
    let not_after = not_after(first).ok_or(ServerCertificateError::Unreadable)?;
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|_| ServerCertificateError::Key)?;
    let key = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => ServerCertificateError::Mismatch,
        Error::InvalidCertificate(_) => ServerCertificateError::Unreadable,
        _ => ServerCertificateError::UnsupportedKey,
    })?;
    Ok((key, not_after))
}

fn not_after(certificate: &CertificateDer<'_>) -> Option<Timestamp> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }
}

impl fmt::Debug for ServerCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ServerCertificate").field("not_after", &self.not_after()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn issued(until: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(["opamp.example.com".to_owned()]).unwrap();
        parameters.not_after = date_time_ymd(until, 1, 1);
        (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn a_certificate_that_is_wrong_leaves_the_former_in_place() {
        let now: Timestamp = "2026-11-30T00:00:00Z".parse().unwrap();
        let (certificate, key) = issued(2040);
        let (expired, expired_key) = issued(2026);
        let shown = ServerCertificate::default();
        assert!(shown.available().now_or_never().is_none(), "there is none yet");
        shown.replace(certificate.as_bytes(), key.as_bytes(), now).unwrap();
        assert!(shown.available().now_or_never().is_some());
        let former = shown.current.load_full();
        let noise = "-----BEGIN CERTIFICATE-----\nbm8gY2VydGlmaWNhdGU=\n-----END CERTIFICATE-----\n";
        for (chain, key, expected) in [
            ("", &key[..], ServerCertificateError::Chain),
            (&key, &key, ServerCertificateError::Chain),
            (noise, &key, ServerCertificateError::Unreadable),
            (&certificate, "", ServerCertificateError::Key),
            (&certificate, &certificate, ServerCertificateError::Key),
            (&certificate, &issued(2040).1, ServerCertificateError::Mismatch),
            (&expired, &expired_key, ServerCertificateError::Expired("2026-01-01T00:00:00Z".parse().unwrap())),
        ] {
            assert_eq!(shown.replace(chain.as_bytes(), key.as_bytes(), now), Err(expected));
            assert!(Arc::ptr_eq(shown.current.load_full().as_ref().unwrap(), former.as_ref().unwrap()), "{expected}");
        }
        assert_eq!(shown.not_after(), Some("2040-01-01T00:00:00Z".parse().unwrap()));
    }

    #[test]
    fn nothing_of_the_key_is_shown() {
        let (certificate, key) = issued(2040);
        let shown = ServerCertificate::default();
        shown.replace(certificate.as_bytes(), key.as_bytes(), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(format!("{shown:?}"), "ServerCertificate { not_after: Some(2040-01-01T00:00:00Z), .. }");
    }
}
