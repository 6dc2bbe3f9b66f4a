//! What the stories are told with.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub(super) use super::fleets::fleet;
use super::{credentials::Vault, office::Office};
use crate::{
    agents::index::AgentIndex,
    api::{
        agent::AgentStatus,
        condition::{ConditionType, find},
    },
    bridge::{Bridge, Credentials, Metrics, RequestDesk, Settings, Surroundings},
    catalog::{AnonymousNamespaces, CatalogHandle, FleetEntry, Policy, SecretContent},
    credentials::certificates::Certificates,
    effective_configs::{self, Store},
    kubernetes::Scope,
    opamp::{
        InstanceUid,
        identity::Principal,
        messages::{
            AgentCapabilities as Bit, AgentDescription, AgentDisconnect, AgentToServer, AnyValue, ComponentHealth,
            KeyValue, RemoteConfigStatus, RemoteConfigStatuses, ServerToAgent, any_value,
        },
        session::ConnectionId,
    },
    server::{Agents, CloseReason, Connection, Exchange, Protection, Transport, now},
    status::{
        metrics::Metrics as WriterMetrics,
        render::Owner,
        tests::api_server::ApiServer,
        writer::{AgentViews, StatusWriter, WriterLimits},
    },
};

/// The operator's own namespace.
pub(super) const OWN: &str = "opamp-system";
/// More than the writer waits for further changes.
pub(super) const MOMENT: Duration = Duration::from_secs(1);

/// One replica at work.
pub(super) struct Replica {
    pub(super) bridge: Arc<Bridge>,
    pub(super) server: ApiServer,
    catalog: Arc<CatalogHandle>,
    pub(super) index: AgentIndex,
    writer: StatusWriter,
    pub(super) credentials: Arc<Vault>,
    pub(super) certificates: Certificates,
    pub(super) requests: Arc<Office>,
    stop: CancellationToken,
    writing: tokio::task::JoinHandle<()>,
}

impl Replica {
    /// Replica 0 in its first run, alone, with these fleets.
    pub(super) fn alone(fleets: Vec<FleetEntry>) -> Self {
        Self::first(("opamp-operator-0", "first"), fleets)
    }

    /// A replica of this name in this run, before an API server of its own.
    pub(super) fn first(owner: (&str, &str), fleets: Vec<FleetEntry>) -> Self {
        Self::with(ApiServer::default(), owner, fleets)
    }

    /// A replica of this name in this run, before an API server.
    pub(super) fn with(server: ApiServer, owner: (&str, &str), fleets: Vec<FleetEntry>) -> Self {
        Self::start(server, owner, fleets, 1_000)
    }

    /// One that has room for only so many sessions.
    pub(super) fn with_room(max_sessions: usize, fleets: Vec<FleetEntry>) -> Self {
        Self::start(ApiServer::default(), ("opamp-operator-0", "first"), fleets, max_sessions)
    }

    fn start(server: ApiServer, owner: (&str, &str), fleets: Vec<FleetEntry>, max_sessions: usize) -> Self {
        let owner = Owner { replica: owner.0.into(), incarnation: owner.1.into() };
        let policy = Policy { anonymous: AnonymousNamespaces::All, secrets: SecretContent::Offered };
        let catalog = CatalogHandle::fixed(fleets.into_iter().map(Arc::new).collect(), policy);
        let index = AgentIndex::holding(server.list());
        let writer = StatusWriter::new(owner.clone(), OWN, WriterLimits::default(), WriterMetrics::default());
        let settings = Settings {
            own_namespace: OWN.into(),
            owner,
            max_pending: 500,
            max_sessions,
            http_silence: Duration::from_secs(300),
        };
        let credentials = Arc::new(Vault::default());
        let texts = Store::new(Scope::All, writer.budget(), effective_configs::Metrics::default());
        let certificates = Certificates::new(&Scope::All);
        let requests = Arc::new(Office::of(&certificates));
        let surroundings = Surroundings {
            catalog: Arc::clone(&catalog),
            index: index.clone(),
            writer: writer.clone(),
            texts,
            credentials: Arc::clone(&credentials) as Arc<dyn Credentials>,
            certificates: certificates.clone(),
            trust: requests.trust.clone(),
            requests: Arc::clone(&requests) as Arc<dyn RequestDesk>,
        };
        let bridge = Bridge::new(settings, surroundings, Metrics::default());
        let stop = CancellationToken::new();
        tokio::spawn(Arc::clone(&bridge).run(stop.clone()));
        let views = Arc::clone(&bridge) as Arc<dyn AgentViews>;
        let writing = tokio::spawn(writer.clone().run(server.client(), index.clone(), views));
        Self { bridge, server, catalog, index, writer, credentials, certificates, requests, stop, writing }
    }

