//! What becomes of requests for certificates.

use std::time::Duration;

use bytes::Bytes;
use jiff::{Timestamp, ToSpan as _};
use kube::{ResourceExt as _, runtime::watcher::Event};
use rcgen::KeyPair;
use serde_json::json;

use super::{
    bench::{Agent, MOMENT, Replica, Socket, fleet, new_uid, pass},
    credentials::principal,
    office::{Leader, csr, holder},
    settings::{SERVED, able, about, by_token, certificate_issued, edge, settings, shown},
};
use crate::{
    api::enrollment::{Approval, CertificateIssuer},
    authentication::tests::Lines,
    catalog::{FleetEntry, settings::FrozenCertificate},
    credentials::{
        requests::AskError,
        stored::{AgentCertificate, Holder, StoredError},
    },
    kubernetes::ObjectKey,
    opamp::{
        identity::{Principal, Proof},
        messages::{
            AgentToServer, CertificateRequest, ConnectionSettingsRequest, ConnectionSettingsStatuses as State,
            OpAmpConnectionSettingsRequest, ServerToAgent,
        },
    },
};

fn issuing() -> FleetEntry {
    edge(FrozenCertificate::Issued, "Bearer token-canary")
}

fn issuing_by_hand() -> FleetEntry {
    let mut fleet = issuing();
    fleet.enrollment.approval = Approval::Manual;
    fleet
}

/// A message that asks for a certificate.
fn asking(message: AgentToServer, request: impl Into<Bytes>) -> AgentToServer {
    let certificate_request = Some(CertificateRequest { csr: request.into() });
    let opamp = Some(OpAmpConnectionSettingsRequest { certificate_request });
    AgentToServer { connection_settings_request: Some(ConnectionSettingsRequest { opamp }), ..message }
}

