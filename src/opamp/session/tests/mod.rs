//! Transcripts: what an agent says, what it hears back. The stage holds the invariants after every step.

mod certificates;
mod connection_settings;
mod convergence;
mod duplicates;
mod hostile;
mod offers;
mod presence;
mod settings_convergence;
mod size;
mod status;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use jiff::Timestamp;
use prost::Message;

use super::*;
use crate::opamp::{
    capabilities::AgentCapabilities,
    connection_settings::{OpampSettings, Recipient, Transport},
    inbound::decode,
    messages::{
        AgentCapabilities as Bit, AgentConfigFile, AgentConfigMap, AgentDescription, AgentDisconnect,
        AgentRemoteConfig, AgentToServer, AnyValue, AvailableComponents, CertificateRequest, ComponentDetails,
        ComponentHealth, ConnectionSettingsRequest, ConnectionSettingsStatus, ConnectionSettingsStatuses,
        CustomCapabilities, EffectiveConfig, KeyValue, OpAmpConnectionSettingsRequest, RemoteConfigStatus,
        RemoteConfigStatuses, ServerToAgent, any_value::Value,
    },
    offer::{CertificateRequests, ConfigHash, ConnectionSettingsOffer, RemoteConfigOffer},
};

pub(super) const HTTP: Channel = Channel::Http;
pub(super) const FULL_STATE: u64 = 1;
pub(super) const COMPONENTS: u64 = 2;
/// What the server is able to do where requests are not served.
pub(super) const CAN: u64 = 0x27;
/// Takes connection settings and never says what became of them, as the supervisor does.
pub(super) const SILENT: u64 = CAPABLE | Bit::AcceptsOpAmpConnectionSettings as u64;
/// Takes connection settings and reports.
pub(super) const TALKATIVE: u64 = SILENT | Bit::ReportsConnectionSettingsStatus as u64;
/// Reports everything that this server takes, and accepts configurations.
pub(super) const CAPABLE: u64 = Bit::ReportsStatus as u64
    | Bit::AcceptsRemoteConfig as u64
    | Bit::ReportsEffectiveConfig as u64
    | Bit::ReportsHealth as u64
    | Bit::ReportsRemoteConfig as u64;

pub(super) fn socket(number: u64) -> Channel {
    Channel::WebSocket(ConnectionId::new(number))
}

pub(super) fn uid() -> InstanceUid {
    InstanceUid::from_wire(&[0x0b; 16]).unwrap()
}

/// An offer of one file with this content; the content is its hash's preimage.
pub(super) fn offering(content: &str) -> Offer {
    let hash = ConfigHash::of(content.as_bytes());
    let file = AgentConfigFile { body: Bytes::copy_from_slice(content.as_bytes()), content_type: String::new() };
    let config = AgentConfigMap { config_map: BTreeMap::from([(String::new(), file)]) };
    let remote_config =
        AgentRemoteConfig { config: Some(config), config_hash: Bytes::copy_from_slice(hash.as_bytes()) };
    let message = ServerToAgent { remote_config: Some(remote_config), ..ServerToAgent::default() };
    let encoded = message.encode_to_vec().into();
    Offer { remote_config: Some(Arc::new(RemoteConfigOffer { hash, encoded })), ..Offer::default() }
}

/// Settings that lead to this host.
pub(super) fn settings(host: &str) -> Arc<ConnectionSettingsOffer> {
    let settings = OpampSettings {
        endpoint: format!("wss://{host}/v1/opamp"),
        headers: Vec::new(),
        certificate: None,
        tls: None,
        proxy: None,
        heartbeat_seconds: 30,
    };
    let recipient = Recipient { capabilities: AgentCapabilities::from_bits(1), transport: Transport::WebSocket };
    Arc::new(settings.offer(recipient).unwrap())
}

/// An offer of settings that lead to this host, and nothing else.
pub(super) fn leading_to(host: &str) -> Offer {
    Offer { connection_settings: Some(settings(host)), ..Offer::default() }
}

pub(super) fn hash_of(content: &str) -> Vec<u8> {
    if content.is_empty() { Vec::new() } else { ConfigHash::of(content.as_bytes()).as_bytes().to_vec() }
}

pub(super) fn settings_hash(host: &str) -> Vec<u8> {
    if host.is_empty() { Vec::new() } else { settings(host).hash.as_bytes().to_vec() }
}

/// A message in the making.
#[derive(Clone)]
pub(super) struct Say(pub(super) AgentToServer);

/// A message with this number and nothing else.
pub(super) fn say(number: u64) -> Say {
    let instance_uid = Bytes::copy_from_slice(uid().as_bytes());
    Say(AgentToServer { instance_uid, sequence_num: number, ..AgentToServer::default() })
}

/// Everything that a [`CAPABLE`] agent reports; its configuration has no status yet.
pub(super) fn full(number: u64) -> Say {
    say(number)
        .capable(CAPABLE)
        .named("edge-1")
        .health("")
        .running("receivers: {}")
        .status("", RemoteConfigStatuses::Unset)
}