    /// It is killed: nothing more is written or followed.
    pub(super) fn die(self) {
        self.stop.cancel();
        self.writing.abort();
    }

    /// From now on these are the fleets.
    pub(super) fn publish(&self, fleets: Vec<FleetEntry>) {
        self.catalog.publish(fleets.into_iter().map(Arc::new).collect());
    }

    /// The watch shows what the API server has.
    pub(super) fn show(&self) {
        self.index.relist(self.server.list());
    }

    /// Until what has changed is written and shown, and has been followed.
    pub(super) async fn settled(&self) {
        settled(&[self]).await;
    }

    /// How many agents wait to be written.
    pub(super) fn touched(&self) -> usize {
        self.writer.left()
    }

    /// How many status patches and how much else was asked of the API server since the last time.
    pub(super) fn requests(&self) -> Requests {
        let requests = self.server.requests();
        let count = |wanted: fn(&str) -> bool| requests.iter().filter(|request| wanted(request)).count();
        Requests {
            created: count(|request| request.starts_with("POST")),
            status: count(|request| request.starts_with("PATCH") && request.ends_with(" status")),
            deleted: count(|request| request.starts_with("DELETE")),
        }
    }

    pub(super) fn status(&self, uid: InstanceUid) -> AgentStatus {
        status(&self.server, uid)
    }

    /// `True`, `False` or `Unknown`, with the reason.
    pub(super) fn condition(&self, uid: InstanceUid, kind: ConditionType) -> String {
        condition(&self.status(uid), kind)
    }

    /// Which replica holds the agent, with which epoch.
    pub(super) fn holder(&self, uid: InstanceUid) -> (String, i64) {
        let connection = self.status(uid).connection.expect("a connection");
        (connection.replica, connection.epoch)
    }

    pub(super) fn open(&self) -> Socket {
        self.open_by(&Principal::anonymous())
    }

    /// A WebSocket that was opened with this credential.
    pub(super) fn open_by(&self, principal: &Principal) -> Socket {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let id = ConnectionId::new(NUMBERS.fetch_add(1, Ordering::Relaxed));
        Socket { bridge: Arc::clone(&self.bridge), connection: connection(id, Transport::WebSocket, principal) }
    }

    /// One poll over HTTP.
    pub(super) fn poll(&self, message: &AgentToServer) -> ServerToAgent {
        self.poll_by(&Principal::anonymous(), message)
    }

    /// One poll over HTTP with this credential.
    pub(super) fn poll_by(&self, principal: &Principal, message: &AgentToServer) -> ServerToAgent {
        let connection = connection(ConnectionId::new(0), Transport::Http, principal);
        let mut replies = decoded(self.bridge.receive(&connection, message.encode_to_vec().into(), now()));
        assert_eq!(replies.len(), 1, "one response");
        replies.remove(0)
    }
}

/// What was asked of the API server.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Requests {
    pub(super) created: usize,
    pub(super) status: usize,
    pub(super) deleted: usize,
}

/// Only so many status patches, and nothing else.
pub(super) fn patches(status: usize) -> Requests {
    Requests { status, ..Requests::default() }
}

/// Until what has changed anywhere is written, shown to all, and followed by all.
pub(super) async fn settled(replicas: &[&Replica]) {
    for _ in 0..3 {
        while replicas.iter().any(|replica| replica.touched() > 0) {
            pass(Duration::from_millis(500)).await;
        }
        replicas.iter().for_each(|replica| replica.show());
        pass(Duration::from_millis(50)).await;
    }
}

