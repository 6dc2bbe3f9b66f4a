//! Which client certificates pass the handshake of TLS. Who shows one that passes is asked for again with each request.

use std::{fmt, net::SocketAddr, sync::Arc};

use jiff::Timestamp;
use rustls::DistinguishedName;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::{authenticator::Authenticator, fault::Fault};
use crate::{
    credentials::anchors::ChainError,
    server::{CertificateFault, ClientCertificates},
};

impl fmt::Debug for Authenticator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Authenticator").finish_non_exhaustive()
    }
}

/// Why a certificate does not pass: what the client is told of what is in it, and what the log is.
struct Refused {
    alert: CertificateFault,
    fault: Fault,
}

impl From<CertificateFault> for Refused {
    fn from(alert: CertificateFault) -> Self {
        Self { alert, fault: Fault::UntrustedCertificate }
    }
}

impl Authenticator {
    /// Whether a certificate passes that a client shows in a handshake.
    fn look_at(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Refused> {
        let now = i64::try_from(now.as_secs()).ok().and_then(|now| Timestamp::from_second(now).ok());
        let now = now.ok_or(CertificateFault::Unacceptable)?;
        match self.own_certificate(end_entity, now) {
            Ok(_) | Err(ChainError::Expired | ChainError::Superseded) => Ok(()),
            Err(ChainError::Revoked) => {
                Err(Refused { alert: CertificateFault::Revoked, fault: Fault::RevokedCertificate })
            }
            Err(ChainError::NotYetValid) => Err(CertificateFault::NotYetValid.into()),
            Err(ChainError::Usage) => Err(CertificateFault::WrongPurpose.into()),
            Err(ChainError::NoName | ChainError::AnotherCluster) => Err(CertificateFault::Denied.into()),
            Err(ChainError::Unreadable | ChainError::Missing) => Err(CertificateFault::Unreadable.into()),
            Err(ChainError::Untrusted) => {
                let chain: Vec<_> =
                    std::iter::once(end_entity).chain(intermediates).map(|it| it.clone().into_owned()).collect();
                match self.of_client_ca(&chain, now) {
                    Ok(_) | Err(Fault::Expired) => Ok(()),
                    Err(fault) => Err(Refused { alert: CertificateFault::UnknownAuthority, fault }),
                }
            }
        }
    }
}

impl ClientCertificates for Authenticator {
    /// A certificate that has ended or was replaced passes: its holder may show a token beside it, and enrol anew. Without one
    /// it is refused by the answer to its request.
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        remote: SocketAddr,
        now: UnixTime,
    ) -> Result<(), CertificateFault> {
        self.look_at(end_entity, intermediates, now).map_err(|Refused { alert, fault }| {
            self.refused_in_handshake(fault, remote);
            alert
        })
    }

    /// None are named: the list would tell everybody which CAs the fleets of all tenants trust, and a client that goes by
    /// it would not show a certificate of an issuer that is not in it.
    fn authorities(&self) -> Arc<[DistinguishedName]> {
        Arc::clone(&self.no_hints)
    }
}
