//! Agents quote their configuration when they complain of it; what came from a Secret is taken out.

use super::bench::{Agent, Replica, fleet, offered};
use crate::opamp::messages::{ConnectionSettingsStatus, RemoteConfigStatuses as State};

fn edge(secret: &str) -> Vec<crate::catalog::FleetEntry> {
    vec![fleet("telemetry", "edge").giving_secret(secret)]
}

/// Everything that the API server was told.
fn everything(replica: &Replica) -> String {
    replica.server.list().iter().map(ToString::to_string).collect()
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_quotes_is_redacted_also_of_what_it_had_before() {
    let replica = Replica::alone(edge("token: canary-one"));
    let (socket, mut agent) = (replica.open(), Agent::new());
    let mut hash = agent.join(&socket).expect("an offer");
    for (number, quoted) in ["canary-one", "canary-two", "canary-three"].into_iter().enumerate() {
        socket.say(&agent.about(&hash, State::Failed, &format!("{number}: bad token {quoted}")));
        socket.say(&agent.unwell(&format!("cannot log in with {quoted}")));
        replica.settled().await;
        let told = everything(&replica);
        assert!(told.contains("bad token [redacted]"), "{told}");
        assert!(!told.contains("canary"), "{told}");
        // The next comes at once, and the agent still complains of the one before.
        replica.publish(edge(&format!("token: {}", ["canary-two", "canary-three", "canary-four"][number])));
        let next = offered(&socket.due()[0]).expect("an offer");
        socket.say(&agent.about(&hash, State::Failed, &format!("late: {quoted}")));
        replica.settled().await;
        let told = everything(&replica);
        assert!(told.contains("late: [redacted]") && !told.contains("canary"), "{told}");
        hash = next;
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_quotes_when_it_complains_of_its_settings_is_redacted() {
    let replica = Replica::alone(edge("token: canary-one"));
    let (socket, mut agent) = (replica.open(), Agent::new());
    let hash = agent.join(&socket).expect("an offer");
    let mut complaint = agent.report_of(&hash, State::Applied);
    let error_message = "bad token canary-one".into();
    complaint.connection_settings_status =
        Some(ConnectionSettingsStatus { error_message, ..ConnectionSettingsStatus::default() });
    socket.say(&complaint);
    let kept = replica.bridge.sessions.with(agent.uid, |entry| entry.session.record().connection_settings.clone());
    assert_eq!(kept.flatten().expect("a status").error, "bad token [redacted]");
}

#[tokio::test(start_paused = true)]
async fn the_first_complaint_after_a_restart_is_redacted_as_well() {
    let replica = Replica::alone(edge("token: canary-one"));
    let mut agent = Agent::new();
    let hash = agent.join(&replica.open()).expect("an offer");
    replica.settled().await;
    let server = replica.server.clone();
    replica.die();
    let replica = Replica::with(server, ("opamp-operator-0", "second"), edge("token: canary-one"));
    let mut complaint = agent.report_of(&hash, State::Failed);
    complaint.remote_config_status.as_mut().expect("a status").error_message = "bad token canary-one".into();
    replica.open().say(&complaint);
    replica.settled().await;
    let told = everything(&replica);
    assert!(told.contains("bad token [redacted]") && !told.contains("canary"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_had_before_it_left_is_redacted_when_it_returns() {
    let replica = Replica::alone(edge("token: canary-one"));
    let (socket, mut agent) = (replica.open(), Agent::new());
    let hash = agent.join(&socket).expect("an offer");
    socket.close();
    replica.settled().await;
    replica.publish(edge("token: canary-two"));
    replica.settled().await;
    replica.open().say(&agent.about(&hash, State::Failed, "bad token canary-one"));
    replica.settled().await;
    let told = everything(&replica);
    assert!(told.contains("bad token [redacted]") && !told.contains("canary"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn a_revision_is_forgotten_once_its_members_run_another() {
    let replica = Replica::alone(edge("token: canary-one"));
    let (socket, mut agent) = (replica.open(), Agent::new());
    agent.join(&socket);
    let formers = |replica: &Replica| {
        replica.bridge.sessions.with(agent.uid, |entry| entry.quotable(&replica.bridge.catalog.load()).len())
    };
    assert_eq!(formers(&replica), Some(1));
    let mut agent = agent.clone();
    replica.publish(edge("token: canary-two"));
    let hash = offered(&socket.due()[0]).expect("an offer");
    assert_eq!(formers(&replica), Some(2));
    socket.say(&agent.about(&hash, State::Applied, ""));
    assert_eq!(formers(&replica), Some(1));
}
