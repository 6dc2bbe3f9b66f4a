//! What is taken away ends sessions on every replica at once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::enrollment::{TOKEN, access, apply_fleet, enrollment_token};
use crate::harness::{
    Kind, Operator, Reached, Scenario,
    swarm::{Swarm, agents},
    wait_for,
};

const SOON: Duration = Duration::from_secs(20);
/// From when the API server acknowledged it.
const REVOKED_WITHIN: Duration = Duration::from_secs(5);
const EACH: usize = 5;

/// Two replicas, each with a fleet that takes a token and gives out certificates.
async fn replicas(name: &str) -> (Scenario, [Operator; 2]) {
    let scenario = Scenario::begin(name).await;
    let first = scenario.tls_replica("replica-0", &[]).await;
    let second = scenario.tls_replica("replica-1", &[]).await;
    let certificates = json!({"duration": "1h", "renewBefore": "20m"});
    apply_fleet(&scenario, &first.websocket(), "Automatic", &certificates);
    for operator in [&first, &second] {
        scenario.apply(&fleet_of(operator));
    }
    (scenario, [first, second])
}

/// A fleet whose members stay with one replica.
fn fleet_of(operator: &Operator) -> [Value; 2] {
    let name = name_of(operator);
    let settings = json!({
        "apiVersion": "opamp.dev/v1alpha1", "kind": "ConnectionSettings", "metadata": {"name": name},
        "spec": {"opamp": {
            "endpoint": operator.websocket(), "certificate": {"source": "Issued"}, "heartbeatInterval": "5s",
        }},
    });
    let fleet = json!({
        "apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleet", "metadata": {"name": name},
        "spec": {
            "selector": {"matchAttributes": {"service.name": name}},
            "remoteConfigs": [{"name": "base"}], "connectionSettings": {"name": name},
            "enrollment": {"methods": ["ClientCertificate", "EnrollmentToken"]},
        },
    });
    [settings, fleet]
}

fn name_of(operator: &Operator) -> String {
    format!("at-{}", operator.listen.port())
}

/// Waits until all agents of both replicas have lost their sessions and found that they do not get others.
async fn all_are_out(swarms: &[Swarm], before: &[usize], agents: usize, since: Instant, case: &str) {
    for (swarm, before) in swarms.iter().zip(before) {
        swarm.at_least(agents, Reached { failures: before + 1, ..Reached::default() }, REVOKED_WITHIN).await;
    }
    let took = since.elapsed();
    println!("{case}: out on both replicas after {took:.1?}");
    assert!(took < REVOKED_WITHIN, "{case}: {took:?}");
}

async fn failures(swarms: &[Swarm]) -> Vec<usize> {
    let mut failures = Vec::new();
    for swarm in swarms {
        failures.push(swarm.summary().await.connect_failures);
    }
    failures
}

fn with_token(scenario: &Scenario, operators: &[Operator; 2], ca: &std::path::Path) -> Vec<Swarm> {
    scenario.apply(&[enrollment_token("any-token", "a-token-for-any-fleet-0123456789", None)]);
    let start = |operator: &Operator| {
        let swarm = agents(EACH, &name_of(operator)).trusting(ca);
        swarm.header("Authorization", "Bearer a-token-for-any-fleet-0123456789").start(&operator.websocket())
    };
    operators.iter().map(start).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_deleted_and_agents_that_are_denied_are_out_on_both_replicas() {
    let (scenario, operators) = replicas("tokens").await;
    let ca = scenario.ca().await;
    let swarms = with_token(&scenario, &operators, &ca);
    for swarm in &swarms {
        swarm.all(Reached::running("v1"), SOON).await;
    }
    assert_eq!(failures(&swarms).await, [0, 0], "nobody failed so far");

    let first_of_each = [swarms[0].uids().await.remove(0), swarms[1].uids().await.remove(0)];
    let mut acknowledged = Instant::now();
    for uid in &first_of_each {
        access(&scenario, uid, "Denied").await;
        acknowledged = acknowledged.max(Instant::now());
    }
    // With a token that others use too the denial shows in the first message: it is answered, and not let in.
    for swarm in &swarms {
        swarm.at_least(1, Reached { errors: 1, ..Reached::default() }, REVOKED_WITHIN).await;
    }
    println!("denied: out on both replicas after {:.1?}", acknowledged.elapsed());
    for uid in &first_of_each {
        scenario.condition((Kind::Agent, uid), ("Accepted", "False", "Denied"), SOON).await;
    }

    let before = failures(&swarms).await;
    scenario.cluster.kubectl(&["-n", &scenario.namespace, "delete", "secret", "any-token"], "");
    all_are_out(&swarms, &before, EACH, Instant::now(), "token deleted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_is_replaced_is_believed_by_neither_replica() {
    let (scenario, operators) = replicas("authority").await;
    let ca = scenario.ca().await;
    let start = |operator: &Operator| {
        let swarm =
            agents(EACH, &name_of(operator)).trusting(&ca).header("Authorization", &format!("Bearer {TOKEN}-any"));
        swarm.asking_for_certificates().start(&operator.websocket())
    };
    scenario.apply(&[enrollment_token("any-token", &format!("{TOKEN}-any"), None)]);
    let swarms: Vec<Swarm> = operators.iter().map(start).collect();
    for swarm in &swarms {
        swarm.all(Reached::certified(), SOON).await;
    }
    let before = failures(&swarms).await;
    replace_authority(&scenario).await;
    let acknowledged = Instant::now();
    all_are_out(&swarms, &before, EACH, acknowledged, "the former CA taken out of the bundle").await;
    for swarm in &swarms {
        assert_eq!(swarm.summary().await.new_uids, 0, "nobody came back as another");
    }
}

/// As people do who do not believe a CA any more: they have another made, and then take the former out of the bundle.
async fn replace_authority(scenario: &Scenario) {
    let secret = |path: &str| {
        let arguments = ["-n", &scenario.system, "get", "secret", "opamp-ca", "-o", &format!("jsonpath={path}")];
        scenario.cluster.kubectl(&arguments, "")
    };
    let patch = |change: Value| {
        let change = json!({"data": change}).to_string();
        scenario
            .cluster
            .kubectl(&["-n", &scenario.system, "patch", "secret", "opamp-ca", "--type=merge", "-p", &change], "")
    };
    let former = secret(r"{.data.tls\.crt}");
    patch(json!({"tls.crt": ""}));
    let active = wait_for("there is another CA", SOON, async || {
        let active = secret(r"{.data.tls\.crt}");
        if active.is_empty() || active == former { Err(active) } else { Ok(active) }
    })
    .await;
    // It is a step of its own: whatever was trusted before a change of the CA stays trusted through that change.
    wait_for("both CAs are published", SOON, async || {
        let arguments = ["-n", &scenario.system, "get", "configmap", "opamp-ca", "-o", r"jsonpath={.data.ca\.crt}"];
        let bundle = scenario.cluster.kubectl(&arguments, "");
        if bundle.matches("BEGIN CERTIFICATE").count() == 2 { Ok(()) } else { Err(bundle) }
    })
    .await;
    patch(json!({"ca.crt": active}));
}
