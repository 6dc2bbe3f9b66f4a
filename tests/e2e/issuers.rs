//! Issuers that are not the operator's own: cert-manager, and a signer of the cluster that the test plays. The operator
//! has the roles of `config/rbac` for them and no others.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use opamp_operator::opamp::messages::{
    AgentToServer, CertificateRequest, ConnectionSettingsRequest, OpAmpConnectionSettingsRequest, ServerToAgent,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};

use super::enrollment::{TOKEN, apply_fleet, ask_again_and_again, renewed};
use crate::harness::{
    CertManager, Condition, Kind, Operator, Reached, Scenario, Swarm,
    resources::text,
    roles::Right,
    scripted::{BAD_REQUEST, Socket, error_kind, full_report, heartbeat, new_uid, uid_text},
    swarm::agents,
    wait_for,
};

const SOON: Duration = Duration::from_secs(20);
/// What people must mend is told within, and no longer told when it is mended.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// From an approval to the certificate.
const ACTS_WITHIN: Duration = Duration::from_secs(5);

pub(super) fn by_cert_manager(lifetime: &str, renew_before: &str) -> Value {
    let issuer = json!({"name": "agents", "kind": "Issuer"});
    json!({"issuer": "CertManager", "issuerRef": issuer, "duration": lifetime, "renewBefore": renew_before})
}

async fn cert_manager(scenario: &Scenario) -> CertManager {
    let mut cert_manager = CertManager::start(&scenario.cluster, &scenario.folder.join("cert-manager.log"));
    cert_manager.issuer(&scenario.cluster, &scenario.namespace, "agents").await;
    cert_manager
}

/// Waits until it is known what the fleet gives: before, nothing is said of a request.
async fn fleet_is_served(operator: &Operator) {
    wait_for("the operator has read the fleet's revision", SOON, async || {
        let log = operator.log();
        if log.contains("revision loaded") { Ok(()) } else { Err(log) }
    })
    .await;
}

async fn enrol(scenario: &Scenario, operator: &Operator, seed: &str) -> (Swarm, String) {
    let authorization = format!("Bearer {TOKEN}");
    let swarm = agents(1, "edge").seed(seed).trusting(&scenario.ca().await).header("Authorization", &authorization);
    let swarm = swarm.asking_for_certificates().start(&operator.websocket());
    let uid = swarm.uids().await.remove(0);
    (swarm, uid)
}

/// Objects of a kind that the tests have no type for.
pub(super) fn objects(scenario: &Scenario, kind: &str, selector: &str) -> Vec<Value> {
    let arguments = ["-n", &scenario.namespace, "get", kind, "-l", selector, "-o", "json"];
    let printed = scenario.cluster.kubectl(&arguments, "");
    let list: Value = serde_json::from_str(&printed).expect("kubectl prints JSON");
    list["items"].as_array().cloned().unwrap_or_default()
}

async fn assert_connects_by_certificate(scenario: &Scenario, uid: &str) {
    let agent = scenario.get(Kind::Agent, uid).await.expect("the Agent is there");
    let connection = &agent["status"]["connection"];
    assert_eq!(connection["identity"], json!(format!("certificate:{}/edge/{uid}", scenario.namespace)));
    assert_eq!(connection["method"], "ClientCertificate");
}

