use serde_json::{Value, json};

use super::*;
use crate::{
    agents::index::AgentIndex,
    api::agent_fleet::AgentFleet,
    catalog::{AnonymousNamespaces, Policy, fleet::Offering},
    opamp::identity::{Audience, Proof},
};

const OWN: &str = "opamp-system";
/// The agent that all speak of.
const VICTIM: &str = "01900000-0000-7000-8000-000000000001";
/// Another one, which has a certificate too.
const OTHER: &str = "01900000-0000-7000-8000-000000000002";
/// A minute after everything that the objects of these tests tell.
const NOW: Timestamp = Timestamp::constant(1_795_953_660, 0);
const MADE: &str = "2026-11-29T12:00:00Z";
const LONG_AGO: &str = "2026-11-28T12:00:00Z";

fn uid(name: &str) -> InstanceUid {
    InstanceUid::from_name(name).expect("a uid")
}

fn fleet(namespace: &str, name: &str, enrollment: &Value) -> Arc<FleetEntry> {
    let spec = json!({"selector": {}, "enrollment": enrollment});
    let mut fleet = AgentFleet::new(name, serde_json::from_value(spec).expect("a spec"));
    (fleet.metadata.namespace, fleet.metadata.uid) = (Some(namespace.into()), Some(format!("{namespace}-{name}")));
    FleetEntry::new(&fleet, Offering::NoRevision).expect("a fleet").into()
}

/// `edge` and `core` of `telemetry`, `edge` of `shop`, and `open` of `plain`, which takes whoever comes.
fn catalog() -> Catalog {
    let gateways = json!({"gateways": [{"identity": format!("certificate:telemetry/core/{OTHER}")}]});
    let fleets = vec![
        fleet("telemetry", "edge", &json!({})),
        fleet("telemetry", "core", &gateways),
        fleet("shop", "edge", &json!({})),
        fleet("plain", "open", &json!({"methods": ["Anonymous"]})),
    ];
    Catalog::new(fleets, Policy { anonymous: AnonymousNamespaces::All, ..Policy::default() }, 1)
}

fn principal(identity: &str) -> Principal {
    let identity = Identity::parse(identity).unwrap_or_else(|| panic!("{identity}"));
    let audiences = [Audience::OwnNamespace, Audience::Namespace("telemetry".into())].into();
    Principal { identity, audiences, proof: Proof::None, expires: None }
}

/// What the API server has of the victim.
#[derive(Clone)]
struct Object(Value);

impl Object {
    fn in_namespace(namespace: &str) -> Self {
        Self(json!({
            "metadata": {"name": VICTIM, "namespace": namespace, "resourceVersion": "1", "creationTimestamp": LONG_AGO,
                "labels": {"opamp.dev/fleet": "edge"}},
            "spec": {},
            "status": {},
        }))
    }

    fn access(mut self, access: &str) -> Self {
        self.0["spec"]["access"] = access.into();
        self
    }

    fn spoken_for_by(mut self, identity: &str) -> Self {
        self.0["status"]["connection"] =
            json!({"replica": "replica-0", "incarnation": "1", "epoch": 3, "since": MADE, "identity": identity});
        self
    }

    fn written_by(mut self, replica: &str) -> Self {
        self.0["status"]["connection"]["replica"] = replica.into();
        self
    }

    fn with_certificate(mut self, not_after: &str, in_use_since: Option<&str>) -> Self {
        self.0["status"]["certificate"] = json!({"serial": "0a", "notAfter": not_after});
        if let Some(since) = in_use_since {
            self.0["status"]["certificate"]["inUseSince"] = since.into();
        }
        self
    }

    fn made(mut self, at: &str) -> Self {
        self.0["metadata"]["creationTimestamp"] = at.into();
        self
    }
}

const TOMORROW: &str = "2026-11-30T12:00:00Z";
const YESTERDAY: &str = "2026-11-28T12:00:00Z";

fn summaries(objects: &[Object]) -> Vec<Arc<AgentSummary>> {
    AgentIndex::holding(objects.iter().map(|object| object.0.clone())).all()
}