impl Say {
    pub(super) fn capable(mut self, bits: u64) -> Self {
        self.0.capabilities = bits;
        self
    }

    pub(super) fn named(mut self, host: &str) -> Self {
        let value = Some(AnyValue { value: Some(Value::StringValue(host.into())) });
        let identifying_attributes = vec![KeyValue { key: "host.name".into(), value }];
        self.0.agent_description =
            Some(AgentDescription { identifying_attributes, non_identifying_attributes: Vec::new() });
        self
    }

    /// Healthy without an error, else not.
    pub(super) fn health(mut self, error: &str) -> Self {
        let healthy = error.is_empty();
        self.0.health = Some(ComponentHealth { healthy, last_error: error.into(), ..ComponentHealth::default() });
        self
    }

    pub(super) fn running(mut self, content: &str) -> Self {
        let body = Bytes::copy_from_slice(content.as_bytes());
        let file = AgentConfigFile { body, content_type: "text/yaml".into() };
        let config_map = Some(AgentConfigMap { config_map: BTreeMap::from([(String::new(), file)]) });
        self.0.effective_config = Some(EffectiveConfig { config_map });
        self
    }

    pub(super) fn status(mut self, content: &str, status: RemoteConfigStatuses) -> Self {
        let failed = status == RemoteConfigStatuses::Failed;
        self.0.remote_config_status = Some(RemoteConfigStatus {
            last_remote_config_hash: hash_of(content).into(),
            status: status.into(),
            error_message: if failed { "no such exporter".into() } else { String::new() },
        });
        self
    }

    /// The status of settings that lead to this host; of none if it is empty.
    pub(super) fn settings(mut self, host: &str, status: ConnectionSettingsStatuses) -> Self {
        let failed = status == ConnectionSettingsStatuses::Failed;
        self.0.connection_settings_status = Some(ConnectionSettingsStatus {
            last_connection_settings_hash: settings_hash(host).into(),
            status: status.into(),
            error_message: if failed { "no route to host".into() } else { String::new() },
        });
        self
    }

    /// Asks for a certificate.
    pub(super) fn asking(mut self, csr: &[u8]) -> Self {
        let certificate_request = Some(CertificateRequest { csr: Bytes::copy_from_slice(csr) });
        let opamp = Some(OpAmpConnectionSettingsRequest { certificate_request });
        self.0.connection_settings_request = Some(ConnectionSettingsRequest { opamp });
        self
    }

    pub(super) fn components(mut self, hash: &[u8], names: &[&str]) -> Self {
        let components = names.iter().map(|name| ((*name).into(), ComponentDetails::default())).collect();
        self.0.available_components = Some(AvailableComponents { components, hash: Bytes::copy_from_slice(hash) });
        self
    }

    pub(super) fn custom(mut self, names: &[&str]) -> Self {
        let capabilities = names.iter().map(|name| (*name).into()).collect();
        self.0.custom_capabilities = Some(CustomCapabilities { capabilities });
        self
    }

    pub(super) fn goodbye(mut self) -> Self {
        self.0.agent_disconnect = Some(AgentDisconnect {});
        self
    }

    pub(super) fn wanting_a_uid(mut self) -> Self {
        self.0.flags = 1;
        self
    }

    fn bytes(&self) -> Bytes {
        self.0.encode_to_vec().into()
    }
}

/// One session, the clock in front of it, and what is offered.
pub(super) struct Stage {
    pub(super) session: Session,
    pub(super) now: Now,
    pub(super) offer: Offer,
    /// What was sent besides the reply, until somebody looks.
    pub(super) pushed: Vec<(Channel, ServerToAgent)>,
    /// Effects of the last step, without what was sent.
    pub(super) effects: Effects,
}

impl Stage {
    pub(super) fn new() -> Self {
        Self::with(Session::new(uid(), None))
    }

    pub(super) fn with(session: Session) -> Self {
        Self {
            session,
            now: Now { instant: Instant::now(), wall: Timestamp::UNIX_EPOCH },
            offer: Offer::default(),
            pushed: Vec::new(),
            effects: Effects::default(),
        }
    }

    /// An agent that has reported in full with number 1.
    pub(super) fn known(channel: Channel) -> Self {
        let mut stage = Self::new();
        let _ = stage.hears(channel, full(1));
        stage
    }

    pub(super) fn later(&mut self, seconds: u64) {
        let distance = Duration::from_secs(seconds);
        self.now.instant += distance;
        self.now.wall += distance;
    }

    /// The agent says something and gets its one reply.
    pub(super) fn hears(&mut self, from: Channel, say: impl std::borrow::Borrow<Say>) -> ServerToAgent {
        self.hears_bytes(from, say.borrow().bytes())
    }

    pub(super) fn hears_bytes(&mut self, from: Channel, bytes: Bytes) -> ServerToAgent {
        let receipt = self.session.receive(decode(bytes).unwrap(), from, self.now);
        let effects = self.session.answer(receipt, &self.offer, self.now);
        self.note(effects);
        let (channel, reply) = self.pushed.pop().expect("every message has a reply (STS-05)");
        assert_eq!(channel, from, "the reply goes back where the message came from");
        let more = self.pushed.iter().filter(|(channel, _)| *channel == from).count();
        assert_eq!(more, 0, "there is one reply");
        reply
    }

