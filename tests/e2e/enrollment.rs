//! From a token to a certificate to a revocation: one agent's life on two replicas, over TLS.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Kind, Reached, Scenario,
    operator::Operator,
    remote_config,
    resources::{collector_config, text},
    swarm::{Swarm, agents},
    wait_for,
};

const SOON: Duration = Duration::from_secs(20);
/// From when the API server acknowledged a revocation.
const REVOKED_WITHIN: Duration = Duration::from_secs(5);
pub(super) const TOKEN: &str = "a-token-that-nobody-guesses-0123456789";

/// A fleet whose members need a token and an approval, and get certificates that end soon.
pub(super) fn apply_fleet(scenario: &Scenario, endpoint: &str, approval: &str, certificates: &Value) {
    scenario.apply(&[
        enrollment_token("edge-token", TOKEN, Some("edge")),
        remote_config("base").file("collector.yaml", &collector_config("v1")).build(),
        json!({
            "apiVersion": "opamp.dev/v1alpha1", "kind": "ConnectionSettings", "metadata": {"name": "edge"},
            "spec": {"opamp": {"endpoint": endpoint, "certificate": {"source": "Issued"}, "heartbeatInterval": "5s"}},
        }),
        json!({
            "apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleet", "metadata": {"name": "edge"},
            "spec": {
                "selector": {"matchAttributes": {"service.name": "edge"}},
                "remoteConfigs": [{"name": "base"}],
                "connectionSettings": {"name": "edge"},
                "enrollment": {
                    "approval": approval, "methods": ["ClientCertificate", "EnrollmentToken"],
                    "certificates": certificates,
                },
            },
        }),
    ]);
}

fn enrollment_token(name: &str, token: &str, fleet: Option<&str>) -> Value {
    let labels = fleet.map_or_else(|| json!({}), |fleet| json!({"opamp.dev/fleet": fleet}));
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels},
        "type": "opamp.dev/enrollment-token", "stringData": {"token": token},
    })
}

async fn agent(scenario: &Scenario, uid: &str) -> Value {
    scenario.get(Kind::Agent, uid).await.unwrap_or_default()
}

async fn access(scenario: &Scenario, uid: &str, access: &str) {
    scenario.patch(Kind::Agent, uid, json!({"spec": {"access": access}})).await;
}

/// Waits until the agent connects with a certificate that is not this one, and the Agent says so.
pub(super) async fn renewed(scenario: &Scenario, swarm: &Swarm, uid: &str, former: &str, limit: Duration) -> String {
    wait_for("another certificate is in use", limit, async || {
        let status = agent(scenario, uid).await["status"]["certificate"].clone();
        let serial = swarm.identity(0).await.serial;
        let shown = text(&status["serial"]);
        if !serial.is_empty() && serial != former && shown == serial && status["inUseSince"].is_string() {
            Ok(serial)
        } else {
            Err(format!("{serial:?} in use, {status}"))
        }
    })
    .await
}

/// An agent does not know when its operator renews: asked too early, it answers with the certificate that it has.
pub(super) async fn ask_again_and_again(swarm: &Swarm) {
    let mut tick = tokio::time::interval(Duration::from_secs(2));
    loop {
        tick.tick().await;
        swarm.ask_for_certificates(&[0]).await;
    }
}

