use k8s_openapi::api::core::v1::Secret;
use kube::runtime::watcher::Event;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use super::*;
use crate::{
    agents::summary::of_status,
    api::{agent_fleet::EffectiveConfigDetail, enrollment::Enrollment, selector::AttributeSelector},
    catalog::{
        AnonymousNamespaces, LoadedRevision, Policy, Revision, SecretContent, Settings, Threshold, fleet::Revisions,
    },
    credentials::{request::CertificateRequest, stored::Holder},
    kubernetes::Scope,
    opamp::InstanceUid,
};

const UID: &str = "01900000-0000-7000-8000-000000000001";
const NOON: &str = "2026-11-29T12:00:00Z";

fn noon(seconds: i64) -> Timestamp {
    let noon: Timestamp = NOON.parse().expect("a time");
    Timestamp::from_second(noon.as_second() + seconds).expect("a time")
}

fn uid() -> InstanceUid {
    InstanceUid::from_name(UID).expect("a uid")
}

/// An agent of `edge` in `telemetry` that was admitted and came at noon.
fn agent(change: impl FnOnce(&mut Value)) -> AgentSummary {
    let condition = |kind: &str, reason: &str| json!({"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": NOON});
    let mut status = json!({
        "fleet": "edge",
        "capabilities": ["ReportsStatus", "AcceptsOpAMPConnectionSettings"],
        "conditions": [condition("Accepted", "Admitted"), condition("Connected", "SessionOpen")],
    });
    change(&mut status);
    let status = serde_json::from_value(status).expect("a status");
    of_status(uid(), "telemetry", &status).expect("a summary")
}

fn fleet(certificate: FrozenCertificate) -> FleetEntry {
    let settings = Settings {
        name: "edge".into(),
        endpoint: "wss://opamp.example.com/v1/opamp".into(),
        headers: Vec::new(),
        certificate,
        tls: None,
        proxy: None,
        heartbeat_seconds: 30,
    };
    let revision = Revision { opamp: Some(settings), ..Revision::default() };
    let loaded = Arc::new(LoadedRevision::new(revision.hash(), revision));
    let revisions = Revisions { current: Some(loaded), update: None, threshold: Threshold::All, epoch: 1 };
    FleetEntry {
        namespace: "telemetry".into(),
        name: "edge".into(),
        uid: "fleet-uid".into(),
        priority: 0,
        created: Timestamp::UNIX_EPOCH,
        selector: AttributeSelector::default(),
        enrollment: Enrollment::default(),
        effective_config: EffectiveConfigDetail::Hash,
        offering: Offering::Revisions(revisions),
        credentials: None,
    }
}

fn not_loaded() -> FleetEntry {
    FleetEntry { offering: Offering::NotLoaded, ..fleet(FrozenCertificate::Issued) }
}

fn called(agent: AgentSummary, fleet: FleetEntry, secrets: Vec<Secret>, now: Timestamp) -> Called {
    let policy = Policy { anonymous: AnonymousNamespaces::All, secrets: SecretContent::Offered };
    let catalog = Catalog::new(vec![Arc::new(fleet)], policy, 1);
    let certificates = Certificates::new(&Scope::All);
    secrets.into_iter().for_each(|secret| certificates.take(&None, Event::Apply(secret)));
    let agents = [Arc::new(agent)];
    let departures = [Departure { namespace: "telemetry".into(), uid: uid(), at: noon(-1) }];
    let shown = Shown {
        agents: &agents,
        catalog: &catalog,
        certificates: &certificates,
        departures: &departures,
        operator_namespace: "opamp-system",
    };
    call(shown, now)
}

/// The only member, of an agent that came long ago.
fn member_of(agent: AgentSummary) -> Member {
    let roll = called(agent, fleet(FrozenCertificate::Issued), vec![], noon(600)).roll;
    assert_eq!((&*roll.operator_namespace, roll.departed("telemetry", &uid())), ("opamp-system", Some(noon(-1))));
    roll.member("telemetry", &uid()).expect("a member").clone()
}

fn request() -> Secret {
    let pem = CertificateParams::default().serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let request = CertificateRequest::check(pem.as_bytes(), uid(), |_| false).unwrap();
    Holder { agent: uid(), namespace: "telemetry".into(), fleet: "edge".into() }.request(&request)
}

#[test]
fn a_fleet_gives_out_certificates_if_a_revision_of_it_says_so() {
    let gives_out = |fleet| !called(agent(|_| ()), fleet, vec![], noon(0)).roll.fleets.is_empty();
    assert!(gives_out(fleet(FrozenCertificate::Issued)));
    assert!(!gives_out(fleet(FrozenCertificate::None)));
    assert!(!gives_out(fleet(FrozenCertificate::Secret("shared".into()))));
    assert!(!gives_out(FleetEntry { offering: Offering::NoRevision, ..fleet(FrozenCertificate::Issued) }));
    assert!(gives_out(not_loaded()), "nobody is refused for what this replica has not read");
}

