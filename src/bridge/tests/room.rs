//! How much is kept in memory, and for how long.

use std::time::Duration;

use super::bench::{Agent, Replica, asks_for_all, fleet, new_uid, pass};
use crate::{
    opamp::messages::{AgentToServer, AgentToServerFlags, server_error_response::Details},
    status::tests::api_server::Fault,
};

fn edge() -> Vec<crate::catalog::FleetEntry> {
    vec![fleet("telemetry", "edge").giving("first")]
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_finds_no_room_is_told_to_come_back_and_holds_no_place() {
    // THR-01, AMB-44
    let replica = Replica::with_room(2, edge());
    let (socket, mut one, mut two, mut three) = (replica.open(), Agent::new(), Agent::new(), Agent::new());
    one.join(&socket);
    two.join(&replica.open());
    for _ in 0..3 {
        let error = socket.say(&three.report()).error_response.expect("an error");
        assert_eq!(error.r#type, 2);
        let Some(Details::RetryInfo(info)) = error.details else { panic!("no time to come back") };
        assert!(info.retry_after_nanoseconds >= 30_000_000_000);
    }
    assert_eq!(socket.send(Vec::new())[0].error_response, None, "the other still speaks alone");
    assert_eq!(socket.say(&one.heartbeat()).error_response, None);
    assert_eq!(replica.poll(&three.report()).error_response.map(|error| error.r#type), Some(2), "over HTTP neither");
    socket.say(&one.goodbye());
    replica.settled().await;
    pass(Duration::from_secs(31)).await;
    assert_eq!(replica.poll(&three.report()).error_response, None, "room was scarce, so it was made at once");
}

#[tokio::test(start_paused = true)]
async fn a_session_is_kept_for_ten_minutes_after_its_end_was_written() {
    // STS-02
    let replica = Replica::alone(edge());
    let mut agent = Agent::new();
    let socket = replica.open();
    agent.join(&socket);
    socket.close();
    for _ in 0..2 {
        replica.settled().await;
        pass(Duration::from_secs(590)).await;
        let socket = replica.open();
        assert!(!asks_for_all(&socket.say(&agent.heartbeat())), "a return within that is no gap");
        socket.close();
    }
    replica.settled().await;
    pass(Duration::from_secs(640)).await;
    assert_eq!(replica.bridge.metrics.sessions.get(), 0);
    assert!(asks_for_all(&replica.open().say(&agent.heartbeat())));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_written_is_not_dropped() {
    let replica = Replica::alone(edge());
    let (socket, mut agent) = (replica.open(), Agent::new());
    agent.join(&socket);
    replica.settled().await;
    let (hour, almost) = (Duration::from_secs(3_600), Duration::from_secs(3_599));
    replica.server.away_until(crate::server::now().instant + hour);
    socket.close();
    pass(almost).await;
    assert_eq!(replica.bridge.metrics.sessions.get(), 1);
    pass(Duration::from_secs(120)).await;
    replica.settled().await;
    assert!(replica.status(agent.uid).conditions.iter().any(|condition| condition.reason == "ConnectionClosed"));
    pass(Duration::from_secs(640)).await;
    assert_eq!(replica.bridge.metrics.sessions.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn those_who_only_ask_for_a_uid_leave_nothing_behind() {
    // A2S-03, AMB-13
    let replica = Replica::alone(edge());
    for number in 0..20 {
        let mut agent = Agent::new();
        let wish = AgentToServer { flags: AgentToServerFlags::RequestInstanceUid as u64, ..agent.report() };
        agent.uid = new_uid(&replica.poll(&wish)).expect("a new uid");
        if number < 10 {
            replica.poll(&agent.report());
        }
    }
    assert_eq!(replica.bridge.metrics.sessions.get(), 30);
    pass(Duration::from_secs(31)).await;
    assert_eq!(replica.bridge.metrics.sessions.get(), 20, "those that were adopted are not told again");
    pass(Duration::from_secs(640)).await;
    replica.settled().await;
    assert_eq!(replica.bridge.metrics.sessions.get(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_fails_is_made_up_for_before_the_session_goes() {
    let replica = Replica::alone(edge());
    let (socket, mut agent) = (replica.open(), Agent::new());
    agent.join(&socket);
    replica.settled().await;
    replica.server.fail_next(Fault::Silence);
    socket.close();
    replica.settled().await;
    assert!(replica.status(agent.uid).conditions.iter().any(|condition| condition.reason == "ConnectionClosed"));
}

/// With what the record points to, an agent with eleven attributes takes 3.6 kB in 28 blocks, the writer's queue included.
#[test]
fn an_entry_is_little_more_than_its_session() {
    let (entry, session) = (size_of::<crate::bridge::Entry>(), size_of::<crate::opamp::session::Session>());
    assert!(entry <= session + 640, "{entry} bytes, of which the session takes {session}");
    assert!(entry <= 1_344, "{entry} bytes");
}
