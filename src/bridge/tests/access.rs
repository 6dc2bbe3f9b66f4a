//! Who is put out, and kept out.

use std::time::Duration;

use kube::runtime::watcher::Event;
use serde_json::json;

use super::{
    bench::{Agent, MOMENT, OWN, Replica, Socket, fleet, namespace_of, new_uid, offered, pass, settled},
    credentials::{decide, edge, issued_to, next_year, principal, token, unavailable},
    office::{Leader, holder},
};
use crate::{
    api::{
        condition::ConditionType,
        enrollment::{EnrollmentMethod, Gateway},
    },
    opamp::{InstanceUid, messages::RemoteConfigStatuses},
    server::CloseReason,
    status::tests::api_server::ApiServer,
};

#[tokio::test(start_paused = true)]
async fn a_revoked_agent_is_put_out_at_once_and_kept_out() {
    // CON-14, AMB-43
    for (access, reason) in [("Denied", "Denied"), ("Revoked", "Revoked")] {
        let replica = Replica::alone(vec![edge()]);
        let (socket, mut agent) = (replica.open_by(&token()), Agent::new());
        let (bystander, mut other) = (replica.open_by(&token()), Agent::new());
        agent.join(&socket);
        other.join(&bystander);
        replica.settled().await;
        decide(&replica, agent.uid, access);
        pass(Duration::from_millis(10)).await;
        assert_eq!(socket.closes_for(), Some(CloseReason::Revoked));
        socket.close();
        replica.settled().await;
        let shown = [ConditionType::Connected, ConditionType::Accepted, ConditionType::Ready, ConditionType::Matched]
            .map(|kind| replica.condition(agent.uid, kind));
        let told = format!("False, {reason}");
        assert_eq!(shown, ["False, ConnectionClosed", &told, &told, "False, NoFleetSelects"]);
        let before = replica.status(agent.uid);
        let again = replica.open_by(&token());
        for _ in 0..3 {
            let reply = again.say(&agent.report());
            assert!(unavailable(&reply).is_some_and(|seconds| (300..=330).contains(&seconds)), "{reply:?}");
            assert!(unavailable(&replica.poll_by(&token(), &agent.heartbeat())).is_some());
        }
        let by_certificate = replica.open_by(&issued_to(agent.uid, 1, next_year()));
        assert!(unavailable(&by_certificate.say(&agent.report())).is_some());
        assert!(!again.is_closed(), "it would come back without delay");
        replica.settled().await;
        assert_eq!(replica.status(agent.uid), before);
        assert!(!bystander.is_closed() && unavailable(&bystander.say(&other.heartbeat())).is_none());
        decide(&replica, agent.uid, "Approved");
        assert!(agent.join(&again).is_some(), "it may return");
        replica.settled().await;
        assert_eq!(replica.condition(agent.uid, ConditionType::Accepted), "True, Admitted");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_polls_and_is_denied_counts_as_gone_at_once() {
    let replica = Replica::alone(vec![edge()]);
    let mut agent = Agent::new();
    replica.poll_by(&token(), &agent.report());
    replica.settled().await;
    decide(&replica, agent.uid, "Denied");
    replica.settled().await;
    assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "False, ConnectionClosed");
    assert_eq!(replica.condition(agent.uid, ConditionType::Accepted), "False, Denied");
}

#[tokio::test(start_paused = true)]
async fn the_operators_people_deny_an_agent_of_any_namespace_on_every_replica() {
    let server = ApiServer::default();
    let one = Replica::with(server.clone(), ("opamp-operator-0", "first"), vec![edge()]);
    let two = Replica::with(server.clone(), ("opamp-operator-1", "first"), vec![edge()]);
    let (socket, mut agent) = (one.open_by(&token()), Agent::new());
    agent.join(&socket);
    settled(&[&one, &two]).await;
    let name = agent.uid.to_string();
    server.put(OWN, &name, &json!({}), &json!({}));
    server.modify(OWN, &name, &json!({"spec": {"access": "Denied"}}));
    one.show();
    two.show();
    pass(Duration::from_millis(10)).await;
    assert_eq!(socket.closes_for(), Some(CloseReason::Revoked));
    assert!(unavailable(&two.open_by(&token()).say(&agent.report())).is_some());
}

#[tokio::test(start_paused = true)]
async fn of_a_gateway_only_the_agent_that_is_revoked_is_put_out() {
    // AMB-15
    let replica = Replica::alone(vec![edge()]);
    let gateway = replica.open_by(&token());
    let mut agents: Vec<Agent> = (0..3).map(|_| Agent::new()).collect();
    for agent in &mut agents {
        agent.join(&gateway);
    }
    replica.settled().await;
    decide(&replica, agents[1].uid, "Revoked");
    pass(Duration::from_millis(10)).await;
    assert!(!gateway.is_closed());
    let told = gateway.pushed();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].instance_uid, agents[1].uid.as_bytes()[..]);
    assert!(unavailable(&told[0]).is_some());
    assert!(unavailable(&gateway.say(&agents[1].heartbeat())).is_some());
    assert!(unavailable(&gateway.say(&agents[0].heartbeat())).is_none());
    replica.settled().await;
    assert_eq!(replica.condition(agents[1].uid, ConditionType::Connected), "False, ConnectionClosed");
    assert_eq!(replica.condition(agents[2].uid, ConditionType::Connected), "True, SessionOpen");
    for index in [0, 2] {
        decide(&replica, agents[index].uid, "Revoked");
        pass(Duration::from_millis(10)).await;
    }
    assert_eq!(gateway.closes_for(), Some(CloseReason::Revoked), "it was the last");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_of_a_gateway_carries_many_until_it_is_none_any_more() {
    let gateway = issued_to(InstanceUid::generate(), 1, next_year());
    let mut listing = edge();
    listing.enrollment.gateways = vec![Gateway { identity: gateway.identity.to_string() }];
    let replica = Replica::alone(vec![listing.clone()]);
    let socket = replica.open_by(&gateway);
    let mut agents: Vec<Agent> = (0..3).map(|_| Agent::new()).collect();
    for agent in &mut agents {
        assert!(agent.join(&socket).is_some());
    }
    replica.settled().await;
    replica.publish(vec![listing.giving("second")]);
    pass(MOMENT).await;
    assert_eq!(socket.due().len(), 3);
    replica.publish(vec![edge()]);
    pass(MOMENT).await;
    assert_eq!(socket.closes_for(), Some(CloseReason::Revoked));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_none_any_more_does_not_return_with_its_agents() {
    let owner = InstanceUid::generate();
    let gateway = issued_to(owner, 1, next_year());
    let mut listing = edge();
    listing.enrollment.gateways = vec![Gateway { identity: gateway.identity.to_string() }];
    let replica = Replica::alone(vec![listing]);
    let (socket, mut by_socket, mut by_poll) = (replica.open_by(&gateway), Agent::new(), Agent::new());
    assert!(by_socket.join(&socket).is_some());
    assert_eq!(new_uid(&replica.poll_by(&gateway, &by_poll.report())), None);
    replica.settled().await;
    replica.publish(vec![edge()]);
    pass(MOMENT).await;
    socket.close();
    let again = replica.open_by(&gateway);
    assert_eq!(new_uid(&again.say(&by_socket.report())), Some(owner), "at once, before anything of it is written");
    assert_eq!(new_uid(&replica.poll_by(&gateway, &by_poll.heartbeat())), Some(owner));
    replica.settled().await;
    assert_eq!(new_uid(&again.say(&by_socket.heartbeat())), Some(owner));
    assert_eq!(new_uid(&replica.poll_by(&gateway, &by_poll.heartbeat())), Some(owner));
    for agent in [&by_socket, &by_poll] {
        assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "False, ConnectionClosed");
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_by_a_credential_that_was_taken_away_is_closed_whatever_the_transport() {
    let replica = Replica::alone(vec![edge()]);
    let (socket, mut agent) = (replica.open_by(&token()), Agent::new());
    let (other, mut bystander) = (replica.open_by(&principal("token:telemetry/*")), Agent::new());
    let mut polling = Agent::new();
    agent.join(&socket);
    bystander.join(&other);
    replica.poll_by(&token(), &polling.report());
    replica.settled().await;
    replica.credentials.take_away(&token().identity);
    pass(Duration::from_millis(10)).await;
    assert_eq!(socket.closes_for(), Some(CloseReason::Revoked));
    assert!(!other.is_closed());
    replica.settled().await;
    for uid in [agent.uid, polling.uid] {
        assert_eq!(replica.condition(uid, ConditionType::Connected), "False, ConnectionClosed");
        assert_eq!(replica.condition(uid, ConditionType::Accepted), "True, Admitted", "it is the credential that went");
    }
    let late = replica.open_by(&token());
    assert_eq!(late.tell(&Agent::new().report()), [], "it was opened before, and had not spoken");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_ends_with_its_secret_ends_its_session_at_once() {
    let replica = Replica::alone(vec![edge()]);
    let (mut agent, leader) = (Agent::new(), Leader::new());
    let certificate = issued_to(agent.uid, 1, next_year());
    let socket = replica.open_by(&certificate);
    agent.join(&socket);
    let (secret, _) = leader.make(&holder(agent.uid));
    replica.show_secret(secret.clone());
    pass(MOMENT).await;
    assert!(!socket.is_closed());
    replica.credentials.lose(&certificate.identity);
    replica.certificates.take(&None, Event::Delete(secret));
    pass(MOMENT).await;
    assert_eq!(socket.closes_for(), Some(CloseReason::Revoked));
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_admits_an_identity_no_longer_ends_its_sessions_and_one_that_is_gone_does_not() {
    let replica = Replica::alone(vec![edge()]);
    let (socket, mut agent) = (replica.open_by(&token()), Agent::new());
    let hash = agent.join(&socket).expect("an offer");
    replica.settled().await;
    replica.publish(vec![]);
    replica.settled().await;
    assert!(!socket.is_closed(), "it may be replaced");
    assert_eq!(unavailable(&socket.say(&agent.heartbeat())), None);
    assert_eq!(replica.condition(agent.uid, ConditionType::Matched), "False, NoFleetSelects");
    replica.publish(vec![edge()]);
    replica.settled().await;
    assert_eq!(offered(&socket.say(&agent.report_of(&hash, RemoteConfigStatuses::Applied))), None);
    let label = json!({"metadata": {"labels": {"opamp.dev/fleet": "gone"}}});
    replica.server.modify("telemetry", &agent.uid.to_string(), &label);
    replica.show();
    pass(MOMENT).await;
    let mut closed = edge();
    closed.enrollment.methods = Some(vec![EnrollmentMethod::ServiceAccount]);
    replica.publish(vec![closed]);
    pass(MOMENT).await;
    assert_eq!(socket.closes_for(), Some(CloseReason::Revoked));
}

#[tokio::test(start_paused = true)]
async fn a_denied_agent_stays_where_it_is_whoever_else_would_take_it() {
    let server = ApiServer::default();
    let replica =
        Replica::with(server, ("opamp-operator-0", "first"), vec![fleet("telemetry", "edge").giving("first")]);
    let (socket, mut agent) = (replica.open(), Agent::new());
    agent.join(&socket);
    replica.settled().await;
    replica.server.modify("telemetry", &agent.uid.to_string(), &json!({"spec": {"access": "Denied"}}));
    replica.publish(vec![fleet("shop", "edge").giving("other")]);
    replica.settled().await;
    assert!(socket.is_closed());
    replica.settled().await;
    assert_eq!(namespace_of(&replica.server, agent.uid), "telemetry");
    assert!(unavailable(&replica.open().say(&agent.report())).is_some());
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_namespace_neither_opens_nor_harms_an_agent() {
    let replica = Replica::alone(vec![edge()]);
    let (socket, mut victim) = (replica.open_by(&token()), Agent::new());
    let name = victim.uid.to_string();
    replica.server.put("shop", &name, &json!({}), &json!({}));
    replica.server.modify("shop", &name, &json!({"spec": {"access": "Denied"}}));
    replica.show();
    assert!(victim.join(&socket).is_some(), "it is not theirs to deny");
    replica.settled().await;
    assert!(!socket.is_closed());
    assert!(replica.server.object("shop", &name).is_some(), "what people have written stays");
    assert!(replica.server.object("telemetry", &name).is_some());
    let intruder = replica.open_by(&principal("serviceaccount:telemetry/other"));
    assert!(new_uid(&intruder.say(&Agent::of(victim.uid).report())).is_some());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_sockets_are_closed_within_a_second_of_the_end_of_their_credential() {
    let replica = Replica::with_room(20_000, vec![edge()]);
    let join = |_| {
        let socket = replica.open_by(&token());
        socket.say(&Agent::new().report());
        socket
    };
    let sockets: Vec<_> = (0..10_000).map(join).collect();
    replica.credentials.take_away(&token().identity);
    let begun = std::time::Instant::now();
    replica.bridge.check_credentials().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(sockets.iter().all(Socket::is_closed));
}
