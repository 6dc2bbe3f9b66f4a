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

#[cfg(test)]
mod tests {
    use super::*;

    const BEATING: u64 = Bit::AcceptsOpAmpConnectionSettings as u64 | Bit::ReportsHeartbeat as u64;
    const WEBSOCKET: Recipient = recipient(BEATING, Transport::WebSocket);

    const fn recipient(capabilities: u64, transport: Transport) -> Recipient {
        Recipient { capabilities: AgentCapabilities::from_bits(capabilities), transport }
    }

    fn header(name: &str, value: &str) -> Header {
        Header { name: name.into(), value: Confidential::new(value) }
    }

    fn settings() -> OpampSettings {
        OpampSettings {
            endpoint: "wss://opamp.example.com:4320/v1/opamp".into(),
            headers: vec![header("Authorization", "Bearer token-1"), header("X-Team", "b"), header("X-Team", "a")],
            certificate: Some(Certificate {
                certificate: "certificate in PEM".into(),
                private_key: Some(Confidential::new("key in PEM")),
                authority: Some("authority in PEM".into()),
            }),
            tls: Some(Tls {
                authorities: "server's authority in PEM".into(),
                system_authorities: SystemAuthorities::Trusted,
                verification: Verification::Required,
                min_version: "1.2".into(),
                max_version: "1.3".into(),
                cipher_suites: vec!["TLS_AES_128_GCM_SHA256".into()],
            }),
            proxy: Some(Proxy {
                url: Confidential::new("https://user:password@proxy.example.com:8443"),
                connect_headers: vec![header("Proxy-Authorization", "Basic c2VjcmV0")],
            }),
            heartbeat_seconds: 15,
        }
    }

    /// What an agent reads of it.
    fn read(offer: &ConnectionSettingsOffer) -> ConnectionSettingsOffers {
        let message = ServerToAgent::decode(offer.encoded.clone()).unwrap();
        let settings = message.connection_settings.clone().unwrap();
        let alone = ServerToAgent { connection_settings: Some(settings.clone()), ..ServerToAgent::default() };
        assert_eq!(message, alone, "field 4 and nothing else");
        assert_eq!(settings.hash, offer.hash.as_bytes()[..]);
        settings
    }

    fn opamp(settings: &OpampSettings, recipient: Recipient) -> OpAmpConnectionSettings {
        read(&settings.offer(recipient).unwrap()).opamp.unwrap()
    }

    #[test]
    fn an_offer_holds_every_value_as_it_was_given() {
        // CON-01, CON-18, CON-22, CON-23, CON-24, HB-02
        let read = read(&settings().offer(WEBSOCKET).unwrap());
        let header = |key: &str, value: &str| messages::Header { key: key.into(), value: value.into() };
        let opamp = OpAmpConnectionSettings {
            destination_endpoint: "wss://opamp.example.com:4320/v1/opamp".into(),
            headers: Some(messages::Headers {
                headers: vec![header("Authorization", "Bearer token-1"), header("X-Team", "b"), header("X-Team", "a")],
            }),
            certificate: Some(messages::TlsCertificate {
                cert: Bytes::from_static(b"certificate in PEM"),
                private_key: Bytes::from_static(b"key in PEM"),
                ca_cert: Bytes::from_static(b"authority in PEM"),
            }),
            heartbeat_interval_seconds: 15,
            tls: Some(messages::TlsConnectionSettings {
                ca_pem_contents: "server's authority in PEM".into(),
                include_system_ca_certs_pool: true,
                insecure_skip_verify: false,
                min_version: "1.2".into(),
                max_version: "1.3".into(),
                cipher_suites: vec!["TLS_AES_128_GCM_SHA256".into()],
            }),
            proxy: Some(messages::ProxyConnectionSettings {
                url: "https://user:password@proxy.example.com:8443".into(),
                connect_headers: Some(messages::Headers {
                    headers: vec![header("Proxy-Authorization", "Basic c2VjcmV0")],
                }),
            }),
        };
        let hash = read.hash.clone();
        assert_eq!(
            read,
            ConnectionSettingsOffers { hash, opamp: Some(opamp), ..ConnectionSettingsOffers::default() },
            "CON-20: what is not set is left alone"
        );
    }

    #[test]
    fn what_was_not_given_is_not_there() {
        // CON-22, CON-23: absent means unchanged; AMB-30: the agent has the key
        let mut bare = OpampSettings { headers: vec![], tls: None, proxy: None, ..settings() };
        if let Some(certificate) = &mut bare.certificate {
            (certificate.private_key, certificate.authority) = (None, None);
        }
        let read = opamp(&bare, WEBSOCKET);
        assert_eq!((read.headers, read.tls, read.proxy), (None, None, None));
        let certificate = read.certificate.unwrap();
        assert_eq!((certificate.private_key.len(), certificate.ca_cert.len()), (0, 0));
        let without = OpampSettings { certificate: None, ..settings() };
        assert_eq!(opamp(&without, WEBSOCKET).certificate, None);
    }

