//! How agents are told to connect, and what is shown of it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use jiff::{Timestamp, ToSpan as _};
use serde_json::json;

use super::{
    bench::{Agent, MOMENT, Replica, Socket, fleet, offered, pass},
    credentials::principal,
    office::{Leader, holder},
};
use crate::{
    api::{
        agent::{AgentStatus, ConnectionSettingsStatus},
        condition::{ConditionType, find},
        enrollment::EnrollmentMethod,
    },
    catalog::{
        Credentials, FleetEntry, Settings,
        credentials::{Credential, CredentialKind},
        settings::{CredentialReference, FrozenCertificate, FrozenHeader, HeaderValue},
    },
    opamp::messages::{
        AgentCapabilities as Bit, AgentToServer, ConnectionSettingsStatus as Report,
        ConnectionSettingsStatuses as State, OpAmpConnectionSettings, ServerToAgent,
    },
};

/// The bit `AcceptsConnectionSettingsRequest`.
pub(super) const SERVED: u64 = 0x40;

/// `edge` of `telemetry`, whose agents send this token and another header.
pub(super) fn edge(certificate: FrozenCertificate, token: &str) -> FleetEntry {
    let reference = |name: &str| CredentialReference::secret(name, "header");
    let header =
        |name: &str, secret| FrozenHeader { name: name.into(), value: HeaderValue::Reference(reference(secret)) };
    let settings = Settings {
        name: "edge".into(),
        endpoint: "wss://opamp.example.com/v1/opamp".into(),
        headers: vec![header("Authorization", "token"), header("X-Key", "key")],
        certificate,
        tls: None,
        proxy: None,
        heartbeat_seconds: 15,
    };
    let credential = |kind, value: &str| Credential { kind, value: Bytes::copy_from_slice(value.as_bytes()) };
    let values = BTreeMap::from([
        (reference("token"), credential(CredentialKind::EnrollmentToken, token)),
        (reference("key"), credential(CredentialKind::Value, "key-canary")),
    ]);
    let mut fleet = fleet("telemetry", "edge").connecting("first", settings);
    fleet.credentials = Some(Arc::new(Credentials::new(&fleet.uid, &values)));
    fleet.enrollment.methods = Some(vec![EnrollmentMethod::ClientCertificate, EnrollmentMethod::EnrollmentToken]);
    fleet
}

/// The same without a certificate.
fn plain(token: &str) -> Vec<FleetEntry> {
    vec![edge(FrozenCertificate::None, token)]
}

/// An agent that takes settings and tells what became of them.
pub(super) fn able() -> Agent {
    let mut agent = Agent::new();
    let bits = [Bit::AcceptsOpAmpConnectionSettings, Bit::ReportsConnectionSettingsStatus, Bit::ReportsHeartbeat];
    agent.capabilities |= bits.iter().fold(0, |all, bit| all | *bit as u64);
    agent
}

/// One that takes them and tells nothing.
fn silent() -> Agent {
    let mut agent = able();
    agent.capabilities &= !(Bit::ReportsConnectionSettingsStatus as u64);
    agent
}

pub(super) fn by_token(replica: &Replica) -> Socket {
    replica.open_by(&principal("token:telemetry/edge"))
}

/// The settings in a message, with their hash.
pub(super) fn settings(message: &ServerToAgent) -> Option<(Bytes, OpAmpConnectionSettings)> {
    let settings = message.connection_settings.as_ref()?;
    Some((settings.hash.clone(), settings.opamp.clone().expect("they are complete")))
}

fn headers(settings: &OpAmpConnectionSettings) -> Vec<(&str, &str)> {
    let headers = settings.headers.iter().flat_map(|headers| &headers.headers);
    headers.map(|header| (header.key.as_str(), header.value.as_str())).collect()
}

/// What became of the settings with this hash.
pub(super) fn about(agent: &mut Agent, hash: &Bytes, state: State, error: &str) -> AgentToServer {
    let report =
        Report { last_connection_settings_hash: hash.clone(), status: state.into(), error_message: error.into() };
    AgentToServer { connection_settings_status: Some(report), ..agent.heartbeat() }
}

pub(super) fn shown(replica: &Replica, agent: &Agent) -> ConnectionSettingsStatus {
    replica.status(agent.uid).connection_settings.expect("settings")
}

