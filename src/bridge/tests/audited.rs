//! What is written down: a line for each decision, and none for what goes on as before.

use std::time::Duration;

use super::{
    bench::{Agent, MOMENT, Replica, new_uid, pass},
    credentials::{decide, edge, issued_to, manual, next_year, token},
};
use crate::{
    authentication::tests::Lines,
    opamp::{
        InstanceUid,
        messages::{AgentToServer, AgentToServerFlags},
    },
};

const SHORT: [&str; 3] = ["outcome", "fleet", "reason"];

#[tokio::test(start_paused = true)]
async fn a_line_tells_who_was_let_in_where_and_another_one_what_has_changed() {
    let (lines, _listening) = Lines::listen();
    let replica = Replica::alone(vec![edge()]);
    let (socket, mut agent) = (replica.open_by(&token()), Agent::new());
    socket.say(&agent.heartbeat());
    assert_eq!(lines.audited(&SHORT), ["granted  "], "it has not said yet what it is");
    socket.say(&agent.report());
    let fields = ["outcome", "method", "identity", "namespace", "fleet", "uid", "remote", "reason"];
    let line = format!("granted EnrollmentToken token:telemetry/edge telemetry edge {} 10.0.0.7:40000 ", agent.uid);
    assert_eq!(lines.audited(&fields), [line]);
    socket.say(&agent.heartbeat());
    replica.settled().await;
    replica.publish(vec![]);
    pass(MOMENT).await;
    replica.publish(vec![edge()]);
    pass(MOMENT).await;
    assert_eq!(lines.audited(&SHORT), [""; 0], "nothing was decided");
    replica.publish(vec![manual()]);
    pass(MOMENT).await;
    assert_eq!(lines.audited(&SHORT), ["held edge PendingApproval"]);
    replica.settled().await;
    decide(&replica, agent.uid, "Approved");
    pass(MOMENT).await;
    assert_eq!(lines.audited(&SHORT), ["granted edge Approved"]);
    let own = replica.open_by(&issued_to(agent.uid, 1, next_year()));
    own.say(&agent.report());
    assert_eq!(lines.audited(&["outcome", "identity"]), [format!("granted certificate:telemetry/edge/{}", agent.uid)]);
    decide(&replica, agent.uid, "Revoked");
    pass(MOMENT).await;
    for _ in 0..3 {
        own.say(&agent.heartbeat());
    }
    assert_eq!(lines.audited(&SHORT), ["ended edge Revoked", "refused  Revoked"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_polls_is_written_down_once_with_each_credential() {
    let replica = Replica::alone(vec![edge()]);
    let mut agent = Agent::new();
    let certificate = issued_to(agent.uid, 1, next_year());
    let (lines, _listening) = Lines::listen();
    for principal in [&token(), &token(), &certificate, &certificate] {
        replica.poll_by(principal, &agent.report());
        pass(Duration::from_secs(30)).await;
    }
    let expected = ["EnrollmentToken", "ClientCertificate"].map(|method| format!("granted {method}"));
    assert_eq!(lines.audited(&["outcome", "method"]), expected);
}

#[tokio::test(start_paused = true)]
async fn whoever_gets_another_uid_is_written_down() {
    let replica = Replica::alone(vec![edge()]);
    let (older, newer, mut agent) = (replica.open_by(&token()), replica.open_by(&token()), Agent::new());
    let wish = AgentToServer { flags: AgentToServerFlags::RequestInstanceUid as u64, ..Agent::new().report() };
    agent.join(&older);
    let (lines, _listening) = Lines::listen();
    newer.say(&Agent::of(agent.uid).report());
    older.pong();
    assert!(newer.pushed().iter().any(|message| new_uid(message).is_some()));
    assert_eq!(lines.audited(&SHORT), ["renamed  Duplicate"]);
    let other = replica.open_by(&token());
    assert!(new_uid(&other.say(&wish)).is_some());
    assert_eq!(lines.audited(&SHORT), ["renamed  Requested"]);
}

#[tokio::test(start_paused = true)]
async fn whoever_makes_up_uids_covers_up_nothing() {
    let replica = Replica::alone(vec![edge()]);
    let (socket, mut agent) = (replica.open_by(&token()), Agent::new());
    agent.join(&socket);
    replica.settled().await;
    decide(&replica, agent.uid, "Denied");
    pass(MOMENT).await;
    let thief = replica.open_by(&issued_to(InstanceUid::generate(), 1, next_year()));
    for _ in 0..11_000 {
        thief.say(&Agent::new().heartbeat());
    }
    let (lines, _listening) = Lines::listen();
    replica.open_by(&token()).say(&agent.report());
    assert_eq!(lines.audited(&["outcome", "uid", "reason"]), [format!("refused {} Denied", agent.uid)]);
}
