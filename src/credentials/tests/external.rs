//! Issuers that are not ours, played by the test: they approve, sign, refuse, or are not there.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use rcgen::{CertificateParams, CertificateSigningRequestParams, DnType, KeyPair};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    api_server::ApiServer,
    registrar::{Bench, member, roll},
    stored::{holder, merge, request},
    uid,
    world::POLICY,
};
use crate::{
    credentials::{
        authority::Authority,
        pem::read_certificates,
        request::CertificateRequest,
        roll::{IssuePolicy, Issuer, KeyWish, Roll, Standing},
    },
    kubernetes::ObjectKey,
};

fn policy(issuer: Issuer) -> IssuePolicy {
    IssuePolicy { issuer, ..POLICY }
}

fn cert_manager() -> Issuer {
    Issuer::CertManager { name: "corp".into(), kind: "ClusterIssuer".into(), group: "cert-manager.io".into() }
}

/// Agent 1 has made its own key, agent 2 wants one.
fn two(issuer: Issuer) -> Roll {
    let mut roll =
        roll([member(1, Standing::Admitted, KeyWish::Own), member(2, Standing::Admitted, KeyWish::Operators)]);
    roll.fleets.insert(ObjectKey::new("telemetry", "edge"), policy(issuer));
    roll
}

/// Signs what an object asks for, as it asks for it.
fn sign(authority: &Authority, object: &Value) -> String {
    sign_with(authority, object, |_| ())
}

fn sign_with(authority: &Authority, object: &Value, change: impl FnOnce(&mut CertificateParams)) -> String {
    let pem = STANDARD.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
    let mut request = CertificateSigningRequestParams::from_pem(std::str::from_utf8(&pem).unwrap()).unwrap();
    let now = Timestamp::now();
    let day = 86_400;
    let moment = |seconds| time::OffsetDateTime::from_unix_timestamp(now.as_second() + seconds).unwrap();
    (request.params.not_before, request.params.not_after) = (moment(-60), moment(day));
    change(&mut request.params);
    request.signed_by(authority.issuer()).unwrap().pem()
}

fn change(server: &ApiServer, resource: &str, object: &Value, status: &Value) {
    let mut object = object.clone();
    merge(&mut object, &json!({"status": status}));
    server.put(resource, &object);
}

const REQUESTS: &str = "certificatesigningrequests";

#[tokio::test(start_paused = true)]
async fn a_signer_of_the_cluster_signs_what_somebody_has_approved() {
    let server = ApiServer::new();
    server.put("secrets", &serde_json::to_value(holder(1).request(&request(1))).unwrap());
    let bench = Bench::start(&server, &two(Issuer::CertificateSigningRequest));
    bench.until("both are asked for", |_| server.list(REQUESTS).len() == 2).await;
    let (authority, _) = Authority::generate("corp", Timestamp::now()).unwrap();
    for object in server.list(REQUESTS) {
        assert_eq!(object["spec"]["signerName"], "opamp.dev/agent");
        assert_eq!(object["spec"]["usages"], json!(["digital signature", "client auth"]));
        assert_eq!(object["spec"]["expirationSeconds"], 600);
        assert_eq!(object["metadata"]["annotations"]["opamp.dev/fleet"], "edge");
        let status = json!({"conditions": [{"type": "Approved", "status": "True"}],
            "certificate": STANDARD.encode(sign(&authority, &object))});
        change(&server, REQUESTS, &object, &status);
    }
    bench.until("both have theirs", |bench| bench.given(&uid(1)) == 1 && bench.given(&uid(2)) == 1).await;
    for number in [1, 2] {
        let (found, given) = bench.offered(number).unwrap();
        assert_eq!(found.private_key.is_some(), number == 2);
        let certificate = read_certificates(given.chain.as_bytes()).unwrap().remove(0);
        let (trust, now) = (bench.trust.snapshot(), Timestamp::now());
        let known = bench.certificates.identify(&trust, &certificate, now).unwrap();
        assert_eq!(known.identity.issued_to(), Some(uid(number)));
        let sister = read_certificates(sign(&authority, &server.list(REQUESTS)[0]).as_bytes()).unwrap().remove(0);
        assert!(bench.certificates.identify(&trust, &sister, now).is_err(), "it is not in the Secret");
    }
    assert_eq!(server.list(REQUESTS).len(), 2, "each was asked for once");
}

