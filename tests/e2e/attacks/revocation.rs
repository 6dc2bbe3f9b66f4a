//! Who was put out comes back.

use serde_json::json;
use tokio::time::timeout;

use super::{OTHER_TOKEN, OUT_WITHIN, SOON, TOKEN, World, report, try_both};
use crate::harness::{
    Kind,
    caller::BOTH,
    scripted::{Received, full_report, new_uid, uid_text},
    wait_for,
};

/// `ServerErrorResponseType_Unavailable`: come back later, which is what somebody is told who is kept out.
const UNAVAILABLE: &str = "error 2";

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_is_worth_nothing_on_either_transport() {
    let world = World::begin("replayed").await;
    let (uid, stolen) = world.enrolled().await;
    let resuming = world.caller().presenting(&stolen);
    try_both("the certificate", &resuming, &report(&uid), "served").await;
    let mut open = resuming.websocket().await.expect("it counts");
    open.exchange(&report(&uid)).await;

    world.scenario.patch(Kind::Agent, &uid_text(&uid), json!({"spec": {"access": "Revoked"}})).await;
    let ended = timeout(OUT_WITHIN, async { while let Received::Message(_) = open.receive().await {} }).await;
    assert!(ended.is_ok(), "the live session ends");
    let token = world.caller().bearer(TOKEN);
    try_both("the token under the uid that is revoked", &token, &report(&uid), UNAVAILABLE).await;
    let other = world.caller().bearer(OTHER_TOKEN);
    try_both("another fleet's token under that uid", &other, &report(&uid), UNAVAILABLE).await;
    wait_for("the certificate is refused by TLS itself", SOON, async || {
        let told = world.caller().presenting(&stolen).says(&report(&uid), BOTH[1]).await.word();
        if told == "cut" { Ok(()) } else { Err(told) }
    })
    .await;
    for (case, caller) in [
        ("a resumed session of TLS", resuming),
        ("a new session of TLS", world.caller().presenting(&stolen)),
        ("with a token beside it", world.caller().presenting(&stolen).bearer(TOKEN)),
    ] {
        for transport in BOTH {
            for uid in [uid.clone(), new_uid()] {
                // A resumed session comes as far as its first request.
                let told = caller.says(&report(&uid), transport).await.word();
                assert!(["cut", "401"].contains(&told.as_str()), "{case}, {transport:?}: {told}");
            }
        }
    }
    world.served("after a revocation").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_agent_stays_out_whoever_vouches_for_it() {
    let world = World::begin("denied").await;
    let uid = new_uid();
    let member = world.caller().bearer(TOKEN);
    try_both("the token", &member, &full_report(&uid, "edge"), "served").await;
    wait_for("the agent has its object", SOON, async || {
        if world.agent(&uid).await.is_object() { Ok(()) } else { Err("none".to_owned()) }
    })
    .await;
    world.scenario.patch(Kind::Agent, &uid_text(&uid), json!({"spec": {"access": "Denied"}})).await;
    wait_for("it is denied", OUT_WITHIN, async || {
        let told = member.says(&full_report(&uid, "edge"), BOTH[0]).await.word();
        if told == UNAVAILABLE { Ok(()) } else { Err(told) }
    })
    .await;
    for (case, token) in [("its own token", TOKEN), ("another fleet's", OTHER_TOKEN)] {
        try_both(case, &world.caller().bearer(token), &full_report(&uid, "edge"), UNAVAILABLE).await;
    }
    world.served("others of the same token").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_deleted_opens_nothing_within_five_seconds() {
    let world = World::begin("deleted-token").await;
    let mut open = world.caller().bearer(OTHER_TOKEN).websocket().await.expect("a member of the fleet");
    open.exchange(&full_report(&new_uid(), "other")).await;
    let secret = ["-n", &world.scenario.namespace, "delete", "secret", "other-token"];
    world.scenario.cluster.kubectl(&secret, "");
    let ended = timeout(OUT_WITHIN, async { while let Received::Message(_) = open.receive().await {} }).await;
    assert!(ended.is_ok(), "the live session ends");
    let thief = world.caller().bearer(OTHER_TOKEN);
    try_both("the deleted token", &thief, &full_report(&new_uid(), "other"), "401").await;
    world.served("of the other fleet").await;
}
