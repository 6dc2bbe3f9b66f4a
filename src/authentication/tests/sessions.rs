//! Whether somebody who came in may stay.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Bench, TOKEN, account_token, bearer, certificates::Ca, fleet, secret, token_secret, visitor};
use crate::{api::FLEET_LABEL, opamp::identity::Principal};

fn edge(client_cas: &Value) -> Value {
    json!({"methods": ["ClientCertificate", "EnrollmentToken", "Basic", "ServiceAccount"], "clientCAs": client_cas})
}

fn edge_token(data: &Value) -> Value {
    token_secret("telemetry", "edge", Some("edge"), data)
}

async fn bench() -> Bench {
    let fleets = vec![fleet("telemetry", "edge", &edge(&json!([]))), fleet("telemetry", "core", &json!({}))];
    Bench::new(fleets, vec![edge_token(&json!({"token": TOKEN}))]).await
}

fn is_valid(bench: &Bench, principal: &Arc<Principal>) -> bool {
    bench.authenticator.is_valid(principal, Timestamp::now())
}

/// Does something that ends the right to stay, and sees that sessions are told within a second.
async fn ends(case: &str, bench: &Bench, principal: &Arc<Principal>, taken_away: impl FnOnce()) {
    assert!(is_valid(bench, principal), "{case}");
    let mut changed = bench.authenticator.changed();
    changed.mark_unchanged();
    taken_away();
    let told = async {
        changed.changed().await.unwrap();
        while is_valid(bench, principal) {
            changed.changed().await.unwrap();
        }
    };
    assert!(timeout(Duration::from_secs(1), told).await.is_ok(), "{case}");
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_its_token_is_taken_away() {
    for (case, after) in [
        ("another text", edge_token(&json!({"token": "another-token-of-edge"}))),
        ("bound to another fleet", token_secret("telemetry", "edge", Some("core"), &json!({"token": TOKEN}))),
        ("bound to none", token_secret("telemetry", "edge", None, &json!({"token": TOKEN}))),
        ("expired", edge_token(&json!({"token": TOKEN, "expiresAt": "2020-01-01T00:00:00Z"}))),
        ("unclear until when", edge_token(&json!({"token": TOKEN, "expiresAt": "soon"}))),
    ] {
        let bench = bench().await;
        let principal = bench.principal(&bearer(TOKEN)).await.unwrap();
        ends(case, &bench, &principal, || bench.server.put(after)).await;
    }
    let bench = bench().await;
    let principal = bench.principal(&bearer(TOKEN)).await.unwrap();
    ends("deleted", &bench, &principal, || bench.server.delete("telemetry", "edge")).await;
    assert_eq!(bench.enter(&bearer(TOKEN)).await, "401");
}

#[tokio::test(start_paused = true)]
async fn a_session_stays_while_one_secret_holds_its_token() {
    let bench = bench().await;
    let principal = bench.principal(&bearer(TOKEN)).await.unwrap();
    let twin = token_secret("telemetry", "twin", Some("edge"), &json!({"token": TOKEN}));
    let thief = token_secret("bank", "thief", None, &json!({"token": TOKEN}));
    bench.server.put(twin);
    bench.server.put(thief);
    bench.until(&bearer(TOKEN), "401").await;
    assert!(is_valid(&bench, &principal), "nobody else ends it by writing the token into a Secret");
    bench.server.delete("bank", "thief");
    bench.until(&bearer(TOKEN), "token:telemetry/edge").await;
    let changed = bench.authenticator.changed();
    bench.server.delete("telemetry", "edge");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!changed.has_changed().unwrap());
    ends("the last one", &bench, &principal, || bench.server.delete("telemetry", "twin")).await;
}

