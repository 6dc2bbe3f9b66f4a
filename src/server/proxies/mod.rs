//! Proxies in front of the listener, and what is believed of what they say.
//!
//! Only who connects from a configured address is believed, and only what was asked for: the address of the peer in a PROXY
//! header, version 2, and its certificate in the headers of RFC 9440. Whoever else sends these is heard as if they were not
//! there.

mod certificate_header;
mod cidr;
mod protocol;

use std::net::IpAddr;

pub(super) use certificate_header::{HeaderError, take as take_certificates};
pub use cidr::{Cidr, CidrError};
pub(super) use protocol::read_address;

/// Which proxies are believed, and what.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// The addresses from which they connect.
    pub trusted: Vec<Cidr>,
    /// Whether they say where a connection comes from.
    pub protocol: ProxyProtocol,
    /// Whether they say which certificate a client showed to them.
    pub certificate_header: CertificateHeader,
}

/// Whether trusted proxies speak the PROXY protocol, version 2.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ProxyProtocol {
    /// They do not: such a header is a malformed beginning.
    #[default]
    NotSpoken,
    /// Each connection from one of them begins with it; one that does not is closed.
    Required,
}

/// Whether the headers `Client-Cert` and `Client-Cert-Chain` (RFC 9440) are believed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CertificateHeader {
    /// They are dropped unread.
    #[default]
    Ignored,
    /// They say which certificate the client has. The connection's own certificate is the proxy's and says nothing.
    Believed,
}

impl Proxies {
    /// Whether whoever connects from there begins with a PROXY header.
    pub(super) fn protocol_from(&self, address: IpAddr) -> ProxyProtocol {
        if self.trusts(address) { self.protocol } else { ProxyProtocol::NotSpoken }
    }

    /// Whether the certificate headers of whoever connects from there are believed.
    pub(super) fn certificate_header_from(&self, address: IpAddr) -> CertificateHeader {
        if self.trusts(address) { self.certificate_header } else { CertificateHeader::Ignored }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|range| range.contains(address))
    }
}
