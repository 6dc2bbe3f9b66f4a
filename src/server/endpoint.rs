//! Where agents are served, and through what.

use std::net::SocketAddr;

use super::{proxies::Proxies, tls::Tls};

/// Where a listener is to be found, and what stands before it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Address and port. Port 0: any that is free.
    pub address: SocketAddr,
    /// The path of the URL at which OpAMP is served (TRN-02).
    pub path: String,
    /// How it does TLS; `None`: it serves plain text.
    pub tls: Option<Tls>,
    /// Which proxies are believed.
    pub proxies: Proxies,
}