    #[test]
    fn the_interval_is_for_agents_with_heartbeats_and_never_stops_one_that_polls() {
        // HB-02, HB-03, AMB-10, AMB-11
        const MUTE: u64 = Bit::AcceptsOpAmpConnectionSettings as u64;
        for (given, capabilities, transport, expected) in [
            (15, BEATING, Transport::WebSocket, 15),
            (15, BEATING, Transport::Http, 15),
            (0, BEATING, Transport::WebSocket, 0),
            (0, BEATING, Transport::Http, 30),
            (15, MUTE, Transport::WebSocket, 0),
            (15, MUTE, Transport::Http, 0),
        ] {
            let settings = OpampSettings { heartbeat_seconds: given, ..settings() };
            let read = opamp(&settings, recipient(capabilities, transport));
            assert_eq!(read.heartbeat_interval_seconds, expected, "{given} {capabilities:#x} {transport:?}");
        }
    }

    #[test]
    fn what_would_cut_off_an_agent_is_never_offered() {
        // CON-17, CON-23, CON-24
        let endpoint = |text: &str| OpampSettings { endpoint: text.into(), ..settings() };
        for text in ["", "ftp://h", "host:4320", "wss://", "WSS://h"] {
            let error = endpoint(text).offer(WEBSOCKET).unwrap_err();
            assert_eq!(error, IncompleteSettings::Endpoint { endpoint: text.into() });
        }
        for text in ["wss://h", "ws://h/v1/opamp", "https://h:4320/v1/opamp", "http://[::1]"] {
            assert_eq!(opamp(&endpoint(text), WEBSOCKET).destination_endpoint, text);
        }
        let nameless = vec![header("A", "1"), header("", "2")];
        let empty = Certificate { certificate: String::new(), private_key: None, authority: None };
        let nowhere = Proxy { url: Confidential::default(), connect_headers: vec![] };
        for (settings, expected) in [
            (OpampSettings { headers: nameless, ..settings() }, IncompleteSettings::HeaderName { index: 1 }),
            (OpampSettings { certificate: Some(empty), ..settings() }, IncompleteSettings::Certificate),
            (OpampSettings { proxy: Some(nowhere), ..settings() }, IncompleteSettings::ProxyUrl),
        ] {
            assert_eq!(settings.offer(WEBSOCKET).unwrap_err(), expected);
        }
    }

    #[test]
    fn the_hash_covers_each_value_and_what_the_agent_gets_of_it() {
        // CON-05, AMB-25
        let changes: [fn(&mut OpampSettings); 9] = [
            |_| {},
            |settings| settings.endpoint.push('2'),
            |settings| settings.headers.reverse(),
            |settings| settings.headers[0].value = Confidential::new("Bearer token-2"),
            |settings| settings.certificate = None,
            |settings| settings.tls = None,
            |settings| settings.tls.as_mut().unwrap().verification = Verification::Skipped,
            |settings| settings.proxy = None,
            |settings| settings.heartbeat_seconds = 16,
        ];
        let hashes: std::collections::BTreeSet<_> = changes
            .iter()
            .map(|change| {
                let mut settings = settings();
                change(&mut settings);
                settings.offer(WEBSOCKET).unwrap().hash
            })
            .collect();
        assert_eq!(hashes.len(), changes.len());
        let hash = |recipient| settings().offer(recipient).unwrap().hash;
        assert_eq!(hash(WEBSOCKET), hash(recipient(BEATING, Transport::Http)), "it gets the same");
        assert_ne!(hash(WEBSOCKET), hash(recipient(0x100, Transport::WebSocket)), "it gets no interval");
    }

    #[test]
    fn the_hash_is_the_sha256_of_the_settings_without_it() {
        // CON-05, AMB-35: field 2 with the endpoint in field 1 and the interval in field 4
        let minimal = OpampSettings {
            endpoint: "ws://h".into(),
            headers: vec![],
            certificate: None,
            tls: None,
            proxy: None,
            heartbeat_seconds: DEFAULT_HEARTBEAT_SECONDS,
        };
        let offer = minimal.offer(WEBSOCKET).unwrap();
        let settings = [&[0x12, 10, 0x0a, 6][..], b"ws://h", &[0x20, 30]].concat();
        assert_eq!(offer.hash, ConnectionSettingsHash::of(&settings));
        let encoded = [&[0x22, 46, 0x0a, 32][..], offer.hash.as_bytes(), &settings].concat();
        assert_eq!(offer.encoded, encoded);
    }

    #[test]
    fn no_secret_is_shown() {
        let shown = format!("{:?} {:?}", settings(), settings().offer(WEBSOCKET).unwrap());
        for secret in ["token-1", "key in PEM", "password", "c2VjcmV0"] {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
        assert!(shown.contains("opamp.example.com"), "{shown}");
    }
}
