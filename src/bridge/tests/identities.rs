//! Who may speak for whom, on the wire.

use std::time::Duration;

use jiff::{Timestamp, ToSpan as _};
use serde_json::json;

use super::{
    bench::{Agent, MOMENT, Replica, new_uid, offered, pass, settled},
    credentials::{TOKEN, edge, identity_of, issued_to, next_year, principal, token},
};
use crate::{
    api::condition::ConditionType,
    opamp::{InstanceUid, messages::RemoteConfigStatuses},
    server::CloseReason,
    status::tests::api_server::ApiServer,
};

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
async fn a_clone_with_the_same_certificate_goes_on_with_it_under_another_uid() {
    // CSR-11, DUP-03
    let replica = Replica::alone(vec![edge()]);
    let mut agent = Agent::new();
    let certificate = issued_to(agent.uid, 0x0a, next_year());
    let (first, second) = (replica.open_by(&certificate), replica.open_by(&certificate));
    agent.join(&first);
    let mut clone = agent.clone();
    second.say(&clone.report());
    assert!(first.is_pinged());
    assert_eq!(first.pong(), []);
    clone.uid = second.pushed().iter().find_map(new_uid).expect("a new uid");
    assert!(clone.join(&second).is_some());
    replica.settled().await;
    assert_eq!(replica.condition(clone.uid, ConditionType::Connected), "True, SessionOpen");
    assert_eq!(replica.status(clone.uid).certificate, None, "it is not its own");
    let back = replica.open_by(&certificate);
    second.close();
    assert_eq!(new_uid(&back.say(&clone.report())), None, "also on another connection");
    pass(Duration::from_secs(3_600)).await;
    replica.settled().await;
    assert_eq!(new_uid(&back.say(&clone.heartbeat())), None, "as long as it has none of its own");
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
    assert_eq!(*replica.credentials.returned.lock().unwrap(), [agent.uid], "its fleet is told, once");
}
