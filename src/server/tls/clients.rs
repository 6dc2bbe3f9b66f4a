//! Whether a client's certificate counts.

use std::{fmt, net::SocketAddr, sync::Arc};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};

/// Which certificates of clients count at this moment. Asked in each full handshake, on the task of the connection: it may
/// not block. That the client has the key is checked by TLS itself.
///
/// A resumed session does not ask: its certificates are those of the handshake that it goes back to, for up to twelve
/// hours. Whoever admits a peer by its [`super::super::Peer::certificates`] must check them again.
pub trait ClientCertificates: fmt::Debug + Send + Sync + 'static {
    /// Whether this certificate counts. What comes with it is what the client sent, in any order and perhaps too much.
    /// `remote` is the address that it was sent from, as [`super::super::Peer::address`] has it.
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        remote: SocketAddr,
        now: UnixTime,
    ) -> Result<(), CertificateFault>;

    /// The names of the authorities whose certificates count, by which clients choose theirs; none: they send any. As long
    /// as nothing has changed it is to be the same `Arc`, because others have new settings made for every handshake after.
    fn authorities(&self) -> Arc<[DistinguishedName]>;
}

/// Why a client's certificate does not count. The client is told by the alert that goes with it (RFC 8446 §6.2, AMB-43).
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CertificateFault {
    /// Alert `unknown_ca`: it leads to no authority that is trusted, or to one that is not trusted any more.
    #[error("it comes from no authority that is trusted")]
    UnknownAuthority,
    /// Alert `certificate_expired`.
    #[error("it has expired")]
    Expired,
    /// Alert `certificate_expired`, which stands for this as well.
    #[error("it is not valid yet")]
    NotYetValid,
    /// Alert `certificate_revoked`.
    #[error("it has been revoked")]
    Revoked,
    /// Alert `unsupported_certificate`: it is not for clients.
    #[error("it is not meant for the authentication of clients")]
    WrongPurpose,
    /// Alert `decrypt_error`.
    #[error("a signature in its chain is of a kind that is not supported")]
    UnsupportedSignature,
    /// Alert `bad_certificate`.
    #[error("it cannot be read")]
    Unreadable,
    /// Alert `certificate_unknown`: the chain breaks another rule.
    #[error("its chain breaks the rules of RFC 5280")]
    Unacceptable,
    /// Alert `access_denied`: it is valid, and still not wanted.
    #[error("it is not admitted")]
    Denied,
}

impl From<CertificateFault> for CertificateError {
    fn from(fault: CertificateFault) -> Self {
        match fault {
            CertificateFault::UnknownAuthority => Self::UnknownIssuer,
            CertificateFault::Expired => Self::Expired,
            CertificateFault::NotYetValid => Self::NotValidYet,
            CertificateFault::Revoked => Self::Revoked,
            CertificateFault::WrongPurpose => Self::InvalidPurpose,
            CertificateFault::UnsupportedSignature => Self::BadSignature,
            CertificateFault::Unreadable => Self::BadEncoding,
            CertificateFault::Unacceptable => Self::Other(OtherError(Arc::new(fault))),
            CertificateFault::Denied => Self::ApplicationVerificationFailure,
        }
    }
}

impl From<&webpki::Error> for CertificateFault {
    /// What a check of the chain by [`webpki`] has found.
    fn from(error: &webpki::Error) -> Self {
        match error {
            // Signed by another who has the name of one that is trusted.
            webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => Self::UnknownAuthority,
            webpki::Error::CertExpired { .. } | webpki::Error::InvalidCertValidity => Self::Expired,
            webpki::Error::CertNotValidYet { .. } => Self::NotYetValid,
            webpki::Error::CertRevoked => Self::Revoked,
            webpki::Error::RequiredEkuNotFoundContext(_) => Self::WrongPurpose,
            webpki::Error::UnsupportedSignatureAlgorithmContext(_)
            | webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => Self::UnsupportedSignature,
            webpki::Error::BadDer | webpki::Error::BadDerTime | webpki::Error::TrailingData(_) => Self::Unreadable,
            _ => Self::Unacceptable,
        }
    }
}

tokio::task_local! {
    /// The other end of the handshake that runs: all share the settings that hold the [`Verifier`].
    pub(super) static REMOTE: SocketAddr;
}

/// What TLS asks of a certificate, carried on to whoever knows.
#[derive(Debug)]
pub(super) struct Verifier {
    certificates: Arc<dyn ClientCertificates>,
    authorities: Arc<[DistinguishedName]>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn new(
        certificates: Arc<dyn ClientCertificates>,
        authorities: Arc<[DistinguishedName]>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { certificates, authorities, algorithms }
    }
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.authorities
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // It is asked within the handshake only.
        let Ok(remote) = REMOTE.try_with(|remote| *remote) else {
            return Err(Error::InvalidCertificate(CertificateFault::Unacceptable.into()));
        };
        match self.certificates.verify(end_entity, intermediates, remote, now) {
            Ok(()) => Ok(ClientCertVerified::assertion()),
            Err(fault) => Err(Error::InvalidCertificate(fault.into())),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::AlertDescription;

    use super::*;

    #[test]
    fn each_fault_has_its_alert() {
        for (fault, alert) in [
            (CertificateFault::UnknownAuthority, AlertDescription::UnknownCA),
            (CertificateFault::Expired, AlertDescription::CertificateExpired),
            (CertificateFault::NotYetValid, AlertDescription::CertificateExpired),
            (CertificateFault::Revoked, AlertDescription::CertificateRevoked),
            (CertificateFault::WrongPurpose, AlertDescription::UnsupportedCertificate),
            (CertificateFault::UnsupportedSignature, AlertDescription::DecryptError),
            (CertificateFault::Unreadable, AlertDescription::BadCertificate),
            (CertificateFault::Unacceptable, AlertDescription::CertificateUnknown),
            (CertificateFault::Denied, AlertDescription::AccessDenied),
        ] {
            assert_eq!(AlertDescription::from(CertificateError::from(fault)), alert, "{fault:?}");
        }
    }
}