pub(super) fn status(server: &ApiServer, uid: InstanceUid) -> AgentStatus {
    let objects: Vec<Value> =
        server.list().into_iter().filter(|object| object["metadata"]["name"] == uid.to_string()).collect();
    assert_eq!(objects.len(), 1, "one object");
    serde_json::from_value(objects[0]["status"].clone()).expect("a status")
}

fn condition(status: &AgentStatus, kind: ConditionType) -> String {
    let condition = find(&status.conditions, kind).expect("the condition");
    format!("{}, {}", condition.status, condition.reason)
}

/// Where the object of an agent lives.
pub(super) fn namespace_of(server: &ApiServer, uid: InstanceUid) -> String {
    let objects = server.list();
    let object = objects.iter().find(|object| object["metadata"]["name"] == uid.to_string()).expect("the object");
    object["metadata"]["namespace"].as_str().expect("a namespace").to_owned()
}

/// Lets the runtime's clock run on; nothing is really waited for.
pub(super) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

fn connection(id: ConnectionId, transport: Transport, principal: &Principal) -> Arc<Connection> {
    Arc::new(Connection::new(
        id,
        transport,
        principal.clone().into(),
        ([10, 0, 0, 7], 40_000).into(),
        Protection::Plain,
    ))
}

/// A WebSocket whose far end the test is.
pub(super) struct Socket {
    bridge: Arc<Bridge>,
    pub(super) connection: Arc<Connection>,
}

impl Socket {
    /// Sends a message; everything that comes back.
    pub(super) fn tell(&self, message: &AgentToServer) -> Vec<ServerToAgent> {
        self.send(message.encode_to_vec())
    }

    /// Sends a message that has one answer.
    pub(super) fn say(&self, message: &AgentToServer) -> ServerToAgent {
        let mut replies = self.tell(message);
        assert_eq!(replies.len(), 1, "{replies:?}");
        let reply = replies.remove(0);
        assert_eq!(reply.instance_uid, message.instance_uid, "S2A-03");
        reply
    }

    /// Sends these bytes.
    pub(super) fn send(&self, payload: Vec<u8>) -> Vec<ServerToAgent> {
        decoded(self.bridge.receive(&self.connection, payload.into(), now()))
    }

    /// What has been pushed since the last time: what the connection's task gets when it was woken.
    pub(super) fn pushed(&self) -> Vec<ServerToAgent> {
        if self.connection.take_wake() { self.due() } else { Vec::new() }
    }

    /// What is due now, as when the catalog has moved.
    pub(super) fn due(&self) -> Vec<ServerToAgent> {
        decoded(self.bridge.due(&self.connection, now()))
    }

    /// Whether it was asked for a sign of life since the last time.
    pub(super) fn is_pinged(&self) -> bool {
        self.connection.take_ping()
    }

    /// Gives it.
    pub(super) fn pong(&self) -> Vec<ServerToAgent> {
        decoded(self.bridge.pong(&self.connection, now()))
    }

    /// Whether the server closes it.
    pub(super) fn is_closed(&self) -> bool {
        self.closes_for().is_some()
    }

    /// Why the server closes it.
    pub(super) fn closes_for(&self) -> Option<CloseReason> {
        self.connection.close_reason()
    }

    /// It ends.
    pub(super) fn close(self) {
        self.bridge.closed(&self.connection, now());
    }
}

fn decoded(exchange: Exchange) -> Vec<ServerToAgent> {
    let decode = |outbound: crate::opamp::session::Outbound| {
        let bytes = [&outbound.head[..], &outbound.tail.unwrap_or_default()].concat();
        ServerToAgent::decode(&*bytes).expect("a ServerToAgent")
    };
    exchange.send.into_iter().map(decode).collect()
}

/// The hash of the configuration in a message.
pub(super) fn offered(message: &ServerToAgent) -> Option<Bytes> {
    message.remote_config.as_ref().map(|config| config.config_hash.clone())
}