/// Why a request is refused, if it is.
fn refusal(reply: &ServerToAgent) -> Option<String> {
    let error = reply.error_response.as_ref()?;
    assert_eq!(error.r#type, 1, "BAD_REQUEST");
    Some(error.error_message.clone())
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

/// An agent that has joined and waits for its certificate.
async fn waiting(replica: &Replica) -> (Socket, Agent, KeyPair) {
    let (socket, mut agent, key) = (by_token(replica), able(), key());
    let reply = socket.say(&asking(agent.report(), csr(&key, Some(agent.uid))));
    assert_eq!((refusal(&reply), settings(&reply), reply.capabilities & SERVED), (None, None, SERVED));
    pass(MOMENT).await;
    (socket, agent, key)
}

#[tokio::test(start_paused = true)]
async fn an_agent_gets_its_certificate_uses_it_and_that_is_shown() {
    // CSR-01, CSR-06, CSR-12, CON-13
    let (leader, replica) = (Leader::new(), Replica::alone(vec![issuing()]));
    leader.trusted_by(&replica);
    let (socket, mut agent, _) = waiting(&replica).await;
    assert_eq!(replica.requests.taken(), 1);
    let asked = replica.requests.last();
    assert_eq!(asked.holder, holder(agent.uid));
    let secret = leader.answer(&asked.holder, &asked.request);
    replica.show_secret(secret.clone());
    pass(MOMENT).await;
    let (hash, opamp) = socket.pushed().iter().find_map(settings).expect("settings");
    let certificate = opamp.certificate.expect("a certificate");
    assert!(certificate.private_key.is_empty(), "AMB-30");
    assert!(!certificate.cert.is_empty() && !certificate.ca_cert.is_empty());
    socket.say(&about(&mut agent, &hash, State::Applied, ""));
    let given = AgentCertificate::read(&secret).expect("a certificate").given.expect("an answer");
    let own = Principal {
        proof: Proof::Certificate { issuer: [1; 32], serial: given.certificate.serial.as_bytes().into() },
        expires: Some(given.certificate.not_after),
        ..principal(&format!("certificate:telemetry/edge/{}", agent.uid))
    };
    let socket = replica.open_by(&own);
    assert_eq!(settings(&socket.say(&about(&mut agent, &hash, State::Applied, ""))), None, "it has them");
    pass(Duration::from_secs(5)).await;
    replica.settled().await;
    let status = replica.status(agent.uid);
    let used = status.certificate.clone().expect("a certificate");
    assert_eq!(used.serial, given.certificate.serial.to_string());
    assert_eq!(used.secret_ref.map(|secret| secret.name), Some(secret.name_any()));
    assert!(used.in_use_since.is_some());
    assert_eq!(certificate_issued(&status).map(|(reason, _)| reason).as_deref(), Some("True, CertificateValid"));

    // Its CA is replaced: to the next life of the operator the token of its fleet is enough again, as after the end of its
    // certificate.
    let server = replica.server.clone();
    drop(socket);
    replica.die();
    let replica = Replica::with(server, ("opamp-operator-0", "second"), vec![issuing()]);
    replica.certificates.take(&None, Event::Init);
    replica.certificates.take(&None, Event::InitDone);
    leader.trusted_by(&replica);
    replica.show_secret(secret);
    let came_by_token = |replica: &Replica| new_uid(&by_token(replica).say(&Agent::of(agent.uid).report())).is_none();
    assert!(!came_by_token(&replica), "AMB-28");
    Leader::new().trusted_by(&replica);
    assert!(came_by_token(&replica));
}

#[tokio::test(start_paused = true)]
async fn a_bad_request_is_refused_at_once_and_leaves_nothing_behind() {
    // CSR-03, CSR-07, CSR-09
    let replica = Replica::alone(vec![issuing()]);
    let (socket, mut agent, other, mut poller) = (by_token(&replica), able(), able(), able());
    by_token(&replica).say(&other.clone().report());
    let by_poll = principal("token:telemetry/edge");
    replica.poll_by(&by_poll, &poller.report());
    socket.say(&agent.report());
    replica.settled().await;
    for (case, request) in [
        ("no PEM", "please".to_owned()),
        ("another's uid", csr(&key(), Some(other.uid))),
        ("two", csr(&key(), None) + &csr(&key(), None)),
    ] {
        let refusal = refusal(&socket.say(&asking(agent.heartbeat(), request.clone()))).expect(case);
        assert!(refusal.starts_with("the certificate request (CSR) is refused: "), "{case}: {refusal}");
        let over_http = replica.poll_by(&by_poll, &asking(poller.heartbeat(), "x"));
        assert!(over_http.error_response.is_some(), "{case}");
    }
    pass(MOMENT).await;
    assert_eq!((replica.requests.taken(), replica.certificates.all().len()), (0, 0));
    assert_eq!(refusal(&socket.say(&agent.heartbeat())), None, "once");
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_gives_out_no_certificates_says_so() {
    let replica = Replica::alone(vec![edge(FrozenCertificate::None, "Bearer token-canary")]);
    let (socket, mut agent) = (by_token(&replica), able());
    let reply = socket.say(&asking(agent.report(), csr(&key(), None)));
    let why = "the certificate request (CSR) is refused: the fleet edge gives out no certificates";
    assert_eq!(refusal(&reply).as_deref(), Some(why));
    assert_eq!(socket.say(&agent.heartbeat()).capabilities & SERVED, 0);
    pass(MOMENT).await;
    assert_eq!(replica.requests.taken(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_before_approval_is_taken_up_by_it() {
    // CSR-04, AMB-29
    let (leader, replica) = (Leader::new(), Replica::alone(vec![issuing_by_hand()]));
    leader.trusted_by(&replica);
    let (socket, mut agent, _) = waiting(&replica).await;
    replica.settled().await;
    assert_eq!(replica.requests.taken(), 0, "nobody has approved of it");
    let approval = json!({"spec": {"access": "Approved"}});
    replica.server.modify("telemetry", &agent.uid.to_string(), &approval);
    replica.settled().await;
    assert_eq!(replica.requests.taken(), 1, "the agent has not asked again");
    assert_eq!(settings(&socket.say(&agent.heartbeat())), None);
    let asked = replica.requests.last();
    replica.show_secret(leader.answer(&asked.holder, &asked.request));
    pass(MOMENT).await;
    assert!(socket.pushed().iter().find_map(settings).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_bad_request_before_approval_is_refused_and_the_latest_good_one_counts() {
    let replica = Replica::alone(vec![issuing_by_hand()]);
    let (socket, mut agent, _) = waiting(&replica).await;
    assert!(refusal(&socket.say(&asking(agent.heartbeat(), "please"))).is_some());
    let latest = csr(&key(), None);
    assert_eq!(refusal(&socket.say(&asking(agent.heartbeat(), latest.clone()))), None);
    replica.settled().await;
    replica.server.modify("telemetry", &agent.uid.to_string(), &json!({"spec": {"access": "Approved"}}));
    replica.settled().await;
    assert_eq!(replica.requests.taken(), 1);
    assert_eq!(replica.requests.last().request.pem(), latest.as_bytes());
}

#[tokio::test(start_paused = true)]
async fn whichever_replica_the_agent_comes_to_offers_what_was_asked_for_elsewhere() {
    let (leader, first) = (Leader::new(), Replica::alone(vec![issuing()]));
    let (socket, mut agent, _) = waiting(&first).await;
    let asked = first.requests.last();
    first.settled().await;
    socket.close();
    first.settled().await;
    let second = Replica::with(first.server.clone(), ("opamp-operator-1", "first"), vec![issuing()]);
    leader.trusted_by(&second);
    pass(MOMENT).await;
    second.show_secret(asked.holder.request(&asked.request));
    let socket = by_token(&second);
    assert_eq!(settings(&socket.say(&agent.report())), None);
    second.show_secret(leader.answer(&asked.holder, &asked.request));
    pass(MOMENT).await;
    assert!(socket.pushed().iter().find_map(settings).is_some());
    assert_eq!(second.requests.taken(), 0, "nobody asked anew");
}

#[tokio::test(start_paused = true)]
async fn a_foreign_name_is_refused_at_once_where_somebody_else_is_to_sign() {
    let leader = Leader::new();
    for (issuer, expected) in [
        (CertificateIssuer::Internal, 1),
        (CertificateIssuer::CertificateSigningRequest, 0),
        (CertificateIssuer::CertManager, 0),
    ] {
        let mut fleet = issuing();
        fleet.enrollment.certificates.issuer = issuer;
        let replica = Replica::alone(vec![fleet]);
        leader.trusted_by(&replica);
        let (socket, mut agent) = (by_token(&replica), able());
        socket.say(&agent.report());
        pass(MOMENT).await;
        let mut parameters = rcgen::CertificateParams::default();
        parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
        let request = parameters.serialize_request(&key()).and_then(|request| request.pem()).expect("a request");
        let told = refusal(&socket.say(&asking(agent.heartbeat(), request)));
        pass(MOMENT).await;
        assert_eq!(replica.requests.taken(), expected, "{issuer:?}");
        assert_eq!(told.is_some(), expected == 0, "{issuer:?}: {told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_comes_late_is_told_once() {
    // CSR-07, AMB-29
    let replica = Replica::alone(vec![issuing()]);
    let (socket, mut agent, _) = waiting(&replica).await;
    let asked = replica.requests.last();
    let elsewhere = Holder { namespace: "bank".into(), ..holder(agent.uid) };
    replica.show_secret(Leader::refuse(&elsewhere, &asked.request, "nobody has asked there"));
    let secret = Leader::refuse(&asked.holder, &asked.request, "the issuer refuses it");
    for _ in 0..2 {
        replica.show_secret(secret.clone());
    }
    pass(MOMENT).await;
    let told: Vec<_> = socket.pushed().iter().filter_map(refusal).collect();
    assert_eq!(told, ["the certificate request (CSR) is refused: the issuer refuses it"]);
    pass(Duration::from_secs(5)).await;
    replica.settled().await;
    let issued = certificate_issued(&replica.status(agent.uid)).expect("the condition");
    assert_eq!(issued, ("False, CertificateRefused".into(), "the issuer refuses it".into()));
    assert_eq!(refusal(&socket.say(&agent.heartbeat())), None);
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_does_not_take_is_tried_again_while_the_agent_is_there() {
    let replica = Replica::alone(vec![issuing()]);
    replica.requests.fail(vec![AskError::Contended, AskError::Contended, AskError::Contended]);
    let (_socket, _, _) = waiting(&replica).await;
    assert_eq!(replica.requests.taken(), 0);
    pass(Duration::from_secs(10)).await;
    assert_eq!(replica.requests.taken(), 1);
    let key = ObjectKey::new("telemetry", "opamp-cert-x");
    replica.requests.fail(vec![AskError::Occupied { key, error: StoredError::Empty }]);
    let mut second = able();
    let other = by_token(&replica);
    other.say(&asking(second.report(), csr(&self::key(), None)));
    pass(MOMENT).await;
    let told = other.pushed().iter().find_map(refusal).expect("a refusal");
    assert!(told.contains("delete it"), "{told}");
    replica.requests.fail(vec![AskError::Contended]);
    let (gone, mut agent) = (by_token(&replica), able());
    gone.say(&asking(agent.report(), csr(&self::key(), None)));
    gone.close();
    pass(Duration::from_secs(60)).await;
    assert_eq!(replica.requests.taken(), 1, "it will ask again when it returns");
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_refuses_for_good_is_told_to_the_agent_and_now_and_then_to_people() {
    // CSR-07
    let (lines, _listening) = Lines::listen();
    let replica = Replica::alone(vec![issuing()]);
    let refused = || AskError::Refused("403 Forbidden".into());
    replica.requests.fail(vec![AskError::Refused("422 Invalid".into()), refused(), refused()]);
    for _ in 0..3 {
        let (socket, ..) = waiting(&replica).await;
        let told: Vec<_> = socket.pushed().iter().filter_map(refusal).collect();
        assert!(matches!(&told[..], [told] if told.contains("the API server refuses that")), "{told:?}");
    }
    pass(Duration::from_secs(60)).await;
    assert_eq!(replica.requests.taken(), 0, "nobody has asked again");
    let warnings =
        lines.all().into_iter().filter(|line| line["level"] == "WARN" && line["fields"]["reason"].is_string());
    let warned: Vec<_> =
        warnings.map(|line| [line["fields"]["namespace"].clone(), line["fields"]["reason"].clone()]).collect();
    assert_eq!(warned, [["telemetry", "403 Forbidden"], ["telemetry", "422 Invalid"]]);
    let (_socket, ..) = waiting(&replica).await;
    assert_eq!(replica.requests.taken(), 1, "another request is another matter");
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_again_for_what_it_was_offered_is_offered_it_again() {
    // CSR-08
    let (leader, replica) = (Leader::new(), Replica::alone(vec![issuing()]));
    leader.trusted_by(&replica);
    let (socket, mut agent, key) = waiting(&replica).await;
    let asked = replica.requests.last();
    replica.show_secret(leader.answer(&asked.holder, &asked.request));
    pass(MOMENT).await;
    let (hash, _) = socket.pushed().iter().find_map(settings).expect("settings");
    let reply = socket.say(&asking(agent.heartbeat(), csr(&key, None)));
    assert_eq!(settings(&reply).map(|(hash, _)| hash), Some(hash), "its offer may be lost");
    pass(MOMENT).await;
    assert_eq!(replica.requests.taken(), 1, "it has the answer");
}

#[tokio::test(start_paused = true)]
async fn the_bit_does_not_flicker_while_no_fleet_takes_the_agent() {
    let replica = Replica::alone(vec![issuing()]);
    let (socket, mut agent, _) = waiting(&replica).await;
    replica.settled().await;
    replica.publish(vec![issuing().selecting("windows")]);
    assert_eq!(socket.due(), []);
    assert_eq!(socket.say(&agent.heartbeat()).capabilities, 0, "nothing new");
    replica.publish(vec![issuing()]);
    socket.due();
    assert_eq!(socket.say(&agent.heartbeat()).capabilities, 0, "nothing new");
    replica.publish(vec![edge(FrozenCertificate::None, "Bearer token-canary")]);
    let told: Vec<_> = socket.due().iter().map(|message| message.capabilities & SERVED).collect();
    assert_eq!(told, [0], "the fleet has changed its mind, and says so with its settings");
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_the_bit_is_there_before_the_fleet_is_known_again() {
    let (leader, replica) = (Leader::new(), Replica::alone(vec![issuing()]));
    leader.trusted_by(&replica);
    let (socket, mut agent, key) = waiting(&replica).await;
    let asked = replica.requests.last();
    replica.show_secret(leader.answer(&asked.holder, &asked.request));
    pass(MOMENT).await;
    assert!(socket.pushed().iter().find_map(settings).is_some());
    pass(Duration::from_secs(5)).await;
    replica.settled().await;
    let server = replica.server.clone();
    replica.die();
    let second = Replica::with(server, ("opamp-operator-0", "second"), vec![issuing()]);
    let socket = by_token(&second);
    let reply = socket.say(&asking(agent.heartbeat(), csr(&key, None)));
    assert_eq!((refusal(&reply), reply.capabilities & SERVED), (None, SERVED));
    second.settled().await;
    assert_eq!(second.requests.taken(), 1, "and what it asks for is taken up");
}

#[tokio::test(start_paused = true)]
async fn a_request_while_the_fleet_is_away_waits_for_it() {
    let replica = Replica::alone(vec![issuing()]);
    let (socket, mut agent) = (by_token(&replica), able());
    socket.say(&agent.report());
    replica.settled().await;
    replica.publish(vec![issuing().selecting("windows")]);
    socket.due();
    assert_eq!(refusal(&socket.say(&asking(agent.heartbeat(), csr(&key(), None)))), None);
    pass(MOMENT).await;
    assert_eq!(replica.requests.taken(), 0);
    replica.publish(vec![issuing()]);
    pass(MOMENT).await;
    assert_eq!(replica.requests.taken(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_before_the_agent_has_said_what_it_is_waits_for_that() {
    // A replica that ended before it wrote anything of the agent had told it that requests are served.
    for (case, selected, expected) in [("a member", "linux", 1), ("a stranger", "windows", 0)] {
        let replica = Replica::alone(vec![issuing().selecting(selected)]);
        let (socket, mut agent) = (by_token(&replica), able());
        let reply = socket.say(&asking(agent.heartbeat(), csr(&key(), None)));
        assert_eq!((refusal(&reply), settings(&reply), reply.flags & 1), (None, None, 1), "{case}: asked for the rest");
        pass(MOMENT).await;
        assert_eq!(replica.requests.taken(), 0, "{case}");
        socket.say(&agent.report());
        pass(MOMENT).await;
        assert_eq!(replica.requests.taken(), expected, "{case}");
        replica.publish(vec![issuing()]);
        socket.due();
        pass(MOMENT).await;
        assert_eq!(replica.requests.taken(), expected, "{case}: what nobody served is not kept");
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_nobody_prevented_is_shown() {
    let (leader, replica) = (Leader::new(), Replica::alone(vec![issuing()]));
    leader.trusted_by(&replica);
    let (socket, mut agent, _) = waiting(&replica).await;
    let asked = replica.requests.last();
    let now = Timestamp::now();
    replica.show_secret(leader.answer_from(&asked.holder, &asked.request, now - 2.hours(), 1));
    pass(Duration::from_secs(5)).await;
    replica.settled().await;
    assert_eq!(settings(&socket.say(&agent.heartbeat())), None);
    let issued = certificate_issued(&replica.status(agent.uid)).expect("the condition");
    assert_eq!(issued.0, "False, CertificateExpired");
    assert_eq!(shown(&replica, &agent).withheld, "the certificate is being made");
}

#[tokio::test(start_paused = true)]
async fn a_stranger_without_a_fleet_is_acknowledged_and_nothing_is_kept() {
    // AMB-32
    let replica = Replica::alone(vec![issuing().selecting("windows")]);
    let (socket, mut agent) = (by_token(&replica), able());
    let reply = socket.say(&asking(agent.report(), csr(&key(), None)));
    assert_eq!((refusal(&reply), reply.capabilities & SERVED), (None, 0));
    replica.publish(vec![issuing(), fleet("telemetry", "other")]);
    socket.due();
    pass(MOMENT).await;
    assert_eq!(replica.requests.taken(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_near_its_end_is_renewed_for_the_same_key_and_the_new_one_is_pushed() {
    // CSR-08
    let (leader, replica) = (Leader::new(), Replica::alone(vec![issuing()]));
    leader.trusted_by(&replica);
    let (socket, mut agent, key) = waiting(&replica).await;
    let asked = replica.requests.last();
    replica.show_secret(leader.answer_from(&asked.holder, &asked.request, Timestamp::now() - 8.hours(), 10));
    pass(MOMENT).await;
    let (first, _) = socket.pushed().iter().find_map(settings).expect("settings");
    socket.say(&about(&mut agent, &first, State::Applied, ""));
    let reply = socket.say(&asking(agent.heartbeat(), csr(&key, None)));
    assert_eq!((settings(&reply), refusal(&reply)), (None, None));
    pass(MOMENT).await;
    assert_eq!(replica.requests.taken(), 2);
    replica.show_secret(leader.answer(&asked.holder, &asked.request));
    pass(MOMENT).await;
    let (second, _) = socket.pushed().iter().find_map(settings).expect("settings");
    assert_ne!(second, first);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_polls_gets_its_certificate_with_a_poll() {
    // HTTP-02
    let (leader, replica) = (Leader::new(), Replica::alone(vec![issuing()]));
    leader.trusted_by(&replica);
    let (by_poll, mut agent) = (principal("token:telemetry/edge"), able());
    let reply = replica.poll_by(&by_poll, &asking(agent.report(), csr(&key(), None)));
    assert_eq!((settings(&reply), reply.capabilities & SERVED), (None, SERVED));
    pass(MOMENT).await;
    let asked = replica.requests.last();
    replica.show_secret(leader.answer(&asked.holder, &asked.request));
    pass(MOMENT).await;
    let (_, opamp) = settings(&replica.poll_by(&by_poll, &agent.heartbeat())).expect("settings");
    assert!(opamp.certificate.is_some());
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_for_a_certificate_gets_it_whatever_it_declares() {
    // AMB-32
    let (leader, replica) = (Leader::new(), Replica::alone(vec![issuing()]));
    leader.trusted_by(&replica);
    let (socket, mut agent) = (by_token(&replica), Agent::new());
    socket.say(&asking(agent.report(), csr(&key(), None)));
    pass(MOMENT).await;
    let asked = replica.requests.last();
    replica.show_secret(leader.answer(&asked.holder, &asked.request));
    pass(MOMENT).await;
    assert!(socket.pushed().iter().find_map(settings).is_some());
    assert_eq!(settings(&socket.say(&agent.heartbeat())), None, "for one offer");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_of_a_ca_that_is_believed_no_more_is_not_offered() {
    let (leader, replica) = (Leader::new(), Replica::alone(vec![issuing()]));
    let (socket, agent, _) = waiting(&replica).await;
    let asked = replica.requests.last();
    replica.show_secret(leader.answer(&asked.holder, &asked.request));
    pass(MOMENT).await;
    assert_eq!(socket.pushed().iter().find_map(settings), None);
    leader.trusted_by(&replica);
    pass(MOMENT).await;
    assert!(socket.pushed().iter().find_map(settings).is_some());
    Leader::new().trusted_by(&replica);
    pass(Duration::from_secs(5)).await;
    replica.settled().await;
    assert_eq!(shown(&replica, &agent).withheld, "the certificate is being made");
}
