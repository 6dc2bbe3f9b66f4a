//! Who may speak for whom, on the wire.

use std::time::Duration;

use jiff::{Timestamp, ToSpan as _};
use serde_json::json;

use super::{
    bench::{Agent, MOMENT, OWN, Replica, Socket, fleet, namespace_of, new_uid, offered, pass, settled},
    credentials::{issued_to, principal},
};
use crate::{
    api::{
        condition::{ConditionType, find},
        enrollment::{Approval, EnrollmentMethod, Gateway},
    },
    catalog::FleetEntry,
    opamp::{
        InstanceUid,
        identity::Principal,
        messages::{RemoteConfigStatuses, RetryInfo, ServerToAgent, server_error_response::Details},
    },
    server::CloseReason,
    status::tests::api_server::ApiServer,
};

const TOKEN: &str = "token:telemetry/edge";

/// `edge` of `telemetry`, which takes agents with a credential.
fn edge() -> FleetEntry {
    let mut fleet = fleet("telemetry", "edge").giving("first");
    fleet.enrollment.methods = Some(vec![
        EnrollmentMethod::ClientCertificate,
        EnrollmentMethod::EnrollmentToken,
        EnrollmentMethod::ServiceAccount,
    ]);
    fleet
}

/// The same where a person has to approve.
fn manual() -> FleetEntry {
    let mut fleet = edge();
    fleet.enrollment.approval = Approval::Manual;
    fleet
}

fn token() -> Principal {
    principal(TOKEN)
}

