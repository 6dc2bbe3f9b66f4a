//! What agents run is kept for fleets that ask for it.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::harness::{Kind, Reached, Scenario, fleet, remote_config, swarm::agents, wait_for};

const SOON: Duration = Duration::from_secs(60);
/// Nothing else on earth contains this.
const CANARY: &str = "canary-2b9e61d0c7";
const AGENTS: usize = 20;

/// The Secrets with effective configurations.
async fn kept(scenario: &Scenario) -> Vec<Secret> {
    let api: Api<Secret> = Api::namespaced(scenario.client.clone(), &scenario.namespace);
    let listed = api.list(&ListParams::default().fields("type=opamp.dev/effective-config")).await;
    listed.expect("the API server lists").items
}

/// Waits until all Agents name one and the same Secret, and that is there and says this.
async fn all_name_a_secret_with(scenario: &Scenario, text: &str) -> Secret {
    wait_for(&format!("all Agents name one Secret with {text:?}"), SOON, async || {
        let agents = scenario.list(Kind::Agent).await;
        let name = |agent: &Value| agent.pointer("/status/effectiveConfig/secretRef/name").cloned();
        let named: BTreeMap<String, usize> = agents.iter().fold(BTreeMap::new(), |mut named, agent| {
            *named.entry(name(agent).unwrap_or_default().to_string()).or_default() += 1;
            named
        });
        let secrets = kept(scenario).await;
        let found = secrets.iter().find(|secret| {
            let quoted = json!(secret.metadata.name).to_string();
            named.get(&quoted) == Some(&AGENTS) && content(secret).contains(text)
        });
        found.cloned().ok_or_else(|| format!("{named:?}, of {} Secrets", secrets.len()))
    })
    .await
}

/// Waits until no Agent names a Secret.
async fn none_names_a_secret(scenario: &Scenario) {
    wait_for("no Agent names a Secret", SOON, async || {
        let agents = scenario.list(Kind::Agent).await;
        let naming = agents.iter().filter(|agent| agent.pointer("/status/effectiveConfig/secretRef").is_some()).count();
        if naming == 0 { Ok(()) } else { Err(format!("{naming} do")) }
    })
    .await;
}

fn content(secret: &Secret) -> String {
    let files = secret.data.clone().unwrap_or_default();
    files.into_values().map(|ByteString(body)| String::from_utf8(body).expect("text")).collect()
}

async fn fleet_keeps(scenario: &Scenario, detail: &str) {
    scenario.patch(Kind::Fleet, "edge", json!({"spec": {"effectiveConfig": detail}})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_run_the_same_share_one_secret_without_secrets() {
    let scenario = Scenario::begin("effective").await;
    let operator = scenario.operator().await;
    let config = |marker: &str| format!("# {marker}\nexporters:\n  otlp:\n    headers: {{x-team: {CANARY}}}\n");
    let offer = |marker: &str| remote_config("base").file("collector.yaml", &config(marker)).build();
    let mut edge = fleet("edge").offering(&["base"]).build();
    edge["spec"]["effectiveConfig"] = json!("Stored");
    scenario.apply(&[offer("v1"), edge]);
    let swarm = agents(AGENTS, "edge").start(&operator.websocket());
    swarm.all(Reached::running("v1"), SOON).await;

    let secret = all_name_a_secret_with(&scenario, "# v1").await;
    assert_eq!(content(&secret), config("v1").replace(CANARY, "\"[redacted]\""));
    assert_eq!((secret.type_.as_deref(), secret.immutable), (Some("opamp.dev/effective-config"), Some(true)));
    let owner = &secret.metadata.owner_references.as_deref().expect("an owner")[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("AgentFleet", "edge"));
    // What they ran before and what they run now.
    assert!(kept(&scenario).await.len() <= 2, "one Secret for one configuration");
    for secret in kept(&scenario).await {
        assert!(!serde_json::to_string(&secret).expect("JSON").contains(CANARY) && !content(&secret).contains(CANARY));
    }

    scenario.apply(&[offer("v2")]);
    swarm.all(Reached::running("v2"), SOON).await;
    let second = all_name_a_secret_with(&scenario, "# v2").await;

    // Deleted by a person, it is made anew.
    let api: Api<Secret> = Api::namespaced(scenario.client.clone(), &scenario.namespace);
    let name = second.metadata.name.clone().unwrap_or_default();
    api.delete(&name, &DeleteParams::default()).await.expect("it is deleted");
    let anew = all_name_a_secret_with(&scenario, "# v2").await;
    assert_eq!(anew.metadata.name, second.metadata.name);
    assert_ne!(anew.metadata.uid, second.metadata.uid);

    fleet_keeps(&scenario, "Hash").await;
    none_names_a_secret(&scenario).await;
    fleet_keeps(&scenario, "Stored").await;
    all_name_a_secret_with(&scenario, "# v2").await;

    let _operator = operator.restart().await;
    swarm.all(Reached { connections: 2, ..Reached::default() }, Duration::from_secs(30)).await;
    wait_for("the new process has written all Agents", SOON, async || {
        let agents = scenario.list(Kind::Agent).await;
        let claimed = |agent: &&Value| agent["status"]["connection"]["epoch"].as_i64() > Some(1);
        let claimed = agents.iter().filter(claimed).count();
        if claimed == AGENTS { Ok(()) } else { Err(format!("{claimed} of them")) }
    })
    .await;
    all_name_a_secret_with(&scenario, "# v2").await;
}