/// The status, reason and message of `CertificateIssued`.
pub(super) fn certificate_issued(status: &AgentStatus) -> Option<(String, String)> {
    find(&status.conditions, ConditionType::CertificateIssued)
        .map(|condition| (format!("{}, {}", condition.status, condition.reason), condition.message.clone()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    crate::agents::written::hex(bytes)
}

#[tokio::test(start_paused = true)]
async fn settings_come_whole_with_the_first_reply_and_what_became_of_them_is_shown() {
    // CON-01, CON-06, CON-07, CON-18, HB-02
    let replica = Replica::alone(plain("Bearer token-canary"));
    let (socket, mut agent) = (by_token(&replica), able());
    let reply = socket.say(&agent.report());
    let (hash, opamp) = settings(&reply).expect("settings");
    assert!(offered(&reply).is_some(), "with the configuration");
    assert_eq!(
        (opamp.destination_endpoint.as_str(), opamp.heartbeat_interval_seconds),
        ("wss://opamp.example.com/v1/opamp", 15)
    );
    assert_eq!(headers(&opamp), [("Authorization", "Bearer token-canary"), ("X-Key", "key-canary")]);
    assert_eq!((opamp.certificate, reply.capabilities & SERVED), (None, 0));
    for (state, word) in [(State::Applying, "Applying"), (State::Applied, "Applied")] {
        assert_eq!(settings(&socket.say(&about(&mut agent, &hash, state, ""))), None);
        replica.settled().await;
        let shown = shown(&replica, &agent);
        assert_eq!((shown.status.as_deref(), shown.withheld.as_str()), (Some(word), ""));
        assert_eq!((shown.offered, shown.last_reported), (Some(hex(&hash)), Some(hex(&hash))));
    }
    assert_eq!(certificate_issued(&replica.status(agent.uid)), None, "none is asked for");
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_take_settings_is_offered_none() {
    // CON-02, CON-04
    let replica = Replica::alone(plain("Bearer token-canary"));
    let (socket, mut agent) = (by_token(&replica), Agent::new());
    assert_eq!(settings(&socket.say(&agent.report())), None);
    replica.settled().await;
    assert_eq!(replica.status(agent.uid).connection_settings, None);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_nobody_is_offered_what_it_has() {
    // CMP-07, CON-06
    let replica = Replica::alone(plain("Bearer token-canary"));
    let (mut agent, mut mute, mut away) = (able(), silent(), able());
    for agent in [&mut agent, &mut mute, &mut away] {
        let socket = by_token(&replica);
        let (hash, _) = settings(&socket.say(&agent.report())).expect("settings");
        let next = if agent.capabilities & Bit::ReportsConnectionSettingsStatus as u64 == 0 {
            agent.heartbeat()
        } else {
            about(agent, &hash, State::Applied, "")
        };
        socket.say(&next);
    }
    replica.settled().await;
    let offer = |agent: &Agent| replica.bridge.sessions.with(agent.uid, |entry| entry.offer().connection_settings);
    let (one, other) = (offer(&agent).flatten().expect("an offer"), offer(&mute).flatten().expect("an offer"));
    assert!(Arc::ptr_eq(&one, &other), "it is kept once");
    assert!(shown(&replica, &mute).offered.is_some_and(|hash| hash.len() == 64), "it is presumed to have them");
    let server = replica.server.clone();
    replica.die();
    let replica = Replica::with(server, ("opamp-operator-0", "second"), plain("Bearer token-canary"));
    let (socket, mute_socket) = (by_token(&replica), by_token(&replica));
    // Before its status was read anew: the watch has shown it.
    assert_eq!(settings(&socket.say(&agent.heartbeat())), None);
    assert_eq!(settings(&mute_socket.say(&mute.heartbeat())), None);
    replica.settled().await;
    assert_eq!(
        (socket.pushed().iter().find_map(settings), mute_socket.pushed().iter().find_map(settings)),
        (None, None)
    );
    assert_eq!(settings(&mute_socket.say(&mute.heartbeat())), None);
    assert!(shown(&replica, &mute).offered.is_some(), "and that is not forgotten");
    replica.publish(plain("Bearer another-canary"));
    for socket in [&socket, &mute_socket] {
        assert!(socket.due().iter().find_map(settings).is_some(), "but what changes is offered");
    }
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_rotates_is_offered_at_once_and_changes_nothing_else() {
    let replica = Replica::alone(plain("Bearer token-canary"));
    let (socket, mut agent, mut poller) = (by_token(&replica), able(), able());
    let by_poll = principal("token:telemetry/edge");
    let (first, _) = settings(&socket.say(&agent.report())).expect("settings");
    socket.say(&about(&mut agent, &first, State::Applied, ""));
    let (same, _) = settings(&replica.poll_by(&by_poll, &poller.report())).expect("settings");
    assert_eq!(same, first, "the same for all");
    replica.poll_by(&by_poll, &about(&mut poller, &same, State::Applied, ""));
    replica.settled().await;
    let before = replica.status(agent.uid);
    replica.publish(plain("Bearer rotated-canary"));
    let pushed = socket.due();
    let (second, opamp) = pushed.iter().find_map(settings).expect("settings");
    assert_eq!((pushed.len(), offered(&pushed[0])), (1, None), "not the configuration");
    assert_ne!(second, first);
    assert_eq!(headers(&opamp)[0], ("Authorization", "Bearer rotated-canary"));
    // HTTP-02
    assert_eq!(settings(&replica.poll_by(&by_poll, &poller.heartbeat())).map(|(hash, _)| hash), Some(second.clone()));
    socket.say(&about(&mut agent, &second, State::Applied, ""));
    replica.settled().await;
    let after = replica.status(agent.uid);
    assert_eq!(after.connection_settings.and_then(|settings| settings.last_reported), Some(hex(&second)));
    assert_eq!((after.revision, after.remote_config), (before.revision, before.remote_config));
    assert_eq!(socket.due(), [], "once");
    let told: String = replica.server.list().iter().map(ToString::to_string).collect();
    assert!(!told.contains("canary"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn settings_that_fail_are_not_offered_again_unless_a_person_asks_for_it() {
    // CON-07, CON-11
    let replica = Replica::alone(plain("Bearer token-canary"));
    let (socket, mut agent) = (by_token(&replica), able());
    let (hash, _) = settings(&socket.say(&agent.report())).expect("settings");
    let complaint = "401: Bearer token-canary is not welcome";
    assert_eq!(settings(&socket.say(&about(&mut agent, &hash, State::Failed, complaint))), None);
    replica.settled().await;
    let failed = shown(&replica, &agent);
    assert_eq!((failed.status.as_deref(), failed.error.as_str()), (Some("Failed"), "401: [redacted] is not welcome"));
    assert_eq!(failed.failed.as_ref().map(|failed| failed.hash.as_str()), Some(hex(&hash).as_str()));
    for _ in 0..10 {
        pass(Duration::from_secs(60)).await;
        assert_eq!(settings(&socket.say(&about(&mut agent, &hash, State::Failed, complaint))), None);
    }
    let server = replica.server.clone();
    replica.die();
    let replica = Replica::with(server, ("opamp-operator-0", "second"), plain("Bearer token-canary"));
    let socket = by_token(&replica);
    assert_eq!(settings(&socket.say(&agent.heartbeat())), None, "nor after a restart");
    replica.settled().await;
    pass(Duration::from_secs(400)).await;
    let wish = json!({"spec": {"reoffer": {"requestedAt": "2026-11-29T12:00:00Z"}}});
    replica.server.modify("telemetry", &agent.uid.to_string(), &wish);
    replica.settled().await;
    let again = socket.pushed().iter().find_map(settings).map(|(hash, _)| hash);
    assert_eq!(again, Some(hash.clone()));
    socket.say(&about(&mut agent, &hash, State::Applied, ""));
    replica.settled().await;
    pass(Duration::from_secs(400)).await;
    replica.settled().await;
    let mended = shown(&replica, &agent);
    assert_eq!((mended.status.as_deref(), mended.failed), (Some("Applied"), None));
}

#[tokio::test(start_paused = true)]
async fn a_missing_value_withholds_the_settings_and_says_so() {
    let incomplete = || {
        let mut fleet = edge(FrozenCertificate::None, "Bearer token-canary");
        fleet.credentials = None;
        vec![fleet]
    };
    let replica = Replica::alone(incomplete());
    let (socket, mut agent) = (by_token(&replica), able());
    assert_eq!(settings(&socket.say(&agent.report())), None);
    replica.settled().await;
    let why = "ConnectionSettings edge need key header of Secret token, which is missing or not usable";
    assert_eq!(shown(&replica, &agent).withheld, why);
    replica.publish(plain("Bearer token-canary"));
    assert!(socket.due().iter().find_map(settings).is_some());
    pass(Duration::from_secs(5)).await;
    replica.settled().await;
    assert_eq!(shown(&replica, &agent).withheld, "");
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_a_fleet_keeps_its_settings_and_is_offered_none() {
    let elsewhere = |token| vec![edge(FrozenCertificate::None, token).selecting("windows")];
    let replica = Replica::alone(plain("Bearer token-canary"));
    let (socket, mut agent) = (by_token(&replica), able());
    let (hash, _) = settings(&socket.say(&agent.report())).expect("settings");
    socket.say(&about(&mut agent, &hash, State::Applied, ""));
    replica.settled().await;
    replica.publish(elsewhere("Bearer rotated-canary"));
    assert_eq!(socket.due(), []);
    pass(Duration::from_secs(400)).await;
    replica.settled().await;
    assert_eq!(shown(&replica, &agent).offered, Some(hex(&hash)), "it still has them");
}

#[tokio::test(start_paused = true)]
async fn heartbeats_are_never_switched_off_over_http() {
    // HB-03, AMB-10
    let replica = Replica::alone({
        let mut fleet = edge(FrozenCertificate::None, "Bearer token-canary");
        let quiet = Settings {
            heartbeat_seconds: 0,
            ..Settings::clone(fleet.revisions().next().and_then(|revision| revision.settings()).expect("settings"))
        };
        let credentials = fleet.credentials.clone();
        fleet = fleet.connecting("first", quiet);
        fleet.credentials = credentials;
        vec![fleet]
    });
    let (mut agent, mut poller) = (able(), able());
    let interval = |message: &ServerToAgent| settings(message).expect("settings").1.heartbeat_interval_seconds;
    assert_eq!(interval(&by_token(&replica).say(&agent.report())), 0);
    assert_eq!(interval(&replica.poll_by(&principal("token:telemetry/edge"), &poller.report())), 30);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_the_operator_has_made_goes_along_and_is_told_to_nobody_else() {
    // AMB-30, CON-24
    let (leader, replica) =
        (Leader::new(), Replica::alone(vec![edge(FrozenCertificate::Issued, "Bearer token-canary")]));
    leader.trusted_by(&replica);
    let (socket, mut agent) = (by_token(&replica), able());
    assert_eq!(settings(&socket.say(&agent.report())), None);
    replica.settled().await;
    assert_eq!(shown(&replica, &agent).withheld, "the certificate is being made");
    let (reason, message) = certificate_issued(&replica.status(agent.uid)).expect("the condition");
    assert_eq!((reason.as_str(), message.as_str()), ("False, CertificatePending", "the certificate is being made"));
    let (secret, key) = leader.make(&holder(agent.uid));
    replica.show_secret(secret.clone());
    pass(MOMENT).await;
    let (hash, opamp) = socket.pushed().iter().find_map(settings).expect("settings");
    let certificate = opamp.certificate.clone().expect("a certificate");
    assert_eq!(certificate.private_key, key.as_bytes());
    assert!(certificate.ca_cert.starts_with(b"-----BEGIN CERTIFICATE-----"));
    // It enrolled by the token and needs it no more.
    assert_eq!(headers(&opamp), [("X-Key", "key-canary")]);
    let line = key.lines().nth(1).expect("a line of the key");
    socket.say(&about(&mut agent, &hash, State::Failed, &format!("bad key {line}")));
    pass(Duration::from_secs(5)).await;
    replica.settled().await;
    let status = replica.status(agent.uid);
    assert_eq!(status.connection_settings.as_ref().map(|settings| settings.error.as_str()), Some("bad key [redacted]"));
    assert_eq!(certificate_issued(&status).map(|(reason, _)| reason).as_deref(), Some("True, CertificateValid"));
    let certificate = status.certificate.expect("a certificate");
    assert_eq!(certificate.secret_ref.map(|secret| secret.name), secret.metadata.name);
    assert_eq!(certificate.in_use_since, None);
    assert!(certificate.not_after.0 > Timestamp::now() + 100.hours());
}

#[tokio::test(start_paused = true)]
async fn what_does_not_change_is_made_once() {
    let (leader, replica) =
        (Leader::new(), Replica::alone(vec![edge(FrozenCertificate::Issued, "Bearer token-canary")]));
    leader.trusted_by(&replica);
    let (socket, mut agent) = (by_token(&replica), able());
    replica.show_secret(leader.make(&holder(agent.uid)).0);
    let (hash, _) = settings(&socket.say(&agent.report())).expect("settings");
    socket.say(&about(&mut agent, &hash, State::Applied, ""));
    replica.settled().await;
    let offer = || replica.bridge.sessions.with(agent.uid, |entry| entry.offer().connection_settings).flatten();
    let first = offer().expect("an offer");
    replica.requests();
    let mut again = agent.clone();
    for _ in 0..20 {
        assert_eq!(settings(&socket.say(&again.heartbeat())), None);
        pass(Duration::from_secs(30)).await;
        assert_eq!((replica.touched(), socket.pushed()), (0, vec![]));
        assert!(Arc::ptr_eq(&first, &offer().expect("an offer")));
    }
    assert_eq!(replica.requests().status, 0);
}