#[tokio::test(start_paused = true)]
async fn what_was_denied_or_is_not_what_was_asked_for_is_refused() {
    let (authority, _) = Authority::generate("corp", Timestamp::now()).unwrap();
    let foreign = json!({"spec": {"request": STANDARD.encode(request(1).pem())}});
    for (case, status, expected) in [
        (
            "denied",
            json!({"conditions": [{"type": "Denied", "status": "True", "message": "not today"}]}),
            "was denied: not today",
        ),
        (
            "failed",
            json!({"conditions": [{"type": "Failed", "status": "True", "message": "no such usage"}]}),
            "has failed: no such usage",
        ),
        (
            "another key",
            json!({"certificate": STANDARD.encode(sign(&authority, &foreign))}),
            "the issuer's answer cannot be used: the certificate is for another key",
        ),
        (
            "another name",
            json!({"certificate": "sign"}),
            "the issuer's answer cannot be used: the certificate says more than it was asked to: its subject must be \
             empty, or the common name the agent's instance_uid and nothing else",
        ),
    ] {
        let server = ApiServer::new();
        server.put("secrets", &serde_json::to_value(holder(1).request(&request(1))).unwrap());
        let mut roll = two(Issuer::CertificateSigningRequest);
        roll.members.retain(|_, member| member.agent == uid(1));
        let bench = Bench::start(&server, &roll);
        bench.until("it is asked for", |_| server.list(REQUESTS).len() == 1).await;
        let object = &server.list(REQUESTS)[0];
        let name = |parameters: &mut CertificateParams| {
            parameters.distinguished_name.push(DnType::OrganizationName, "system:masters");
        };
        let status = match status["certificate"].as_str() {
            Some("sign") => json!({"certificate": STANDARD.encode(sign_with(&authority, object, name))}),
            Some(_) | None => status,
        };
        change(&server, REQUESTS, object, &status);
        bench.until("it is refused", |bench| bench.certificates.of(&uid(1))[0].refused.is_some()).await;
        let why = bench.certificates.of(&uid(1))[0].refused.clone().unwrap().why;
        assert!(why.ends_with(expected), "{case}: {why}");
        assert_eq!(bench.given(&uid(1)), 0, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_else_is_asked_to_sign_a_foreign_name() {
    for (issuer, resource) in [(Issuer::CertificateSigningRequest, REQUESTS), (cert_manager(), "certificaterequests")] {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::OrganizationName, "system:masters");
        let pem = parameters.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let foreign = CertificateRequest::check(pem.as_bytes(), uid(1), |_| false).unwrap();
        let server = ApiServer::new();
        server.put("secrets", &serde_json::to_value(holder(1).request(&foreign)).unwrap());
        let mut roll = two(issuer);
        roll.members.retain(|_, member| member.agent == uid(1));
        let bench = Bench::start(&server, &roll);
        let refused = |bench: &Bench| bench.certificates.of(&uid(1)).first().and_then(|it| it.refused.clone());
        bench.until("it is refused", |bench| refused(bench).is_some()).await;
        let why = refused(&bench).unwrap().why;
        assert!(why.starts_with("the fleet's issuer takes names from the certificate request"), "{why}");
        assert_eq!(server.list(resource), [json!(null); 0]);
    }
}

/// Agent 1 alone, whose request waits.
fn asking(server: &ApiServer) -> Roll {
    server.put("secrets", &serde_json::to_value(holder(1).request(&request(1))).unwrap());
    let mut roll = two(cert_manager());
    roll.members.retain(|_, member| member.agent == uid(1));
    roll
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_has_failed_once_is_asked_anew_when_the_agent_asks_again() {
    let server = ApiServer::new();
    let bench = Bench::start(&server, &asking(&server));
    bench.until("it is asked for", |_| server.list("certificaterequests").len() == 1).await;
    let failed = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "Failed", "message": "away"}]});
    change(&server, "certificaterequests", &server.list("certificaterequests")[0], &failed);
    bench.until("it is refused", |bench| bench.certificates.of(&uid(1))[0].refused.is_some()).await;
    let known = bench.certificates.of(&uid(1)).remove(0);
    let mut secret = server.get("secrets", "telemetry", &known.key.name).unwrap();
    merge(&mut secret, &known.ask_again("edge"));
    server.put("secrets", &secret);
    bench.until("it is asked for anew", |_| server.list("certificaterequests").len() == 2).await;
    let (authority, _) = Authority::generate("corp", Timestamp::now()).unwrap();
    let object = server.list("certificaterequests").into_iter().find(|object| object["status"].is_null()).unwrap();
    let signed = json!({"conditions": [{"type": "Ready", "status": "True", "reason": "Issued"}],
        "certificate": STANDARD.encode(sign(&authority, &object)), "ca": STANDARD.encode(authority.chain())});
    change(&server, "certificaterequests", &object, &signed);
    bench.until("it has its certificate", |bench| bench.given(&uid(1)) == 1).await;
    assert_eq!(bench.certificates.of(&uid(1))[0].attempt, 0);
}

