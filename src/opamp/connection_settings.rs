//! From the values of connection settings to the offer that goes over the wire.
//!
//! An agent replaces all that it has by what it is offered: without an endpoint it refuses, without headers its token is
//! gone, without a certificate its client certificate, without an interval its heartbeats. So an offer is always whole
//! (CON-18, AMB-26), and what would not be whole is an error here and never sent. The hash covers exactly what this agent
//! gets (CON-05, AMB-25).
//!
//! Nothing here knows where the values come from: whoever calls has read Secrets and certificates.

use std::fmt;

use bytes::Bytes;
use prost::Message;

use super::{
    capabilities::AgentCapabilities,
    messages::{self, AgentCapabilities as Bit, ConnectionSettingsOffers, OpAmpConnectionSettings, ServerToAgent},
    offer::{ConnectionSettingsHash, ConnectionSettingsOffer},
    session::Channel,
};

/// The interval that the specification recommends; 0 on the wire would switch heartbeats off (HB-02, AMB-10).
pub const DEFAULT_HEARTBEAT_SECONDS: u64 = 30;

/// The URLs under which an agent may be told to speak OpAMP (CON-17).
const SCHEMES: [&str; 4] = ["wss://", "ws://", "https://", "http://"];

/// A text that is never shown: a token, a key, a URL with a password.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Confidential(String);

impl Confidential {
    /// Takes it as it is.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for the wire alone.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Confidential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Confidential")
    }
}

/// How an agent is to speak OpAMP: the values of `OpAMPConnectionSettings`, all resolved.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OpampSettings {
    /// Where the server is: a URL of `wss`, `ws`, `https` or `http` (CON-17).
    pub endpoint: String,
    /// Sent with each request, in this order, duplicates included (CON-18).
    pub headers: Vec<Header>,
    /// The client certificate; `None`: the agent is to use none.
    pub certificate: Option<Certificate>,
    /// `None`: the agent keeps what it has (CON-22).
    pub tls: Option<Tls>,
    /// `None`: the agent keeps what it has (CON-23).
    pub proxy: Option<Proxy>,
    /// Seconds between two messages of the agent; 0 switches heartbeats off (HB-03).
    pub heartbeat_seconds: u64,
}

/// One HTTP header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Confidential,
}

/// A client certificate in PEM (CON-24).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Certificate {
    /// The certificate, and the intermediate ones that its verification needs.
    pub certificate: String,
    /// Its key; `None` if the agent made it and keeps it to itself (AMB-30).
    pub private_key: Option<Confidential>,
    /// The CA that signed it; `None` if it is self-signed.
    pub authority: Option<String>,
}

/// How the agent verifies the server (CON-22).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Tls {
    /// The CAs to trust, in PEM; empty: none of its own.
    pub authorities: String,
    /// Whether the CAs of the agent's system count as well.
    pub system_authorities: SystemAuthorities,
    /// Whether the server is verified at all.
    pub verification: Verification,
    /// The lowest version, `1.2` or `1.3`; empty: the agent's own choice.
    pub min_version: String,
    /// The highest version; empty: the agent's own choice.
    pub max_version: String,
    /// Names of cipher suites as IANA spells them; empty: the agent's own choice.
    pub cipher_suites: Vec<String>,
}

/// Whether the CAs of the agent's system are trusted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SystemAuthorities {
    /// Only those that are named.
    #[default]
    Ignored,
    /// They too.
    Trusted,
}

/// Whether the agent verifies the server's certificate.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Verification {
    /// It does.
    #[default]
    Required,
    /// It takes any; somebody has asked for that in so many words.
    Skipped,
}

/// The way through which the agent reaches the server (CON-23).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Proxy {
    /// Where the proxy is; it may hold a password.
    pub url: Confidential,
    /// Sent with the CONNECT request, in this order.
    pub connect_headers: Vec<Header>,
}

/// What the settings depend on besides their values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Recipient {
    /// What the agent is able to do.
    pub capabilities: AgentCapabilities,
    /// Over which transport it was last seen.
    pub transport: Transport,
}

/// Over which transport an agent speaks.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Transport {
    /// The server reaches it at any time.
    WebSocket,
    /// It is reached when it polls, and it polls at the heartbeat interval.
    Http,
}

impl From<Channel> for Transport {
    fn from(channel: Channel) -> Self {
        match channel {
            Channel::WebSocket(_) => Self::WebSocket,
            Channel::Http => Self::Http,
        }
    }
}

