//! What the API server is asked, how often, and what counts when it is away.

use std::time::Duration;

use serde_json::json;
use tokio::time::{advance, timeout};

use super::{Bench, Visitor, account_token, api_server::Reviewing, bearer, fleet, jwt};

const ACCOUNT: &str = "serviceaccount:telemetry/collector";
const USER: &str = "system:serviceaccount:telemetry:collector";

async fn bench() -> Bench {
    Bench::new(vec![fleet("telemetry", "edge", &json!({})), fleet("shop", "till", &json!({}))], Vec::new()).await
}

/// A token of its own for each number.
fn numbered(number: usize) -> String {
    let expires = crate::server::now().wall.as_second() + 3_600;
    let claims = json!({"sub": USER, "aud": ["opamp.dev", "vault", "opamp.dev/shop", "opamp.dev/attic"],
        "exp": expires, "jti": number});
    jwt(&json!({"alg": "ES256"}), &claims)
}

#[tokio::test(start_paused = true)]
async fn the_api_server_is_asked_about_the_audiences_that_would_do_and_once_in_ten_seconds() {
    let bench = bench().await;
    let token = numbered(1);
    bench.server.know(&token, USER, &["opamp.dev", "vault"]);
    for second in 0..21 {
        assert_eq!(bench.enter(&bearer(&token)).await, ACCOUNT, "second {second}");
        advance(Duration::from_secs(1)).await;
    }
    let audiences = json!(["opamp.dev", "opamp.dev/shop"]);
    assert_eq!(bench.server.reviews(), vec![audiences; 3]);
    bench.server.forget(&token);
    bench.until(&bearer(&token), "401").await;
    bench.server.know(&token, USER, &["opamp.dev"]);
    assert_eq!(bench.enter(&bearer(&token)).await, "401", "that is remembered too");
    advance(Duration::from_secs(10)).await;
    assert_eq!(bench.enter(&bearer(&token)).await, ACCOUNT);
}

#[tokio::test(start_paused = true)]
async fn many_who_show_the_same_token_ask_once() {
    let bench = bench().await;
    let token = numbered(1);
    bench.server.know(&token, USER, &["opamp.dev"]);
    let visitor = bearer(&token);
    let answers = futures::future::join_all((0..200).map(|_| bench.enter(&visitor))).await;
    assert!(answers.iter().all(|answer| answer == ACCOUNT), "{answers:?}");
    assert_eq!(bench.server.reviews().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn forged_tokens_of_one_address_do_not_flood_the_api_server() {
    let bench = bench().await;
    let visitors: Vec<_> = (0..300).map(|number| bearer(&numbered(number))).collect();
    let mut answers = futures::future::join_all(visitors.iter().map(|visitor| bench.enter(visitor))).await;
    answers.sort();
    let asked = bench.server.reviews().len();
    assert!(asked <= 10 + 16, "ten failures, and what was under way: {asked}");
    answers.dedup();
    assert_eq!(answers, ["401", "429"]);
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_before_the_answer_has_failed() {
    let bench = bench().await;
    for number in 0..10 {
        let visitor = bearer(&numbered(number));
        assert!(timeout(Duration::from_millis(1), bench.enter(&visitor)).await.is_err(), "attempt {number}");
    }
    assert_eq!(bench.enter(&bearer(&numbered(10))).await, "429");
    assert_eq!(bench.server.reviews().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn forged_tokens_of_many_addresses_leave_the_api_server_to_others() {
    let bench = bench().await;
    let mut codes = std::collections::BTreeMap::new();
    for number in 0..1_000_u32 {
        let [_, _, high, low] = number.to_be_bytes();
        let visitor =
            Visitor::from([10, 0, high, low]).showing(&format!("Bearer {}", numbered(number.try_into().unwrap())));
        *codes.entry(bench.enter(&visitor).await).or_insert(0) += 1;
    }
    let asked = bench.server.reviews().len();
    // The clock of the runtime goes on by the 2 ms of each review.
    assert!((500..650).contains(&asked), "{asked}");
    assert_eq!((codes["401"], codes["503"]), (asked, 1_000 - asked));
}

#[tokio::test(start_paused = true)]
async fn with_the_api_server_away_who_was_known_stays_known() {
    for (case, reviewing) in [
        ("it fails", Reviewing::Failing(500)),
        ("it is overloaded", Reviewing::Failing(429)),
        ("it forbids", Reviewing::Failing(403)),
        ("it is silent", Reviewing::Silent),
    ] {
        let bench = bench().await;
        let (known, new) = (numbered(1), numbered(2));
        bench.server.know(&known, USER, &["opamp.dev"]);
        bench.server.know(&new, USER, &["opamp.dev"]);
        assert_eq!(bench.enter(&bearer(&known)).await, ACCOUNT, "{case}");
        bench.server.review(reviewing);
        advance(Duration::from_secs(60)).await;
        assert_eq!(bench.enter(&bearer(&new)).await, "503", "{case}");
        bench.server.reviews();
        for _ in 0..20 {
            assert_eq!(bench.enter(&bearer(&known)).await, ACCOUNT, "{case}");
            assert_eq!(bench.enter(&bearer(&new)).await, "503", "{case}");
        }
        assert_eq!(bench.server.reviews().len(), 0, "{case}: it is left alone for a second");
        bench.server.review(Reviewing::Well);
        bench.until(&bearer(&new), ACCOUNT).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_the_api_server_chokes_on_is_refused_and_harms_no_other() {
    let bench = bench().await;
    bench.server.review(Reviewing::Failing(413));
    assert_eq!(bench.enter(&bearer(&numbered(1))).await, "401");
    bench.server.review(Reviewing::Well);
    bench.server.know(&numbered(2), USER, &["opamp.dev"]);
    assert_eq!(bench.enter(&bearer(&numbered(2))).await, ACCOUNT);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_comes_makes_an_old_answer_too_narrow() {
    let bench = Bench::new(vec![fleet("telemetry", "edge", &json!({}))], Vec::new()).await;
    let token = numbered(1);
    bench.server.know(&token, USER, &["opamp.dev", "opamp.dev/shop"]);
    assert_eq!(bench.principal(&bearer(&token)).await.unwrap().audiences.len(), 1);
    let till = json!({"serviceAccounts": [{"namespace": "telemetry", "name": "collector"}]});
    bench.catalog.publish(vec![fleet("telemetry", "edge", &json!({})), fleet("shop", "till", &till)]);
    assert_eq!(bench.principal(&bearer(&token)).await.unwrap().audiences.len(), 2);
    assert_eq!(bench.server.reviews().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_token_names_no_more_audiences_than_are_asked_about() {
    let fleets: Vec<_> = (0..100).map(|number| fleet(&format!("n{number}"), "edge", &json!({}))).collect();
    let bench = Bench::new(fleets, Vec::new()).await;
    let audiences: Vec<_> =
        std::iter::once("opamp.dev".into()).chain((0..100).map(|number| format!("opamp.dev/n{number}"))).collect();
    let expires = crate::server::now().wall.as_second() + 3_600;
    let claims = json!({"sub": "system:serviceaccount:n7:collector", "aud": audiences, "exp": expires});
    assert_eq!(bench.enter(&bearer(&jwt(&json!({"alg": "RS256"}), &claims))).await, "401");
    assert_eq!(bench.server.reviews()[0].as_array().unwrap().len(), 32);
    assert_eq!(bench.enter(&bearer(&account_token("n7", "collector", "opamp.dev"))).await, "401", "unknown");
}