    pub(super) fn pushes(&mut self) -> Vec<(Channel, ServerToAgent)> {
        let effects = self.session.push(&self.offer, self.now);
        self.note(effects);
        std::mem::take(&mut self.pushed)
    }

    /// The owner refuses what the agent has asked for earlier.
    pub(super) fn refuses(&mut self, reason: &str) -> Vec<(Channel, ServerToAgent)> {
        let effects = self.session.refuse_certificate(reason);
        self.note(effects);
        std::mem::take(&mut self.pushed)
    }

    /// The shell's part of a deadline.
    pub(super) fn expires(&mut self) -> Vec<(Channel, ServerToAgent)> {
        let effects = self.session.expire(self.now);
        self.note(effects);
        std::mem::take(&mut self.pushed)
    }

    pub(super) fn pongs(&mut self, number: u64) -> Vec<(Channel, ServerToAgent)> {
        let effects = self.session.pong(ConnectionId::new(number));
        self.note(effects);
        std::mem::take(&mut self.pushed)
    }

    pub(super) fn closes(&mut self, number: u64) -> Vec<(Channel, ServerToAgent)> {
        let effects = self.session.closed(ConnectionId::new(number), self.now);
        self.note(effects);
        std::mem::take(&mut self.pushed)
    }

    fn note(&mut self, mut effects: Effects) {
        for (channel, outbound) in std::mem::take(&mut effects.send) {
            let message = self.decoded(&outbound);
            self.pushed.push((channel, message));
        }
        self.effects = effects;
    }

    /// Decodes what was sent and holds it against the rules that hold always.
    fn decoded(&self, outbound: &Outbound) -> ServerToAgent {
        let bytes = [&outbound.head[..], outbound.tail.as_deref().unwrap_or_default()].concat();
        let message = ServerToAgent::decode(&bytes[..]).unwrap();
        assert_eq!(message.instance_uid, self.session.uid().as_bytes()[..], "S2A-03: uid echo");
        assert_eq!(message.capabilities & !0x7f, 0, "S2A-06: mask");
        assert_eq!(message.capabilities & 1, u64::from(message.capabilities != 0), "S2A-08: AcceptsStatus");
        assert_eq!(message.flags & !0x3, 0, "S2A-10: mask");
        if let Some(error) = message.error_response.clone() {
            assert_eq!(error.r#type, 1, "ERR-02");
            let uid = message.instance_uid.clone();
            let alone = ServerToAgent { instance_uid: uid, error_response: Some(error), ..ServerToAgent::default() };
            assert_eq!(message, alone, "S2A-05: an error stands alone");
        }
        if let Some(settings) = &message.connection_settings {
            assert_eq!(settings.hash.len(), 32, "AMB-35: the hash is never empty");
            assert!(!settings.opamp.as_ref().unwrap().destination_endpoint.is_empty(), "CON-17");
        }
        if let Some(config) = &message.remote_config {
            assert!(self.session.record().capabilities.has(Bit::AcceptsRemoteConfig), "CFG-02: gate");
            assert_eq!(config.config_hash.len(), 32, "CFG-08: the hash is never empty");
        }
        if let Some(identification) = &message.agent_identification {
            let uid = InstanceUid::from_wire(&identification.new_instance_uid).expect("S2A-04: 16 bytes");
            assert_eq!((uid.as_bytes()[6] >> 4, uid.as_bytes()[8] >> 6), (7, 2), "S2A-04: version 7");
            assert_ne!(uid, self.session.uid(), "S2A-04: another one");
        }
        message
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.session.liveness(), Liveness::Connected { .. })
    }
}

/// The content that a message offers.
pub(super) fn content_of(message: &ServerToAgent) -> Option<String> {
    let config = message.remote_config.as_ref()?.config.as_ref()?;
    Some(String::from_utf8(config.config_map[""].body.to_vec()).unwrap())
}

/// The host to which the settings lead that a message offers.
pub(super) fn host_in(message: &ServerToAgent) -> Option<String> {
    let endpoint = &message.connection_settings.as_ref()?.opamp.as_ref()?.destination_endpoint;
    Some(endpoint.strip_prefix("wss://")?.strip_suffix("/v1/opamp")?.into())
}

/// What an error says.
pub(super) fn error_in(message: &ServerToAgent) -> Option<&str> {
    message.error_response.as_ref().map(|error| error.error_message.as_str())
}

/// Whether it is a bare acknowledgement; over HTTP with the capabilities (S2A-01, AMB-05).
pub(super) fn is_acknowledgement(message: &ServerToAgent) -> bool {
    let uid = message.instance_uid.clone();
    let capabilities = message.capabilities;
    *message == ServerToAgent { instance_uid: uid, capabilities, ..ServerToAgent::default() }
}

pub(super) fn new_uid_in(message: &ServerToAgent) -> Option<InstanceUid> {
    InstanceUid::from_wire(&message.agent_identification.as_ref()?.new_instance_uid)
}
