//! Several replicas, one of which leads.

use std::time::Duration;

use crate::harness::{
    Kind, Reached, Scenario, fleet, remote_config, resources::collector_config, swarm::agents, wait_for,
};

const SOON: Duration = Duration::from_secs(20);
/// A Lease expires after 10 s; then the next leader lists everything.
const TAKEOVER: Duration = Duration::from_secs(40);
/// A replica counts as gone 60 s after its Lease was seen to expire.
const GRACE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_dies_costs_its_own_agents_only() {
    let scenario = Scenario::begin("replicas").await;
    let mut first = scenario.replica("replica-0", &[]).await;
    let second = scenario.replica("replica-1", &[]).await;
    scenario.apply(&[
        remote_config("base").file("collector.yaml", &collector_config("v1")).build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let here = agents(10, "edge").seed("here").start(&first.websocket());
    let there = agents(10, "edge").seed("there").start(&second.websocket());
    for swarm in [&here, &there] {
        swarm.all(Reached::running("v1"), SOON).await;
    }
    scenario.fleet_counts("edge", &[("connected", 20), ("upToDate", 20)], SOON).await;

    first.kill().await;
    scenario.apply(&[remote_config("base").file("collector.yaml", &collector_config("v2")).build()]);
    there.all(Reached::running("v2"), TAKEOVER).await;
    scenario.fleet_counts("edge", &[("connected", 10), ("upToDate", 10), ("matched", 20)], GRACE).await;
    let gone = scenario.list(Kind::Agent).await;
    let gone = gone.iter().filter(|agent| agent["status"]["connection"]["replica"] == "replica-0");
    assert_eq!(gone.filter(|agent| agent["status"]["conditions"].to_string().contains("ReplicaGone")).count(), 10);

    let _first = first.revive().await;
    here.all(Reached::running("v2"), GRACE).await;
    scenario.fleet_counts("edge", &[("connected", 20), ("upToDate", 20)], SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_moves_to_another_replica_is_claimed_there() {
    let scenario = Scenario::begin("move").await;
    let first = scenario.replica("replica-0", &[]).await;
    let second = scenario.replica("replica-1", &[]).await;
    scenario.apply(&[fleet("edge").build()]);
    let swarm = agents(1, "edge").start(&first.websocket());
    let before = claimed_by(&scenario, "replica-0").await;
    drop(swarm);
    let _swarm = agents(1, "edge").start(&second.websocket());
    let after = claimed_by(&scenario, "replica-1").await;
    assert!(after > before, "{after:?} after {before:?}");
    scenario.fleet_counts("edge", &[("matched", 1), ("connected", 1)], SOON).await;
}

/// Waits until the only Agent belongs to a replica; the epoch of its claim.
async fn claimed_by(scenario: &Scenario, replica: &str) -> Option<i64> {
    wait_for(&format!("the agent is claimed by {replica}"), SOON, async || {
        let agents = scenario.list(Kind::Agent).await;
        let connection = &agents.first().ok_or("no Agent")?["status"]["connection"];
        if connection["replica"] == replica { Ok(connection["epoch"].as_i64()) } else { Err(connection.to_string()) }
    })
    .await
}