/// What becomes of a message of this identity under the victim's uid.
fn verdict(identity: &str, objects: &[Object]) -> Verdict {
    verdict_beside(identity, objects, None, None)
}

fn verdict_beside(
    identity: &str,
    objects: &[Object],
    live: Option<&Principal>,
    former: Option<InstanceUid>,
) -> Verdict {
    let (objects, catalog, principal) = (summaries(objects), catalog(), principal(identity));
    decide(
        Applicant { uid: uid(VICTIM), principal: &principal, credential: Credential::Valid },
        Known {
            objects: &objects,
            live,
            own_certificate: Credential::Valid,
            former,
            owner: &owner(),
            own_namespace: OWN,
            catalog: &catalog,
            now: NOW,
        },
    )
}

/// Another replica than the one that the objects of these tests are of.
fn owner() -> Owner {
    Owner { replica: "replica-1".into(), incarnation: "1".into() }
}

fn own_certificate() -> String {
    format!("certificate:telemetry/edge/{VICTIM}")
}

fn enrolled() -> Object {
    Object::in_namespace("telemetry").spoken_for_by(&own_certificate())
}

fn with_token() -> Object {
    Object::in_namespace("telemetry").spoken_for_by("token:telemetry/edge")
}

const ADMITTED: Verdict = Verdict::Admitted;
const OTHERS: Verdict = Verdict::Renamed(Conflict::OtherIdentity);
const CERTIFIED: Verdict = Verdict::Renamed(Conflict::CertificateInUse);

#[test]
fn whoever_comes_first_is_let_in_where_a_fleet_takes_it() {
    for (identity, expected) in [
        ("token:telemetry/edge", ADMITTED),
        ("token:telemetry/*", ADMITTED),
        ("serviceaccount:telemetry/collector", ADMITTED),
        ("anonymous", ADMITTED),
        (&own_certificate(), ADMITTED),
        (&format!("ca:telemetry/edge/{}", "5e".repeat(32)), ADMITTED),
        ("token:elsewhere/edge", Verdict::NotAdmitted),
        ("token:telemetry/gone", Verdict::NotAdmitted),
        ("basic:telemetry/edge/user", Verdict::NotAdmitted),
        ("serviceaccount:elsewhere/collector", Verdict::NotAdmitted),
    ] {
        assert_eq!(verdict(identity, &[]), expected, "{identity}");
    }
}

#[test]
fn the_recorded_identity_speaks_and_any_other_gets_a_new_uid() {
    let key = "5e".repeat(32);
    for recorded in [
        "token:telemetry/edge",
        "token:telemetry/*",
        "serviceaccount:telemetry/collector",
        "anonymous",
        &format!("ca:telemetry/edge/{key}"),
    ] {
        for speaker in [
            "token:telemetry/edge",
            "token:telemetry/*",
            "token:shop/edge",
            "serviceaccount:telemetry/collector",
            "serviceaccount:telemetry/other",
            "anonymous",
            &format!("ca:telemetry/edge/{key}"),
            &format!("ca:telemetry/edge/{}", "5f".repeat(32)),
        ] {
            let expected = if speaker == recorded { ADMITTED } else { OTHERS };
            let object = Object::in_namespace("telemetry").spoken_for_by(recorded);
            assert_eq!(verdict(speaker, &[object]), expected, "{recorded}, then {speaker}");
        }
    }
    let of_the_future = Object::in_namespace("telemetry").spoken_for_by("passkey:telemetry/edge");
    assert_eq!(verdict("token:telemetry/edge", &[of_the_future]), OTHERS);
}

