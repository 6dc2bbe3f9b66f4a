//! What agents are offered, when, and how often.

use std::time::Duration;

use super::bench::{Agent, MOMENT, Replica, asks_for_all, fleet, offered, pass, patches, text};
use crate::{
    api::condition::ConditionType,
    opamp::messages::{AgentToServer, RemoteConfigStatuses as State},
};

#[tokio::test(start_paused = true)]
async fn the_first_report_is_answered_with_what_the_agent_is_to_have() {
    // CFG-01, CFG-05
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let (socket, mut over_http, mut agent) = (replica.open(), Agent::new(), Agent::new());
    assert_eq!(text(&socket.say(&agent.report())).as_deref(), Some("first"));
    assert_eq!(text(&replica.poll(&over_http.report())).as_deref(), Some("first"));
    replica.settled().await;
    for uid in [agent.uid, over_http.uid] {
        let status = replica.status(uid);
        assert_eq!(status.fleet.as_deref(), Some("edge"));
        assert!(status.remote_config.is_some_and(|config| config.offered.is_some()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_pushed_to_sockets_and_rides_on_the_next_poll() {
    // CFG-03, WS-06, HTTP-02
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let (socket, mut agent, mut poller) = (replica.open(), Agent::new(), Agent::new());
    agent.join(&socket);
    let first = offered(&replica.poll(&poller.report())).expect("an offer");
    replica.poll(&poller.about(&first, State::Applied, ""));
    replica.publish(vec![fleet("telemetry", "edge").giving("second")]);
    let pushed = socket.due();
    assert_eq!(pushed.iter().map(text).collect::<Vec<_>>(), [Some("second".into())]);
    assert_eq!(socket.due(), [], "once");
    assert_eq!(text(&replica.poll(&poller.heartbeat())).as_deref(), Some("second"));
    assert_eq!(text(&replica.poll(&poller.heartbeat())), None, "once in 30 s");
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_an_agent_is_not_offered_what_its_status_says_it_has() {
    // CMP-07, CFG-06
    let edge = || vec![fleet("telemetry", "edge").giving("first")];
    let replica = Replica::alone(edge());
    let mut agent = Agent::new();
    let hash = agent.join(&replica.open()).expect("an offer");
    replica.settled().await;
    let server = replica.server.clone();
    replica.die();
    let replica = Replica::with(server, ("opamp-operator-0", "second"), edge());
    let socket = replica.open();
    let reply = socket.say(&agent.heartbeat());
    assert!(asks_for_all(&reply), "nothing but the status is left of what it said");
    assert_eq!(offered(&reply), None);
    assert_eq!(offered(&socket.say(&agent.report_of(&hash, State::Applied))), None);
    replica.settled().await;
    assert_eq!(socket.pushed(), []);
    assert_eq!(replica.condition(agent.uid, ConditionType::ConfigApplied), "True, Applied");
    replica.publish(vec![fleet("telemetry", "edge").giving("second")]);
    assert_eq!(socket.due().len(), 1, "but it is what changes");
}

#[tokio::test(start_paused = true)]
async fn the_attributes_in_the_status_count_until_the_agent_describes_itself() {
    // CMP-07
    let edge = |text| vec![fleet("telemetry", "edge").selecting("linux").giving(text)];
    let replica = Replica::alone(edge("first"));
    let mut agent = Agent::new();
    agent.join(&replica.open());
    replica.settled().await;
    let server = replica.server.clone();
    replica.die();
    let replica = Replica::with(server, ("opamp-operator-0", "second"), edge("second"));
    let socket = replica.open();
    assert_eq!(offered(&socket.say(&agent.heartbeat())), None, "nobody knows who it is");
    pass(MOMENT).await;
    assert_eq!(socket.pushed().iter().map(text).collect::<Vec<_>>(), [Some("second".into())]);
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "True, FleetSelects");
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_of_a_synced_agent_touches_nothing() {
    // S2A-01, HB-01
    let replica = Replica::alone(vec![fleet("telemetry", "edge").giving("first")]);
    let (socket, mut agent, mut poller) = (replica.open(), Agent::new(), Agent::new());
    agent.join(&socket);
    let hash = offered(&replica.poll(&poller.report())).expect("an offer");
    replica.poll(&poller.about(&hash, State::Applied, ""));
    replica.settled().await;
    replica.requests();
    for _ in 0..20 {
        let reply = socket.say(&agent.heartbeat());
        let bare = AgentToServer { instance_uid: reply.instance_uid.clone(), ..AgentToServer::default() };
        assert_eq!(
            reply,
            crate::opamp::messages::ServerToAgent { instance_uid: bare.instance_uid, ..Default::default() }
        );
        replica.poll(&poller.heartbeat());
        assert_eq!((replica.touched(), socket.pushed()), (0, vec![]));
        pass(Duration::from_secs(30)).await;
    }
    replica.settled().await;
    assert_eq!(replica.requests(), patches(0));
}

#[tokio::test(start_paused = true)]
async fn what_failed_at_an_agent_is_not_pushed_again_and_neither_after_a_restart() {
    // CFG-06, AMB-24
    let edge = |text| vec![fleet("telemetry", "edge").giving(text)];
    let replica = Replica::alone(edge("good"));
    let (socket, mut agent) = (replica.open(), Agent::new());
    let good = agent.join(&socket).expect("an offer");
    replica.publish(edge("bad"));
    let bad = offered(&socket.due()[0]).expect("an offer");
    assert_eq!(offered(&socket.say(&agent.about(&bad, State::Failed, "no such exporter"))), None);
    assert_eq!(offered(&socket.say(&agent.about(&good, State::Applied, ""))), None, "it went back by itself");
    for _ in 0..20 {
        pass(Duration::from_secs(60)).await;
        assert_eq!(offered(&socket.say(&agent.heartbeat())), None);
    }
    replica.settled().await;
    let server = replica.server.clone();
    replica.die();
    let replica = Replica::with(server, ("opamp-operator-0", "second"), edge("bad"));
    let socket = replica.open();
    assert_eq!(offered(&socket.say(&agent.report_of(&good, State::Applied))), None);
    replica.settled().await;
    assert_eq!(socket.pushed(), []);
    let failed = replica.status(agent.uid).remote_config.and_then(|config| config.failed).expect("a failure");
    assert_eq!(failed.error, "no such exporter", "why is not lost");
    assert!(failed.at.0.as_second() > 1_000_000_000, "nor when: {:?}", failed.at);
    replica.publish(edge("better"));
    assert_eq!(text(&socket.due()[0]).as_deref(), Some("better"));
}
