//! States that are about to change by themselves are not shown.

use std::time::Duration;

use super::bench::{Agent, MOMENT, OWN, Replica, fleet, namespace_of, pass, patches, text};
use crate::{
    api::condition::ConditionType,
    catalog::fleet::Offering,
    opamp::messages::{AgentToServer, RemoteConfigStatuses as State},
};

/// The first report of an agent that leaves its description for later.
fn without_description(agent: &mut Agent) -> AgentToServer {
    AgentToServer { agent_description: None, ..agent.report() }
}

#[tokio::test(start_paused = true)]
async fn a_description_that_comes_within_ten_seconds_is_all_that_is_ever_shown() {
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let (socket, mut agent) = (replica.open(), Agent::new());
    socket.say(&without_description(&mut agent));
    pass(Duration::from_secs(9)).await;
    assert!(replica.server.list().is_empty(), "nothing can be said of it yet");
    assert_eq!(text(&socket.say(&agent.report())).as_deref(), Some("first"));
    replica.settled().await;
    assert_eq!(namespace_of(&replica.server, agent.uid), "telemetry", "it did not begin elsewhere");
    assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "True, FleetSelects");
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_a_description_is_unmatched_after_ten_seconds() {
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let (socket, mut agent) = (replica.open(), Agent::new());
    assert_eq!(text(&socket.say(&without_description(&mut agent))), None);
    pass(Duration::from_secs(10) + MOMENT).await;
    replica.settled().await;
    assert_eq!(namespace_of(&replica.server, agent.uid), OWN);
    assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "False, DescriptionMissing");
    assert_eq!(text(&socket.say(&agent.report())).as_deref(), Some("first"));
    replica.settled().await;
    assert_eq!(namespace_of(&replica.server, agent.uid), "telemetry");
    assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "True, FleetSelects");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_leaves_in_its_first_message_is_written_and_forgotten() {
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let mut agent = Agent::new();
    let farewell = AgentToServer { agent_description: agent.report().agent_description, ..agent.goodbye() };
    replica.open().say(&farewell);
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "False, AgentDisconnected");
    pass(Duration::from_secs(660)).await;
    assert_eq!(replica.bridge.metrics.sessions.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_deleted_and_put_back_costs_one_write_each_way_and_withdraws_nothing() {
    let edge = || fleet("telemetry", "edge").giving("first");
    let replica = Replica::alone(vec![edge(), fleet("others", "windows").selecting("windows")]);
    let socket = replica.open();
    let mut agents: Vec<_> = (0..5).map(|_| Agent::new()).collect();
    let offers: Vec<_> = agents.iter_mut().map(|agent| agent.join(&socket).expect("an offer")).collect();
    let hash = &offers[0];
    replica.settled().await;
    replica.requests();

    replica.publish(vec![fleet("others", "windows").selecting("windows")]);
    assert_eq!(socket.due(), [], "nothing is withdrawn");
    replica.settled().await;
    assert_eq!(replica.requests(), patches(5));
    for agent in &mut agents {
        assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "False, NoFleetSelects");
        assert_eq!(socket.say(&agent.about(hash, State::Applied, "")).remote_config, None, "acknowledged only");
    }
    // Its successor has another uid, and first no revision, then one that is not loaded, then the same content.
    let successor = || crate::catalog::FleetEntry { uid: "another".into(), ..edge() };
    for offering in [Offering::NoRevision, Offering::NotLoaded, successor().offering] {
        replica.publish(vec![crate::catalog::FleetEntry { offering, ..successor() }]);
        assert_eq!(socket.due(), []);
        pass(Duration::from_secs(2)).await;
    }
    replica.settled().await;
    pass(Duration::from_secs(60)).await;
    assert_eq!(replica.requests(), patches(5));
    for agent in &agents {
        assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "True, FleetSelects");
        assert_eq!(namespace_of(&replica.server, agent.uid), "telemetry");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_match_is_shown_after_ten_seconds_at_the_latest() {
    let replica = Replica::alone(vec![fleet("telemetry", "windows").selecting("windows")]);
    let (socket, mut agent) = (replica.open(), Agent::new());
    agent.join(&socket);
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "False, NoFleetSelects");
    let unread = crate::catalog::FleetEntry { offering: Offering::NotLoaded, ..fleet("telemetry", "edge") };
    replica.publish(vec![unread]);
    for _ in 0..9 {
        pass(MOMENT).await;
        assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "False, NoFleetSelects");
    }
    pass(2 * MOMENT).await;
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "True, FleetSelects");
    assert_eq!(replica.condition(agent.uid, ConditionType::ConfigApplied), "Unknown, NoRevision");
    replica.publish(vec![fleet("telemetry", "edge").giving("first")]);
    assert_eq!(text(&socket.due()[0]).as_deref(), Some("first"));
}

#[tokio::test(start_paused = true)]
async fn a_fleet_without_a_revision_takes_its_agents_at_once() {
    let replica = Replica::alone(vec![fleet("telemetry", "edge")]);
    let mut agent = Agent::new();
    replica.open().say(&agent.report());
    pass(MOMENT).await;
    assert_eq!(namespace_of(&replica.server, agent.uid), "telemetry");
    assert_eq!(replica.condition(agent.uid, ConditionType::ConfigApplied), "Unknown, NoRevision");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_lags_behind_does_not_take_an_agent_back() {
    let old = || fleet("telemetry", "edge").giving("old");
    let ahead = Replica::alone(vec![old().giving("new")]);
    let mut agent = Agent::new();
    let new = agent.join(&ahead.open()).expect("an offer");
    ahead.settled().await;
    let behind = Replica::with(ahead.server.clone(), ("opamp-operator-1", "first"), vec![old()]);
    let socket = behind.open();
    assert_eq!(text(&socket.say(&agent.report_of(&new, State::Applied))), None);
    pass(Duration::from_secs(3)).await;
    assert_eq!(socket.pushed(), []);
    behind.publish(vec![old().giving("new")]);
    assert_eq!(socket.due(), [], "it has caught up, and the agent has it already");
    behind.settled().await;
    assert_eq!(behind.status(agent.uid).revision.map(|revision| revision.epoch), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_has_really_gone_back_is_believed_after_ten_seconds() {
    let old = || fleet("telemetry", "edge").giving("old");
    let ahead = Replica::alone(vec![old().giving("new")]);
    let mut agent = Agent::new();
    let new = agent.join(&ahead.open()).expect("an offer");
    ahead.settled().await;
    let restored = Replica::with(ahead.server.clone(), ("opamp-operator-1", "first"), vec![old()]);
    let socket = restored.open();
    socket.say(&agent.report_of(&new, State::Applied));
    pass(Duration::from_secs(10) + MOMENT).await;
    assert_eq!(socket.pushed().iter().map(text).collect::<Vec<_>>(), [Some("old".into())]);
}