#[tokio::test]
async fn a_session_ends_when_its_token_expires_and_not_when_that_is_put_off() {
    let bench = bench().await;
    let soon = Timestamp::now() + Duration::from_millis(1_500);
    bench.server.put(edge_token(&json!({"token": TOKEN, "expiresAt": soon.to_string()})));
    let expires = async || bench.principal(&bearer(TOKEN)).await.unwrap().expires;
    while expires().await.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let principal = bench.principal(&bearer(TOKEN)).await.unwrap();
    let mut changed = bench.authenticator.changed();
    changed.mark_unchanged();
    timeout(Duration::from_secs(5), changed.changed()).await.unwrap().unwrap();
    assert!(!is_valid(&bench, &principal));
    let later = Timestamp::now() + Duration::from_secs(60);
    bench.server.put(edge_token(&json!({"token": TOKEN, "expiresAt": later.to_string()})));
    bench.until(&bearer(TOKEN), "token:telemetry/edge").await;
    assert!(is_valid(&bench, &principal), "the Secret says until when, not the session");
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_its_password_is_taken_away() {
    let bench = bench().await;
    let user = |password: &str| {
        let labels = json!({FLEET_LABEL: "edge"});
        secret(
            "telemetry",
            "gate",
            "kubernetes.io/basic-auth",
            &labels,
            &json!({"username": "gate", "password": password}),
        )
    };
    bench.server.put(user("open sesame"));
    bench.until(&super::basic("gate:open sesame"), "basic:telemetry/edge/gate").await;
    let principal = bench.principal(&super::basic("gate:open sesame")).await.unwrap();
    ends("another password", &bench, &principal, || bench.server.put(user("close sesame"))).await;
    assert_eq!(bench.enter(&super::basic("gate:open sesame")).await, "401");
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_its_certificate_or_its_authority_is_taken_back() {
    let (former, next) = (Ca::new("opamp"), Ca::new("opamp 2"));
    for replaced in [false, true] {
        let bench = bench().await;
        bench.trust.take(&former.published());
        let certificate = former.agent(|_| {});
        let principal = bench.principal(&visitor().with(std::slice::from_ref(&certificate))).await.unwrap();
        let after = if replaced { next.published() } else { former.revoking(&certificate) };
        ends(if replaced { "replaced" } else { "revoked" }, &bench, &principal, || bench.trust.take(&after)).await;
        assert_eq!(bench.enter(&visitor().with(&[certificate])).await, "401");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_its_fleet_or_its_secret_drops_the_authority() {
    let corporate = Ca::new("corporate");
    let names = edge(&json!([{"secretRef": {"name": "corporate"}}]));
    let ca = |pem: &str| secret("telemetry", "corporate", "Opaque", &json!({}), &json!({"ca.crt": pem}));
    let member = visitor().with(&[corporate.client(|_| {})]);
    for case in ["not named", "deleted", "replaced", "no CA any more"] {
        let bench = Bench::new(vec![fleet("telemetry", "edge", &names)], vec![ca(&corporate.pem)]).await;
        let principal = bench.principal(&member).await.unwrap();
        let taken_away = || match case {
            "not named" => bench.catalog.publish(vec![fleet("telemetry", "edge", &edge(&json!([])))]),
            "deleted" => bench.server.delete("telemetry", "corporate"),
            "replaced" => bench.server.put(ca(&Ca::new("corporate").pem)),
            _ => bench.server.put(ca("canary")),
        };
        ends(case, &bench, &principal, taken_away).await;
        assert_eq!(bench.enter(&member).await, "401", "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_comes_later_is_read() {
    let corporate = Ca::new("corporate");
    let bench = bench().await;
    bench.catalog.publish(vec![fleet("telemetry", "edge", &edge(&json!([{"secretRef": {"name": "corporate"}}])))]);
    let member = visitor().with(&[corporate.client(|_| {})]);
    assert_eq!(bench.enter(&member).await, "401");
    bench.server.put(secret("telemetry", "corporate", "Opaque", &json!({}), &json!({"ca.crt": corporate.pem})));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(bench.enter(&member).await.starts_with("ca:telemetry/edge/"));
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_with_the_token_of_its_account_or_its_certificate() {
    let (own, corporate) = (Ca::new("opamp"), Ca::new("corporate"));
    let names = edge(&json!([{"secretRef": {"name": "corporate"}}]));
    let ca = secret("telemetry", "corporate", "Opaque", &json!({}), &json!({"ca.crt": corporate.pem}));
    let bench = Bench::new(vec![fleet("telemetry", "edge", &names)], vec![ca]).await;
    bench.trust.take(&own.published());
    let token = account_token("telemetry", "collector", "opamp.dev");
    bench.server.know(&token, "system:serviceaccount:telemetry:collector", &["opamp.dev"]);
    let issued = visitor().with(&[own.agent(|_| {})]);
    let member = visitor().with(&[corporate.client(|_| {})]);
    for (case, visitor) in [("account", bearer(&token)), ("certificate", issued), ("client CA", member)] {
        let principal = bench.principal(&visitor).await.unwrap();
        let expires = principal.expires.unwrap();
        for (moment, expected) in [(Timestamp::now(), true), (expires - Duration::from_secs(1), true), (expires, false)]
        {
            assert_eq!(bench.authenticator.is_valid(&principal, moment), expected, "{case}, {moment}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_concerns_a_fleet_is_one_event() {
    let bench = bench().await;
    let old = json!({"token": "token-that-expired", "expiresAt": "2020-01-01T00:00:00Z"});
    bench.server.put(token_secret("telemetry", "old", Some("edge"), &old));
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..5 {
        assert_eq!(bench.enter(&bearer("token-that-expired")).await, "401");
        assert_eq!(bench.enter(&bearer("token-of-nobody-here")).await, "401");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let events = bench.server.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["reason"], "CredentialRefused");
    assert_eq!(events[0]["regarding"]["name"], "edge");
    assert_eq!(events[0]["note"], "An agent was refused (EnrollmentToken): it has expired.");
}
