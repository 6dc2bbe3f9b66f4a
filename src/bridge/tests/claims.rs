//! Two replicas, one API server: whose an agent is.

use std::time::Duration;

use super::bench::{Agent, Replica, fleet, new_uid, offered, pass, patches, settled};
use crate::{api::condition::ConditionType, opamp::messages::RemoteConfigStatuses as State};

fn edge() -> Vec<crate::catalog::FleetEntry> {
    vec![fleet("telemetry", "edge").giving("first")]
}

fn pair() -> (Replica, Replica) {
    let a = Replica::first(("replica-a", "first"), edge());
    let b = Replica::with(a.server.clone(), ("replica-b", "first"), edge());
    (a, b)
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_leaves_one_replica_for_another_is_claimed_there_once() {
    let (a, b) = pair();
    let mut agent = Agent::new();
    let socket = a.open();
    let hash = agent.join(&socket).expect("an offer");
    settled(&[&a, &b]).await;
    assert_eq!(a.holder(agent.uid), ("replica-a".into(), 1));
    socket.close();
    settled(&[&a, &b]).await;
    pass(Duration::from_secs(5)).await;
    let socket = b.open();
    assert_eq!(offered(&socket.say(&agent.report_of(&hash, State::Applied))), None);
    settled(&[&a, &b]).await;
    assert_eq!(b.holder(agent.uid), ("replica-b".into(), 2));
    b.requests();
    // Whatever changes now, the first replica has no more to say.
    for text in ["second", "third"] {
        a.publish(vec![fleet("telemetry", "edge").giving(text)]);
        settled(&[&a, &b]).await;
        pass(Duration::from_secs(60)).await;
    }
    assert_eq!(b.requests(), patches(0));
    assert_eq!(b.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
    assert_eq!(new_uid(&socket.say(&agent.heartbeat())), None);
    assert_eq!(a.bridge.metrics.sessions.get(), 0, "it speaks elsewhere, so its session is worth nothing here");
}

#[tokio::test(start_paused = true)]
async fn the_replica_of_a_half_open_socket_stops_writing() {
    // AMB-14
    let (a, b) = pair();
    let (old, mut agent) = (a.open(), Agent::new());
    let hash = agent.join(&old).expect("an offer");
    settled(&[&a, &b]).await;
    pass(Duration::from_secs(5)).await;
    let new = b.open();
    new.say(&agent.report_of(&hash, State::Applied));
    settled(&[&a, &b]).await;
    assert_eq!(b.holder(agent.uid), ("replica-b".into(), 2));
    assert!(old.is_pinged(), "it is asked whether it is alive");
    // It is not: the server closes it after a while.
    pass(Duration::from_secs(50)).await;
    old.close();
    settled(&[&a, &b]).await;
    assert_eq!(b.holder(agent.uid), ("replica-b".into(), 2));
    assert_eq!(b.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
    assert_eq!(new_uid(&new.say(&agent.heartbeat())), None);
}

#[tokio::test(start_paused = true)]
async fn a_clone_at_another_replica_gets_a_new_uid_and_the_first_keeps_its_own() {
    // DUP-02, DUP-03, AMB-14
    let (a, b) = pair();
    let (first, mut agent) = (a.open(), Agent::new());
    agent.join(&first);
    settled(&[&a, &b]).await;
    pass(Duration::from_secs(5)).await;
    let (second, mut clone) = (b.open(), agent.clone());
    second.say(&clone.report());
    settled(&[&a, &b]).await;
    assert!(first.is_pinged());
    assert_eq!(first.pong(), []);
    settled(&[&a, &b]).await;
    assert_eq!(a.holder(agent.uid), ("replica-a".into(), 3));
    let pushed = second.pushed();
    let given = pushed.last().and_then(new_uid).expect("a new uid");
    clone.uid = given;
    assert!(clone.join(&second).is_some());
    settled(&[&a, &b]).await;
    assert_eq!(b.holder(given), ("replica-b".into(), 1));
    a.requests();
    for _ in 0..10 {
        pass(Duration::from_secs(30)).await;
        assert_eq!(new_uid(&first.say(&agent.heartbeat())), None);
        assert_eq!(new_uid(&second.say(&clone.heartbeat())), None);
        settled(&[&a, &b]).await;
    }
    assert_eq!(a.requests(), patches(0), "it is over");
    assert_eq!(a.holder(agent.uid), ("replica-a".into(), 3));
}

#[tokio::test(start_paused = true)]
async fn clones_of_the_same_second_come_to_one_decision() {
    // DUP-02
    let (a, b) = pair();
    let (one, two, mut agent) = (a.open(), b.open(), Agent::new());
    let mut clone = agent.clone();
    one.say(&agent.report());
    two.say(&clone.report());
    let mut given = Vec::new();
    for _ in 0..20 {
        settled(&[&a, &b]).await;
        for socket in [&one, &two] {
            if socket.is_pinged() {
                socket.pong();
            }
            given.extend(socket.pushed().iter().filter_map(new_uid));
        }
    }
    assert_eq!(given.len(), 1, "one keeps the uid");
    a.requests();
    pass(Duration::from_secs(60)).await;
    settled(&[&a, &b]).await;
    assert_eq!(a.requests(), patches(0), "and there is peace");
    let _ = (agent.heartbeat(), clone.heartbeat());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_over_before_it_was_written_takes_nothing_from_its_successor() {
    let (a, b) = pair();
    let (old, mut agent) = (a.open(), Agent::new());
    // The first replica reaches the API server late: its budget is used up, say.
    a.server.away_until(crate::server::now().instant + Duration::from_secs(20));
    old.say(&agent.report());
    pass(Duration::from_secs(5)).await;
    old.close();
    let new = b.open();
    new.say(&agent.report());
    pass(Duration::from_secs(30)).await;
    settled(&[&a, &b]).await;
    for _ in 0..3 {
        pass(Duration::from_secs(10)).await;
        settled(&[&a, &b]).await;
        if new.is_pinged() {
            new.pong();
        }
    }
    assert_eq!(b.holder(agent.uid).0, "replica-b");
    assert_eq!(b.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
    assert_eq!(new_uid(&new.say(&agent.heartbeat())), None);
    assert_eq!(new.pushed().iter().filter_map(new_uid).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn polls_that_take_turns_at_two_replicas_cost_no_writes_and_no_uid() {
    // AMB-14
    let (a, b) = pair();
    let mut agent = Agent::new();
    let hash = offered(&a.poll(&agent.report())).expect("an offer");
    a.poll(&agent.about(&hash, State::Applied, ""));
    settled(&[&a, &b]).await;
    pass(Duration::from_secs(2)).await;
    b.poll(&agent.report_of(&hash, State::Applied));
    settled(&[&a, &b]).await;
    a.requests();
    for round in 0..20 {
        pass(Duration::from_secs(30)).await;
        let replica = [&a, &b][round % 2];
        let reply = replica.poll(&agent.report_of(&hash, State::Applied));
        assert_eq!((new_uid(&reply), offered(&reply)), (None, None));
        settled(&[&a, &b]).await;
    }
    assert_eq!(a.requests(), patches(0));
    assert_eq!(b.holder(agent.uid), ("replica-b".into(), 2));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_polls_comes_back_when_its_replica_is_gone() {
    let (a, b) = pair();
    let mut agent = Agent::new();
    a.poll(&agent.report());
    settled(&[&a, &b]).await;
    pass(Duration::from_secs(2)).await;
    b.poll(&agent.report());
    settled(&[&a, &b]).await;
    assert_eq!(a.holder(agent.uid), ("replica-b".into(), 2));
    pass(Duration::from_secs(30)).await;
    b.poll(&agent.goodbye());
    settled(&[&a, &b]).await;
    assert_eq!(a.condition(agent.uid, ConditionType::Connected), "False, AgentDisconnected");
    pass(Duration::from_secs(30)).await;
    a.poll(&agent.report());
    settled(&[&a, &b]).await;
    assert_eq!(a.holder(agent.uid), ("replica-a".into(), 3));
    assert_eq!(a.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
}

#[tokio::test(start_paused = true)]
async fn what_failed_at_one_replica_is_not_offered_by_the_other() {
    // AMB-24
    let (a, b) = pair();
    let (socket, mut agent) = (a.open(), Agent::new());
    let good = agent.join(&socket).expect("an offer");
    settled(&[&a, &b]).await;
    socket.close();
    settled(&[&a, &b]).await;
    pass(Duration::from_secs(2)).await;
    let socket = b.open();
    socket.say(&agent.report_of(&good, State::Applied));
    for replica in [&a, &b] {
        replica.publish(vec![fleet("telemetry", "edge").giving("bad")]);
    }
    let bad = offered(&socket.due()[0]).expect("an offer");
    socket.say(&agent.about(&bad, State::Failed, "no such exporter"));
    socket.say(&agent.about(&good, State::Applied, ""));
    settled(&[&a, &b]).await;
    socket.close();
    settled(&[&a, &b]).await;
    let socket = a.open();
    assert_eq!(offered(&socket.say(&agent.report_of(&good, State::Applied))), None);
    settled(&[&a, &b]).await;
    assert_eq!(socket.pushed(), []);
}
