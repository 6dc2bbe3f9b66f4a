//! What agents report as running is kept where their fleet asks for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use prost::Message as _;
use serde_json::json;

use super::{credentials::Vault, office::Office};
use crate::{
    agents::index::AgentIndex,
    api::{agent::NotStored, agent_fleet::AgentFleet},
    bridge::{Bridge, Metrics, Settings, Surroundings},
    catalog::{AnonymousNamespaces, CatalogHandle, FleetEntry, Policy, SecretContent, fleet::Offering},
    credentials::{certificates::Certificates, trust::Trust},
    effective_configs::{self, News, Reporters as _, Store},
    kubernetes::{ObjectKey, Scope},
    opamp::{
        InstanceUid,
        identity::Principal,
        messages::{
            AgentCapabilities, AgentConfigFile, AgentConfigMap, AgentDescription, AgentToServer, EffectiveConfig,
            ServerToAgent, ServerToAgentFlags,
        },
        session::{ConnectionId, Outbound},
    },
    server::{Agents as _, Connection, Protection, Transport, now},
    status::{
        metrics::Metrics as WriterMetrics,
        render::Owner,
        view::{EffectiveConfigView, TextView},
        writer::{AgentViews as _, StatusWriter, WriterLimits},
    },
};

const CANARY: &str = "canary-7d1f0c55e2";
const UNKNOWN: EffectiveConfigView = EffectiveConfigView::Stored(TextView::Unknown);

/// One agent on a WebSocket, and the bridge that it speaks to.
struct Bench {
    bridge: Arc<Bridge>,
    catalog: Arc<CatalogHandle>,
    texts: Store,
    socket: Arc<Connection>,
    uid: InstanceUid,
    spoken: u64,
}

impl Bench {
    fn start(detail: &str) -> Self {
        let policy = Policy { anonymous: AnonymousNamespaces::All, secrets: SecretContent::Offered };
        let catalog = CatalogHandle::fixed(vec![fleet(detail)], policy);
        let owner = Owner { replica: "replica-0".into(), incarnation: "1111111111".into() };
        let writer =
            StatusWriter::new(owner.clone(), "opamp-system", WriterLimits::default(), WriterMetrics::default());
        let texts = Store::new(Scope::All, writer.budget(), effective_configs::Metrics::default());
        let settings = Settings {
            own_namespace: "opamp-system".into(),
            owner,
            max_pending: 10,
            max_sessions: 10,
            http_silence: Duration::from_secs(300),
        };
        let index = AgentIndex::holding([]);
        let credentials = Arc::new(Vault::default());
        let certificates = Certificates::new(&Scope::All);
        let surroundings = Surroundings {
            catalog: Arc::clone(&catalog),
            index,
            writer,
            texts: texts.clone(),
            credentials,
            requests: Arc::new(Office::of(&certificates)),
            certificates,
            trust: Trust::new(),
        };
        let bridge = Bridge::new(settings, surroundings, Metrics::default());
        let remote = ([127, 0, 0, 1], 9).into();
        let (id, transport) = (ConnectionId::new(1), Transport::WebSocket);
        let socket = Arc::new(Connection::new(id, transport, Principal::anonymous().into(), remote, Protection::Plain));
        Self { bridge, catalog, texts, socket, uid: InstanceUid::generate(), spoken: 0 }
    }

    /// The agent says this, and is answered with these flags.
    fn says(&mut self, effective_config: Option<&str>) -> u64 {
        let file = |body: &str| AgentConfigFile { body: body.as_bytes().to_vec().into(), ..Default::default() };
        let config = |body| EffectiveConfig {
            config_map: Some(AgentConfigMap { config_map: BTreeMap::from([(String::new(), file(body))]) }),
        };
        let message = AgentToServer {
            instance_uid: self.uid.as_bytes().to_vec().into(),
            sequence_num: self.spoken,
            capabilities: (AgentCapabilities::ReportsStatus as u64)
                | (AgentCapabilities::ReportsEffectiveConfig as u64),
            agent_description: effective_config.map(|_| AgentDescription::default()),
            effective_config: effective_config.map(config),
            ..AgentToServer::default()
        };
        self.spoken += 1;
        let exchange = self.bridge.receive(&self.socket, message.encode_to_vec().into(), now());
        flags(&exchange.send)
    }

    /// What the socket's task is given to send when it is woken.
    fn is_due(&self) -> u64 {
        flags(&self.bridge.due(&self.socket, now()).send)
    }

    fn shown(&self) -> EffectiveConfigView {
        self.bridge.view(&self.uid).expect("a view").effective_config
    }