/// Why settings are not whole. No text holds more of them than the endpoint.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IncompleteSettings {
    /// CON-17.
    #[error("the endpoint {endpoint:?} is no URL of wss, ws, https or http")]
    Endpoint {
        /// As it was given.
        endpoint: String,
    },
    /// A header without a name would be refused, or lost, with its value.
    #[error("header {index} has no name")]
    HeaderName {
        /// Its place, from 0.
        index: usize,
    },
    /// A certificate is to be used, and there is none (CON-24).
    #[error("the client certificate is empty")]
    Certificate,
    /// CON-23.
    #[error("the URL of the proxy is empty")]
    ProxyUrl,
}

impl OpampSettings {
    /// The offer for one agent. The same values for the same kind of agent give the same bytes and hash, in every replica
    /// and version.
    pub fn offer(&self, recipient: Recipient) -> Result<ConnectionSettingsOffer, IncompleteSettings> {
        self.check()?;
        let opamp = OpAmpConnectionSettings {
            destination_endpoint: self.endpoint.clone(),
            headers: encode_headers(&self.headers),
            certificate: self.certificate.as_ref().map(Certificate::encode),
            heartbeat_interval_seconds: self.heartbeat_seconds_for(recipient),
            tls: self.tls.as_ref().map(Tls::encode),
            proxy: self.proxy.as_ref().map(Proxy::encode),
        };
        let mut settings = ConnectionSettingsOffers { opamp: Some(opamp), ..ConnectionSettingsOffers::default() };
        let hash = ConnectionSettingsHash::of(&settings.encode_to_vec());
        settings.hash = Bytes::copy_from_slice(hash.as_bytes());
        let message = ServerToAgent { connection_settings: Some(settings), ..ServerToAgent::default() };
        Ok(ConnectionSettingsOffer { hash, encoded: message.encode_to_vec().into() })
    }

    fn check(&self) -> Result<(), IncompleteSettings> {
        if !SCHEMES.iter().any(|scheme| self.endpoint.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty())) {
            return Err(IncompleteSettings::Endpoint { endpoint: self.endpoint.clone() });
        }
        let connect_headers = self.proxy.iter().flat_map(|proxy| &proxy.connect_headers);
        if let Some(index) = self.headers.iter().chain(connect_headers).position(|header| header.name.is_empty()) {
            return Err(IncompleteSettings::HeaderName { index });
        }
        if self.certificate.as_ref().is_some_and(|certificate| certificate.certificate.is_empty()) {
            return Err(IncompleteSettings::Certificate);
        }
        if self.proxy.as_ref().is_some_and(|proxy| proxy.url.expose().is_empty()) {
            return Err(IncompleteSettings::ProxyUrl);
        }
        Ok(())
    }

    /// An agent without the capability gets none (HB-02). One that polls is not told to stop: it would never be reached
    /// again (AMB-10).
    fn heartbeat_seconds_for(&self, recipient: Recipient) -> u64 {
        if !recipient.capabilities.has(Bit::ReportsHeartbeat) {
            return 0;
        }
        match (self.heartbeat_seconds, recipient.transport) {
            (0, Transport::Http) => DEFAULT_HEARTBEAT_SECONDS,
            (seconds, Transport::WebSocket | Transport::Http) => seconds,
        }
    }
}

impl Certificate {
    fn encode(&self) -> messages::TlsCertificate {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        messages::TlsCertificate {
            cert: bytes(&self.certificate),
            private_key: self.private_key.as_ref().map(|key| bytes(key.expose())).unwrap_or_default(),
            ca_cert: self.authority.as_deref().map(bytes).unwrap_or_default(),
        }
    }
}

impl Tls {
    fn encode(&self) -> messages::TlsConnectionSettings {
        messages::TlsConnectionSettings {
            ca_pem_contents: self.authorities.clone(),
            include_system_ca_certs_pool: self.system_authorities == SystemAuthorities::Trusted,
            insecure_skip_verify: self.verification == Verification::Skipped,
            min_version: self.min_version.clone(),
            max_version: self.max_version.clone(),
            cipher_suites: self.cipher_suites.clone(),
        }
    }
}

impl Proxy {
    fn encode(&self) -> messages::ProxyConnectionSettings {
        messages::ProxyConnectionSettings {
            url: self.url.expose().into(),
            connect_headers: encode_headers(&self.connect_headers),
        }
    }
}

fn encode_headers(headers: &[Header]) -> Option<messages::Headers> {
    let encode = |header: &Header| messages::Header { key: header.name.clone(), value: header.value.expose().into() };
    (!headers.is_empty()).then(|| messages::Headers { headers: headers.iter().map(encode).collect() })
}
