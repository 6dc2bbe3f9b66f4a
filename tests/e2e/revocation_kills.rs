//! The operator is killed around each of its writes while an agent is revoked, and while its object is deleted; and the
//! object is deleted before anything holds it.

use std::{process::Command, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

use super::{
    enrollment::{TOKEN, access, agent, apply_fleet},
    kills::{AT_LAST, World, killed_around_each},
};
use crate::harness::{
    Kind, Reached, Scenario,
    api_proxy::Counted,
    resources::text,
    swarm::{AgentIdentity, Agents, Swarm, agents},
    wait_for,
};

/// The hold on the Agent, the list, the end of the Secret, and the end of the hold.
const WRITES: [&str; 4] = ["PATCH agents", "PUT configmaps", "DELETE secrets", "PATCH agents"];

/// From when the API server acknowledged it.
const REVOKED_WITHIN: Duration = Duration::from_secs(5);

async fn enrolled(world: &World, endpoint: &str) -> (Swarm, AgentIdentity) {
    apply_fleet(&world.scenario, endpoint, "Automatic", &json!({"duration": "1h", "renewBefore": "20m"}));
    let swarm = world.enrol(endpoint, Agents::asking_for_certificates).await;
    let identity = world.certified(&swarm).await;
    (swarm, identity)
}

/// Whether the published list has this serial number; what it has instead.
async fn is_listed(scenario: &Scenario, serial: &str) -> Result<(), String> {
    let config_maps: Api<ConfigMap> = Api::namespaced(scenario.client.clone(), &scenario.system);
    let found = config_maps.get("opamp-crl").await.map_err(|error| error.to_string())?;
    let file = scenario.folder.join("crl");
    std::fs::write(&file, found.data.unwrap_or_default().remove("ca.crl").unwrap_or_default()).expect("a file");
    let printed = Command::new("openssl").args(["crl", "-noout", "-text", "-in"]).arg(&file).output();
    let printed = String::from_utf8_lossy(&printed.expect("openssl runs").stdout).to_lowercase();
    if printed.contains(&format!("serial number: {serial}")) { Ok(()) } else { Err(printed) }
}

/// Whether the Agent cannot vanish before its certificate is in the list.
async fn is_held(world: &World, uid: &str) -> bool {
    agent(&world.scenario, uid).await["metadata"]["finalizers"].is_array()
}

/// Waits until the certificate is in the list, and neither its Secret nor a hold is left.
async fn taken_back(world: &World, revoked: &AgentIdentity) {
    wait_for("the certificate is taken back", AT_LAST, async || {
        is_listed(&world.scenario, &revoked.serial).await?;
        let (secrets, is_held) = (world.certificates().await.len(), is_held(world, &revoked.uid).await);
        if secrets == 0 && !is_held { Ok(()) } else { Err(format!("{secrets} Secrets, held: {is_held}")) }
    })
    .await;
    world.assert_no_orphan().await;
}

/// The certificate opens nothing, under no uid.
async fn assert_opens_nothing(world: &World, endpoint: &str, revoked: &AgentIdentity) {
    let scenario = &world.scenario;
    let (certificate, key) = (scenario.folder.join("revoked.crt"), scenario.folder.join("revoked.key"));
    std::fs::write(&certificate, &revoked.certificate).expect("a file");
    std::fs::write(&key, &revoked.key).expect("a file");
    let ca = scenario.try_ca().expect("the CA is published");
    for seed in ["edge", "another"] {
        let thief = agents(1, "edge").seed(seed).trusting(&ca).presenting(&certificate, &key).start(endpoint);
        thief.all(Reached { failures: 2, ..Reached::default() }, AT_LAST).await;
        assert_eq!(thief.summary().await.connections, 0, "a revoked certificate opens nothing");
    }
}

/// With the fleet's token it is told to stay out, however often it is asked who it is.
async fn assert_token_does_not_help(world: &World, endpoint: &str) {
    let ca = world.scenario.try_ca().expect("the CA is published");
    let bearer = format!("Bearer {TOKEN}");
    let swarm = agents(1, "edge").trusting(&ca).header("Authorization", &bearer).start(endpoint);
    swarm.all(Reached::refused(1), AT_LAST).await;
    assert_eq!(swarm.identity(0).await.new_uid, "", "no new uid either");
    assert_eq!(swarm.summary().await.offers, 0, "it is offered nothing");
}

async fn delete(world: &World, uid: &str) {
    let agents = world.scenario.api(Kind::Agent);
    agents.delete(uid, &DeleteParams::default()).await.expect("an administrator may delete it");
}

async fn is_gone(world: &World, uid: &str) {
    wait_for("the Agent is gone", AT_LAST, async || match world.scenario.get(Kind::Agent, uid).await {
        None => Ok(()),
        Some(found) => Err(found["metadata"].to_string()),
    })
    .await;
}

/// An agent is revoked, and its object is deleted when that is done.
async fn revoked_then_deleted(world: &World, endpoint: &str) {
    let (_swarm, revoked) = enrolled(world, endpoint).await;
    world.count(Counted::Certificates);
    access(&world.scenario, &revoked.uid, "Revoked").await;
    taken_back(world, &revoked).await;
    world.scenario.condition((Kind::Agent, &revoked.uid), ("Accepted", "False", "Revoked"), AT_LAST).await;
    assert_opens_nothing(world, endpoint, &revoked).await;
    assert_token_does_not_help(world, endpoint).await;
    assert_eq!(world.scenario.list(Kind::Agent).await.len(), 1, "one Agent, and nobody beside it");

    delete(world, &revoked.uid).await;
    is_gone(world, &revoked.uid).await;
    assert_stays_out(world, endpoint, &revoked).await;
}

/// An agent is revoked, and its object is deleted before that is done.
async fn deleted_while_held(world: &World, endpoint: &str) {
    let (_swarm, revoked) = enrolled(world, endpoint).await;
    world.count(Counted::Certificates);
    access(&world.scenario, &revoked.uid, "Revoked").await;
    wait_for("the Agent is held", AT_LAST, async || {
        let is_late = is_listed(&world.scenario, &revoked.serial).await.is_ok();
        if is_late || is_held(world, &revoked.uid).await { Ok(()) } else { Err("neither held nor listed".to_owned()) }
    })
    .await;
    delete(world, &revoked.uid).await;
    is_gone(world, &revoked.uid).await;
    taken_back(world, &revoked).await;
    assert_stays_out(world, endpoint, &revoked).await;
}

/// An agent is revoked, and its object is deleted before anything can hold it.
async fn deleted_in_one_breath(world: &World, endpoint: &str) {
    let (swarm, revoked) = enrolled(world, endpoint).await;
    let out = Reached { failures: swarm.summary().await.connect_failures + 1, ..Reached::default() };
    access(&world.scenario, &revoked.uid, "Revoked").await;
    delete(world, &revoked.uid).await;
    swarm.all(out, REVOKED_WITHIN).await;
    taken_back(world, &revoked).await;
    assert_opens_nothing(world, endpoint, &revoked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_revoked_and_deleted_in_one_breath_is_out_too() {
    World::new(Scenario::begin("one-breath").await, None).await.live(deleted_in_one_breath).await;
}

async fn assert_stays_out(world: &World, endpoint: &str, revoked: &AgentIdentity) {
    assert_opens_nothing(world, endpoint, revoked).await;
    assert_eq!(is_listed(&world.scenario, &revoked.serial).await, Ok(()), "the list keeps it");
    assert_eq!(world.scenario.list(Kind::Agent).await.len(), 0, "nobody has come back");
    let let_in = let_in(&world.scenario);
    assert_eq!(let_in, ["EnrollmentToken", "ClientCertificate"], "nobody was let in after the revocation");
}

/// The methods by which anybody was let in, from the audit lines of all the operator's lives.
fn let_in(scenario: &Scenario) -> Vec<String> {
    let log = std::fs::read_to_string(scenario.folder.join("replica-0.log")).expect("the operator's log");
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let granted = lines.filter(|it| it["target"] == "opamp_operator::audit" && it["outcome"] == "granted");
    granted.map(|it| text(&it["method"])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_around_any_write_of_a_revocation_the_agent_is_out_and_its_certificate_in_the_list() {
    let base = Scenario::begin("revocation-kills").await;
    tokio::join!(
        killed_around_each(&base, "revoked", &WRITES, revoked_then_deleted),
        killed_around_each(&base, "held", &WRITES, deleted_while_held),
    );
}