    /// What waits is kept, or not; the name of the Secret.
    fn is_concluded(&self, not_stored: Option<NotStored>) -> Arc<str> {
        let secret = self.bridge.sessions.with(self.uid, |entry| entry.keeping.secret()).flatten();
        let secret = secret.expect("a Secret");
        self.bridge.concluded(News { agent: self.uid, secret: Arc::clone(&secret), not_stored });
        secret
    }

    fn waits(&self) -> bool {
        self.texts.counts().1 == 1
    }
}

fn flags(sent: &[Outbound]) -> u64 {
    sent.iter().fold(0, |flags, outbound| {
        let bytes = [&outbound.head[..], outbound.tail.as_deref().unwrap_or_default()].concat();
        flags | ServerToAgent::decode(&bytes[..]).expect("a message").flags
    })
}

fn fleet(detail: &str) -> Arc<FleetEntry> {
    let enrollment = json!({"methods": ["Anonymous"]});
    let spec = json!({"selector": {}, "enrollment": enrollment, "effectiveConfig": detail});
    let mut fleet = AgentFleet::new("edge", serde_json::from_value(spec).expect("a spec"));
    (fleet.metadata.namespace, fleet.metadata.uid) = (Some("telemetry".into()), Some("0123abcd".into()));
    Arc::new(FleetEntry::new(&fleet, Offering::NoRevision).expect("a fleet"))
}

fn kept(secret: &str) -> EffectiveConfigView {
    EffectiveConfigView::Stored(TextView::Kept { secret: secret.into() })
}

const FULL_STATE: u64 = ServerToAgentFlags::ReportFullState as u64;

#[test]
fn a_member_of_a_fleet_that_keeps_texts_shows_the_secret_once_it_is_written() {
    let mut bench = Bench::start("Stored");
    assert_eq!(bench.says(Some(&format!("password: {CANARY}"))), 0, "it has said all");
    assert_eq!((bench.shown(), bench.waits()), (UNKNOWN, true));
    let secret = bench.is_concluded(None);
    assert_eq!(bench.shown(), kept(&secret));
    assert_eq!(bench.says(None), 0, "a heartbeat");
    assert_eq!(bench.shown(), kept(&secret));
    bench.says(Some("another: text"));
    assert_eq!(bench.shown(), UNKNOWN);
    bench.is_concluded(Some(NotStored::TooMany));
    assert_eq!(bench.shown(), EffectiveConfigView::Stored(TextView::Not(NotStored::TooMany)));
}

#[test]
fn members_of_other_fleets_hand_in_nothing() {
    for (detail, expected) in [("Hash", EffectiveConfigView::Hash), ("None", EffectiveConfigView::None)] {
        let mut bench = Bench::start(detail);
        bench.says(Some("a: b"));
        assert_eq!((bench.shown(), bench.waits()), (expected, false), "{detail}");
        assert_eq!(bench.says(None), 0);
    }
}

#[test]
fn a_fleet_that_begins_to_keep_texts_asks_its_members_once() {
    let mut bench = Bench::start("Hash");
    bench.says(Some("a: b"));
    bench.catalog.publish(vec![fleet("Stored")]);
    assert_eq!(bench.is_due(), FULL_STATE);
    assert_eq!(bench.is_due(), 0);
    assert_eq!(bench.says(None), 0, "patience");
    assert_eq!(bench.says(Some("a: b")), 0);
    assert!(bench.waits());
    bench.catalog.publish(vec![fleet("None")]);
    assert_eq!(bench.is_due(), 0);
    assert_eq!(bench.shown(), EffectiveConfigView::None);
}

#[test]
fn a_secret_that_is_deleted_is_made_anew() {
    let mut bench = Bench::start("Stored");
    bench.says(Some("a: b"));
    let secret = bench.is_concluded(None);
    bench.bridge.vanished(&BTreeSet::from([ObjectKey::new("telemetry", "opamp-effective-0123abcd-0000000000")]));
    assert_eq!((bench.is_due(), bench.shown()), (0, kept(&secret)));
    bench.bridge.vanished(&BTreeSet::from([ObjectKey::new("telemetry", &*secret)]));
    assert_eq!((bench.is_due(), bench.shown()), (FULL_STATE, UNKNOWN));
    bench.says(Some("a: b"));
    let secret = bench.is_concluded(None);
    assert_eq!(bench.shown(), kept(&secret));
}

#[test]
fn whoever_found_no_room_is_asked_when_there_is() {
    let mut bench = Bench::start("Stored");
    bench.says(Some("a: b"));
    bench.is_concluded(Some(NotStored::TooMany));
    assert_eq!(bench.is_due(), 0);
    bench.bridge.invited(bench.uid);
    assert_eq!(bench.is_due(), FULL_STATE);
}
