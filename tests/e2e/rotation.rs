//! What connection settings refer to rotates beside revisions; and what an agent refuses is not forced on it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::harness::{
    Condition, Kind, Reached, Scenario, fleet, remote_config,
    resources::{collector_config, text},
    swarm::{Swarm, agents},
    wait_for,
};

const SOON: Duration = Duration::from_secs(20);
/// The promise: so long from a Secret's change to the offer.
const AT_ONCE: Duration = Duration::from_secs(5);
const AGENTS: usize = 3;

fn settings(endpoint: &str) -> Value {
    let value = json!({"secretKeyRef": {"name": "backend", "key": "value"}});
    json!({
        "apiVersion": "opamp.dev/v1alpha1", "kind": "ConnectionSettings", "metadata": {"name": "edge"},
        "spec": {"opamp": {
            "endpoint": endpoint, "heartbeatInterval": "5s",
            "headers": [{"name": "X-Backend", "valueFrom": value}],
        }},
    })
}

fn configure(scenario: &Scenario, version: &str) {
    scenario
        .apply(&[remote_config("base").for_collectors().file("collector.yaml", &collector_config(version)).build()]);
}

fn apply(scenario: &Scenario, endpoint: &str) {
    scenario.apply_secret("backend", "value", "first value");
    configure(scenario, "v1");
    let mut edge = fleet("edge").offering(&["base"]).build();
    edge["spec"]["connectionSettings"] = json!({"name": "edge"});
    scenario.apply(&[settings(endpoint), edge]);
}

/// All revisions with their resourceVersions, and the one that the fleet goes to.
async fn revisions(scenario: &Scenario) -> (BTreeMap<String, String>, String) {
    let secrets: Api<Secret> = Api::namespaced(scenario.client.clone(), &scenario.namespace);
    let listed = secrets.list(&ListParams::default().fields("type=opamp.dev/revision")).await.expect("a list");
    let revisions = listed
        .items
        .into_iter()
        .map(|secret| (secret.metadata.name.unwrap_or_default(), secret.metadata.resource_version.unwrap_or_default()));
    let edge = scenario.get(Kind::Fleet, "edge").await.expect("the fleet");
    (revisions.collect(), edge["status"]["updateRevision"].to_string())
}

