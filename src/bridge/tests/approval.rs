//! Who waits for a person.

use std::time::Duration;

use serde_json::json;

use super::{
    bench::{Agent, Replica, Socket, namespace_of, offered, pass},
    credentials::{decide, manual, principal, token, unavailable},
};
use crate::{
    api::condition::{ConditionType, find},
    catalog::FleetEntry,
    opamp::{identity::Audience, messages::ServerToAgent},
    status::tests::api_server::ApiServer,
};

#[tokio::test(start_paused = true)]
async fn a_pending_agent_is_shown_and_offered_nothing_until_it_is_approved() {
    let replica = Replica::alone(vec![manual()]);
    let (socket, mut agent) = (replica.open_by(&token()), Agent::new());
    let reply = socket.say(&agent.report());
    assert_eq!((offered(&reply), unavailable(&reply)), (None, None));
    replica.settled().await;
    let shown = |kind| replica.condition(agent.uid, kind);
    assert_eq!(shown(ConditionType::Accepted), "False, PendingApproval");
    assert_eq!(shown(ConditionType::Ready), "False, PendingApproval");
    assert_eq!(shown(ConditionType::Matched), "True, FleetSelects");
    assert_eq!(shown(ConditionType::ConfigApplied), "Unknown, NotAccepted");
    let status = replica.status(agent.uid);
    let told = find(&status.conditions, ConditionType::Accepted).expect("the condition").message.clone();
    let command = format!(
        r#"kubectl -n telemetry patch agent {} --type=merge -p '{{"spec":{{"access":"Approved"}}}}'"#,
        agent.uid
    );
    assert_eq!(told, command);
    assert_eq!((status.fleet.as_deref(), status.revision), (Some("edge"), None));
    assert_eq!(status.remote_config.and_then(|config| config.offered), None);
    let heartbeat = agent.heartbeat();
    assert_eq!((offered(&socket.say(&heartbeat)), socket.pushed().len()), (None, 0));
    decide(&replica, agent.uid, "Approved");
    pass(Duration::from_millis(10)).await;
    let pushed = socket.pushed();
    assert!(pushed.len() == 1 && offered(&pushed[0]).is_some(), "at once: {pushed:?}");
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Accepted), "True, Admitted");
}

#[tokio::test(start_paused = true)]
async fn approval_is_kept_over_restarts_and_does_not_move_along() {
    let elsewhere = FleetEntry { priority: -1, ..manual() };
    let elsewhere = FleetEntry { namespace: "shop".into(), uid: "shop-edge".into(), ..elsewhere };
    let server = ApiServer::default();
    let first = Replica::with(server.clone(), ("opamp-operator-0", "first"), vec![manual(), elsewhere.clone()]);
    // The same account may join in both namespaces.
    let mut both = principal("serviceaccount:telemetry/collector");
    both.audiences.insert(Audience::Namespace("shop".into()));
    let account = |mut fleet: FleetEntry| {
        fleet.enrollment.service_accounts =
            serde_json::from_value(json!([{"namespace": "telemetry", "name": "collector"}])).expect("accounts");
        fleet
    };
    first.publish(vec![account(manual()), account(elsewhere.clone())]);
    let (socket, mut agent) = (first.open_by(&both), Agent::new());
    socket.say(&agent.report());
    first.settled().await;
    decide(&first, agent.uid, "Approved");
    first.settled().await;
    first.die();
    let second =
        Replica::with(server, ("opamp-operator-0", "second"), vec![account(manual()), account(elsewhere.clone())]);
    let socket = second.open_by(&both);
    assert!(agent.join(&socket).is_some());
    second.settled().await;
    second.publish(vec![account(elsewhere)]);
    second.settled().await;
    assert_eq!(namespace_of(&second.server, agent.uid), "shop");
    assert_eq!(second.condition(agent.uid, ConditionType::Accepted), "False, PendingApproval");
}

fn wait_in_line(replica: &Replica, number: usize) -> Vec<(Socket, Agent, ServerToAgent)> {
    let join = |_| {
        let (socket, mut agent) = (replica.open_by(&token()), Agent::new());
        let reply = socket.say(&agent.report());
        (socket, agent, reply)
    };
    (0..number).map(join).collect()
}

#[tokio::test(start_paused = true)]
async fn no_more_agents_wait_for_approval_than_may() {
    // AMB-44
    let replica = Replica::alone(vec![manual()]);
    let mut all = wait_in_line(&replica, 600);
    let refused = all.iter().filter(|(_, _, reply)| unavailable(reply).is_some()).count();
    assert_eq!(refused, 100, "before a single object is written");
    replica.settled().await;
    assert_eq!(replica.server.list().len(), 500);
    assert_eq!(replica.bridge.metrics.pending_refused.get(), 100);
    assert_eq!(replica.bridge.sessions.uids().count(), 500, "nothing is kept of the others");
    let (socket, agent, _) = &mut all[599];
    assert!(unavailable(&socket.say(&agent.report())).is_some_and(|seconds| seconds >= 30));
    let (socket, agent, _) = &mut all[0];
    assert_eq!(unavailable(&socket.say(&agent.heartbeat())), None);
    decide(&replica, agent.uid, "Approved");
    replica.settled().await;
    let (socket, agent, _) = &mut all[599];
    assert_eq!(unavailable(&socket.say(&agent.report())), None, "there is a place");
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Accepted), "False, PendingApproval");
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_vain_for_an_object_is_told_so() {
    let replica = Replica::alone(vec![manual()]);
    let (socket, mut agent) = (replica.open_by(&token()), Agent::new());
    replica.server.away_until(crate::server::now().instant + Duration::from_secs(60));
    assert_eq!(unavailable(&socket.say(&agent.report())), None);
    pass(Duration::from_secs(11)).await;
    assert!(unavailable(&socket.say(&agent.heartbeat())).is_some(), "nobody can approve of it");
    pass(Duration::from_secs(60)).await;
    replica.settled().await;
    assert_eq!(unavailable(&socket.say(&agent.heartbeat())), None);
}