async fn refused_everywhere(operators: [&Operator; 2], scenario: &Scenario, swarm: &Swarm) {
    let thief = swarm.identity(0).await;
    let (certificate, key) = (scenario.folder.join("stolen.crt"), scenario.folder.join("stolen.key"));
    std::fs::write(&certificate, &thief.certificate).expect("a file");
    std::fs::write(&key, &thief.key).expect("a file");
    let ca = scenario.ca().await;
    for operator in operators {
        let stolen = agents(1, "edge").trusting(&ca).presenting(&certificate, &key).start(&operator.websocket());
        stolen.all(Reached { failures: 2, ..Reached::default() }, SOON).await;
        assert_eq!(stolen.summary().await.connections, 0, "a revoked certificate opens nothing");
        let other = agents(1, "edge").seed("victim").trusting(&ca).presenting(&certificate, &key);
        let other = other.start(&operator.websocket());
        other.all(Reached { failures: 2, ..Reached::default() }, SOON).await;
        assert_eq!(other.summary().await.connections, 0, "neither under another uid");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_a_token_to_a_certificate_to_a_revocation() {
    let scenario = Scenario::begin("enrol").await;
    let first = scenario.tls_replica("replica-0", &[]).await;
    let second = scenario.tls_replica("replica-1", &[]).await;
    apply_fleet(&scenario, &second.websocket(), "Manual", &json!({"duration": "1m", "renewBefore": "40s"}));
    let ca = scenario.ca().await;
    let bearer = format!("Bearer {TOKEN}");
    let swarm = agents(1, "edge").trusting(&ca).header("Authorization", &bearer).asking_for_certificates();
    let swarm = swarm.start(&first.websocket());
    let uid = swarm.uids().await.remove(0);

    let pending = scenario.condition((Kind::Agent, &uid), ("Accepted", "False", "PendingApproval"), SOON).await;
    let command = format!(
        "kubectl -n {} patch agent {uid} --type=merge -p '{{\"spec\":{{\"access\":\"Approved\"}}}}'",
        scenario.namespace
    );
    assert!(pending.message.contains(&command), "{}", pending.message);
    scenario.fleet_counts("edge", &[("pendingApproval", 1), ("matched", 1)], SOON).await;
    assert_eq!(swarm.summary().await.offers, 0, "a pending agent is offered nothing");
    assert_eq!(swarm.summary().await.settings, 0, "a pending agent is offered nothing");
    let identity = format!("token:{}/edge", scenario.namespace);
    assert_eq!(agent(&scenario, &uid).await["status"]["connection"]["identity"], json!(identity));

    access(&scenario, &uid, "Approved").await;
    swarm.all(Reached::running("v1"), SOON).await;
    swarm.all(Reached::certified(), SOON).await;
    let serial = renewed(&scenario, &swarm, &uid, "", SOON).await;
    let status = agent(&scenario, &uid).await["status"].clone();
    assert_eq!(status["connection"]["method"], "ClientCertificate", "{status}");
    assert_eq!(status["connection"]["replica"], "replica-1", "it went where its settings say: {status}");

    scenario.cluster.kubectl(&["-n", &scenario.namespace, "delete", "secret", "edge-token"], "");
    let serial = tokio::select! {
        serial = renewed(&scenario, &swarm, &uid, &serial, Duration::from_secs(60)) => serial,
        () = ask_again_and_again(&swarm) => unreachable!("it asks for ever"),
    };
    assert_eq!(swarm.identity(0).await.new_uid, "", "it kept its uid all the way");

    let before = swarm.summary().await.connect_failures;
    access(&scenario, &uid, "Revoked").await;
    let reached = Reached { failures: before + 1, ..Reached::default() };
    swarm.all(reached, REVOKED_WITHIN).await;
    refused_everywhere([&first, &second], &scenario, &swarm).await;
    scenario.condition((Kind::Agent, &uid), ("Accepted", "False", "Revoked"), SOON).await;
    let token = agents(1, "edge").trusting(&ca).header("Authorization", &bearer).start(&first.websocket());
    token.all(Reached { failures: 2, ..Reached::default() }, SOON).await;
    wait_for("the certificate is in the revocation list", SOON, async || {
        let shown = crate::harness::http::get(first.admin, "/crl").await.map_err(|error| error.to_string())?;
        let list = scenario.folder.join("crl");
        std::fs::write(&list, &shown.body).expect("a file");
        let arguments = ["crl", "-noout", "-text", "-in", &list.display().to_string()].map(str::to_owned);
        let printed = std::process::Command::new("openssl").args(arguments).output().expect("openssl runs");
        let printed = String::from_utf8_lossy(&printed.stdout).to_lowercase();
        if printed.contains(&serial) { Ok(()) } else { Err(printed) }
    })
    .await;
}
