//! What comes from a Secret shows nowhere but at the agents.

use std::time::Duration;

use serde_json::json;

use super::enrollment::{TOKEN, apply_fleet, renewed};
use crate::harness::{Kind, Operator, Reached, Scenario, changes::events, fleet, forge, remote_config, swarm::agents};

const SOON: Duration = Duration::from_secs(10);
/// Nothing else on earth contains this.
const CANARY: &str = "canary-7d1f0c55e2";

/// Every text that people or monitoring get to see.
pub(super) async fn visible_texts(scenario: &Scenario, operator: &Operator) -> Vec<(String, String)> {
    let mut texts = vec![("log".to_owned(), operator.log()), ("metrics".to_owned(), operator.metrics().await)];
    for kind in [Kind::Fleet, Kind::RemoteConfig, Kind::ConnectionSettings, Kind::Agent] {
        for object in scenario.list(kind).await {
            texts.push((format!("{kind:?}"), object.to_string()));
        }
    }
    for namespace in [&scenario.namespace, &scenario.system] {
        texts.extend(events(&scenario.client, namespace).await.into_iter().map(|event| ("event".to_owned(), event)));
        let others = ["-n", namespace, "get", "connectionsettings,configmaps,leases,events", "-o", "json"];
        texts
            .push(("ConnectionSettings, ConfigMaps, Leases, Events".to_owned(), scenario.cluster.kubectl(&others, "")));
    }
    texts
}

async fn the_canary_is_nowhere(scenario: &Scenario, operator: &Operator, case: &str) {
    are_nowhere(scenario, operator, case, &[CANARY]).await;
}

async fn are_nowhere(scenario: &Scenario, operator: &Operator, case: &str, canaries: &[&str]) {
    for (place, text) in visible_texts(scenario, operator).await {
        for (number, canary) in canaries.iter().enumerate() {
            if let Some(at) = text.find(canary) {
                let before: String = text[..at].chars().rev().take(200).collect();
                panic!("{case}: canary {number} sings in {place}: …{}…", before.chars().rev().collect::<String>());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_content_appears_in_no_log_event_status_or_metric() {
    let scenario = Scenario::begin("canary").await;
    let operator = scenario.operator_with(&["--log-level", "trace"]).await;
    let good = format!("exporters:\n  otlp:\n    headers: {{authorization: \"{CANARY}\"}}\n");
    scenario.apply_secret("backend", "backend.yaml", &good);
    scenario.apply(&[
        remote_config("base").for_collectors().file_from_secret("backend.yaml", "backend", "backend.yaml").build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let honest = agents(2, "edge").seed("honest").start(&operator.websocket());
    // It quotes what it does not like, as careless agents do.
    let careless = agents(2, "edge").seed("careless").with("-refuse", CANARY).start(&operator.websocket());
    honest.all(Reached::running(CANARY), SOON).await;
    careless.all(Reached::failed(), SOON).await;
    scenario.fleet_counts("edge", &[("upToDate", 2), ("failed", 2)], SOON).await;
    the_canary_is_nowhere(&scenario, &operator, "applied and refused").await;

    for (case, body, reason) in [
        ("YAML that does not parse", format!("exporters:\n  otlp: {{ {CANARY}\n - ]{CANARY}"), "InvalidYaml"),
        ("a duplicate key", format!("{CANARY}: 1\n{CANARY}: 2\n"), "InvalidYaml"),
    ] {
        scenario.apply_secret("backend", "backend.yaml", &body);
        scenario.condition((Kind::RemoteConfig, "base"), ("Stalled", "True", reason), SOON).await;
        the_canary_is_nowhere(&scenario, &operator, case).await;
    }
    let template = format!("{{{{ agent.attributes[\"{CANARY}\"] }}}} {CANARY}");
    scenario.apply_secret("backend", "backend.yaml", &template);
    let templated = remote_config("base").templated().file_from_secret("backend.yaml", "backend", "backend.yaml");
    scenario.apply(&[templated.build()]);
    let uid = &honest.uids().await[0];
    scenario.condition((Kind::Agent, uid), ("ConfigApplied", "False", "TemplateFailed"), SOON).await;
    the_canary_is_nowhere(&scenario, &operator, "a template that fails").await;
}

/// The second line of a key in PEM: the first that tells anything of it.
fn heart(key: &str) -> &str {
    key.lines().nth(1).expect("a key has lines")
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_appear_in_no_log_event_status_or_metric() {
    let scenario = Scenario::begin("credentials").await;
    let operator = scenario.tls_replica("replica-0", &["--log-level", "trace"]).await;
    apply_fleet(&scenario, &operator.websocket(), "Automatic", &json!({"duration": "1h", "renewBefore": "20m"}));
    scenario.apply_secret("header", "value", CANARY);
    scenario.apply(&[json!({
        "apiVersion": "opamp.dev/v1alpha1", "kind": "ConnectionSettings", "metadata": {"name": "edge"},
        "spec": {"opamp": {
            "endpoint": operator.websocket(), "certificate": {"source": "Issued"}, "heartbeatInterval": "5s",
            "headers": [{"name": "X-Canary", "valueFrom": {"secretKeyRef": {"name": "header", "key": "value"}}}],
        }},
    })]);
    let (ca, bearer) = (scenario.ca().await, format!("Bearer {TOKEN}"));
    let guess = "Bearer a-guess-that-is-not-a-token-0123456789";
    let guesser = agents(1, "edge").seed("guesser").trusting(&ca).header("Authorization", guess);
    let guesser = guesser.start(&operator.websocket());
    guesser.all(Reached { failures: 1, ..Reached::default() }, SOON).await;
    let swarm = agents(1, "edge").trusting(&ca).header("Authorization", &bearer).asking_for_certificates();
    let swarm = swarm.start(&operator.websocket());
    swarm.all(Reached::certified(), SOON * 2).await;
    let uid = swarm.uids().await.remove(0);
    renewed(&scenario, &swarm, &uid, "", SOON).await;

    let [authority] = forge::secret(&scenario, "opamp-ca", ["tls.key"]);
    let [server] = forge::secret(&scenario, "opamp-server-tls", ["tls.key"]);
    let agent = swarm.identity(0).await.key;
    let canaries = [CANARY, TOKEN, "a-guess-that-is-not", heart(&authority), heart(&server), heart(&agent)];
    are_nowhere(&scenario, &operator, "enrolled, certified and guessed at", &canaries).await;
}
