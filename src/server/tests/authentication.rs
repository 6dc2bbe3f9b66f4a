use std::{sync::Arc, time::Duration};

use tokio::{io::AsyncWriteExt, time::Instant};

use super::{Harness, Limits, Seen, passed};

const WAY_IN: &[u8] = b"GET /v1/opamp HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer slow\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn each_refusal_has_its_status_and_headers_on_either_transport() {
    // AUTH-02, AUTH-03, AUTH-04, THR-05
    let mut harness = Harness::new(Limits::default());
    for (credential, status, challenge, retry_after, says) in [
        ("Bearer wrong", 401, Some("Bearer realm=\"opamp\""), None, "no credential is known\n"),
        ("Bearer forbidden", 403, None, None, "not with this\n"),
        ("Bearer guessed", 429, None, Some(90..=90), "too many failed attempts, come back later\n"),
        ("Bearer away", 503, None, Some(30..=60), "the API server is away\n"),
    ] {
        let header = &*format!("Authorization: {credential}");
        for response in
            [harness.dial().await.handshake(&[header]).await, harness.dial().await.post(&[header], b"report").await]
        {
            assert_eq!(response.status, status, "{credential}");
            assert_eq!(response.header("www-authenticate"), challenge, "{credential}");
            assert_eq!(response.header("retry-after").is_some(), retry_after.is_some(), "{credential}");
            assert!(retry_after.as_ref().is_none_or(|range| range.contains(&response.retry_after())), "{credential}");
            assert_eq!(String::from_utf8(response.body).unwrap(), says);
        }
    }
    assert!(harness.seen.try_recv().is_err(), "no agent heard of any of it");
}

#[tokio::test(start_paused = true)]
async fn who_cannot_be_known_in_time_gets_503_and_holds_up_nobody() {
    let harness = Harness::new(Limits { handshakes_per_second: 1, ..Limits::default() });
    let start = Instant::now();
    let (mut socket, mut poll) = (harness.dial().await, harness.dial().await);
    let slow = &["Authorization: Bearer slow"];
    let (opened, polled, others) = tokio::join!(socket.handshake(slow), poll.post(slow, b"report"), async {
        let mut other = harness.open().await;
        assert_eq!(passed(start), Duration::ZERO, "whoever is not known yet has no turn");
        other.send(b"report").await;
        other.message().await;
    });
    let () = others;
    for response in [opened, polled] {
        assert_eq!(response.status, 503);
        assert!((30..=60).contains(&response.retry_after()));
    }
    assert_eq!(passed(start), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn who_leaves_before_being_known_leaves_nothing_behind() {
    let harness = Harness::new(Limits::default());
    let mut socket = harness.dial().await;
    socket.write(WAY_IN).await;
    while harness.agents.asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let start = Instant::now();
    drop(socket);
    harness.emptied().await;
    assert_eq!(passed(start), Duration::ZERO);
    assert_eq!(harness.shared.admission.available(), (15_000, 2_000));
    assert_eq!(Arc::strong_count(&harness.shared), 1, "the last connection let go of all that it had");
}

#[tokio::test(start_paused = true)]
async fn a_refused_handshake_ends_the_connection_and_a_refused_poll_does_not() {
    let mut harness = Harness::new(Limits::default());
    let wrong = &["Authorization: Bearer wrong"];
    let mut socket = harness.dial().await;
    assert_eq!(socket.handshake(wrong).await.header("connection"), Some("close"));
    socket.ended().await;
    let mut poll = harness.dial().await;
    assert_eq!(poll.post(wrong, b"report").await.status, 401);
    assert_eq!(poll.post(&[], b"report").await.status, 200);
    assert!(matches!(harness.next().await, Seen::Received(..)));
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_who_is_not_known_yet() {
    let harness = Harness::new(Limits::default());
    let mut socket = harness.dial().await;
    socket.write(WAY_IN).await;
    while harness.agents.asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let start = Instant::now();
    harness.shared.drain.start(1, Duration::from_secs(10), start.into_std());
    assert_eq!(socket.response().await.status, 503);
    assert_eq!(passed(start), Duration::ZERO);
    socket.0.shutdown().await.unwrap();
    harness.emptied().await;
}
