//! Who tries to come in without being welcome, and who comes in.

use rustls_pki_types::UnixTime;
use serde_json::json;

use super::{
    Bench, Lines, TOKEN, UID, Visitor, account_token, basic, bearer,
    certificates::{Ca, date, uri},
    fleet, jwt, secret, token_secret, visitor,
};
use crate::{
    api::FLEET_LABEL,
    server::{ClientCertificates as _, Refusal},
};

const USER: &str = "system:serviceaccount:telemetry:collector";

/// Two tenants: `telemetry` with the fleets `edge` and `core`, `bank` with the fleet `branch`.
async fn two_tenants() -> (Bench, Ca, Ca) {
    let (own, corporate) = (Ca::new("opamp"), Ca::new("corporate"));
    let edge = json!({
        "methods": ["ClientCertificate", "EnrollmentToken", "ServiceAccount", "Basic"],
        "serviceAccounts": [{"namespace": "shop", "name": "collector"}],
        "clientCAs": [{"secretRef": {"name": "corporate"}}, {"secretRef": {"name": "ours"}}],
    });
    let bank_users = secret(
        "bank",
        "user",
        "kubernetes.io/basic-auth",
        &json!({FLEET_LABEL: "branch"}),
        &json!({"username": "teller", "password": "letter-of-the-bank"}),
    );
    let secrets = vec![
        token_secret("telemetry", "edge", Some("edge"), &json!({"token": format!("{TOKEN}\n")})),
        token_secret("telemetry", "next", Some("edge"), &json!({"token": "next-token-of-edge"})),
        token_secret("telemetry", "all", None, &json!({"token": "token-of-telemetry"})),
        token_secret(
            "telemetry",
            "old",
            None,
            &json!({"token": "token-that-expired", "expiresAt": "2020-01-01T00:00:00Z"}),
        ),
        token_secret("telemetry", "odd", None, &json!({"token": "token-that-is-odd!", "expiresAt": "soon"})),
        token_secret("telemetry", "short", None, &json!({"token": "short"})),
        token_secret("telemetry", "lost", Some("gone"), &json!({"token": "token-of-no-fleet"})),
        token_secret("telemetry", "both", None, &json!({"token": "token-of-two-tenants"})),
        token_secret("bank", "both", None, &json!({"token": "token-of-two-tenants"})),
        token_secret("bank", "branch", None, &json!({"token": "token-of-the-bank"})),
        secret("telemetry", "opaque", "Opaque", &json!({}), &json!({"token": "token-of-another-type"})),
        secret(
            "telemetry",
            "gate",
            "kubernetes.io/basic-auth",
            &json!({FLEET_LABEL: "edge"}),
            &json!({"username": "gate", "password": "open sesame"}),
        ),
        secret(
            "telemetry",
            "registry",
            "kubernetes.io/basic-auth",
            &json!({}),
            &json!({"username": "puller", "password": "of-a-registry"}),
        ),
        bank_users,
        secret("telemetry", "corporate", "Opaque", &json!({}), &json!({"ca.crt": corporate.pem})),
        secret("telemetry", "ours", "Opaque", &json!({}), &json!({"ca.crt": own.pem})),
    ];
    let bank = json!({"methods": ["ClientCertificate", "EnrollmentToken"]});
    let fleets =
        vec![fleet("telemetry", "edge", &edge), fleet("telemetry", "core", &json!({})), fleet("bank", "branch", &bank)];
    let bench = Bench::new(fleets, secrets).await;
    bench.trust.take(&own.published());
    (bench, own, corporate)
}