/// How long an agent is asked to stay away, in seconds, if it is.
fn unavailable(reply: &ServerToAgent) -> Option<u64> {
    let error = reply.error_response.as_ref()?;
    assert_eq!(error.r#type, 2, "UNAVAILABLE");
    let Some(Details::RetryInfo(RetryInfo { retry_after_nanoseconds })) = error.details else {
        panic!("{error:?}");
    };
    Some(retry_after_nanoseconds / 1_000_000_000)
}

fn decide(replica: &Replica, uid: InstanceUid, access: &str) {
    let namespace = namespace_of(&replica.server, uid);
    replica.server.modify(&namespace, &uid.to_string(), &json!({"spec": {"access": access}}));
    replica.show();
}

/// A year from now, on the clock that the bridge reads.
fn next_year() -> Timestamp {
    Timestamp::now() + 8_760.hours()
}

fn identity_of(replica: &Replica, uid: InstanceUid) -> String {
    replica.status(uid).connection.expect("a connection").identity
}

#[tokio::test(start_paused = true)]
async fn of_two_identities_the_first_keeps_the_uid_and_nothing_of_it_changes() {
    // AUTH-04, DUP-03, AMB-13
    let replica = Replica::alone(vec![edge()]);
    let (socket, mut victim) = (replica.open_by(&token()), Agent::new());
    let intruder = replica.open_by(&principal("serviceaccount:telemetry/other"));
    let hash = victim.join(&socket).expect("an offer");
    let mut impostor = Agent::of(victim.uid);
    let given = new_uid(&intruder.say(&impostor.report())).expect("before the object is written");
    replica.settled().await;
    let before = replica.status(victim.uid);
    replica.requests();
    assert_eq!(new_uid(&intruder.say(&impostor.unwell("boom"))), Some(given), "the same again");
    assert_eq!(new_uid(&intruder.say(&impostor.goodbye())), Some(given));
    assert!(!socket.is_pinged(), "the victim is not even asked");
    let (poll, again) = (principal("token:telemetry/*"), impostor.heartbeat());
    let by_poll = new_uid(&replica.poll_by(&poll, &again)).expect("a new uid");
    assert_eq!(new_uid(&replica.poll_by(&poll, &again)), Some(by_poll), "the same again");
    assert_ne!(by_poll, given);
    intruder.close();
    replica.settled().await;
    assert_eq!(replica.status(victim.uid), before);
    assert_eq!(replica.requests().status, 0);
    assert_eq!(offered(&socket.say(&victim.report_of(&hash, RemoteConfigStatuses::Applied))), None, "in its sequence");
}

#[tokio::test(start_paused = true)]
async fn whoever_got_a_new_uid_takes_part_under_that() {
    let replica = Replica::alone(vec![edge()]);
    let (socket, mut victim) = (replica.open_by(&token()), Agent::new());
    let other = replica.open_by(&principal("serviceaccount:telemetry/other"));
    victim.join(&socket);
    let mut agent = Agent::of(victim.uid);
    agent.uid = new_uid(&other.say(&agent.report())).expect("a new uid");
    assert!(agent.join(&other).is_some());
    replica.settled().await;
    assert_eq!(identity_of(&replica, agent.uid), "serviceaccount:telemetry/other");
    assert_eq!(identity_of(&replica, victim.uid), TOKEN);
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_another_life_of_the_operator_is_guarded_by_its_object() {
    let (server, mut victim) = (ApiServer::default(), Agent::new());
    let first = Replica::with(server.clone(), ("opamp-operator-0", "first"), vec![edge()]);
    victim.join(&first.open_by(&token()));
    first.settled().await;
    first.die();
    let second = Replica::with(server, ("opamp-operator-0", "second"), vec![edge()]);
    let intruder = second.open_by(&principal("token:telemetry/*"));
    assert!(new_uid(&intruder.say(&Agent::of(victim.uid).report())).is_some());
    assert_eq!(new_uid(&second.open_by(&token()).say(&victim.report())), None);
}

#[tokio::test(start_paused = true)]
async fn of_two_identities_at_two_replicas_the_first_to_be_written_keeps_the_uid() {
    // AUTH-04: neither watch shows the object when the second comes, and the first has left by then.
    for leaves in [false, true] {
        let server = ApiServer::default();
        let one = Replica::with(server.clone(), ("opamp-operator-0", "first"), vec![edge()]);
        let two = Replica::with(server, ("opamp-operator-1", "first"), vec![edge()]);
        let (socket, mut victim) = (one.open_by(&token()), Agent::new());
        victim.join(&socket);
        if leaves {
            socket.close();
        }
        while one.touched() > 0 {
            pass(MOMENT).await;
        }
        let intruder = two.open_by(&principal("serviceaccount:telemetry/other"));
        let mut agent = Agent::of(victim.uid);
        assert_eq!(new_uid(&intruder.say(&agent.report())), None, "nobody knows better yet");
        while two.touched() > 0 {
            pass(MOMENT).await;
        }
        assert_eq!(identity_of(&one, victim.uid), TOKEN, "leaves: {leaves}");
        let given = intruder.pushed().iter().find_map(new_uid).expect("a new uid");
        assert_eq!(new_uid(&intruder.say(&agent.heartbeat())), Some(given), "the same again");
        settled(&[&one, &two]).await;
        assert_eq!(new_uid(&intruder.say(&agent.heartbeat())), Some(given), "the same again");
        assert_eq!(identity_of(&one, victim.uid), TOKEN);
        agent.uid = given;
        agent.join(&intruder);
        settled(&[&one, &two]).await;
        assert_eq!(identity_of(&two, given), "serviceaccount:telemetry/other");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stolen_certificate_makes_its_thief_the_agent_that_it_was_issued_to() {
    // CSR-10
    let replica = Replica::alone(vec![edge()]);
    let (socket, mut victim, owner) = (replica.open_by(&token()), Agent::new(), InstanceUid::generate());
    victim.join(&socket);
    let thief = replica.open_by(&issued_to(owner, 1, next_year()));
    assert_eq!(new_uid(&thief.say(&Agent::of(victim.uid).report())), Some(owner));
    let mut own = Agent::of(owner);
    assert!(own.join(&thief).is_some());
}

#[tokio::test(start_paused = true)]
async fn an_agent_goes_over_to_its_certificate_and_leaves_its_token_behind() {
    // AMB-28
    let replica = Replica::alone(vec![edge()]);
    let (old, mut agent) = (replica.open_by(&token()), Agent::new());
    let hash = agent.join(&old).expect("an offer");
    replica.settled().await;
    let certificate = issued_to(agent.uid, 0x0a, next_year());
    let new = replica.open_by(&certificate);
    let reply = new.say(&agent.report_of(&hash, RemoteConfigStatuses::Applied));
    assert_eq!((new_uid(&reply), offered(&reply)), (None, None));
    assert_eq!(old.closes_for(), Some(CloseReason::Superseded), "although it is alive");
    old.close();
    let by_token = replica.open_by(&token());
    assert!(new_uid(&by_token.say(&Agent::of(agent.uid).report())).is_some(), "not even before it is written");
    replica.settled().await;
    assert_eq!(identity_of(&replica, agent.uid), format!("certificate:telemetry/edge/{}", agent.uid));
    assert_eq!(replica.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
    let shown = replica.status(agent.uid).certificate.expect("a certificate");
    assert_eq!((&*shown.serial, shown.in_use_since.is_some()), ("0a", true));
    assert!(new_uid(&replica.open_by(&token()).say(&Agent::of(agent.uid).report())).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_renewed_certificate_takes_over_and_an_older_one_does_not() {
    let replica = Replica::alone(vec![edge()]);
    let mut agent = Agent::new();
    let by = |serial, hours: i64| replica.open_by(&issued_to(agent.uid, serial, Timestamp::now() + hours.hours()));
    let (first, second, stale) = (by(1, 1), by(2, 2), by(3, 1));
    agent.join(&first);
    second.say(&agent.report());
    assert!(first.is_closed() && !second.is_pinged());
    first.close();
    replica.settled().await;
    assert_eq!(replica.status(agent.uid).certificate.expect("a certificate").serial, "02");
    stale.say(&agent.report());
    assert!(second.is_pinged() && !second.is_closed(), "whoever it is, the present one proves to be alive");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_went_over_to_its_certificate_at_another_replica_keeps_its_uid() {
    // AMB-28
    let server = ApiServer::default();
    let one = Replica::with(server.clone(), ("opamp-operator-0", "first"), vec![edge()]);
    let two = Replica::with(server, ("opamp-operator-1", "first"), vec![edge()]);
    let (old, mut agent) = (one.open_by(&token()), Agent::new());
    agent.join(&old);
    settled(&[&one, &two]).await;
    let new = two.open_by(&issued_to(agent.uid, 0x0a, next_year()));
    agent.join(&new);
    settled(&[&one, &two]).await;
    assert_eq!(old.closes_for(), Some(CloseReason::Superseded));
    old.close();
    settled(&[&one, &two]).await;
    assert_eq!(new.pushed().iter().filter_map(new_uid).count(), 0);
    assert_eq!(two.holder(agent.uid).0, "opamp-operator-1");
    assert_eq!(two.condition(agent.uid, ConditionType::Connected), "True, SessionOpen");
}

#[tokio::test(start_paused = true)]
async fn an_agent_whose_certificate_has_ended_enrols_anew() {
    let replica = Replica::alone(vec![edge()]);
    let mut agent = Agent::new();
    let socket = replica.open_by(&issued_to(agent.uid, 0x0a, next_year()));
    agent.join(&socket);
    socket.close();
    replica.settled().await;
    assert!(new_uid(&replica.open_by(&token()).say(&Agent::of(agent.uid).report())).is_some(), "not yet");
    // A year passes.
    let ended = json!({"status": {"certificate": {"notAfter": "2020-01-01T00:00:00Z"}}});
    replica.server.modify("telemetry", &agent.uid.to_string(), &ended);
    replica.settled().await;
    assert_eq!(new_uid(&replica.open_by(&token()).say(&agent.report())), None);
    replica.settled().await;
    assert_eq!(identity_of(&replica, agent.uid), TOKEN);
}

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
    let mut closed = edge();
    closed.enrollment.methods = Some(vec![EnrollmentMethod::ServiceAccount]);
    replica.publish(vec![closed]);
    pass(MOMENT).await;
    assert_eq!(socket.closes_for(), Some(CloseReason::Revoked));
}

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
    both.audiences.insert(crate::opamp::identity::Audience::Namespace("shop".into()));
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
