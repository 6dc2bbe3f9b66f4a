//! The operator is killed around each of its writes while others sign: cert-manager, and a signer of the cluster that the
//! test plays.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::interval};

use super::{
    enrollment::apply_fleet,
    issuers::{authority, by_cert_manager, objects, sign},
    kills::{World, killed_around_each},
};
use crate::harness::{
    CertManager, Scenario,
    api_proxy::Counted,
    resources::{name, text},
    roles::Right,
    swarm::Agents,
};

/// How often the signer of the cluster looks for requests.
const LOOKS: Duration = Duration::from_millis(500);

/// From nothing to a certificate in use, and the one request for it.
async fn signed_by_others(world: &World, endpoint: &str, certificates: &Value, requests: impl Fn() -> Vec<Value>) {
    world.count(Counted::Certificates);
    apply_fleet(&world.scenario, endpoint, "Automatic", certificates);
    let swarm = world.enrol(endpoint, Agents::asking_for_certificates).await;
    let used = world.certified(&swarm).await.certificate;
    world.assert_one_certificate(&swarm).await;
    let requests = requests();
    assert_eq!(requests.len(), 1, "it was asked for once: {requests:#?}");
    let signed = STANDARD.decode(text(&requests[0]["status"]["certificate"])).expect("base64");
    let signed = String::from_utf8(signed).expect("PEM");
    assert!(used.starts_with(signed.trim()), "what was signed is used: {signed} {used}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_around_any_write_cert_manager_is_asked_once_for_the_certificate_that_is_used() {
    let base = Scenario::begin("cert-manager-kills").await;
    let cert_manager = CertManager::start(&base.cluster, &base.folder.join("cert-manager.log"));
    let cert_manager = Mutex::new(cert_manager);
    let writes = ["POST secrets", "POST certificaterequests", "PATCH secrets"];
    killed_around_each(&base, "cert-manager", &writes, async |world, endpoint| {
        let scenario = &world.scenario;
        scenario.grant(Right::CertManager);
        cert_manager.lock().await.issuer(&scenario.cluster, &scenario.namespace, "agents").await;
        let requests = || objects(scenario, "certificaterequests.cert-manager.io", "opamp.dev/agent");
        signed_by_others(world, endpoint, &by_cert_manager("1h", "20m"), requests).await;
    })
    .await;
}

/// What this world's operator has asked the signer of the cluster.
fn asked(scenario: &Scenario) -> Vec<Value> {
    let account = format!("system:serviceaccount:{}:opamp-operator", scenario.system);
    let mut requests = objects(scenario, "certificatesigningrequests", "opamp.dev/agent");
    requests.retain(|request| request["spec"]["username"] == account);
    requests
}

/// Approves and signs whatever is asked, as long as it is not stopped.
async fn sign_everything(scenario: &Scenario) {
    let mut tick = interval(LOOKS);
    loop {
        tick.tick().await;
        for request in asked(scenario).iter().filter(|request| request["status"]["certificate"].is_null()) {
            scenario.cluster.kubectl(&["certificate", "approve", &name(request)], "");
            sign(scenario, request, authority().1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_around_any_write_a_signer_of_the_cluster_is_asked_once_for_the_certificate_that_is_used() {
    let base = Scenario::begin("signer-kills").await;
    let writes = ["POST secrets", "POST certificatesigningrequests", "PATCH secrets"];
    let certificates = json!({"issuer": "CertificateSigningRequest", "duration": "1h", "renewBefore": "20m"});
    killed_around_each(&base, "signer", &writes, async |world, endpoint| {
        let scenario = &world.scenario;
        scenario.grant(Right::ClusterSigner);
        tokio::select! {
            () = signed_by_others(world, endpoint, &certificates, || asked(scenario)) => {}
            () = sign_everything(scenario) => unreachable!("it signs for ever"),
        }
    })
    .await;
}
