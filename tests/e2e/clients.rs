//! The clients of other languages.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Kind, Scenario, fleet,
    real_clients::{Language, RealClient},
    remote_config, wait_for,
};

const SOON: Duration = Duration::from_secs(10);
/// These clients poll once a second here.
const A_POLL: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_other_languages_apply_json() {
    let scenario = Scenario::begin("languages").await;
    let operator = scenario.operator().await;
    for (language, service) in [(Language::Python, "python"), (Language::Node, "node")] {
        let config = format!("{service}-config");
        scenario.apply(&[
            remote_config(&config).typed_file("settings.json", "application/json", r#"{"sampling": 1}"#).build(),
            fleet(service).offering(&[&config]).build(),
        ]);
        scenario.condition((Kind::Fleet, service), ("Ready", "True", "Completed"), SOON).await;
        let mut client = RealClient::start(language, &operator.http(), service);
        client.event("connected", A_POLL).await;
        let applied = client.event("applied", A_POLL).await;
        assert_eq!(applied["files"], json!({"settings.json": {"sampling": 1}}), "{language:?}");
        shown_as_applied(&scenario, service, &applied).await;

        let changed = remote_config(&config).typed_file("settings.json", "application/json", r#"{"sampling": 2}"#);
        scenario.apply(&[changed.build()]);
        let applied = client.event("applied", A_POLL).await;
        assert_eq!(applied["files"], json!({"settings.json": {"sampling": 2}}), "{language:?}");
        shown_as_applied(&scenario, service, &applied).await;

        client.leave().await;
        let connected = match language {
            // It says goodbye, then often sends a late heartbeat: that must not bring it back.
            Language::Python => 0,
            // It says nothing; over HTTP its silence is noticed minutes later.
            Language::Node => 1,
        };
        scenario.fleet_counts(service, &[("matched", 1), ("connected", connected)], SOON).await;
    }
}

/// Waits until the client's Agent, and its fleet, say what the client said itself.
async fn shown_as_applied(scenario: &Scenario, service: &str, applied: &Value) {
    wait_for(&format!("the Agent of {service} says that it applied {}", applied["hash"]), SOON, async || {
        let objects = scenario.list(Kind::Agent).await;
        let agent = objects.iter().find(|agent| agent["status"]["fleet"] == service).ok_or("no Agent")?;
        let config = &agent["status"]["remoteConfig"];
        let told = config["lastReported"] == applied["hash"] && config["status"] == "Applied";
        if told { Ok(()) } else { Err(agent["status"].to_string()) }
    })
    .await;
    let counts = [("matched", 1), ("connected", 1), ("upToDate", 1), ("failed", 0)];
    scenario.fleet_counts(service, &counts, SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_refuses_a_content_type_is_shown_as_failed() {
    let scenario = Scenario::begin("content-type").await;
    let operator = scenario.operator().await;
    scenario.apply(&[
        remote_config("yaml").file("settings.yaml", "sampling: 1").build(),
        fleet("python").offering(&["yaml"]).build(),
    ]);
    let mut client = RealClient::start(Language::Python, &operator.http(), "python");
    client.event("failed", A_POLL).await;
    scenario.fleet_counts("python", &[("failed", 1), ("upToDate", 0)], SOON).await;
}
