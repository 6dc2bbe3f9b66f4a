//! From an accepted socket to a connection on which HTTP is spoken: the word of a proxy, then TLS.

use std::{net::SocketAddr, sync::Arc};

use tokio::time::timeout;

use super::{
    admission::Slot,
    http,
    metrics::TlsOutcome,
    peer::{Peer, Protection},
    proxies::{CertificateHeader, ProxyProtocol, read_address},
    shared::Shared,
    stream::{Rewound, Stream, first_bytes, linger},
    tls::{Failure, Protected, Tls, shake_hands},
};

/// Serves a connection until it ends or becomes a WebSocket, which then has a task of its own.
pub async fn serve<S: Stream>(mut stream: S, remote: SocketAddr, slot: Slot, shared: Arc<Shared>) {
    let Some(address) = address(&mut stream, remote, &shared).await else { return };
    let certificate_header = shared.proxies.certificate_header_from(remote.ip());
    let Some(tls) = &shared.tls else {
        let peer = Peer { address, protection: Protection::Plain, certificates: None };
        return http::serve(stream, peer, certificate_header, slot, shared).await;
    };
    let Some(stream) = protect(stream, address, tls, &shared).await else { return };
    let certificates = match certificate_header {
        CertificateHeader::Ignored => stream.certificates(),
        // They are the proxy's own.
        CertificateHeader::Believed => None,
    };
    let peer = Peer { address, protection: Protection::Tls, certificates };
    http::serve(stream, peer, certificate_header, slot, shared).await;
}

/// Where the connection comes from; `None` if it must say so and does not.
async fn address<S: Stream>(stream: &mut S, remote: SocketAddr, shared: &Shared) -> Option<SocketAddr> {
    match shared.proxies.protocol_from(remote.ip()) {
        ProxyProtocol::NotSpoken => return Some(remote),
        ProxyProtocol::Required => {}
    }
    match timeout(shared.limits.head_timeout, read_address(stream)).await {
        Ok(Ok(told)) => return Some(told.unwrap_or(remote)),
        Ok(Err(error)) => tracing::debug!(%remote, %error, "a trusted proxy sent no usable PROXY header"),
        Err(_) => tracing::debug!(%remote, "a trusted proxy sent no PROXY header in time"),
    }
    shared.metrics.proxy_header_errors.inc();
    None
}

/// Does the handshake of TLS, in the time for it.
async fn protect<S: Stream>(mut stream: S, address: SocketAddr, tls: &Tls, shared: &Shared) -> Option<Protected<S>> {
    let _open = shared.metrics.shake_hands();
    let handshake = async {
        let first = first_bytes(&mut stream).await;
        shake_hands(tls, address, Rewound::new(first, stream)).await
    };
    let outcome = timeout(shared.limits.tls_timeout, handshake).await;
    let (protected, outcome, rest) = match outcome {
        Ok(Ok((stream, outcome))) => (Some(stream), outcome, None),
        Ok(Err(Failure { outcome, rest })) => (None, outcome, rest),
        Err(_) => (None, TlsOutcome::TooSlow, None),
    };
    shared.metrics.shook_hands(outcome);
    if protected.is_none() {
        tracing::debug!(remote = %address, ?outcome, "no TLS");
    }
    if let Some(mut rest) = rest {
        // Whoever does not end in time is cut off.
        let _ = timeout(shared.limits.close_timeout, linger(&mut rest)).await;
    }
    protected
}