#[test]
fn who_signs_and_for_how_long_is_what_the_fleet_says() {
    let policy = |certificates: Value| {
        let mut fleet = fleet(FrozenCertificate::Issued);
        fleet.enrollment.certificates = serde_json::from_value(certificates).expect("a policy");
        called(agent(|_| ()), fleet, vec![], noon(0)).roll.policy("telemetry", "edge").cloned()
    };
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let default = Validity { duration: hours(168), renew_before: hours(56) };
    assert_eq!(policy(json!({})), Some(IssuePolicy { issuer: Issuer::Internal, validity: default }));
    assert_eq!(
        policy(json!({"issuer": "CertificateSigningRequest", "duration": "2h", "renewBefore": "1h"})),
        Some(IssuePolicy {
            issuer: Issuer::CertificateSigningRequest,
            validity: Validity { duration: hours(2), renew_before: hours(1) },
        })
    );
    let issuer = Issuer::CertManager { name: "ca".into(), kind: "Issuer".into(), group: "cert-manager.io".into() };
    assert_eq!(
        policy(json!({"issuer": "CertManager", "issuerRef": {"name": "ca"}})),
        Some(IssuePolicy { issuer, validity: default })
    );
    assert_eq!(policy(json!({"issuer": "CertManager"})), None, "the schema forbids it");
}

#[test]
fn what_a_person_says_counts_before_the_status() {
    let pending = |status: &mut Value| {
        status["conditions"][0]["status"] = "False".into();
        status["conditions"][0]["reason"] = "PendingApproval".into();
    };
    let nothing = |status: &mut Value| status["conditions"] = json!([]);
    for (case, access, summary, expected) in [
        ("admitted", None, agent(|_| ()), Standing::Admitted),
        ("approved", Some(Access::Approved), agent(|_| ()), Standing::Admitted),
        ("pending", None, agent(pending), Standing::Waiting),
        ("approved a moment ago", Some(Access::Approved), agent(pending), Standing::Waiting),
        ("no status", None, agent(nothing), Standing::Waiting),
        ("denied a moment ago", Some(Access::Denied), agent(|_| ()), Standing::Denied),
        ("revoked a moment ago", Some(Access::Revoked), agent(|_| ()), Standing::Revoked),
    ] {
        assert_eq!(member_of(AgentSummary { access, ..summary }).standing, expected, "{case}");
    }
}

#[test]
fn the_certificate_in_use_and_the_finalizer_are_those_of_the_object() {
    let certificate = |in_use: Value| {
        move |status: &mut Value| {
            status["certificate"] = json!({"serial": "0a1b", "notAfter": NOON});
            if !in_use.is_null() {
                status["certificate"]["inUseSince"] = in_use;
            }
        }
    };
    assert_eq!(member_of(agent(certificate(NOON.into()))).in_use, Serial::parse("0a1b"));
    assert_eq!(member_of(agent(certificate(Value::Null))).in_use, None, "it was never seen");
    for (is_held_for_revocation, deleted, expected) in [
        (false, None, Finalizer::Absent),
        (true, None, Finalizer::Present),
        (true, Some(noon(1)), Finalizer::Present),
        (false, Some(noon(1)), Finalizer::TooLate),
    ] {
        let summary = AgentSummary { deleted, is_held_for_revocation, ..agent(|_| ()) };
        assert_eq!(member_of(summary).finalizer, expected, "{is_held_for_revocation}, {deleted:?}");
    }
}

#[test]
fn the_operator_makes_keys_for_those_that_had_their_time_and_sent_no_request() {
    let issued = || fleet(FrozenCertificate::Issued);
    let away = |status: &mut Value| status["conditions"][1]["status"] = "False".into();
    let unable = |status: &mut Value| status["capabilities"] = json!(["ReportsStatus"]);
    let approved_late = |status: &mut Value| {
        status["conditions"][0]["lastTransitionTime"] = "2026-11-29T12:00:20Z".into();
    };
    let elsewhere = |status: &mut Value| status["fleet"] = "other".into();
    let (own, operators) = (KeyWish::Own, KeyWish::Operators);
    for (case, summary, fleet, secrets, seconds, expected) in [
        ("just come", agent(|_| ()), issued(), vec![], 0, (own, Some(noon(30)))),
        ("almost", agent(|_| ()), issued(), vec![], 29, (own, Some(noon(30)))),
        ("in time", agent(|_| ()), issued(), vec![], 30, (operators, None)),
        ("approved later", agent(approved_late), issued(), vec![], 30, (own, Some(noon(50)))),
        ("its time is over", agent(approved_late), issued(), vec![], 50, (operators, None)),
        ("it has asked", agent(|_| ()), issued(), vec![request()], 600, (own, None)),
        ("it takes no settings", agent(unable), issued(), vec![], 600, (own, None)),
        ("it is away", agent(away), issued(), vec![], 600, (own, None)),
        ("its fleet gives out none", agent(|_| ()), self::fleet(FrozenCertificate::None), vec![], 600, (own, None)),
        ("its fleet is not read yet", agent(|_| ()), not_loaded(), vec![], 600, (own, None)),
        ("its fleet is unknown", agent(elsewhere), issued(), vec![], 600, (own, None)),
    ] {
        let called = called(summary, fleet, secrets, noon(seconds));
        let member = called.roll.member("telemetry", &uid()).expect("a member");
        assert_eq!((member.key_wish, called.until), expected, "{case}");
    }
}
