//! A thousand agents on one operator.

use std::time::{Duration, Instant};

use crate::harness::{
    Operator, Reached, Scenario, Swarm, changes::everything_but_leases, fleet, remote_config,
    resources::collector_config, swarm::agents, system::processor_seconds,
};

const COUNT: usize = 1_000;
/// The promise: so long from the change, or from the new operator's readiness, until everything says so.
const LIMIT: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(120);

/// A thousand agents that run version one, everything written, and the write budget full.
async fn settled(scenario: &Scenario, operator: &Operator) -> Swarm {
    offer(scenario, "version one");
    let swarm = agents(COUNT, "edge").with("-heartbeat", "5s").attribute("host.name", "host-{index}");
    let swarm = swarm.start(&operator.websocket());
    swarm.all(Reached::running("version one"), PATIENCE).await;
    scenario.fleet_counts("edge", &[("matched", COUNT), ("upToDate", COUNT)], PATIENCE).await;
    operator.settles(PATIENCE).await;
    swarm
}

fn offer(scenario: &Scenario, version: &str) {
    scenario.apply(&[
        remote_config("base").for_collectors().file("collector.yaml", &collector_config(version)).build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
}

/// Waits until every Agent and the fleet's counters say that the swarm's one hash is applied.
async fn everything_says_so(scenario: &Scenario, swarm: &Swarm, limit: Duration) {
    let applied = swarm.summary().await.applied;
    let (hash, count) = applied.iter().next().expect("a hash");
    assert_eq!((applied.len(), *count), (1, COUNT), "all run the same: {applied:?}");
    scenario.agents_applied(COUNT, &[hash], limit).await;
    scenario.fleet_counts("edge", &[("upToDate", COUNT), ("connected", COUNT), ("failed", 0)], limit).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_applied_by_a_thousand_and_everything_says_so_in_time() {
    let scenario = Scenario::begin("thousand").await;
    let operator = scenario.operator().await;
    let swarm = settled(&scenario, &operator).await;

    let began = Instant::now();
    offer(&scenario, "version two");
    swarm.all(Reached::running("version two"), LIMIT).await;
    let applied = began.elapsed();
    everything_says_so(&scenario, &swarm, LIMIT).await;
    let told = began.elapsed();
    println!("1,000 agents: applied after {applied:.1?}, all status written after {told:.1?}");
    assert!(told < LIMIT, "it took {told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_a_change_the_next_one_finishes_it_in_time() {
    let scenario = Scenario::begin("killed").await;
    let operator = scenario.operator().await;
    let swarm = settled(&scenario, &operator).await;

    offer(&scenario, "version two");
    swarm.at_least(COUNT / 10, Reached::running("version two"), LIMIT).await;
    let operator = operator.kill_and_restart().await;
    swarm.all(Reached::running("version two"), LIMIT).await;
    everything_says_so(&scenario, &swarm, LIMIT).await;
    let told = operator.ready_at.elapsed();
    println!("killed in the middle: all status written {told:.1?} after the new one was ready");
    assert!(told < LIMIT, "it took {told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_idle_agents_cause_no_write_in_two_minutes() {
    let scenario = Scenario::begin("idle").await;
    let mut operator = scenario.operator().await;
    let swarm = settled(&scenario, &operator).await;
    let heartbeats = operator.metric("opamp_operator_messages_received_total").await;

    let before = everything_but_leases(&scenario).await;
    let (began, used) = (Instant::now(), processor_seconds(operator.pid()));
    operator.runs_for(Duration::from_secs(120)).await;
    let (idle, used) = (began.elapsed().as_secs_f64(), processor_seconds(operator.pid()) - used);
    let after = everything_but_leases(&scenario).await;

    let changed: Vec<_> = after.iter().filter(|(object, version)| before.get(*object) != Some(version)).collect();
    assert!(changed.is_empty(), "{} objects changed, among them {:?}", changed.len(), changed.first());
    assert_eq!(after.len(), before.len(), "no object is gone");
    let heartbeats = operator.metric("opamp_operator_messages_received_total").await - heartbeats;
    println!("idle: {heartbeats} heartbeats in {idle:.0} s, {:.0} µs of processor time each", used / heartbeats * 1e6);
    assert!(heartbeats >= 20_000.0, "1,000 agents sent a heartbeat every 5 s: {heartbeats}");
    assert_eq!(swarm.summary().await.offers, COUNT);
    assert_every_watch_is_young(&operator).await;
}

/// A watch is opened anew every half minute; one that were not recognised in what the server answers would only grow old.
async fn assert_every_watch_is_young(operator: &Operator) {
    let metrics = operator.metrics().await;
    let ages = metrics.lines().filter_map(|line| line.strip_prefix("opamp_operator_watch_age_seconds{resource="));
    let ages: Vec<(&str, f64)> =
        ages.filter_map(|rest| rest.split_once("} ")).map(|(of, age)| (of, age.parse().expect("seconds"))).collect();
    assert!(ages.len() >= 5, "Secrets, ConfigMaps, Leases and the operator's own kinds are watched: {ages:?}");
    assert!(ages.iter().all(|(_, age)| *age < 35.0), "none is older than half a minute: {ages:?}");
}