/// Each comes from an address of its own.
async fn answers(bench: &Bench, cases: Vec<(&str, Visitor, &str)>) {
    for (number, (case, mut visitor, expected)) in (0_u8..).zip(cases) {
        visitor.peer.address = ([198, 51, 100, number], 4711).into();
        assert_eq!(bench.enter(&visitor).await, expected, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_and_passwords_open_what_they_are_bound_to() {
    let (bench, ..) = two_tenants().await;
    let basic_header = |text: &str| visitor().showing(&format!("Basic {text}"));
    let cases = vec![
        ("its token", bearer(TOKEN), "token:telemetry/edge"),
        ("the next one", bearer("next-token-of-edge"), "token:telemetry/edge"),
        ("of the namespace", bearer("token-of-telemetry"), "token:telemetry/*"),
        ("of another tenant", bearer("token-of-the-bank"), "token:bank/*"),
        ("nothing", visitor(), "401"),
        ("no token", bearer(""), "401"),
        ("wrong", bearer("token-of-the-edge-fleeT"), "401"),
        ("the beginning of one", bearer("token-of-the-edge-flee"), "401"),
        ("more than one", bearer("token-of-the-edge-fleet1"), "401"),
        ("expired", bearer("token-that-expired"), "401"),
        ("unclear until when", bearer("token-that-is-odd!"), "401"),
        ("too short", bearer("short"), "401"),
        ("of a fleet that is not there", bearer("token-of-no-fleet"), "401"),
        ("of two tenants", bearer("token-of-two-tenants"), "401"),
        ("of a Secret of another type", bearer("token-of-another-type"), "401"),
        ("its digest", bearer("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"), "401"),
        ("twice", bearer(TOKEN).showing(&format!("Bearer {TOKEN}")), "401"),
        ("a good one behind a bad one", bearer("wrong").showing(&format!("Bearer {TOKEN}")), "401"),
        ("joined", bearer(&format!("{TOKEN}, Bearer {TOKEN}")), "401"),
        ("another scheme", visitor().showing(&format!("Token {TOKEN}")), "401"),
        ("no scheme", visitor().showing(TOKEN), "401"),
        ("not ASCII", bearer("token-of-the-édge-fleet"), "401"),
        ("too long", bearer(&"a".repeat(9_000)), "401"),
        ("a password", basic("gate:open sesame"), "basic:telemetry/edge/gate"),
        ("a wrong password", basic("gate:open Sesame"), "401"),
        ("another's password", basic("gate:letter-of-the-bank"), "401"),
        ("of a fleet that takes none", basic("teller:letter-of-the-bank"), "401"),
        ("of a Secret without fleet", basic("puller:of-a-registry"), "401"),
        ("a password as a token", bearer("gate:open"), "401"),
        ("a token as a password", basic(&format!(":{TOKEN}")), "401"),
        ("a token as a user", basic(&format!("{TOKEN}:")), "401"),
        ("padding", basic_header("Z2F0ZTpvcGVuIHNlc2FtZQ="), "401"),
        ("no padding at all", basic_header("Z2F0ZTpvcGVuIHNlc2FtZQ"), "401"),
        ("bits that do not belong", basic_header("Z2F0ZTpvcGVuIHNlc2FtZR=="), "401"),
        ("a line break in it", basic("gate:open sesame\n"), "401"),
    ];
    answers(&bench, cases).await;
}

#[tokio::test(start_paused = true)]
async fn certificates_open_what_their_authority_is_believed_about() {
    let (bench, own, corporate) = two_tenants().await;
    let (foreign, below) = (Ca::new("corporate"), corporate.below("department"));
    let member = corporate.client(|_| {});
    let (forged, revoked) = (foreign.client(|_| {}), own.agent(|_| {}));
    bench.trust.take(&own.revoking(&revoked));
    let name = |uri_text: &str| own.agent(|it| it.subject_alt_names = vec![uri(uri_text)]);
    let of_tenant = |certificate: &rustls_pki_types::CertificateDer<'static>| {
        let key = crate::credentials::facts::CertificateFacts::read(certificate).unwrap().key;
        format!("ca:telemetry/edge/{key}")
    };
    let certificate = format!("certificate:telemetry/edge/{UID}");
    let expired = own.agent(|it| it.not_after = date(-1));
    let pretends = corporate.client(|it| it.subject_alt_names = vec![uri(&format!("opamp://c/telemetry/edge/{UID}"))]);
    let (of_department, of_member, of_pretender) = (below.client(|_| {}), of_tenant(&member), of_tenant(&pretends));
    let of_below = of_tenant(&of_department);
    let sister = own.below("department");
    let server = corporate.client(|it| it.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth]);
    let cases = vec![
        ("issued", visitor().with(&[own.agent(|_| {})]), certificate.as_str()),
        ("beside its old token", bearer("token-that-is-gone").with(&[own.agent(|_| {})]), &certificate),
        ("beside two", bearer("x").showing("Bearer y").with(&[own.agent(|_| {})]), &certificate),
        ("revoked", visitor().with(std::slice::from_ref(&revoked)), "401"),
        ("revoked, and a token", bearer(TOKEN).with(&[revoked]), "token:telemetry/edge"),
        ("expired", visitor().with(std::slice::from_ref(&expired)), "401"),
        ("expired, and a token", bearer(TOKEN).with(&[expired]), "token:telemetry/edge"),
        ("not yet valid", visitor().with(&[own.agent(|it| it.not_before = date(60))]), "401"),
        ("of another cluster", visitor().with(&[name(&format!("opamp://d/telemetry/edge/{UID}"))]), "401"),
        ("of no agent", visitor().with(&[own.client(|_| {})]), "401"),
        (
            "of a fleet that is gone, and a token",
            bearer(TOKEN).with(&[name(&format!("opamp://c/telemetry/gone/{UID}"))]),
            "token:telemetry/edge",
        ),
        ("of a fleet that is gone", visitor().with(&[name(&format!("opamp://c/telemetry/gone/{UID}"))]), "401"),
        (
            "below the operator's CA, which a fleet names",
            visitor().with(&[sister.agent(|_| {}), sister.certificate.clone()]),
            "401",
        ),
        (
            "CA:TRUE",
            visitor().with(&[own.agent(|it| it.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained))]),
            "401",
        ),
        ("the CA itself", visitor().with(std::slice::from_ref(&own.certificate)), "401"),
        ("of the same name", visitor().with(&[Ca::new("opamp").agent(|_| {})]), "401"),
        ("no certificate", visitor().with(&[vec![0x30, 0].into()]), "401"),
        ("none", visitor().with(&[]), "401"),
        ("of the fleet's CA", visitor().with(std::slice::from_ref(&member)), of_member.as_str()),
        ("names in it are not believed", visitor().with(&[pretends]), of_pretender.as_str()),
        (
            "below the fleet's CA",
            visitor().with(&[of_department.clone(), below.certificate.clone()]),
            of_below.as_str(),
        ),
        ("without the way to it", visitor().with(&[of_department]), "401"),
        ("of a CA of the same name", visitor().with(&[forged]), "401"),
        ("expired, of the fleet's CA", visitor().with(&[corporate.client(|it| it.not_after = date(-1))]), "401"),
        ("of a server", visitor().with(&[server]), "401"),
        ("beside a bad token", bearer("wrong-token-of-somebody").with(&[member]), "401"),
    ];
    answers(&bench, cases).await;
}

