//! Who is at the other end of a connection, as far as the connection itself shows it.

use std::{net::SocketAddr, sync::Arc};

use rustls_pki_types::CertificateDer;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address it comes from. Behind a trusted proxy that tells it, the one that the proxy saw; else it may be a
    /// proxy's or a NAT's.
    pub address: SocketAddr,
    /// How it is connected to the listener.
    pub protection: Protection,
    /// The certificates that it showed, its own first; that it has the key was checked, by the listener or by a trusted
    /// proxy. Of a resumed TLS session they are those of the first handshake, so that whether they still count is to be
    /// asked each time.
    pub certificates: Option<Arc<[CertificateDer<'static>]>>,
}

/// What protects a connection on its last stretch.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Protection {
    /// Nothing: whoever is on the way can read and change it.
    Plain,
    /// TLS, ended by the listener.
    Tls,
}
