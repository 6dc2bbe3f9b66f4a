//! Many at once: changes that come faster than they are followed, and threads that get in each other's way.

use std::{sync::Arc, thread, time::Duration};

use prost::Message as _;
use serde_json::json;

use super::bench::{Agent, Replica, fleet, namespace_of, pass};
use crate::{
    api::condition::ConditionType,
    bridge::Bridge,
    opamp::{InstanceUid, identity::Principal, messages::RemoteConfigStatuses as State, session::ConnectionId},
    server::{Agents as _, Connection, Protection, Transport, now},
    status::{queue::Urgency, writer::AgentViews as _},
};

#[tokio::test(start_paused = true)]
async fn what_is_missed_in_a_flood_of_changes_is_found_out_afterwards() {
    let edge = || vec![fleet("telemetry", "edge").giving("first")];
    let replica = Replica::alone(edge());
    let (socket, mut agent) = (replica.open(), Agent::new());
    agent.join(&socket);
    replica.settled().await;
    for _ in 0..1_100 {
        replica.server.put("others", &InstanceUid::generate().to_string(), &json!({}), &json!({}));
    }
    replica.server.delete("telemetry", &agent.uid.to_string());
    replica.settled().await;
    assert_eq!(namespace_of(&replica.server, agent.uid), "telemetry", "it was written anew");
    assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
}

#[tokio::test(start_paused = true)]
async fn hundreds_of_agents_fall_silent_together() {
    let replica = Replica::with_room(1_000, vec![fleet("telemetry", "edge").giving("first")]);
    let mut agents: Vec<_> = (0..300).map(|_| Agent::new()).collect();
    for agent in &mut agents {
        replica.poll(&agent.report());
    }
    replica.settled().await;
    pass(Duration::from_secs(301)).await;
    replica.settled().await;
    let silent = replica.server.list().iter().filter(|object| object.to_string().contains("HeartbeatMissing")).count();
    assert_eq!(silent, agents.len());
    pass(Duration::from_secs(700)).await;
    assert_eq!(replica.bridge.metrics.sessions.get(), 0);
}

/// One side of the disturbance: a socket on which a few agents come, go, and are taken for each other.
fn disturb(bridge: &Bridge, uids: &[InstanceUid], number: u64) {
    for round in 0..60 {
        let id = ConnectionId::new(1_000_000 + number * 1_000 + round);
        let transport = if round % 3 == 0 { Transport::Http } else { Transport::WebSocket };
        let remote = ([10, 0, 0, 7], 40_000).into();
        let connection =
            Arc::new(Connection::new(id, transport, Principal::anonymous().into(), remote, Protection::Plain));
        for uid in uids {
            let mut agent = Agent::of(*uid);
            for message in [agent.report(), agent.about(b"x", State::Failed, "no"), agent.heartbeat()] {
                assert_eq!(bridge.receive(&connection, message.encode_to_vec().into(), now()).send.len(), 1);
            }
            let _ = (bridge.due(&connection, now()), bridge.pong(&connection, now()));
            let _ = bridge.view(uid);
            bridge.released(uid, round);
            bridge.writer.touch(*uid, Urgency::Rest);
            bridge.sessions.drop_if(*uid, |entry| entry.may_be_dropped(Duration::ZERO, &bridge.settings.owner, now()));
        }
        bridge.closed(&connection, now());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_that_get_in_each_others_way_lose_nothing_and_never_stop() {
    let edge = |text: &str| vec![fleet("telemetry", "edge").giving(text)];
    let replica = Replica::alone(edge("first"));
    let uids: Vec<_> = (0..4).map(|_| InstanceUid::generate()).collect();
    thread::scope(|scope| {
        for number in 0..3 {
            let (bridge, uids) = (&replica.bridge, &uids);
            scope.spawn(move || disturb(bridge, uids, number));
        }
        for text in ["second", "third", "fourth"] {
            replica.publish(edge(text));
            replica.show();
            thread::sleep(Duration::from_millis(5));
        }
    });
    let left = i64::try_from(replica.bridge.sessions.uids().count()).expect("few");
    assert_eq!(replica.bridge.metrics.sessions.get(), left);
    let (socket, mut agent) = (replica.open(), Agent::new());
    assert!(agent.join(&socket).is_some(), "and goes on");
}
