//! The API server is away for a minute.

use std::time::Duration;

use crate::harness::{
    Condition, Kind, Reached, Scenario,
    control_plane::Component,
    fleet, remote_config,
    resources::{collector_config, name},
    swarm::agents,
};

const SOON: Duration = Duration::from_secs(10);
/// After an outage: the API server starts, watches are made anew, and the backlog is written.
const AFTERWARDS: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn agents_stay_served_through_an_outage_and_their_status_is_right_afterwards() {
    let scenario = Scenario::begin_alone("outage").await;
    let mut operator = scenario.operator().await;
    scenario.apply(&[
        remote_config("base").file("collector.yaml", &collector_config("v1")).build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let swarm = agents(50, "edge").with("-heartbeat", "2s").start(&operator.websocket());
    swarm.all(Reached::running("v1"), SOON).await;
    scenario.fleet_counts("edge", &[("healthy", 50), ("upToDate", 50)], SOON).await;

    scenario.cluster.stop(Component::ApiServer);
    let (ill, back) = ((0..20).collect::<Vec<_>>(), (0..5).collect::<Vec<_>>());
    swarm.fall_ill(&ill, "disk full").await;
    operator.runs_for(Duration::from_secs(30)).await;
    swarm.recover(&back).await;
    let newcomers = agents(5, "edge").seed("newcomers").start(&operator.websocket());
    newcomers.all(Reached::running("v1"), SOON).await;
    operator.runs_for(Duration::from_secs(30)).await;
    assert!(operator.is_ready().await, "once synced, readiness does not depend on the API server");
    assert_eq!(swarm.summary().await.connections, 50, "nobody had to reconnect");
    scenario.cluster.resume(Component::ApiServer);

    scenario.cluster.wait_until_ready(AFTERWARDS).await;
    let counts = [("matched", 55), ("connected", 55), ("healthy", 40), ("upToDate", 55)];
    scenario.fleet_counts("edge", &counts, AFTERWARDS).await;
    let uids = swarm.uids().await;
    for agent in scenario.list(Kind::Agent).await {
        let expected = if uids[5..20].contains(&name(&agent)) { "False" } else { "True" };
        assert_eq!(Condition::of(&agent, "Healthy").status, expected, "{}", agent["status"]);
    }
    assert_eq!(swarm.summary().await.connections, 50, "and nobody has to afterwards");
}