async fn all_send(swarm: &Swarm, value: &str, limit: Duration) {
    wait_for(&format!("all agents send {value:?}"), limit, async || {
        for agent in 0..swarm.count {
            let headers = swarm.identity(agent).await.headers;
            if headers.get("X-Backend").map(String::as_str) != Some(value) {
                return Err(format!("agent {agent} sends {headers:?}"));
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_rotates_is_offered_at_once_and_no_revision_brings_the_former_back() {
    let scenario = Scenario::begin("rotate").await;
    let operator = scenario.operator().await;
    apply(&scenario, &operator.websocket());
    let swarm = agents(AGENTS, "edge").taking_settings().start(&operator.websocket());
    swarm.all(Reached::switched(1), SOON).await;
    swarm.all(Reached::running("v1"), SOON).await;
    all_send(&swarm, "first value", SOON).await;
    let before = revisions(&scenario).await;

    scenario.apply_secret("backend", "value", "second value");
    let rotated = Instant::now();
    swarm.all(Reached { settings: 2, ..Reached::default() }, AT_ONCE).await;
    println!("a rotated value is offered after {:.1?}", rotated.elapsed());
    swarm.all(Reached::switched(2), SOON).await;
    all_send(&swarm, "second value", SOON).await;
    assert_eq!(revisions(&scenario).await, before, "it made no revision and changed none");

    for version in ["v2", "v1"] {
        configure(&scenario, version);
        swarm.all(Reached::running(version), SOON).await;
        all_send(&swarm, "second value", SOON).await;
    }
    let (revisions, update) = revisions(&scenario).await;
    assert_eq!(revisions.len(), 2, "the newer one, and the older one again: {revisions:?}");
    assert_eq!(update, before.1, "the fleet went back to the older one");
    let settings = swarm.summary().await.settings;
    assert_eq!(settings, 2 * AGENTS, "the same settings are not offered twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_settings_are_shown_and_not_offered_again_until_somebody_asks() {
    let scenario = Scenario::begin("refuse").await;
    let operator = scenario.operator().await;
    apply(&scenario, &operator.websocket());
    let swarm = agents(1, "edge").refusing_settings().start(&operator.websocket());
    let uid = swarm.uids().await.remove(0);
    let failed = async |case: &str| {
        wait_for(case, SOON, async || {
            let agent = scenario.get(Kind::Agent, &uid).await.unwrap_or_default();
            let shown = &agent["status"]["connectionSettings"];
            let is_shown = shown["status"] == "Failed" && text(&shown["error"]).contains("refuses connection settings");
            if is_shown && shown["failed"].is_object() { Ok(()) } else { Err(agent["status"].to_string()) }
        })
        .await;
    };
    swarm.all(Reached::running("v1"), SOON).await;
    failed("the refusal is shown").await;
    let connected = swarm.summary().await;
    assert_eq!((connected.connections, connected.settings), (1, 1), "it keeps its old connection");

    all_are_answered(&scenario, &swarm).await;
    assert_eq!(swarm.summary().await.settings, 1, "not offered again by itself");
    let operator = operator.restart().await;
    swarm.all(Reached { connections: 2, ..Reached::default() }, SOON).await;
    operator.settles(SOON).await;
    all_are_answered(&scenario, &swarm).await;
    assert_eq!(swarm.summary().await.settings, 1, "nor by another operator");
    failed("the refusal is still shown").await;

    let now = jiff::Timestamp::now().round(jiff::Unit::Second).expect("a time").to_string();
    scenario.patch(Kind::Agent, &uid, json!({"spec": {"reoffer": {"requestedAt": now}}})).await;
    swarm.all(Reached { settings: 2, ..Reached::default() }, SOON).await;
    failed("it refuses again").await;
    all_are_answered(&scenario, &swarm).await;
    assert_eq!(swarm.summary().await.settings, 2, "one wish, one offer");
}

/// Waits until each agent has spoken twice and was answered: what is due to it would have come along.
async fn all_are_answered(scenario: &Scenario, swarm: &Swarm) {
    let all: Vec<usize> = (0..swarm.count).collect();
    swarm.fall_ill(&all, "to be answered").await;
    all_are(scenario, swarm, "ReportedUnhealthy").await;
    swarm.recover(&all).await;
    all_are(scenario, swarm, "ReportedHealthy").await;
}

async fn all_are(scenario: &Scenario, swarm: &Swarm, reason: &str) {
    wait_for(&format!("all Agents are {reason}"), SOON, async || {
        let agents = scenario.list(Kind::Agent).await;
        let shown: Vec<String> = agents.iter().map(|agent| Condition::of(agent, "Healthy").reason).collect();
        let is_so = shown.len() == swarm.count && shown.iter().all(|shown| shown == reason);
        if is_so { Ok(()) } else { Err(shown.join(", ")) }
    })
    .await;
}

/// Waits until each Agent tells that it has what it is offered.
async fn all_have_applied(scenario: &Scenario) {
    wait_for("all Agents tell of their settings", SOON, async || {
        let agents = scenario.list(Kind::Agent).await;
        let shown: Vec<Value> = agents.iter().map(|agent| agent["status"]["connectionSettings"].clone()).collect();
        let has_applied = |shown: &Value| shown["status"] == "Applied" && shown["lastReported"] == shown["offered"];
        if shown.len() == AGENTS && shown.iter().all(has_applied) { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_operator_offers_nothing_that_agents_have() {
    let scenario = Scenario::begin("reoffer").await;
    let operator = scenario.operator().await;
    apply(&scenario, &operator.websocket());
    let swarm = agents(AGENTS, "edge").taking_settings().start(&operator.websocket());
    swarm.all(Reached::switched(1), SOON).await;
    all_have_applied(&scenario).await;
    let before = swarm.summary().await;
    let operator = operator.kill_and_restart().await;
    swarm.all(Reached { connections: 3, ..Reached::default() }, SOON).await;
    operator.settles(SOON).await;
    all_are_answered(&scenario, &swarm).await;
    all_have_applied(&scenario).await;
    let after = swarm.summary().await;
    assert_eq!((after.settings, after.offers), (before.settings, before.offers), "counted at the agents");
}
