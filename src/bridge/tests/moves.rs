//! Where the object of an agent lives.

use super::bench::{Agent, OWN, Replica, fleet, namespace_of, text};
use crate::api::condition::ConditionType;

#[tokio::test(start_paused = true)]
async fn an_object_moves_only_when_a_fleet_elsewhere_alone_takes_its_agent() {
    let replica = Replica::alone(vec![fleet("one", "edge").giving("of one")]);
    let (socket, mut agent) = (replica.open(), Agent::new());
    agent.join(&socket);
    replica.settled().await;
    let higher = crate::catalog::FleetEntry { priority: 100, ..fleet("two", "edge").giving("of two") };
    for (case, fleets, home, pushed) in [
        ("one elsewhere is better", vec![fleet("one", "edge").giving("of one"), higher.clone()], "one", None),
        ("there is none any more", vec![], "one", None),
        ("one elsewhere takes it", vec![higher.clone()], "two", Some("of two")),
        ("its former home again", vec![fleet("one", "edge").giving("of one"), higher], "two", None),
    ] {
        replica.publish(fleets);
        let offers: Vec<_> = socket.due().iter().filter_map(text).collect();
        assert_eq!(offers, Vec::from_iter(pushed.map(ToOwned::to_owned)), "{case}");
        replica.settled().await;
        assert_eq!(namespace_of(&replica.server, agent.uid), home, "{case}");
        assert_eq!(replica.server.list().len(), 1, "{case}");
    }
    assert_eq!(replica.holder(agent.uid).1, 2, "the epochs go on");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_nobody_takes_lives_with_the_operator_until_a_fleet_does() {
    let replica = Replica::alone(vec![fleet("telemetry", "windows").selecting("windows").giving("first")]);
    let (socket, mut agent) = (replica.open(), Agent::new());
    socket.say(&agent.report());
    replica.settled().await;
    assert_eq!(namespace_of(&replica.server, agent.uid), OWN);
    agent.attributes.insert("os.type".into(), "windows".into());
    socket.say(&agent.report());
    replica.settled().await;
    assert_eq!(namespace_of(&replica.server, agent.uid), "telemetry");
    assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "True, FleetSelects");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_a_person_deletes_while_its_agent_is_there_is_written_anew() {
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let (socket, mut agent) = (replica.open(), Agent::new());
    agent.join(&socket);
    replica.settled().await;
    replica.server.delete("telemetry", &agent.uid.to_string());
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
    assert!(replica.holder(agent.uid).1 > 1, "the epochs go on");
    assert_eq!(socket.pushed(), []);
}

#[tokio::test(start_paused = true)]
async fn what_another_home_gives_is_pushed() {
    // The object is found in another namespace than the fleet's that took the agent at first.
    let fleets = || vec![fleet("one", "edge").giving("of one"), fleet("two", "edge").giving("of two")];
    let replica = Replica::alone(fleets());
    let (socket, mut agent) = (replica.open(), Agent::new());
    agent.join(&socket);
    replica.settled().await;
    let name = agent.uid.to_string();
    let status = replica.server.object("one", &name).expect("the object")["status"].clone();
    replica.server.delete("one", &name);
    replica.server.put("two", &name, &serde_json::json!({"opamp.dev/fleet": "edge"}), &status);
    replica.settled().await;
    assert_eq!(socket.pushed().iter().filter_map(text).collect::<Vec<_>>(), ["of two"]);
    assert_eq!(namespace_of(&replica.server, agent.uid), "two");
}
