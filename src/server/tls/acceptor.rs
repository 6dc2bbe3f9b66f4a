//! The settings of a handshake.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    DistinguishedName, Error, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    server::{NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier, danger::ClientCertVerifier},
    version::{TLS12, TLS13},
};

use super::{
    certificate::ServerCertificate,
    clients::{ClientCertificates, Verifier},
};

/// The protocol within TLS (RFC 7301): there is no other, and WebSockets need this one.
const PROTOCOL: &[u8] = b"http/1.1";

/// How a listener does TLS. Clones do it alike, and resume each other's sessions.
#[derive(Clone)]
pub struct Tls(Arc<Acceptor>);

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare TLS")]
pub struct TlsError(#[from] Error);

struct Acceptor {
    certificate: Arc<ServerCertificate>,
    clients: Option<Arc<dyn ClientCertificates>>,
    provider: Arc<CryptoProvider>,
    /// Kept while settings change, so that sessions stay resumable.
    ticketer: Arc<dyn ProducesTickets>,
    current: ArcSwap<Settings>,
}

/// Settings, and the names that they tell clients.
struct Settings {
    authorities: Arc<[DistinguishedName]>,
    config: Arc<ServerConfig>,
}

impl Tls {
    /// TLS with this certificate. Clients are asked for theirs if there is somebody to judge them.
    pub fn new(
        certificate: Arc<ServerCertificate>,
        clients: Option<Arc<dyn ClientCertificates>>,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let ticketer = aws_lc_rs::Ticketer::new()?;
        let authorities = clients.as_ref().map_or_else(Arc::default, |clients| clients.authorities());
        let config = config(&certificate, clients.as_ref(), &authorities, &provider, &ticketer)?;
        let current = ArcSwap::from_pointee(Settings { authorities, config });
        Ok(Self(Arc::new(Acceptor { certificate, clients, provider, ticketer, current })))
    }

    /// The settings of a handshake that begins now.
    pub(super) fn config(&self) -> Result<Arc<ServerConfig>, Error> {
        let Acceptor { certificate, clients, provider, ticketer, current } = &*self.0;
        let settings = current.load();
        let Some(clients) = clients else { return Ok(Arc::clone(&settings.config)) };
        let authorities = clients.authorities();
        if Arc::ptr_eq(&authorities, &settings.authorities) {
            return Ok(Arc::clone(&settings.config));
        }
        let config = config(certificate, Some(clients), &authorities, provider, ticketer)?;
        current.store(Arc::new(Settings { authorities, config: Arc::clone(&config) }));
        Ok(config)
    }
}

fn config(
    certificate: &Arc<ServerCertificate>,
    clients: Option<&Arc<dyn ClientCertificates>>,
    authorities: &Arc<[DistinguishedName]>,
    provider: &Arc<CryptoProvider>,
    ticketer: &Arc<dyn ProducesTickets>,
) -> Result<Arc<ServerConfig>, Error> {
    let algorithms = provider.signature_verification_algorithms;
    let verifier: Arc<dyn ClientCertVerifier> = match clients {
        Some(clients) => Arc::new(Verifier::new(Arc::clone(clients), Arc::clone(authorities), algorithms)),
        None => WebPkiClientVerifier::no_client_auth(),
    };
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::clone(certificate) as _);
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.ticketer = Arc::clone(ticketer);
    // A ticket holds the session; who resumes more than once is given another each time.
    config.send_tls13_tickets = 1;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    // Without it a resumed session of TLS 1.2 may be passed off as another client's (RFC 7627 §1).
    config.require_ems = true;
    Ok(Arc::new(config))
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Acceptor { certificate, clients, .. } = &*self.0;
        formatter
            .debug_struct("Tls")
            .field("certificate", certificate)
            .field("clients", clients)
            .finish_non_exhaustive()
    }
}
