//! Configuration that differs from agent to agent.

use std::time::Duration;

use crate::harness::{Condition, Kind, Reached, Scenario, fleet, remote_config, swarm::agents};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn each_agent_gets_its_own_rendering() {
    let scenario = Scenario::begin("template").await;
    let operator = scenario.operator().await;
    let body = "host: {{ agent.attributes[\"host.name\"] }}";
    scenario.apply(&[
        remote_config("base").templated().file("host.yaml", body).build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let swarm = agents(4, "edge").attribute("host.name", "host-{index}").start(&operator.websocket());
    swarm.all(Reached::running("host: host-"), SOON).await;
    for agent in 0..4 {
        assert_eq!(swarm.running(agent).await.trim(), format!("host: host-{agent}"));
    }
    scenario.fleet_counts("edge", &[("upToDate", 4)], SOON).await;
    assert_eq!(swarm.summary().await.applied.len(), 4, "different bytes have different hashes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_fails_for_one_agent_leaves_the_others_alone() {
    let scenario = Scenario::begin("template-fails").await;
    let operator = scenario.operator().await;
    scenario.apply(&[
        remote_config("base").templated().file("rack.yaml", "rack: any").build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let racked = agents(3, "edge").seed("racked").attribute("rack", "r{index}").start(&operator.websocket());
    let lost = agents(1, "edge").seed("lost").start(&operator.websocket());
    racked.all(Reached::running("rack: any"), SOON).await;
    lost.all(Reached::running("rack: any"), SOON).await;

    let body = "rack: {{ agent.attributes[\"rack\"] }}";
    scenario.apply(&[remote_config("base").templated().file("rack.yaml", body).build()]);
    racked.all(Reached::running("rack: r"), SOON).await;
    let uid = &lost.uids().await[0];
    let failed = scenario.condition((Kind::Agent, uid), ("ConfigApplied", "False", "TemplateFailed"), SOON).await;
    assert!(failed.message.contains("rack"), "the message names what is missing: {failed:?}");
    scenario.fleet_counts("edge", &[("matched", 4), ("upToDate", 3), ("failed", 1)], SOON).await;
    assert_eq!(lost.running(0).await.trim(), "rack: any", "it keeps what it has");
    let fleet = scenario.get(Kind::Fleet, "edge").await.expect("the fleet is there");
    assert!(Condition::of(&fleet, "Ready").is("True", "Completed"), "one agent's fault is not the fleet's");
}