#[tokio::test(start_paused = true)]
async fn another_issuer_of_the_fleet_is_asked_at_once() {
    let server = ApiServer::new();
    let mut roll = asking(&server);
    let bench = Bench::start(&server, &roll);
    bench.until("the first is asked", |_| server.list("certificaterequests").len() == 1).await;
    let corrected =
        Issuer::CertManager { name: "corporate".into(), kind: "Issuer".into(), group: "cert-manager.io".into() };
    roll.fleets.insert(ObjectKey::new("telemetry", "edge"), policy(corrected));
    bench.call(&roll);
    bench.until("the other is asked", |_| server.list("certificaterequests").len() == 2).await;
    let asked = server.list("certificaterequests");
    let mut names: Vec<_> = asked.iter().filter_map(|object| object["spec"]["issuerRef"]["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["corp", "corporate"]);
}

#[tokio::test(start_paused = true)]
async fn that_cert_manager_is_not_there_is_told_and_mended_by_itself() {
    let server = ApiServer::new();
    server.know_no(&["certificaterequests"]);
    server.put("secrets", &serde_json::to_value(holder(1).request(&request(1))).unwrap());
    let bench = Bench::start(&server, &two(cert_manager()));
    let fleet = ObjectKey::new("telemetry", "edge");
    let told = |bench: &Bench| bench.findings.borrow().fleets.get(&fleet).cloned();
    bench.until("it is told", |bench| told(bench).is_some()).await;
    assert!(told(&bench).unwrap().starts_with("cert-manager is not installed"));
    server.know_no(&[]);
    bench.until("both are asked for", |_| server.list("certificaterequests").len() == 2).await;
    let (authority, _) = Authority::generate("corp", Timestamp::now()).unwrap();
    for object in server.list("certificaterequests") {
        let issuer = json!({"name": "corp", "kind": "ClusterIssuer", "group": "cert-manager.io"});
        assert_eq!(object["spec"]["issuerRef"], issuer);
        assert_eq!((&object["spec"]["duration"], &object["spec"]["isCA"]), (&json!("600s"), &json!(false)));
        assert_eq!(object["metadata"]["ownerReferences"][0]["kind"], "Secret");
        let status = json!({"conditions": [{"type": "Ready", "status": "True", "reason": "Issued"}],
            "certificate": STANDARD.encode(sign(&authority, &object)), "ca": STANDARD.encode(authority.chain())});
        change(&server, "certificaterequests", &object, &status);
    }
    bench.until("both have theirs", |bench| bench.given(&uid(1)) == 1 && bench.given(&uid(2)) == 1).await;
    let given = bench.certificates.of(&uid(1))[0].given.clone().unwrap();
    assert_eq!((&*given.ca, given.certificate.issuer), (authority.chain().as_str(), authority.facts().key));
    bench.until("nothing is wrong any more", |bench| told(bench).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn that_cert_manager_is_not_there_is_told_before_anybody_asks() {
    let server = ApiServer::new();
    server.know_no(&["certificaterequests"]);
    let mut roll = two(cert_manager());
    roll.members.clear();
    let bench = Bench::start(&server, &roll);
    let told = |bench: &Bench| bench.findings.borrow().fleets.get(&ObjectKey::new("telemetry", "edge")).cloned();
    for (unknown, expected) in [(&["certificaterequests"][..], true), (&[], false), (&["certificaterequests"], true)] {
        server.know_no(unknown);
        let start = Instant::now();
        bench.until("it is told", |bench| told(bench).is_some() == expected).await;
        assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_acts_within_seconds_however_long_it_took() {
    let server = ApiServer::new();
    server.put("secrets", &serde_json::to_value(holder(1).request(&request(1))).unwrap());
    let bench = Bench::start(&server, &two(Issuer::CertificateSigningRequest));
    bench.until("both are asked for", |_| server.list(REQUESTS).len() == 2).await;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let (authority, _) = Authority::generate("corp", Timestamp::now()).unwrap();
    for object in server.list(REQUESTS) {
        let status = json!({"certificate": STANDARD.encode(sign(&authority, &object))});
        change(&server, REQUESTS, &object, &status);
    }
    let start = Instant::now();
    bench.until("both have theirs", |bench| bench.given(&uid(1)) == 1 && bench.given(&uid(2)) == 1).await;
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_cert_manager_says_is_told() {
    for (case, condition, expected) in [
        (
            "no issuer",
            json!({"type": "Ready", "status": "False", "reason": "Pending", "message": "Referenced issuer not found"}),
            Ok("cert-manager waits with CertificateRequests: Referenced issuer not found"),
        ),
        (
            "at work",
            json!({"type": "Ready", "status": "False", "reason": "Pending",
                "message": "Waiting on certificate issuance from order telemetry/x"}),
            Ok(""),
        ),
        (
            "failed",
            json!({"type": "Ready", "status": "False", "reason": "Failed", "message": "out of luck"}),
            Err("has failed: out of luck"),
        ),
        ("denied", json!({"type": "Denied", "status": "True", "message": "no"}), Err("was denied: no")),
        ("invalid", json!({"type": "InvalidRequest", "status": "True", "message": "so"}), Err("is invalid: so")),
    ] {
        let server = ApiServer::new();
        server.put("secrets", &serde_json::to_value(holder(1).request(&request(1))).unwrap());
        let mut roll = two(cert_manager());
        roll.members.retain(|_, member| member.agent == uid(1));
        let bench = Bench::start(&server, &roll);
        bench.until("it is asked for", |_| server.list("certificaterequests").len() == 1).await;
        let status = json!({"conditions": [condition]});
        change(&server, "certificaterequests", &server.list("certificaterequests")[0], &status);
        let refused = |bench: &Bench| bench.certificates.of(&uid(1))[0].refused.clone().map(|refused| refused.why);
        let waits = |bench: &Bench| bench.findings.borrow().fleets.values().next().cloned();
        match expected {
            Ok("") => tokio::time::sleep(Duration::from_secs(30)).await,
            Ok(_) => bench.until(case, |bench| waits(bench).is_some()).await,
            Err(_) => bench.until(case, |bench| refused(bench).is_some()).await,
        }
        match expected {
            Ok("") => assert_eq!((waits(&bench), refused(&bench)), (None, None), "{case}"),
            Ok(waiting) => assert!(waits(&bench).unwrap().ends_with(waiting), "{case}"),
            Err(why) => assert!(refused(&bench).unwrap().ends_with(why), "{case}"),
        }
    }
}
