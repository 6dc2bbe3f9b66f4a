//! The main path: YAML in, offers out, status back.

use std::time::Duration;

use crate::harness::{
    Condition, Kind, Reached, Scenario, fleet, remote_config,
    resources::{collector_config, name, text},
    swarm::agents,
    wait_for,
};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn agents_appear_with_what_they_say_of_themselves() {
    let scenario = Scenario::begin("appear").await;
    let operator = scenario.operator().await;
    scenario.apply(&[fleet("edge").build()]);
    let swarm = agents(5, "edge").attribute("os.type", "linux").attribute("host.name", "host-{index}");
    let swarm = swarm.start(&operator.websocket());
    scenario.fleet_counts("edge", &[("matched", 5), ("connected", 5), ("healthy", 5)], SOON).await;

    let mut uids = swarm.uids().await;
    uids.sort();
    let objects = scenario.list(Kind::Agent).await;
    assert_eq!(objects.iter().map(name).collect::<Vec<_>>(), uids, "an Agent is named for its uid");
    for object in objects {
        let status = &object["status"];
        assert_eq!(status["fleet"], "edge");
        assert_eq!(status["connection"]["transport"], "WebSocket");
        assert_eq!(status["attributes"]["identifying"]["service.version"], "0.140.0");
        assert!(text(&status["attributes"]["nonIdentifying"]["host.name"]).starts_with("host-"));
        assert_eq!(object["metadata"]["labels"]["opamp.dev/fleet"], "edge");
        assert!(Condition::of(&object, "Connected").is("True", "SessionOpen"), "{status}");
    }

    swarm.leave(&[0]).await;
    scenario.fleet_counts("edge", &[("matched", 5), ("connected", 4)], SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_config_is_applied_by_all_and_so_is_its_change() {
    let scenario = Scenario::begin("apply").await;
    let operator = scenario.operator().await;
    let websocket = agents(10, "edge").seed("websocket").start(&operator.websocket());
    let http = agents(10, "edge").seed("http").with("-heartbeat", "1s").start(&operator.http());
    for version in ["version one", "version two"] {
        scenario.apply(&[
            remote_config("base").for_collectors().file("collector.yaml", &collector_config(version)).build(),
            fleet("edge").offering(&["base"]).build(),
        ]);
        websocket.all(Reached::running(version), SOON).await;
        http.all(Reached::running(version), SOON).await;
        scenario.condition((Kind::RemoteConfig, "base"), ("Ready", "True", "Valid"), SOON).await;
        scenario.condition((Kind::Fleet, "edge"), ("Ready", "True", "Completed"), SOON).await;
        let hashes = websocket.applied_hashes().await;
        assert_eq!((hashes.len(), &hashes), (1, &http.applied_hashes().await), "the same bytes, the same hash");
        scenario.agents_applied(20, &[&hashes[0]], SOON).await;
        scenario.fleet_counts("edge", &[("matched", 20), ("upToDate", 20), ("failed", 0)], SOON).await;
    }
    let summary = websocket.summary().await;
    assert_eq!((summary.offers, summary.connections), (20, 10), "each is offered each version once: {summary:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_yaml_twice_changes_nothing() {
    let scenario = Scenario::begin("twice").await;
    let operator = scenario.operator().await;
    let objects = [
        remote_config("base").file("collector.yaml", &collector_config("v1")).build(),
        fleet("edge").offering(&["base"]).build(),
    ];
    scenario.apply(&objects);
    let swarm = agents(3, "edge").start(&operator.websocket());
    swarm.all(Reached::running("v1"), SOON).await;
    scenario.fleet_counts("edge", &[("upToDate", 3)], SOON).await;
    operator.settles(Duration::from_secs(60)).await;
    let before = scenario.get(Kind::Fleet, "edge").await.expect("the fleet is there");

    scenario.apply(&objects);
    // A real change of another kind passes through the same path, so what was to come has come when it is there.
    scenario.apply(&[fleet("other").build()]);
    scenario.condition((Kind::Fleet, "other"), ("Ready", "True", "Completed"), SOON).await;
    let after = scenario.get(Kind::Fleet, "edge").await.expect("the fleet is there");
    assert_eq!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
    assert_eq!(swarm.summary().await.offers, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_referenced_config_map_reaches_the_agents() {
    let scenario = Scenario::begin("configmap").await;
    let operator = scenario.operator().await;
    scenario.apply_config_map("rules", "rules.yaml", "rules: first");
    scenario.apply(&[
        remote_config("base").file_from_config_map("rules.yaml", "rules", "rules.yaml").build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let swarm = agents(3, "edge").start(&operator.websocket());
    swarm.all(Reached::running("rules: first"), SOON).await;
    scenario.apply_config_map("rules", "rules.yaml", "rules: second");
    swarm.all(Reached::running("rules: second"), SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_refuses_is_counted_and_offered_again_only_when_asked() {
    let scenario = Scenario::begin("refuse").await;
    let operator = scenario.operator().await;
    scenario.apply(&[
        remote_config("base").file("collector.yaml", &collector_config("unwelcome")).build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let swarm = agents(2, "edge").with("-refuse", "unwelcome").with("-heartbeat", "1s");
    let swarm = swarm.start(&operator.websocket());
    swarm.all(Reached::failed(), SOON).await;
    scenario.fleet_counts("edge", &[("failed", 2), ("upToDate", 0)], SOON).await;
    let uids = swarm.uids().await;
    let failed = scenario.condition((Kind::Agent, &uids[0]), ("ConfigApplied", "False", "ConfigFailed"), SOON).await;
    assert!(failed.message.contains("unwelcome"), "what the agent said is told: {failed:?}");
    assert_eq!(swarm.summary().await.offers, 2, "what failed is not sent again by itself");

    let asked = serde_json::json!({"spec": {"reoffer": {"requestedAt": "2026-01-01T00:00:00Z"}}});
    scenario.patch(Kind::Agent, &uids[0], asked).await;
    swarm.at_least(1, Reached { offers: 2, ..Reached::default() }, SOON).await;
    wait_for("the wish is noted in the status", SOON, || async {
        let agent = scenario.get(Kind::Agent, &uids[0]).await.ok_or("no such agent")?;
        let noted = &agent["status"]["reoffer"]["requestedAt"];
        if noted == "2026-01-01T00:00:00Z" { Ok(()) } else { Err(agent["status"].to_string()) }
    })
    .await;
    assert_eq!(swarm.summary().await.offers, 3, "one agent was asked about, one was offered it");
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_cannot_be_configured_are_counted_apart() {
    let scenario = Scenario::begin("unsupported").await;
    let operator = scenario.operator().await;
    scenario.apply(&[
        remote_config("base").file("collector.yaml", &collector_config("v1")).build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let able = agents(2, "edge").seed("able").start(&operator.websocket());
    let unable = agents(3, "edge").seed("unable").without_configuration().start(&operator.websocket());
    able.all(Reached::running("v1"), SOON).await;
    let counts = [("matched", 5), ("connected", 5), ("upToDate", 2), ("unsupported", 3)];
    scenario.fleet_counts("edge", &counts, SOON).await;
    assert_eq!(unable.summary().await.offers, 0);
}
