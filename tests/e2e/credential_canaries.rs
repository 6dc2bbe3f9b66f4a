//! Credentials show nowhere but in the Secrets where they belong, and at the agents.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams};
use serde_json::json;

use super::{enrollment::apply_fleet, secrets::visible_texts};
use crate::harness::{Operator, Reached, Scenario, swarm::agents};

const SOON: Duration = Duration::from_secs(30);
/// So long the operator waits for a request before it makes a key itself.
const NO_REQUEST: Duration = Duration::from_secs(30);
const PASSWORD: &str = "canary-password-41c07e9d5b";
const TOKEN: &str = super::enrollment::TOKEN;
const HEADER: &str = "canary-header-90b2f6a1c3";

/// Something that must not be seen, and the beginnings of the names of the Secrets where it belongs.
struct Canary {
    what: &'static str,
    text: String,
    belongs: &'static [&'static str],
}

/// All Secrets of both namespaces: name, and each value as text.
async fn secrets(scenario: &Scenario) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for namespace in [&scenario.namespace, &scenario.system] {
        let api: Api<Secret> = Api::namespaced(scenario.client.clone(), namespace);
        for secret in api.list(&ListParams::default()).await.expect("a list").items {
            let values = secret.data.unwrap_or_default().into_values();
            let texts = values.map(|value| String::from_utf8_lossy(&value.0).into_owned());
            found.push((secret.metadata.name.unwrap_or_default(), texts.collect()));
        }
    }
    found
}

/// A line of a private key in PEM that holds nothing but secret bits; the first one begins with the kind of key.
fn line_of_key(pem: &str) -> String {
    let lines: Vec<&str> = pem.lines().filter(|line| !line.starts_with('-')).collect();
    lines[1].to_owned()
}

/// The private keys that the operator has made.
async fn keys(scenario: &Scenario) -> Vec<Canary> {
    let mut canaries = Vec::new();
    for (what, belongs) in [
        ("the key of the CA", &["opamp-ca"][..]),
        ("the key of the server", &["opamp-server-tls"]),
        ("a key made for an agent", &["opamp-cert-"]),
    ] {
        let all = secrets(scenario).await;
        let of_this = all.iter().filter(|(name, _)| name.starts_with(belongs[0]));
        let values = of_this.flat_map(|(_, values)| values).filter(|value| value.contains("PRIVATE KEY"));
        let before = canaries.len();
        canaries.extend(values.map(|pem| Canary { what, text: line_of_key(pem), belongs }));
        assert!(canaries.len() > before, "there is {what}");
    }
    canaries
}

async fn nothing_sings(scenario: &Scenario, operator: &Operator, canaries: &[Canary]) {
    let texts = visible_texts(scenario, operator).await;
    assert!(texts[0].1.contains(r#""level":"TRACE""#), "the log is at its finest level");
    for Canary { what, text, .. } in canaries {
        for (place, shown) in &texts {
            assert!(!shown.contains(text.as_str()), "{what} is seen in {place}");
        }
    }
    let all = secrets(scenario).await;
    for Canary { what, text, belongs } in canaries {
        let holders = all.iter().filter(|(_, values)| values.iter().any(|value| value.contains(text.as_str())));
        let holders: BTreeSet<&str> = holders.map(|(name, _)| name.as_str()).collect();
        assert!(!holders.is_empty(), "{what} is in a Secret");
        for holder in holders {
            assert!(belongs.iter().any(|place| holder.starts_with(place)), "{what} is in {holder}");
        }
    }
}

/// A fleet whose members come with a token or a password, send a header, and get certificates.
fn apply(scenario: &Scenario, operator: &Operator) {
    apply_fleet(scenario, &operator.websocket(), "Automatic", &json!({"duration": "1h", "renewBefore": "20m"}));
    scenario.apply_secret("backend", "value", HEADER);
    let value = json!({"secretKeyRef": {"name": "backend", "key": "value"}});
    scenario.apply(&[
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "metadata": {"name": "edge-basic", "labels": {"opamp.dev/fleet": "edge"}},
            "stringData": {"username": "edge", "password": PASSWORD},
        }),
        json!({
            "apiVersion": "opamp.dev/v1alpha1", "kind": "ConnectionSettings", "metadata": {"name": "edge"},
            "spec": {"opamp": {
                "endpoint": operator.websocket(), "certificate": {"source": "Issued"}, "heartbeatInterval": "5s",
                "headers": [{"name": "X-Backend", "valueFrom": value}],
            }},
        }),
        json!({
            "apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleet", "metadata": {"name": "edge"},
            "spec": {
                "selector": {"matchAttributes": {"service.name": "edge"}},
                "remoteConfigs": [{"name": "base"}], "connectionSettings": {"name": "edge"},
                "enrollment": {"methods": ["ClientCertificate", "EnrollmentToken", "Basic"]},
            },
        }),
    ]);
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_appear_in_no_log_event_status_or_metric_and_in_no_other_secret() {
    let scenario = Scenario::begin("canaries").await;
    let operator = scenario.tls_replica("replica-0", &["--log-level", "trace"]).await;
    apply(&scenario, &operator);
    let ca = scenario.ca().await;
    let bearer = format!("Bearer {TOKEN}");
    // base64 of edge:canary-password-41c07e9d5b
    let basic = "Basic ZWRnZTpjYW5hcnktcGFzc3dvcmQtNDFjMDdlOWQ1Yg==";
    let edge = |seed: &str| agents(1, "edge").seed(seed).trusting(&ca);
    let own = edge("own").header("Authorization", &bearer).asking_for_certificates().start(&operator.websocket());
    let made = edge("made").header("Authorization", basic).taking_settings().start(&operator.websocket());
    let wrong = edge("wrong").header("Authorization", &format!("{bearer}x")).start(&operator.websocket());
    own.all(Reached::certified(), SOON).await;
    made.all(Reached::certified(), NO_REQUEST + SOON).await;
    wrong.all(Reached { failures: 1, ..Reached::default() }, SOON).await;
    for swarm in [&own, &made] {
        assert_eq!(swarm.identity(0).await.headers["X-Backend"], HEADER, "the agent has it");
    }

    let mut canaries = keys(&scenario).await;
    canaries.extend([
        Canary { what: "the token", text: TOKEN.to_owned(), belongs: &["edge-token"] },
        Canary { what: "the password", text: PASSWORD.to_owned(), belongs: &["edge-basic"] },
        Canary {
            what: "the value of the header",
            text: HEADER.to_owned(),
            belongs: &["backend", "opamp-credentials-"],
        },
    ]);
    nothing_sings(&scenario, &operator, &canaries).await;
    let log = operator.log();
    assert!(!log.contains(&basic["Basic ".len()..]), "neither does what the agent sends");
    let own_key = line_of_key(&own.identity(0).await.key);
    for (name, values) in secrets(&scenario).await {
        assert!(!values.iter().any(|value| value.contains(&own_key)), "the agent's own key is in no Secret: {name}");
    }

    // A rotation goes through other code.
    scenario.apply_secret("backend", "value", &format!("{HEADER}-rotated"));
    own.all(Reached::switched(2), SOON).await;
    nothing_sings(&scenario, &operator, &canaries).await;
}