#[tokio::test(flavor = "multi_thread")]
async fn cert_manager_signs_for_an_agent_and_renews() {
    let scenario = Scenario::begin("issuers").await;
    scenario.grant(Right::CertManager);
    let _cert_manager = cert_manager(&scenario).await;
    let operator = scenario.tls_replica("replica-0", &[]).await;
    apply_fleet(&scenario, &operator.websocket(), "Automatic", &by_cert_manager("1m", "40s"));
    let (swarm, uid) = enrol(&scenario, &operator, "edge").await;

    swarm.all(Reached::certified(), SOON).await;
    let serial = renewed(&scenario, &swarm, &uid, "", SOON).await;
    assert_connects_by_certificate(&scenario, &uid).await;
    let selector = format!("opamp.dev/agent={uid}");
    let secrets = objects(&scenario, "secrets", &selector);
    assert_eq!(secrets.len(), 1, "one Secret pins it");
    assert_eq!(secrets[0]["metadata"]["annotations"]["opamp.dev/issuer"], "CertManager");
    let requests = objects(&scenario, "certificaterequests.cert-manager.io", &selector);
    assert_eq!(requests.len(), 1, "it was asked for once");
    assert_eq!(requests[0]["spec"]["issuerRef"]["name"], "agents");
    scenario.condition((Kind::Fleet, "edge"), ("Ready", "True", "Completed"), SOON).await;

    tokio::select! {
        _ = renewed(&scenario, &swarm, &uid, &serial, Duration::from_secs(60)) => {}
        () = ask_again_and_again(&swarm) => unreachable!("it asks for ever"),
    };
    assert_connects_by_certificate(&scenario, &uid).await;
    assert_eq!(swarm.identity(0).await.new_uid, "", "it kept its uid all the way");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_tells_that_cert_manager_is_missing_until_it_is_there() {
    let scenario = Scenario::begin_alone("absent").await;
    scenario.grant(Right::CertManager);
    let operator = scenario.tls_replica("replica-0", &[]).await;
    apply_fleet(&scenario, &operator.websocket(), "Automatic", &by_cert_manager("1h", "20m"));
    let fleet = (Kind::Fleet, "edge");
    let told = scenario.condition(fleet, ("Ready", "False", "IssuerNotUsable"), TOLD_WITHIN).await;
    assert!(told.message.contains("cert-manager is not installed"), "{}", told.message);
    scenario.condition(fleet, ("Reconciling", "True", "IssuerNotUsable"), TOLD_WITHIN).await;
    let (swarm, _) = enrol(&scenario, &operator, "edge").await;
    swarm.all(Reached::running("v1"), SOON).await;

    let _cert_manager = cert_manager(&scenario).await;
    scenario.condition(fleet, ("Ready", "True", "Completed"), TOLD_WITHIN).await;
    swarm.all(Reached::certified(), SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_tells_that_a_client_ca_is_missing_until_it_is_there() {
    let scenario = Scenario::begin("client-ca").await;
    let operator = scenario.tls_replica("replica-0", &[]).await;
    apply_fleet(&scenario, &operator.websocket(), "Automatic", &json!({"duration": "1h", "renewBefore": "20m"}));
    let fleet = (Kind::Fleet, "edge");
    scenario.condition(fleet, ("Ready", "True", "Completed"), SOON).await;
    let named = json!({"spec": {"enrollment": {"clientCAs": [{"secretRef": {"name": "corporate"}}]}}});
    scenario.patch(Kind::Fleet, "edge", named).await;
    let ready = ("Ready", "False", "ClientCaNotUsable");
    let told = scenario.condition(fleet, ready, TOLD_WITHIN).await;
    assert!(told.message.ends_with("it does not exist"), "{}", told.message);
    let (swarm, _) = enrol(&scenario, &operator, "edge").await;
    swarm.all(Reached::running("v1"), SOON).await;

    scenario.apply_secret("corporate", "ca.crt", "canary");
    wait_for("the reason is another one", TOLD_WITHIN, async || {
        let object = scenario.get(Kind::Fleet, "edge").await.ok_or("no such fleet")?;
        let Condition { message, .. } = Condition::of(&object, "Ready");
        if message.contains("ca.crt") && !message.contains("canary") { Ok(()) } else { Err(message) }
    })
    .await;
    scenario.apply_secret("corporate", "ca.crt", &authority().0);
    scenario.condition(fleet, ("Ready", "True", "Completed"), TOLD_WITHIN).await;
}

/// The message of an agent that asks for a certificate.
fn asking(message: AgentToServer, parameters: &CertificateParams) -> AgentToServer {
    let key = KeyPair::generate().expect("a key");
    let csr = parameters.serialize_request(&key).and_then(|request| request.pem()).expect("a request");
    let request = CertificateRequest { csr: csr.into_bytes().into() };
    let opamp = Some(OpAmpConnectionSettingsRequest { certificate_request: Some(request) });
    AgentToServer { connection_settings_request: Some(ConnectionSettingsRequest { opamp }), ..message }
}

/// What agents must not have signed.
fn foreign() -> Vec<(&'static str, CertificateParams)> {
    let changed = |change: &dyn Fn(&mut CertificateParams)| {
        let mut parameters = plain();
        change(&mut parameters);
        parameters
    };
    let dns = || SanType::DnsName("api.example.com".try_into().expect("a name"));
    vec![
        ("an organisation", changed(&|it| it.distinguished_name.push(DnType::OrganizationName, "system:masters"))),
        ("a name of its choice", changed(&|it| it.distinguished_name.push(DnType::CommonName, "admin"))),
        ("a DNS name", changed(&|it| it.subject_alt_names = vec![dns()])),
        ("a CA", changed(&|it| it.is_ca = IsCa::Ca(BasicConstraints::Unconstrained))),
        ("a server", changed(&|it| it.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth])),
    ]
}

fn plain() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters
}

fn assert_refused(case: &str, answer: &ServerToAgent) {
    assert_eq!(error_kind(answer), Some(BAD_REQUEST), "{case}: {answer:?}");
    let message = answer.error_response.as_ref().map(|error| error.error_message.as_str()).unwrap_or_default();
    assert!(message.contains("the fleet's issuer takes names from the certificate request: "), "{case}: {message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cert_manager_is_not_asked_to_sign_a_foreign_name() {
    let scenario = Scenario::begin("foreign").await;
    scenario.grant(Right::CertManager);
    let _cert_manager = cert_manager(&scenario).await;
    let operator = scenario.replica("replica-0", &[]).await;
    apply_fleet(&scenario, &operator.websocket(), "Automatic", &by_cert_manager("1h", "20m"));
    let open = json!({"spec": {"enrollment": {"methods": ["Anonymous"]}}});
    scenario.patch(Kind::Fleet, "edge", open).await;
    fleet_is_served(&operator).await;

    let uid = new_uid();
    let mut socket = Socket::connect(operator.listen).await.expect("it connects");
    let _ = socket.exchange(&full_report(&uid, "edge")).await;
    scenario.fleet_counts("edge", &[("matched", 1)], SOON).await;
    let mut number = 1;
    for (case, parameters) in foreign() {
        number += 1;
        let answer = socket.exchange(&asking(heartbeat(&uid, number), &parameters)).await;
        assert_refused(case, &answer);
    }
    let selector = format!("opamp.dev/agent={}", uid_text(&uid));
    let kind = "certificaterequests.cert-manager.io";
    assert_eq!(objects(&scenario, "secrets", &selector), [json!(null); 0], "nothing is stored");
    assert_eq!(objects(&scenario, kind, ""), [json!(null); 0], "nobody is asked");

    let mut own = plain();
    own.distinguished_name.push(DnType::CommonName, uid_text(&uid));
    let answer = socket.exchange(&asking(heartbeat(&uid, number + 1), &own)).await;
    assert_eq!(error_kind(&answer), None, "its own name may stand there: {answer:?}");
    wait_for("it is asked for", SOON, async || {
        let requests = objects(&scenario, kind, &selector);
        if requests.len() == 1 { Ok(()) } else { Err(format!("{requests:?}")) }
    })
    .await;
}

/// A CA of the test's own: its certificate and its key, in PEM.
pub(super) fn authority() -> (String, KeyPair) {
    let key = KeyPair::generate().expect("a key");
    let certificate = authority_parameters().self_signed(&key).expect("a certificate");
    (certificate.pem(), key)
}

fn authority_parameters() -> CertificateParams {
    let mut parameters = plain();
    parameters.distinguished_name.push(DnType::CommonName, "signer of the cluster");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    parameters
}

/// The request of an agent at the signer of the cluster.
async fn asked(scenario: &Scenario, uid: &str) -> Value {
    wait_for("the signer is asked", SOON, async || {
        let mut found = objects(scenario, "certificatesigningrequests", &format!("opamp.dev/agent={uid}"));
        if found.len() == 1 { Ok(found.remove(0)) } else { Err(format!("{found:?}")) }
    })
    .await
}

/// Signs a request as it stands, as signers of clusters do.
pub(super) fn sign(scenario: &Scenario, request: &Value, key: KeyPair) {
    let pem = STANDARD.decode(text(&request["spec"]["request"])).expect("base64");
    let pem = String::from_utf8(pem).expect("PEM");
    let parameters = authority_parameters();
    let issuer = rcgen::Issuer::from_params(&parameters, key);
    let mut asked = CertificateSigningRequestParams::from_pem(&pem).expect("a request");
    let now = jiff::Timestamp::now().as_second();
    let moment = |seconds| time::OffsetDateTime::from_unix_timestamp(now + seconds).expect("a moment");
    (asked.params.not_before, asked.params.not_after) = (moment(-60), moment(3_600));
    let certificate = asked.signed_by(&issuer).expect("a certificate").pem();
    let status = json!({"status": {"certificate": STANDARD.encode(certificate)}}).to_string();
    let name = text(&request["metadata"]["name"]);
    let resource = ["patch", "certificatesigningrequest", &name, "--subresource=status"];
    scenario.cluster.kubectl(&[&resource[..], &["--type=merge", "-p", &status]].concat(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signer_of_the_cluster_signs_what_was_approved_and_nothing_that_was_denied() {
    let scenario = Scenario::begin("signer").await;
    scenario.grant(Right::ClusterSigner);
    let operator = scenario.tls_replica("replica-0", &[]).await;
    let certificates = json!({"issuer": "CertificateSigningRequest", "duration": "1h", "renewBefore": "20m"});
    apply_fleet(&scenario, &operator.websocket(), "Automatic", &certificates);
    let (swarm, uid) = enrol(&scenario, &operator, "approved").await;
    let request = asked(&scenario, &uid).await;
    assert_eq!(request["spec"]["signerName"], "opamp.dev/agent");
    assert_eq!(request["spec"]["usages"], json!(["digital signature", "client auth"]));
    let account = format!("system:serviceaccount:{}:opamp-operator", scenario.system);
    assert_eq!(request["spec"]["username"], json!(account), "it is the operator who asks");
    let pending = ("CertificateIssued", "False", "CertificatePending");
    scenario.condition((Kind::Agent, &uid), pending, SOON).await;
    let name = text(&request["metadata"]["name"]);
    scenario.cluster.kubectl(&["certificate", "approve", &name], "");
    sign(&scenario, &request, authority().1);
    swarm.all(Reached::certified(), ACTS_WITHIN).await;
    renewed(&scenario, &swarm, &uid, "", SOON).await;
    assert_connects_by_certificate(&scenario, &uid).await;

    let (_denied, uid) = enrol(&scenario, &operator, "denied").await;
    let request = asked(&scenario, &uid).await;
    scenario.cluster.kubectl(&["certificate", "deny", &text(&request["metadata"]["name"])], "");
    let refused = ("CertificateIssued", "False", "CertificateRefused");
    let told = scenario.condition((Kind::Agent, &uid), refused, TOLD_WITHIN).await;
    assert!(told.message.contains("was denied"), "{}", told.message);
    scenario.condition((Kind::Fleet, "edge"), ("Ready", "True", "Completed"), SOON).await;
}
