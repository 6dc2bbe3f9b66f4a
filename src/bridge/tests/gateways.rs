//! Many agents on one connection.

use std::collections::BTreeSet;

use prost::Message as _;

use super::bench::{Agent, Replica, fleet, new_uid, text};
use crate::{
    api::condition::ConditionType,
    opamp::messages::{AgentToServer, AgentToServerFlags, RetryInfo, ServerToAgent, server_error_response::Details},
};

const BAD_REQUEST: i32 = 1;
const UNAVAILABLE: i32 = 2;

fn error(reply: &ServerToAgent) -> Option<i32> {
    reply.error_response.as_ref().map(|error| error.r#type)
}

fn crowd(number: usize) -> Vec<Agent> {
    (0..number).map(|_| Agent::new()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_agent_after_the_thousandth_is_told_to_come_back_and_the_others_go_on() {
    // AMB-15, AMB-44
    let replica = Replica::with_room(5_000, vec![fleet("telemetry", "edge").giving("first")]);
    let (gateway, mut agents, mut late) = (replica.open(), crowd(1_000), Agent::new());
    for agent in &mut agents {
        assert!(gateway.say(&agent.report()).remote_config.is_some());
    }
    let refused = gateway.say(&late.report());
    assert_eq!(error(&refused), Some(UNAVAILABLE));
    let details = refused.error_response.and_then(|error| error.details);
    let Some(Details::RetryInfo(RetryInfo { retry_after_nanoseconds })) = details else { panic!("{details:?}") };
    assert!(retry_after_nanoseconds >= 30_000_000_000);
    assert_eq!(error(&gateway.say(&agents[7].heartbeat())), None);
    gateway.say(&agents[0].goodbye());
    assert_eq!(error(&gateway.say(&late.report())), None, "a place is free");
    assert_eq!(error(&replica.open().say(&Agent::new().report())), None, "elsewhere there is room");
}

#[tokio::test(start_paused = true)]
async fn an_empty_message_is_a_heartbeat_where_one_agent_speaks_alone() {
    // AMB-17
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let (socket, mut one, mut two) = (replica.open(), Agent::new(), Agent::new());
    let bad = socket.send(Vec::new());
    assert_eq!((error(&bad[0]), bad[0].instance_uid.len()), (Some(BAD_REQUEST), 0), "nobody is known");
    one.join(&socket);
    let beat = socket.send(Vec::new());
    assert_eq!((error(&beat[0]), &beat[0].instance_uid[..]), (None, &one.uid.as_bytes()[..]));
    two.join(&socket);
    let bad = socket.send(Vec::new());
    assert_eq!((error(&bad[0]), bad[0].instance_uid.len()), (Some(BAD_REQUEST), 0), "it could be either");
    socket.say(&two.goodbye());
    assert_eq!(error(&socket.send(Vec::new())[0]), None, "alone again");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_got_another_uid_speaks_alone_under_it() {
    // AMB-13, AMB-17
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let (socket, mut agent) = (replica.open(), Agent::new());
    let wish = AgentToServer { flags: AgentToServerFlags::RequestInstanceUid as u64, ..agent.report() };
    let given = new_uid(&socket.say(&wish)).expect("a new uid");
    assert_eq!(new_uid(&socket.say(&wish)), Some(given), "the same again until it is used");
    agent.uid = given;
    assert!(socket.say(&agent.report()).remote_config.is_some());
    assert_eq!(socket.send(Vec::new())[0].instance_uid, given.as_bytes()[..]);
    replica.settled().await;
    assert_eq!(replica.server.list().len(), 1, "the temporary uid was never an agent");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_socket_takes_all_offline_and_a_goodbye_one() {
    // AMB-15
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let (gateway, mut agents) = (replica.open(), crowd(3));
    for agent in &mut agents {
        agent.join(&gateway);
    }
    gateway.say(&agents[0].goodbye());
    replica.settled().await;
    let connected = |agent: &Agent| replica.condition(agent.uid, ConditionType::Connected);
    assert_eq!(
        agents.iter().map(connected).collect::<Vec<_>>(),
        ["False, AgentDisconnected", "True, SessionOpen", "True, SessionOpen"]
    );
    gateway.close();
    replica.settled().await;
    assert_eq!(
        agents.iter().map(connected).collect::<Vec<_>>(),
        ["False, AgentDisconnected", "False, ConnectionClosed", "False, ConnectionClosed"]
    );
}

#[tokio::test(start_paused = true)]
async fn every_agent_of_a_gateway_is_pushed_its_own_with_one_shared_content() {
    // S2A-03, WS-06
    let edge = |text| vec![fleet("telemetry", "edge").giving(text)];
    let replica = Replica::alone(edge("first"));
    let (gateway, mut agents) = (replica.open(), crowd(20));
    for agent in &mut agents {
        agent.join(&gateway);
    }
    replica.publish(edge("second"));
    let pushed = gateway.due();
    let addressees: BTreeSet<_> = pushed.iter().map(|message| message.instance_uid.to_vec()).collect();
    assert_eq!(addressees, agents.iter().map(|agent| agent.uid.as_bytes().to_vec()).collect());
    assert!(pushed.iter().all(|message| text(message).as_deref() == Some("second")));
    assert_eq!(gateway.due(), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_message_harms_nobody() {
    // AMB-17, AMB-19
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let (socket, mut agent) = (replica.open(), Agent::new());
    agent.join(&socket);
    let short = AgentToServer { instance_uid: vec![7; 15].into(), ..agent.heartbeat() };
    for garbage in [vec![0xff; 40], short.encode_to_vec()] {
        let bad = socket.send(garbage);
        assert_eq!((error(&bad[0]), &bad[0].instance_uid[..]), (Some(BAD_REQUEST), &agent.uid.as_bytes()[..]));
    }
    assert_eq!(error(&socket.say(&agent.heartbeat())), None);
}
