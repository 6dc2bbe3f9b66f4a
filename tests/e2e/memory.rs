//! What an agent costs in memory.

use std::time::Duration;

use crate::harness::{Operator, Reached, Scenario, Swarm, fleet, remote_config, swarm::agents};

/// What one more agent on a WebSocket may cost, in bytes of the operator's resident memory.
const LIMIT: f64 = 15_000.0;
const FIRST: usize = 1_000;
const MORE: usize = 4_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// Agents that report about a kilobyte and are pushed a kilobyte.
async fn connect(count: usize, seed: &str, operator: &Operator) -> Swarm {
    let padding = "x".repeat(230);
    let mut swarm = agents(count, "edge").seed(seed).with("-start-rate", "500");
    for part in 0..4 {
        swarm = swarm.attribute(&format!("padding.{part}"), &padding);
    }
    let swarm = swarm.start(&operator.websocket());
    swarm.all(Reached::running("a kilobyte"), PATIENCE).await;
    swarm
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_costs_less_than_fifteen_kilobytes() {
    let scenario = Scenario::begin("memory").await;
    // A larger write budget only shortens the wait until nothing is pending any more.
    let operator = scenario.operator_with(&["--write-rate", "400", "--write-burst", "2000"]).await;
    let body = format!("# a kilobyte\npadding: {}", "y".repeat(1_000));
    scenario.apply(&[remote_config("base").file("a.yaml", &body).build(), fleet("edge").offering(&["base"]).build()]);

    let _first = connect(FIRST, "first", &operator).await;
    scenario.fleet_counts("edge", &[("upToDate", FIRST)], PATIENCE).await;
    operator.settles(PATIENCE).await;
    let before = operator.memory();
    let _more = connect(MORE, "more", &operator).await;
    let pushed = operator.memory();
    scenario.fleet_counts("edge", &[("upToDate", FIRST + MORE)], PATIENCE).await;
    operator.settles(PATIENCE).await;
    let settled = operator.memory();

    #[allow(clippy::cast_precision_loss, reason = "a measured size needs few digits")]
    let each = |now: u64| (now as f64 - before as f64) / MORE as f64;
    let (pushed, settled) = (each(pushed), each(settled));
    println!(
        "memory: {} MiB with {FIRST} agents; each of {MORE} more costs {pushed:.0} bytes just after its push, {settled:.0} when all is written",
        before >> 20
    );
    assert!(settled < LIMIT, "an agent costs {settled:.0} bytes");
}
