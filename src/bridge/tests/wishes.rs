//! A person's wish that what failed be offered once more.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::bench::{Agent, MOMENT, Replica, Socket, fleet, offered, pass, settled};
use crate::opamp::messages::RemoteConfigStatuses as State;

fn edge() -> Vec<crate::catalog::FleetEntry> {
    vec![fleet("telemetry", "edge").giving("bad")]
}

/// An agent at which the configuration has failed.
async fn failed(replica: &Replica) -> (Socket, Agent, Bytes) {
    let (socket, mut agent) = (replica.open(), Agent::new());
    let hash = offered(&socket.say(&agent.report())).expect("an offer");
    socket.say(&agent.about(&hash, State::Failed, "no such exporter"));
    replica.settled().await;
    (socket, agent, hash)
}

fn wish(replica: &Replica, agent: &Agent, at: &str) {
    let spec = json!({"spec": {"reoffer": {"requestedAt": at}}});
    replica.server.modify("telemetry", &agent.uid.to_string(), &spec);
    replica.show();
}

fn granted(replica: &Replica, agent: &Agent) -> Option<String> {
    replica.status(agent.uid).reoffer.map(|reoffer| reoffer.requested_at.0.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_wish_is_granted_once_and_only_after_it_was_written() {
    // AMB-24
    let replica = Replica::alone(edge());
    let (socket, mut agent, hash) = failed(&replica).await;
    for at in ["2026-11-29T12:00:00Z", "2026-11-29T12:00:01.5Z"] {
        // The agent is written at most every few seconds.
        pass(Duration::from_secs(400)).await;
        replica.server.away_until(crate::server::now().instant + Duration::from_secs(60));
        wish(&replica, &agent, at);
        pass(Duration::from_secs(50)).await;
        assert_eq!(socket.pushed(), [], "it is not written yet");
        assert_eq!(offered(&socket.say(&agent.heartbeat())), None);
        pass(Duration::from_secs(60)).await;
        replica.settled().await;
        assert_eq!(granted(&replica, &agent), Some(format!("{}Z", &at[..19])));
        assert_eq!(socket.pushed().iter().map(offered).collect::<Vec<_>>(), [Some(hash.clone())]);
        assert_eq!(offered(&socket.say(&agent.about(&hash, State::Failed, "still not"))), None);
        for _ in 0..5 {
            replica.settled().await;
            pass(Duration::from_secs(30)).await;
            assert_eq!((socket.pushed(), offered(&socket.say(&agent.heartbeat()))), (vec![], None), "once");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wish_is_granted_to_an_agent_that_polls_with_its_next_reply() {
    let replica = Replica::alone(edge());
    let mut agent = Agent::new();
    let hash = offered(&replica.poll(&agent.report())).expect("an offer");
    replica.poll(&agent.about(&hash, State::Failed, "no such exporter"));
    replica.settled().await;
    wish(&replica, &agent, "2026-11-29T12:00:00Z");
    replica.settled().await;
    let offers: Vec<_> = (0..5).map(|_| offered(&replica.poll(&agent.heartbeat()))).collect();
    assert_eq!(offers, [Some(hash), None, None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_wish_made_before_a_restart_is_granted_after_it_and_one_that_was_granted_is_not_again() {
    let replica = Replica::alone(edge());
    let (socket, mut agent, hash) = failed(&replica).await;
    let server = replica.server.clone();
    replica.die();
    drop(socket);
    let mut offers = Vec::new();
    for (run, at) in [("second", Some("2026-11-29T12:00:00Z")), ("third", None), ("fourth", None)] {
        if let Some(at) = at {
            let spec = json!({"spec": {"reoffer": {"requestedAt": at}}});
            server.modify("telemetry", &agent.uid.to_string(), &spec);
        }
        let replica = Replica::with(server.clone(), ("opamp-operator-0", run), edge());
        let socket = replica.open();
        assert_eq!(offered(&socket.say(&agent.report_of(&hash, State::Failed))), None, "not before it is written");
        pass(MOMENT).await;
        replica.settled().await;
        offers.extend(socket.pushed().iter().map(offered));
        replica.die();
    }
    assert_eq!(offers, [Some(hash)]);
}

#[tokio::test(start_paused = true)]
async fn of_two_replicas_one_grants_a_wish() {
    let one = Replica::alone(edge());
    let two = Replica::with(one.server.clone(), ("opamp-operator-1", "first"), edge());
    let mut agent = Agent::new();
    let hash = offered(&one.poll(&agent.report())).expect("an offer");
    one.poll(&agent.about(&hash, State::Failed, "no such exporter"));
    settled(&[&one, &two]).await;
    // Its polls go to the other replica from now on, and the wish is made while both have a session of it.
    pass(Duration::from_secs(2)).await;
    two.poll(&agent.report_of(&hash, State::Failed));
    settled(&[&one, &two]).await;
    assert_eq!(two.holder(agent.uid).0, "opamp-operator-1");
    wish(&two, &agent, "2026-11-29T12:00:00Z");
    settled(&[&one, &two]).await;
    assert_eq!(offered(&two.poll(&agent.heartbeat())), Some(hash));
    // And back again.
    pass(Duration::from_secs(2)).await;
    let replies: Vec<_> = (0..3).map(|_| offered(&one.poll(&agent.heartbeat()))).collect();
    settled(&[&one, &two]).await;
    assert_eq!((replies, offered(&one.poll(&agent.heartbeat()))), (vec![None; 3], None));
}
