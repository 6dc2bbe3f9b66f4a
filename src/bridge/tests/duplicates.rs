//! Two connections under one uid at one replica.

use std::time::Duration;

use super::bench::{Agent, MOMENT, Replica, asks_for_all, fleet, new_uid, offered, pass};
use crate::{api::condition::ConditionType, opamp::messages::RemoteConfigStatuses as State};

fn replica() -> Replica {
    Replica::alone(vec![fleet("telemetry", "edge").giving("first")])
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_takes_over_from_a_socket_that_is_dead() {
    // AMB-14, AMB-15
    let replica = replica();
    let (old, new, mut agent) = (replica.open(), replica.open(), Agent::new());
    let hash = agent.join(&old).expect("an offer");
    replica.settled().await;
    let reply = new.say(&agent.report_of(&hash, State::Applied));
    assert_eq!((offered(&reply), new_uid(&reply)), (None, None), "acknowledged only");
    assert!(old.is_pinged());
    pass(Duration::from_secs(2)).await;
    assert!(!old.is_closed());
    pass(2 * MOMENT).await;
    assert!(old.is_closed());
    let pushed = new.pushed();
    assert!(pushed.len() == 1 && asks_for_all(&pushed[0]), "what it said on trial was not taken: {pushed:?}");
    assert_eq!(offered(&new.say(&agent.report_of(&hash, State::Applied))), None);
    old.close();
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
    assert_eq!(replica.holder(agent.uid).1, 2, "another session, another epoch");
}

#[tokio::test(start_paused = true)]
async fn a_dead_socket_that_carries_others_stays_open_for_them() {
    // AMB-15
    let replica = replica();
    let (old, new, mut agent, mut other) = (replica.open(), replica.open(), Agent::new(), Agent::new());
    agent.join(&old);
    other.join(&old);
    new.say(&agent.report());
    pass(Duration::from_secs(4)).await;
    assert!(!old.is_closed());
    assert!(asks_for_all(&new.pushed()[0]));
    new.say(&other.report());
    pass(Duration::from_secs(4)).await;
    assert!(old.is_closed(), "nobody is left on it");
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_under_the_uid_of_a_living_socket_goes_on_under_another() {
    // DUP-02, DUP-03, AMB-13, AMB-14
    let replica = replica();
    let (old, new, mut agent) = (replica.open(), replica.open(), Agent::new());
    agent.join(&old);
    replica.settled().await;
    let mut clone = agent.clone();
    new.say(&clone.report());
    assert!(old.is_pinged());
    assert_eq!(old.pong(), []);
    let given = new_uid(&new.pushed()[0]).expect("a new uid");
    assert_eq!(new_uid(&new.say(&clone.heartbeat())), Some(given), "the same again");
    clone.uid = given;
    assert!(clone.join(&new).is_some());
    replica.settled().await;
    assert_eq!(replica.server.list().len(), 2, "a second record");
    for uid in [agent.uid, given] {
        assert_eq!(replica.condition(uid, ConditionType::Connected), "True, SessionOpen");
    }
    assert_eq!(replica.holder(agent.uid).1, 1, "the first was never disturbed");
    new.close();
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
    assert_eq!(replica.condition(given, ConditionType::Connected), "False, ConnectionClosed");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_proves_nothing() {
    // AMB-14
    let replica = replica();
    let (old, new, mut agent) = (replica.open(), replica.open(), Agent::new());
    agent.join(&old);
    new.say(&agent.report());
    pass(Duration::from_secs(4)).await;
    assert_eq!(old.pong(), []);
    assert!(asks_for_all(&new.pushed()[0]), "it has taken over");
    assert_eq!(new_uid(&new.say(&agent.report())), None);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_comes_over_http_after_its_socket_died_is_shown_as_that() {
    // AMB-14
    let replica = replica();
    let (old, mut agent) = (replica.open(), Agent::new());
    let hash = agent.join(&old).expect("an offer");
    replica.poll(&agent.report_of(&hash, State::Applied));
    pass(Duration::from_secs(4)).await;
    assert!(old.is_closed());
    old.close();
    for _ in 0..2 {
        replica.settled().await;
        let connection = replica.status(agent.uid).connection.expect("a connection");
        assert_eq!((connection.transport, connection.epoch), (crate::api::agent::Transport::Http, 2), "at once");
        replica.poll(&agent.report_of(&hash, State::Applied));
    }
    assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
}

#[tokio::test(start_paused = true)]
async fn who_polls_no_longer_is_silent_after_five_minutes() {
    // AMB-12
    let replica = replica();
    let mut agent = Agent::new();
    replica.poll(&agent.report());
    for _ in 0..4 {
        pass(Duration::from_secs(299)).await;
        replica.poll(&agent.heartbeat());
    }
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
    pass(Duration::from_secs(301)).await;
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "False, HeartbeatMissing");
}