#[test]
fn a_certificate_that_was_issued_to_the_agent_takes_over() {
    for (case, identity, objects, expected) in [
        ("from a token", own_certificate(), vec![with_token()], ADMITTED),
        (
            "from a ServiceAccount",
            own_certificate(),
            vec![Object::in_namespace("telemetry").spoken_for_by("serviceaccount:shop/collector")],
            ADMITTED,
        ),
        ("by itself", own_certificate(), vec![enrolled()], ADMITTED),
        ("of another fleet there", format!("certificate:telemetry/core/{VICTIM}"), vec![enrolled()], ADMITTED),
        (
            "an agent that no fleet took yet",
            own_certificate(),
            vec![Object::in_namespace(OWN).spoken_for_by("token:telemetry/*")],
            ADMITTED,
        ),
        ("of another namespace", format!("certificate:shop/edge/{VICTIM}"), vec![with_token()], OTHERS),
        (
            "of another namespace, an agent that no fleet took yet",
            format!("certificate:shop/edge/{VICTIM}"),
            vec![Object::in_namespace(OWN).spoken_for_by("token:telemetry/*")],
            OTHERS,
        ),
        (
            "of another namespace, against one in use",
            format!("certificate:shop/edge/{VICTIM}"),
            vec![enrolled().with_certificate(TOMORROW, Some(MADE))],
            CERTIFIED,
        ),
    ] {
        assert_eq!(verdict(&identity, &objects), expected, "{case}");
    }
}

#[test]
fn nothing_but_a_certificate_in_use_speaks_for_its_agent_until_that_ends() {
    // AMB-28
    let in_use = |object: Object| object.with_certificate(TOMORROW, Some(MADE));
    let ended = |object: Object| object.with_certificate(YESTERDAY, Some(LONG_AGO));
    for (case, identity, object, expected) in [
        ("the token that it enrolled with", "token:telemetry/edge", in_use(enrolled()), CERTIFIED),
        ("a token that is recorded all the same", "token:telemetry/edge", in_use(with_token()), CERTIFIED),
        ("another token", "token:telemetry/*", in_use(enrolled()), CERTIFIED),
        ("nothing", "anonymous", in_use(enrolled()), CERTIFIED),
        ("itself", &own_certificate(), in_use(enrolled()), ADMITTED),
        (
            "the token, one issued and not used yet",
            "token:telemetry/edge",
            with_token().with_certificate(TOMORROW, None),
            ADMITTED,
        ),
        (
            "another, one issued and not used yet",
            "token:telemetry/*",
            with_token().with_certificate(TOMORROW, None),
            OTHERS,
        ),
        ("a certificate that nobody has noted", "token:telemetry/edge", enrolled(), OTHERS),
        ("ended: the token of its fleet", "token:telemetry/edge", ended(enrolled()), ADMITTED),
        ("ended: another that its fleet admits", "serviceaccount:telemetry/any", ended(enrolled()), ADMITTED),
        ("ended: one of another fleet", "token:telemetry/core", ended(enrolled()), OTHERS),
        ("ended: one of another namespace", "token:shop/edge", ended(enrolled()), OTHERS),
        ("ended: nothing", "anonymous", ended(enrolled()), OTHERS),
        ("ended and enrolled anew", "token:telemetry/*", ended(with_token()), OTHERS),
    ] {
        assert_eq!(verdict(identity, &[object]), expected, "{case}");
    }
}

#[test]
fn a_certificate_that_counts_no_more_gives_its_agent_free_as_one_that_has_ended() {
    let in_use = || enrolled().with_certificate(TOMORROW, Some(MADE));
    for (case, identity, own_certificate, expected) in [
        ("it counts", "token:telemetry/edge", Credential::Valid, CERTIFIED),
        ("its CA was replaced: the token of its fleet", "token:telemetry/edge", Credential::Gone, ADMITTED),
        ("its CA was replaced: one of another fleet", "token:telemetry/core", Credential::Gone, OTHERS),
        ("its CA was replaced: nothing", "anonymous", Credential::Gone, OTHERS),
    ] {
        let (objects, catalog, principal) = (summaries(&[in_use()]), catalog(), principal(identity));
        let known = Known {
            objects: &objects,
            live: None,
            own_certificate,
            former: None,
            owner: &owner(),
            own_namespace: OWN,
            catalog: &catalog,
            now: NOW,
        };
        let applicant = Applicant { uid: uid(VICTIM), principal: &principal, credential: Credential::Valid };
        assert_eq!(decide(applicant, known), expected, "{case}");
    }
}

