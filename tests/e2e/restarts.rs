//! The operator goes and comes.

use std::time::Duration;

use crate::harness::{Reached, Scenario, fleet, remote_config, resources::collector_config, swarm::agents};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_drains_and_the_next_one_offers_nothing_twice() {
    let scenario = Scenario::begin("restart").await;
    let operator = scenario.operator().await;
    scenario.apply(&[
        remote_config("base").file("collector.yaml", &collector_config("v1")).build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let swarm = agents(20, "edge").start(&operator.websocket());
    swarm.all(Reached::running("v1"), SOON).await;
    scenario.fleet_counts("edge", &[("upToDate", 20)], SOON).await;

    let _operator = operator.restart().await; // ends with 0, or panics
    swarm.all(Reached { connections: 2, ..Reached::default() }, Duration::from_secs(30)).await;
    scenario.fleet_counts("edge", &[("connected", 20), ("upToDate", 20)], Duration::from_secs(30)).await;
    assert_eq!(swarm.summary().await.offers, 20, "what an agent has is not offered again");
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_status_is_written_before_the_end() {
    let scenario = Scenario::begin("flush").await;
    let mut operator = scenario.operator().await;
    scenario.apply(&[fleet("edge").build()]);
    let swarm = agents(10, "edge").start(&operator.websocket());
    scenario.fleet_counts("edge", &[("healthy", 10)], SOON).await;
    swarm.fall_ill(&[0, 1, 2], "disk full").await;
    assert!(operator.terminate().await.success());
    let ill = scenario.list(crate::harness::Kind::Agent).await;
    let ill = ill.iter().filter(|agent| agent["status"]["health"]["healthy"] == false).count();
    assert_eq!(ill, 3, "what agents reported before the drain is in their status");
}
