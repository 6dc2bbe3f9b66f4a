//! What comes from a Secret shows nowhere but at the agents.

use std::time::Duration;

use crate::harness::{Kind, Operator, Reached, Scenario, changes::events, fleet, remote_config, swarm::agents};

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
        let others = ["-n", namespace, "get", "configmaps,leases,events", "-o", "json"];
        texts.push(("ConfigMaps, Leases, Events".to_owned(), scenario.cluster.kubectl(&others, "")));
    }
    texts
}

async fn the_canary_is_nowhere(scenario: &Scenario, operator: &Operator, case: &str) {
    for (place, text) in visible_texts(scenario, operator).await {
        if let Some(at) = text.find(CANARY) {
            panic!("{case}: the canary sings in {place}: …{}…", &text[at.saturating_sub(200)..at]);
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