#[test]
fn an_expired_agent_that_enrols_anew_stays_denied() {
    let ended = enrolled().with_certificate(YESTERDAY, Some(LONG_AGO));
    let access = |access| ended.clone().access(access);
    assert_eq!(verdict("token:telemetry/edge", &[access("Approved")]), ADMITTED);
    assert_eq!(verdict("token:telemetry/edge", &[access("Denied")]), Verdict::KeptOut(KeptOut::Denied));
}

#[test]
fn a_certificate_speaks_for_its_own_agent_only() {
    // CSR-10, CSR-11
    let thief = format!("certificate:telemetry/edge/{OTHER}");
    let stolen = Verdict::Renamed(Conflict::IssuedTo(uid(OTHER)));
    let of_the_thief = |object: Object| object.spoken_for_by(&thief);
    for (case, objects, former, expected) in [
        ("an agent of a token", vec![with_token()], None, stolen),
        ("an agent of a certificate", vec![enrolled().with_certificate(TOMORROW, Some(MADE))], None, stolen),
        ("an agent that nobody knows", vec![], None, stolen),
        ("a uid that it was given", vec![], Some(uid(OTHER)), ADMITTED),
        ("a uid that another was given", vec![], Some(uid(VICTIM)), stolen),
        (
            "a uid that another replica gave it",
            vec![of_the_thief(Object::in_namespace("telemetry")).made(MADE)],
            None,
            ADMITTED,
        ),
        (
            "a uid that it spoke for here, as a gateway perhaps",
            vec![of_the_thief(Object::in_namespace("telemetry")).made(MADE).written_by("replica-1")],
            None,
            stolen,
        ),
        (
            "one that it should have a certificate for by now",
            vec![of_the_thief(Object::in_namespace("telemetry"))],
            None,
            stolen,
        ),
        ("a uid that it was given and that is another's", vec![with_token()], Some(uid(OTHER)), OTHERS),
    ] {
        assert_eq!(verdict_beside(&thief, &objects, None, former), expected, "{case}");
    }
}

#[test]
fn a_gateway_speaks_for_many_agents_of_its_fleet() {
    let gateway = format!("certificate:telemetry/core/{OTHER}");
    let unlisted = format!("certificate:telemetry/edge/{OTHER}");
    let recorded = |identity: &str| Object::in_namespace("telemetry").spoken_for_by(identity);
    for (case, identity, objects, expected) in [
        ("an unknown agent", &gateway, vec![], ADMITTED),
        ("one of its own", &gateway, vec![recorded(&gateway)], ADMITTED),
        ("one that a token speaks for", &gateway, vec![with_token()], OTHERS),
        ("one with a certificate", &gateway, vec![enrolled().with_certificate(TOMORROW, Some(MADE))], CERTIFIED),
        ("a denied one", &gateway, vec![recorded(&gateway).access("Denied")], Verdict::KeptOut(KeptOut::Denied)),
        ("listed in another fleet than its own", &unlisted, vec![], Verdict::Renamed(Conflict::IssuedTo(uid(OTHER)))),
    ] {
        assert_eq!(verdict(identity, &objects), expected, "{case}");
    }
}

#[test]
fn a_person_keeps_an_agent_out_where_it_is_and_in_the_operators_namespace() {
    let (denied, revoked) = (Verdict::KeptOut(KeptOut::Denied), Verdict::KeptOut(KeptOut::Revoked));
    let unclaimed = |namespace: &str, access: &str| Object::in_namespace(namespace).access(access);
    for (case, identity, objects, expected) in [
        ("where it is", "token:telemetry/edge", vec![with_token().access("Denied")], denied),
        ("revoked, under a shared token", "token:telemetry/edge", vec![with_token().access("Revoked")], revoked),
        ("revoked, with its certificate", &own_certificate(), vec![enrolled().access("Revoked")], revoked),
        ("revoked, never a new uid", "token:shop/edge", vec![with_token().access("Revoked")], revoked),
        ("by the operator's people", "token:telemetry/edge", vec![with_token(), unclaimed(OWN, "Denied")], denied),
        ("by them, before it was ever there", "token:shop/edge", vec![unclaimed(OWN, "Revoked")], revoked),
        ("both", "token:telemetry/edge", vec![with_token().access("Denied"), unclaimed(OWN, "Revoked")], revoked),
        ("before it was ever there", "token:telemetry/edge", vec![unclaimed("telemetry", "Denied")], denied),
        (
            "by people who have no say in it",
            "token:telemetry/edge",
            vec![with_token(), unclaimed("shop", "Denied")],
            ADMITTED,
        ),
        ("by such, of an agent that may join there", "token:shop/edge", vec![unclaimed("shop", "Denied")], denied),
        (
            "approved here and denied there",
            "token:telemetry/edge",
            vec![with_token().access("Approved"), unclaimed(OWN, "Denied")],
            denied,
        ),
    ] {
        assert_eq!(verdict(identity, &objects), expected, "{case}");
    }
}

