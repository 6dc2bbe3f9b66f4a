//! WebSocket peers that break the rules: each gets its answer, and nobody else notices.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use opamp_operator::opamp::messages::{AgentToServer, ServerToAgent};
use tokio_tungstenite::tungstenite::{Message, protocol::frame::coding::CloseCode};

use crate::harness::{
    Operator, Reached, Scenario, Swarm, fleet,
    scripted::{
        BAD_REQUEST, Received, Refused, Socket, UNAVAILABLE, error_kind, frame, full_report, heartbeat, new_uid,
    },
    swarm::agents,
};

const SOON: Duration = Duration::from_secs(10);
/// More than the operator takes in one message.
const TOO_MUCH: usize = (4 << 20) + 1_024;

/// An operator with five honest agents that must not notice anything.
async fn bystanders(scenario: &Scenario) -> (Operator, Swarm) {
    let operator = scenario.operator().await;
    scenario.apply(&[fleet("edge").build()]);
    let swarm = agents(5, "edge").with("-heartbeat", "1s").start(&operator.websocket());
    scenario.fleet_counts("edge", &[("connected", 5)], SOON).await;
    (operator, swarm)
}

async fn nobody_noticed(scenario: &Scenario, swarm: &Swarm) {
    let summary = swarm.summary().await;
    assert_eq!((summary.connections, summary.error_responses), (5, 0), "{summary:?}");
    scenario.fleet_counts("edge", &[("matched", 5), ("connected", 5)], SOON).await;
}

async fn connect(address: SocketAddr) -> Socket {
    Socket::connect(address).await.unwrap_or_else(|refused| panic!("no WebSocket: {refused:?}"))
}

/// What the server says to a frame, on a connection of its own.
async fn answer_to(address: SocketAddr, frame: Message) -> (Socket, Received) {
    let mut socket = connect(address).await;
    socket.send_frame(frame).await.expect("the frame is sent");
    let received = socket.receive().await;
    (socket, received)
}

