//! The operator is killed around each of its writes while certificates near their end, and while it makes keys for agents
//! that make none.

use serde_json::{Value, json};

use super::{
    enrollment::apply_fleet,
    kills::{World, killed_around_each},
};
use crate::harness::{Scenario, api_proxy::Counted, swarm::Agents};

/// Renewed 45 to 60 s after they are made. What is left is enough for two kills on a busy machine.
fn soon() -> Value {
    json!({"duration": "2m", "renewBefore": "1m"})
}

/// Sends requests for a key of its own.
async fn own_key(world: &World, endpoint: &str) {
    apply_fleet(&world.scenario, endpoint, "Automatic", &soon());
    let swarm = world.enrol(endpoint, Agents::asking_for_certificates).await;
    let former = world.certified(&swarm).await;
    world.count(Counted::Certificates);
    swarm.renew_certificates(&[0]).await;
    let renewed = world.renewed_in_time(&swarm, &former).await;
    assert_eq!(renewed.key, former.key, "the key is the agent's own");
    world.assert_one_certificate(&swarm).await;
    println!("longest time without a connection: {:.1} s", swarm.summary().await.longest_gap);
}

/// Sends no request, and takes what it is offered.
async fn operators_key(world: &World, endpoint: &str) {
    world.count(Counted::Certificates);
    apply_fleet(&world.scenario, endpoint, "Automatic", &soon());
    let swarm = world.enrol(endpoint, Agents::taking_settings).await;
    let former = world.certified(&swarm).await;
    let renewed = world.renewed_in_time(&swarm, &former).await;
    assert_ne!(renewed.key, former.key, "a key of its own for each certificate");
    world.assert_one_certificate(&swarm).await;
    println!("longest time without a connection: {:.1} s", swarm.summary().await.longest_gap);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_around_any_write_of_a_renewal_the_agent_always_has_a_certificate_and_one_in_the_end() {
    let base = Scenario::begin("renewal-kills").await;
    tokio::join!(
        // The request, its answer, and the end of the former certificate.
        killed_around_each(&base, "own-key", &["PATCH secrets"; 3], own_key),
        // The first key, the next, and the end of the first.
        killed_around_each(&base, "operators-key", &["POST secrets", "POST secrets", "DELETE secrets"], operators_key),
    );
}