#[test]
fn an_object_that_no_session_claimed_says_nothing_of_whose_the_agent_is() {
    // People of another namespace write an object of the victim's name, and hope that its guard is down.
    let bait = Object::in_namespace("shop").access("Approved").made(MADE);
    assert_eq!(verdict("token:shop/edge", &[bait.clone(), with_token()]), OTHERS);
    let forged = Object::in_namespace("shop").with_certificate(TOMORROW, Some(MADE));
    assert_eq!(verdict("token:telemetry/edge", &[forged, with_token()]), ADMITTED);
    assert_eq!(verdict("token:telemetry/edge", &[bait, with_token()]), ADMITTED);
}

#[test]
fn who_speaks_now_counts_before_what_is_written() {
    let live = |identity: &str, expires: Option<&str>| Principal {
        expires: expires.map(|time| time.parse().expect("a time")),
        ..principal(identity)
    };
    let token = "token:telemetry/edge";
    for (case, speaker, identity, objects, expected) in [
        ("another, nothing written", live(token, None), "token:telemetry/*", vec![], OTHERS),
        ("the same, nothing written", live(token, None), token, vec![], ADMITTED),
        (
            "its certificate, the token written",
            live(&own_certificate(), Some(TOMORROW)),
            token,
            vec![with_token()],
            CERTIFIED,
        ),
        (
            "its certificate that has ended",
            live(&own_certificate(), Some(YESTERDAY)),
            token,
            vec![with_token()],
            ADMITTED,
        ),
        ("a token, the certificate comes", live(token, None), &own_certificate(), vec![with_token()], ADMITTED),
        (
            "a token, a certificate of another namespace comes",
            live(token, None),
            &format!("certificate:shop/edge/{VICTIM}"),
            vec![],
            OTHERS,
        ),
    ] {
        assert_eq!(verdict_beside(identity, &objects, Some(&speaker), None), expected, "{case}");
    }
}

#[test]
fn a_credential_that_was_taken_away_is_the_first_to_count() {
    let (objects, catalog) = (summaries(&[enrolled().access("Revoked")]), catalog());
    let principal = principal(&own_certificate());
    let applicant = Applicant { uid: uid(VICTIM), principal: &principal, credential: Credential::Gone };
    let known = Known {
        objects: &objects,
        live: None,
        own_certificate: Credential::Valid,
        former: None,
        owner: &owner(),
        own_namespace: OWN,
        catalog: &catalog,
        now: NOW,
    };
    assert_eq!(decide(applicant, known), Verdict::CredentialGone);
}

#[test]
fn approval_counts_where_it_was_given() {
    let manual = fleet("telemetry", "edge", &json!({"approval": "Manual"}));
    let automatic = fleet("telemetry", "edge", &json!({}));
    let here: Arc<str> = "telemetry".into();
    let there: Arc<str> = "shop".into();
    for (fleet, approved_in, expected) in [
        (&automatic, vec![], Acceptance::Admitted),
        (&manual, vec![], Acceptance::Pending),
        (&manual, vec![Arc::clone(&there)], Acceptance::Pending),
        (&manual, vec![there, here], Acceptance::Admitted),
    ] {
        assert_eq!(acceptance(fleet, &approved_in), expected, "{approved_in:?}");
    }
}