fn binary(bytes: &[&[u8]]) -> Message {
    Message::Binary(bytes.concat().into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_message_is_answered_and_the_connection_lives_on() {
    let scenario = Scenario::begin("bad-messages").await;
    let (operator, swarm) = bystanders(&scenario).await;
    let lawful = frame(&full_report(&new_uid(), "edge"));
    let short_uid = AgentToServer { instance_uid: Bytes::from_static(&[7; 15]), ..AgentToServer::default() };
    let long_uid = AgentToServer { instance_uid: Bytes::from_static(&[7; 17]), ..AgentToServer::default() };
    for (case, frame) in [
        ("WS-03: header 1", binary(&[&[1], &lawful[1..]])),
        ("WS-03: no header", binary(&[&lawful[1..]])),
        ("WS-04: truncated header", binary(&[&[0x80]])),
        ("WS-04: header of 11 bytes", binary(&[&[0x80; 10], &[0], &lawful[1..]])),
        ("WS-04: no bytes at all", binary(&[])),
        ("AMB-17: nobody speaks", binary(&[&[0]])),
        ("ERR-01: garbage", binary(&[&[0], &[0xff; 64]])),
        ("ERR-01: cut off", binary(&[&lawful[..lawful.len() - 3]])),
        ("A2S-02: uid of 15 bytes", Message::Binary(crate::harness::scripted::frame(&short_uid))),
        ("A2S-02: uid of 17 bytes", Message::Binary(crate::harness::scripted::frame(&long_uid))),
        ("AMB-19: text", Message::text("hello")),
    ] {
        let (mut socket, received) = answer_to(operator.listen, frame).await;
        let Received::Message(answer) = received else { panic!("{case}: {received:?}") };
        assert_eq!(error_kind(&answer), Some(BAD_REQUEST), "{case}");
        assert_only_an_error(&answer, case);
        let answer = socket.exchange(&full_report(&new_uid(), "nobody")).await;
        assert_eq!(error_kind(&answer), None, "{case}: the next message is served");
    }
    nobody_noticed(&scenario, &swarm).await;
}

/// An error response goes with no field but the uid (S2A-05).
fn assert_only_an_error(answer: &ServerToAgent, case: &str) {
    let bare = ServerToAgent {
        instance_uid: answer.instance_uid.clone(),
        error_response: answer.error_response.clone(),
        ..ServerToAgent::default()
    };
    assert_eq!(answer, &bare, "{case}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_message_closes_its_connection_only() {
    let scenario = Scenario::begin("oversized").await;
    let (operator, swarm) = bystanders(&scenario).await;
    let before = operator.memory();
    for round in 0..20 {
        let mut socket = connect(operator.listen).await;
        let _ = socket.send_frame(Message::Binary(vec![0; TOO_MUCH].into())).await; // refused before it is all sent
        match socket.receive().await {
            Received::Closed(Some(CloseCode::Size)) => {}
            // The Close frame is lost where the peer still writes into a closed socket.
            Received::Broken(_) | Received::Closed(None) if round > 0 => {}
            other => panic!("AMB-22: {other:?}"),
        }
    }
    let grown = operator.memory().saturating_sub(before);
    assert!(grown < 64 << 20, "memory grew by {grown} bytes");
    nobody_noticed(&scenario, &swarm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_keeps_offending_is_closed() {
    let scenario = Scenario::begin("offender").await;
    let (operator, swarm) = bystanders(&scenario).await;
    let mut socket = connect(operator.listen).await;
    let mut answered = 0;
    for _ in 0..30 {
        if socket.send_frame(Message::text("hello")).await.is_err() {
            break;
        }
        match socket.receive().await {
            Received::Message(_) => answered += 1,
            Received::Closed(_) | Received::Broken(_) => break,
        }
    }
    assert!((1..30).contains(&answered), "AMB-19: patience has an end, but is there: {answered}");
    nobody_noticed(&scenario, &swarm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_uid_of_zeros_is_nobodys_and_gets_another() {
    let scenario = Scenario::begin("nil-uid").await;
    let (operator, swarm) = bystanders(&scenario).await;
    let nil = Bytes::from_static(&[0; 16]);
    let answer = connect(operator.listen).await.exchange(&full_report(&nil, "edge")).await;
    assert_eq!(answer.instance_uid, nil, "S2A-03: the answer names whom it answers");
    let new = answer.agent_identification.expect("AMB-17: a likely duplicate gets a uid").new_instance_uid;
    assert_eq!((new.len(), new[6] >> 4, new[8] >> 6), (16, 7, 0b10), "S2A-04: a UUID of version 7");
    assert_eq!(swarm.summary().await.connections, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_live_agents_with_one_uid_the_newcomer_gets_another() {
    let scenario = Scenario::begin("twins").await;
    let (operator, swarm) = bystanders(&scenario).await;
    let uid = new_uid();
    let mut first = connect(operator.listen).await;
    assert_eq!(error_kind(&first.exchange(&full_report(&uid, "edge")).await), None);
    // It lives: its side answers pings, which takes somebody who reads.
    let first = tokio::spawn(async move { (first.stays_silent_for(SOON).await, first) });

    let mut second = connect(operator.listen).await;
    let answer = second.exchange(&full_report(&uid, "edge")).await;
    assert_eq!(error_kind(&answer), None, "AMB-14: the newcomer is acknowledged at once");
    assert!(answer.remote_config.is_none(), "AMB-14: without offers");
    let new = match answer.agent_identification {
        Some(identification) => identification.new_instance_uid,
        None => second.answer().await.agent_identification.expect("DUP-03: a uid of its own").new_instance_uid,
    };
    assert_ne!(new, uid);
    let answer = second.exchange(&full_report(&new, "edge")).await;
    assert_eq!((error_kind(&answer), answer.instance_uid), (None, new), "the new uid is served");
    let (undisturbed, mut first) = first.await.expect("the first agent goes on");
    assert!(undisturbed, "the first hears nothing of it");
    assert_eq!(error_kind(&first.exchange(&heartbeat(&uid, 2)).await), None);
    scenario.fleet_counts("edge", &[("matched", 7), ("connected", 7)], SOON).await;
    assert_eq!(swarm.summary().await.connections, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_speaks_for_a_thousand_agents_and_no_more() {
    let scenario = Scenario::begin("gateway").await;
    let (operator, swarm) = bystanders(&scenario).await;
    let mut gateway = connect(operator.listen).await;
    let uids: Vec<Bytes> = (0..1_000).map(|_| new_uid()).collect();
    for uid in &uids {
        let answer = gateway.exchange(&full_report(uid, "nobody")).await;
        assert_eq!((error_kind(&answer), &answer.instance_uid), (None, uid));
    }
    let surplus = new_uid();
    let answer = gateway.exchange(&full_report(&surplus, "nobody")).await;
    assert_eq!((error_kind(&answer), answer.instance_uid), (Some(UNAVAILABLE), surplus));
    let answer = gateway.exchange(&heartbeat(&uids[0], 2)).await;
    assert_eq!((error_kind(&answer), &answer.instance_uid), (None, &uids[0]), "the others are served on");
    nobody_noticed(&scenario, &swarm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_fleet_takes_anyone_nobody_is_let_in() {
    let scenario = Scenario::begin("closed").await;
    let operator = scenario.operator().await;
    match Socket::connect(operator.listen).await {
        Err(Refused::Answered { status, .. }) => assert_eq!(status.as_u16(), 401),
        Err(broken @ Refused::Broken(_)) => panic!("{broken:?}"),
        Ok(_) => panic!("a WebSocket was opened"),
    }
    scenario.apply(&[fleet("edge").build()]);
    let swarm = agents(1, "edge").start(&operator.websocket());
    swarm.all(Reached::connected(), SOON).await;
}
