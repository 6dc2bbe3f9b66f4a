//! A fleet that goes, or no longer selects its agents, and comes back: no storm of writes.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use crate::harness::{
    Condition, Kind, Operator, Reached, Scenario, Swarm, changes::AgentWrites, fleet, remote_config,
    resources::collector_config, swarm::agents, wait_for,
};

const COUNT: usize = 1_000;
const PATIENCE: Duration = Duration::from_secs(120);

async fn settled(scenario: &Scenario, operator: &Operator) -> Swarm {
    scenario.apply(&[
        remote_config("base").file("collector.yaml", &collector_config("v1")).build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let swarm = agents(COUNT, "edge").start(&operator.websocket());
    swarm.all(Reached::running("v1"), PATIENCE).await;
    scenario.fleet_counts("edge", &[("matched", COUNT), ("upToDate", COUNT)], PATIENCE).await;
    operator.settles(PATIENCE).await;
    swarm
}

/// Waits until `Matched` of every Agent has this status, then until nothing is left to be written.
async fn matched_everywhere(scenario: &Scenario, operator: &Operator, status: &str) {
    wait_for(&format!("every Agent has Matched={status}"), PATIENCE, || async {
        let objects = scenario.list(Kind::Agent).await;
        let there = objects.iter().filter(|agent| Condition::of(agent, "Matched").status == status).count();
        if there == COUNT { Ok(()) } else { Err(format!("{there} of {}", objects.len())) }
    })
    .await;
    operator.settles(PATIENCE).await;
}

/// What was written since the last look: each Agent changed once, none made or deleted.
async fn each_was_written_once(writes: &AgentWrites, swarm: &Swarm, case: &str) {
    let once: BTreeMap<String, usize> = swarm.uids().await.into_iter().map(|uid| (uid, 1)).collect();
    let seen = writes.so_far();
    writes.forget();
    assert_eq!(seen.created, BTreeMap::new(), "{case}: no Agent is created");
    assert_eq!(seen.deleted, BTreeMap::new(), "{case}: no Agent is deleted");
    let more: Vec<_> = seen.changed.iter().filter(|(uid, count)| once.get(*uid) != Some(count)).take(3).collect();
    assert_eq!(seen.changed.len(), COUNT, "{case}: every Agent is written");
    assert!(more.is_empty(), "{case}: each once, but {more:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_is_deleted_and_put_back_costs_one_write_each_way() {
    let scenario = Scenario::begin("deleted").await;
    let operator = scenario.operator().await;
    let swarm = settled(&scenario, &operator).await;
    let writes = AgentWrites::from_now_on(&scenario).await;

    scenario.cluster.kubectl(&["-n", &scenario.namespace, "delete", "agentfleet", "edge"], "");
    matched_everywhere(&scenario, &operator, "False").await;
    each_was_written_once(&writes, &swarm, "deleted").await;
    scenario.apply(&[fleet("edge").offering(&["base"]).build()]);
    scenario.fleet_counts("edge", &[("matched", COUNT), ("upToDate", COUNT)], PATIENCE).await;
    matched_everywhere(&scenario, &operator, "True").await;
    each_was_written_once(&writes, &swarm, "put back").await;
    stayed_connected(&swarm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selector_that_is_mistyped_and_mended_costs_one_write_each_way() {
    let scenario = Scenario::begin("mistyped").await;
    let operator = scenario.operator().await;
    let swarm = settled(&scenario, &operator).await;
    let writes = AgentWrites::from_now_on(&scenario).await;

    for (value, status) in [("egde", "False"), ("edge", "True")] {
        let selector = json!({"spec": {"selector": {"matchAttributes": {"service.name": value}}}});
        scenario.patch(Kind::Fleet, "edge", selector).await;
        matched_everywhere(&scenario, &operator, status).await;
        each_was_written_once(&writes, &swarm, value).await;
    }
    scenario.fleet_counts("edge", &[("matched", COUNT), ("upToDate", COUNT)], PATIENCE).await;
    stayed_connected(&swarm).await;
}

async fn stayed_connected(swarm: &Swarm) {
    let summary = swarm.summary().await;
    assert_eq!((summary.connections, summary.offers), (COUNT, COUNT), "one connection, one offer each: {summary:?}");
}
