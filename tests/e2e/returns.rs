//! Agents whose certificate has ended, and agents that never make a key themselves.

use std::time::{Duration, Instant};

use serde_json::json;

use super::enrollment::{TOKEN, access, agent, apply_fleet, renewed};
use crate::harness::{Kind, Reached, Scenario, changes::events, swarm::agents, wait_for};

const SOON: Duration = Duration::from_secs(20);
/// Longer than a certificate of one minute counts.
const CERTIFICATE: Duration = Duration::from_secs(90);
/// So long the operator waits for a request before it makes a key itself.
const NO_REQUEST: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_certificate_has_ended_comes_back_with_the_token_as_who_it_was() {
    let scenario = Scenario::begin("return").await;
    let operator = scenario.tls_replica("replica-0", &[]).await;
    apply_fleet(&scenario, &operator.websocket(), "Manual", &json!({"duration": "1m", "renewBefore": "20s"}));
    let ca = scenario.ca().await;
    let bearer = format!("Bearer {TOKEN}");
    let enrolling = || agents(1, "edge").trusting(&ca).header("Authorization", &bearer).asking_for_certificates();
    let swarm = enrolling().start(&operator.websocket());
    let uid = swarm.uids().await.remove(0);
    scenario.condition((Kind::Agent, &uid), ("Accepted", "False", "PendingApproval"), SOON).await;
    access(&scenario, &uid, "Approved").await;
    let former = renewed(&scenario, &swarm, &uid, "", SOON).await;
    let held = swarm.identity(0).await;
    let (certificate, key) = (scenario.folder.join("ended.crt"), scenario.folder.join("ended.key"));
    std::fs::write(&certificate, &held.certificate).expect("a file");
    std::fs::write(&key, &held.key).expect("a file");
    swarm.leave(&[0]).await;
    drop(swarm);

    // Somebody else with the token does not become it while its certificate counts.
    let thief = enrolling().start(&operator.websocket());
    wait_for("who has the token alone gets another uid", SOON, async || {
        let given = thief.identity(0).await.new_uid;
        if given.is_empty() { Err("none".to_owned()) } else { Ok(()) }
    })
    .await;
    drop(thief);

    let end: jiff::Timestamp = held.not_after.parse().expect("a time");
    wait_for("the certificate has ended", CERTIFICATE, async || {
        let left = end - jiff::Timestamp::now();
        if left.is_negative() { Ok(()) } else { Err(format!("it counts for {left}")) }
    })
    .await;
    let late = agents(1, "edge").trusting(&ca).presenting(&certificate, &key).start(&operator.websocket());
    late.all(Reached { failures: 2, ..Reached::default() }, SOON).await;
    assert_eq!(late.summary().await.connections, 0, "a certificate that has ended opens nothing");
    drop(late);

    let back = enrolling().start(&operator.websocket());
    let serial = renewed(&scenario, &back, &uid, &former, SOON).await;
    assert_eq!(back.identity(0).await.new_uid, "", "it kept its uid");
    assert_eq!(agent(&scenario, &uid).await["spec"]["access"], "Approved", "and its approval");
    assert_ne!(serial, former);
    let log = operator.log();
    let told = log.lines().filter(|line| line.contains("opamp_operator::audit") && line.contains(&uid));
    let told: Vec<&str> = told.filter(|line| line.contains("CertificateEnded")).collect();
    assert_eq!(told.len(), 1, "one audit line tells of it: {told:#?}");
    wait_for("an event tells of it", SOON, async || {
        let told = events(&scenario.client, &scenario.namespace).await;
        let is_told = told.iter().any(|note| note.contains(&uid) && note.contains("has enrolled anew"));
        if is_told { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_send_no_request_get_key_and_certificate_and_the_operator_renews_them() {
    let scenario = Scenario::begin("born").await;
    let operator = scenario.tls_replica("replica-0", &[]).await;
    apply_fleet(&scenario, &operator.websocket(), "Automatic", &json!({"duration": "1m", "renewBefore": "30s"}));
    let ca = scenario.ca().await;
    let bearer = format!("Bearer {TOKEN}");
    let began = Instant::now();
    let swarm = agents(1, "edge").trusting(&ca).header("Authorization", &bearer).taking_settings();
    let swarm = swarm.start(&operator.websocket());
    let uid = swarm.uids().await.remove(0);
    swarm.all(Reached::certified(), NO_REQUEST + SOON).await;
    let took = began.elapsed();
    println!("key and certificate by the operator after {took:.1?}");
    assert!(took >= NO_REQUEST, "it waits for a request first: {took:?}");
    let first = renewed(&scenario, &swarm, &uid, "", SOON).await;
    let key = swarm.identity(0).await.key;
    renewed(&scenario, &swarm, &uid, &first, Duration::from_secs(60)).await;
    let identity = swarm.identity(0).await;
    assert_ne!(identity.key, key, "a key of its own for each certificate");
    assert_eq!(identity.new_uid, "", "the agent kept its uid");
    let gap = swarm.summary().await.longest_gap;
    println!("longest time without a connection: {gap:.1} s");
    assert!(gap < 15.0, "{gap}");
}