#[tokio::test(start_paused = true)]
async fn tokens_of_service_accounts_open_what_they_are_meant_for() {
    let (bench, ..) = two_tenants().await;
    let (in_an_hour, past) = (crate::server::now().wall.as_second() + 3_600, 1_600_000_000);
    let forged =
        |header, sub: &str, aud: &str, exp: i64| bearer(&jwt(&header, &json!({"sub": sub, "aud": [aud], "exp": exp})));
    let rs256 = json!({"alg": "RS256"});
    let known = |namespace: &str, audience: &str| {
        let token = account_token(namespace, "collector", audience);
        bench.server.know(&token, &format!("system:serviceaccount:{namespace}:collector"), &[audience]);
        bearer(&token)
    };
    let lied = account_token("telemetry", "liar", "opamp.dev");
    bench.server.know(&lied, "system:serviceaccount:telemetry:other", &["vault"]);
    let user = account_token("telemetry", "user", "opamp.dev");
    bench.server.know(&user, "kubernetes-admin", &["opamp.dev"]);
    let unsigned = account_token("telemetry", "collector", "opamp.dev").rsplit_once('.').unwrap().0.to_owned() + ".";
    let cases = vec![
        ("of the namespace", known("telemetry", "opamp.dev"), "serviceaccount:telemetry/collector"),
        ("for the namespace alone", known("telemetry", "opamp.dev/telemetry"), "401"),
        ("named by the fleet", known("shop", "opamp.dev/telemetry"), "serviceaccount:shop/collector"),
        ("named, for its own namespace", known("shop", "opamp.dev"), "401"),
        ("not named", known("attic", "opamp.dev/telemetry"), "401"),
        ("of a fleet that takes none", known("bank", "opamp.dev"), "401"),
        ("for a namespace without fleets", known("shop", "opamp.dev/attic"), "401"),
        ("for somebody else", known("telemetry", "vault"), "401"),
        ("for the API server", known("telemetry", "https://kubernetes.default.svc"), "401"),
        ("nobody knows it", forged(rs256.clone(), USER, "opamp.dev", in_an_hour), "401"),
        ("expired", forged(rs256.clone(), USER, "opamp.dev", past), "401"),
        ("alg none", forged(json!({"alg": "none"}), USER, "opamp.dev", in_an_hour), "401"),
        ("alg HS256", forged(json!({"alg": "HS256"}), USER, "opamp.dev", in_an_hour), "401"),
        ("without signature", bearer(&unsigned), "401"),
        ("a user says so", forged(rs256, "kubernetes-admin", "opamp.dev", in_an_hour), "401"),
        ("the API server says another audience", bearer(&lied), "401"),
        ("the API server says a user", bearer(&user), "401"),
    ];
    answers(&bench, cases).await;
    let asked: Vec<_> = bench.server.reviews();
    assert_eq!(asked.len(), 5, "two that are good, one unknown, two that lie: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn no_answer_tells_which_part_was_wrong() {
    let (bench, own, _) = two_tenants().await;
    let of_another_cluster =
        own.agent(|it| it.subject_alt_names = vec![uri(&format!("opamp://d/telemetry/edge/{UID}"))]);
    let mut answers = Vec::new();
    for (number, mut visitor) in (0_u8..).zip([
        visitor(),
        bearer("wrong-token-of-somebody"),
        bearer("token-that-expired"),
        bearer("token-of-no-fleet"),
        basic("gate:wrong"),
        basic("nobody:wrong"),
        visitor().showing("Bearer"),
        bearer(&account_token("telemetry", "collector", "vault")),
        bearer(&account_token("telemetry", "collector", "opamp.dev")),
        visitor().with(&[of_another_cluster]),
    ]) {
        visitor.peer.address = ([198, 51, 100, number], 4711).into();
        answers.push(bench.principal(&visitor).await.unwrap_err());
    }
    answers.dedup();
    let challenge = "Bearer realm=\"opamp\", Basic realm=\"opamp\", charset=\"UTF-8\"";
    assert_eq!(answers, [Refusal::Unauthorized { challenge, message: "a valid credential is needed" }]);
}

#[tokio::test(start_paused = true)]
async fn no_credential_shows_in_the_log() {
    let (lines, listening) = Lines::listen();
    let (bench, ..) = two_tenants().await;
    let account = account_token("telemetry", "collector", "opamp.dev");
    for visitor in [
        bearer(TOKEN),
        bearer("token-that-expired"),
        bearer("token-of-two-tenants"),
        bearer("canary-of-a-guesser"),
        bearer(&account),
        basic("gate:open sesame"),
        basic("gate:canary-password"),
        visitor().showing("Bearer canary \"quoted\""),
    ] {
        bench.enter(&visitor).await;
    }
    bench.server.put(token_secret("telemetry", "edge", None, &json!({"token": "canary with a space in it"})));
    bench.server.review(super::api_server::Reviewing::Failing(500));
    bench.enter(&bearer(&account_token("telemetry", "other", "opamp.dev"))).await;
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    drop(listening);
    let text = lines.text();
    assert!(text.contains("opamp_operator::audit") && text.contains("UnknownToken"), "{text}");
    assert!(text.contains("a Secret admits nobody") && text.contains("cannot be asked"), "{text}");
    let signature = account.rsplit('.').next().unwrap();
    let payload = account.split('.').nth(1).unwrap();
    for canary in ["token-", "canary", "sesame", "letter-of", "of-a-registry", "next-token", signature, payload] {
        let shown: Vec<_> = text.lines().filter(|line| line.contains(canary)).collect();
        assert!(shown.is_empty(), "{canary}: {shown:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn guessing_is_slowed_for_one_address_and_not_for_those_with_certificates() {
    let (bench, own, _) = two_tenants().await;
    let guesses = async |number: u32| bench.enter(&bearer(&format!("guess-number-{number:08}"))).await;
    for number in 0..10 {
        assert_eq!(guesses(number).await, "401", "guess {number}");
    }
    for number in 10..100 {
        assert_eq!(guesses(number).await, "429", "guess {number}");
    }
    assert_eq!(bench.enter(&bearer(TOKEN)).await, "429", "it is not looked at");
    assert_eq!(bench.enter(&basic("gate:open sesame")).await, "429");
    assert_eq!(bench.enter(&visitor().with(&[own.agent(|_| {})])).await, format!("certificate:telemetry/edge/{UID}"));
    assert_eq!(bench.enter(&visitor()).await, "401", "nothing is no guess");
    let neighbour = Visitor::from([192, 0, 2, 2]).showing(&format!("Bearer {TOKEN}"));
    assert_eq!(bench.enter(&neighbour).await, "token:telemetry/edge");
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    for _ in 0..100 {
        assert_eq!(bench.enter(&bearer(TOKEN)).await, "token:telemetry/edge", "success costs nothing");
    }
    assert_eq!(guesses(100).await, "401");
    assert_eq!(guesses(101).await, "429");
}

#[tokio::test(start_paused = true)]
async fn agents_whose_certificates_have_ended_slow_down_none_of_their_neighbours() {
    let (bench, own, _) = two_tenants().await;
    let ended = own.agent(|parameters| parameters.not_after = date(-1));
    for number in 0..20 {
        assert_eq!(bench.enter(&visitor().with(std::slice::from_ref(&ended))).await, "401", "attempt {number}");
    }
    assert_eq!(bench.enter(&bearer(TOKEN)).await, "token:telemetry/edge");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_names_the_authority_of_another_gets_none_of_its_agents() {
    let corporate = Ca::new("corporate");
    let names = json!({"clientCAs": [{"secretRef": {"name": "ca"}}]});
    let ca = |namespace: &str| secret(namespace, "ca", "Opaque", &json!({}), &json!({"ca.crt": corporate.pem}));
    let member = visitor().with(&[corporate.client(|_| {})]);
    for (case, fleets, expected) in [
        ("one fleet", vec![("telemetry", "edge")], "ca:telemetry/edge/"),
        ("two of a namespace", vec![("telemetry", "edge"), ("telemetry", "core")], "ca:telemetry/core/"),
        ("two tenants", vec![("telemetry", "edge"), ("bank", "branch")], "401"),
    ] {
        let fleets = fleets.into_iter().map(|(namespace, name)| fleet(namespace, name, &names)).collect();
        let bench = Bench::new(fleets, vec![ca("telemetry"), ca("bank")]).await;
        let found = bench.enter(&member).await;
        assert!(found.starts_with(expected), "{case}: {found}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_who_shows_nothing_is_anonymous() {
    let bench = Bench::new(vec![fleet("open", "all", &json!({"methods": ["Anonymous"]}))], Vec::new()).await;
    let foreign = Ca::new("mesh").client(|_| {});
    let cases = vec![
        ("nothing", visitor(), "anonymous"),
        ("a wrong token", bearer("wrong-token-of-somebody"), "401"),
        ("an empty header", visitor().showing(""), "401"),
        ("a foreign certificate", visitor().with(&[foreign]), "401"),
    ];
    answers(&bench, cases).await;
    let closed = Bench::new(vec![fleet("shop", "all", &json!({"methods": ["Anonymous"]}))], Vec::new()).await;
    assert_eq!(closed.enter(&visitor()).await, "401");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_is_refused_by_tls_is_written_down_as_well() {
    let (bench, own, corporate) = two_tenants().await;
    let revoked = own.agent(|_| {});
    bench.trust.take(&own.revoking(&revoked));
    let (lines, _listening) = Lines::listen();
    for (number, (case, certificate, expected)) in (1_u8..).zip([
        ("revoked", revoked, Some("RevokedCertificate")),
        ("of nobody", Ca::new("foreign").agent(|_| {}), Some("UntrustedCertificate")),
        (
            "of another cluster",
            own.agent(|it| it.subject_alt_names = vec![uri("opamp://d/a/b/c")]),
            Some("UntrustedCertificate"),
        ),
        ("expired, which may come with a token", own.agent(|it| it.not_after = date(-1)), None),
        ("good", own.agent(|_| {}), None),
        ("of the fleet's CA", corporate.client(|_| {}), None),
    ]) {
        let remote = ([198, 51, 100, number], 4711).into();
        let passes = bench.authenticator.verify(&certificate, &[], remote, UnixTime::now()).is_ok();
        assert_eq!(passes, expected.is_none(), "{case}");
        let line = expected.map(|reason| format!("refused ClientCertificate  {remote} {reason}"));
        let fields = ["outcome", "method", "identity", "remote", "reason"];
        assert_eq!(lines.audited(&fields), Vec::from_iter(line), "{case}");
    }
}