/// The text of the configuration in a message.
pub(super) fn text(message: &ServerToAgent) -> Option<String> {
    let files = &message.remote_config.as_ref()?.config.as_ref()?.config_map;
    files.values().next().map(|file| String::from_utf8(file.body.to_vec()).expect("text"))
}

/// The uid that a message gives.
pub(super) fn new_uid(message: &ServerToAgent) -> Option<InstanceUid> {
    InstanceUid::from_wire(&message.agent_identification.as_ref()?.new_instance_uid)
}

/// Whether a message asks for a full report.
pub(super) fn asks_for_all(message: &ServerToAgent) -> bool {
    message.flags & 1 != 0
}

/// An agent, as far as it speaks. Each of its messages has the next number.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    pub(super) uid: InstanceUid,
    pub(super) attributes: BTreeMap<String, String>,
    /// What it is able to do.
    pub(super) capabilities: u64,
    number: u64,
}

impl Agent {
    /// A collector on Linux.
    pub(super) fn new() -> Self {
        Self::of(InstanceUid::generate())
    }

    /// The same, under this uid.
    pub(super) fn of(uid: InstanceUid) -> Self {
        let attributes = [("service.name", "otelcol"), ("os.type", "linux")];
        let capabilities =
            Bit::ReportsStatus as u64 | Bit::AcceptsRemoteConfig as u64 | Bit::ReportsRemoteConfig as u64;
        Self {
            uid,
            attributes: attributes.map(|(key, value)| (key.into(), value.into())).into(),
            capabilities,
            number: 0,
        }
    }

    fn message(&mut self) -> AgentToServer {
        self.number += 1;
        AgentToServer {
            instance_uid: Bytes::copy_from_slice(self.uid.as_bytes()),
            sequence_num: self.number,
            capabilities: self.capabilities,
            ..AgentToServer::default()
        }
    }

    /// A report of everything, with the hash and the state of its configuration.
    pub(super) fn report_of(&mut self, hash: &[u8], state: RemoteConfigStatuses) -> AgentToServer {
        let pairs = self.attributes.iter();
        let identifying_attributes = pairs.map(|(key, value)| KeyValue {
            key: key.clone(),
            value: Some(AnyValue { value: Some(any_value::Value::StringValue(value.clone())) }),
        });
        AgentToServer {
            agent_description: Some(AgentDescription {
                identifying_attributes: identifying_attributes.collect(),
                ..AgentDescription::default()
            }),
            ..self.about(hash, state, "")
        }
    }

    /// A report of everything, by an agent that never had a configuration.
    pub(super) fn report(&mut self) -> AgentToServer {
        self.report_of(b"", RemoteConfigStatuses::Unset)
    }

    /// What became of its configuration.
    pub(super) fn about(&mut self, hash: &[u8], state: RemoteConfigStatuses, error: &str) -> AgentToServer {
        AgentToServer {
            remote_config_status: Some(RemoteConfigStatus {
                last_remote_config_hash: Bytes::copy_from_slice(hash),
                status: state.into(),
                error_message: error.into(),
            }),
            ..self.message()
        }
    }

    pub(super) fn unwell(&mut self, error: &str) -> AgentToServer {
        let health = ComponentHealth { last_error: error.into(), ..ComponentHealth::default() };
        AgentToServer { health: Some(health), ..self.message() }
    }

    pub(super) fn heartbeat(&mut self) -> AgentToServer {
        self.message()
    }

    pub(super) fn goodbye(&mut self) -> AgentToServer {
        AgentToServer { agent_disconnect: Some(AgentDisconnect {}), ..self.message() }
    }

    /// Reports everything over this socket, takes what it is offered, and says so. It then has what it is to have.
    pub(super) fn join(&mut self, socket: &Socket) -> Option<Bytes> {
        let hash = offered(&socket.say(&self.report()));
        if let Some(hash) = &hash {
            socket.say(&self.about(hash, RemoteConfigStatuses::Applied, ""));
        }
        hash
    }
}
