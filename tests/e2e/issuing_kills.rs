//! The operator is killed at each of its writes, from the first CA to a certificate in use.

use futures::{StreamExt as _, stream};
use serde_json::json;

use super::{
    enrollment::apply_fleet,
    kills::{WORLDS, World},
};
use crate::harness::{Scenario, api_proxy::Counted, swarm::Agents};

/// One operator's beginnings, and one agent's: until the certificate of the agent is in use.
async fn from_nothing(world: &World, endpoint: &str) {
    world.count(Counted::Everything);
    apply_fleet(&world.scenario, endpoint, "Automatic", &json!({"duration": "1h", "renewBefore": "20m"}));
    let swarm = world.enrol(endpoint, Agents::asking_for_certificates).await;
    let authority = || {
        let file = world.scenario.try_ca().expect("the CA is published");
        std::fs::read_to_string(file).expect("the CA's file")
    };
    let published = authority();
    world.certified(&swarm).await;
    world.assert_one_certificate(&swarm).await;
    assert_eq!(authority(), published, "the CA was never made anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_around_any_write_there_is_one_certificate_in_the_end() {
    let undisturbed = World::new(Scenario::begin("kills").await, None).await;
    undisturbed.live(from_nothing).await;
    let writes = undisturbed.proxy.writes();
    assert!(writes.len() >= 8, "a CA, an Agent, a revision, a certificate: {writes:#?}");
    println!("{} writes from nothing to a certificate in use: {writes:#?}", writes.len());
    let kills = stream::iter(1..=writes.len()).map(async |number| {
        let scenario = undisturbed.scenario.beside(&format!("kill-{number}")).await;
        let world = World::new(scenario, Some(number)).await;
        world.live(from_nothing).await;
        (number, world.proxy.kills(), world.proxy.writes().len())
    });
    let kills: Vec<_> = kills.buffer_unordered(WORLDS).collect().await;
    println!("number, kills and all writes: {kills:?}");
    // How often a fleet is counted anew depends on who is faster; the last of that may be missing.
    let is_met = |&(number, kills, written): &(usize, usize, usize)| kills > 0 || written < number;
    assert!(kills.iter().all(is_met), "each write was met, if there was one: {kills:?}");
    let without = kills.iter().filter(|(_, kills, _)| *kills == 0).count();
    assert!(without <= 1, "all but one at most: {kills:?}");
}
