use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{Harness, Limits, Seen, UID, passed};
use crate::server::{
    Transport,
    http::coding::{deflate, inflate},
    shared::Shared,
};

async fn gzip(shared: &Shared, body: &[u8]) -> Bytes {
    deflate([body, &[]], shared.stored(usize::MAX)).await.unwrap()
}

fn small() -> Limits {
    Limits { message_bytes: 1_000, ..Limits::default() }
}

#[tokio::test(start_paused = true)]
async fn a_posted_message_is_answered_with_one_message() {
    // HTTP-01, HTTP-12
    let mut harness = Harness::new(Limits::default());
    *harness.agents.tail.lock().unwrap() = Some(" and a tail".into());
    let mut client = harness.dial().await;
    let response = client.post(&[], b"hello").await;
    assert_eq!((response.status, &response.body[..]), (200, &b"re: hello and a tail"[..]));
    assert_eq!(response.header("content-type"), Some("application/x-protobuf"));
    assert_eq!(response.header("content-encoding"), None);
    let Seen::Received(connection, payload) = harness.next().await else { panic!() };
    assert_eq!((connection.transport, &payload[..]), (Transport::Http, &b"hello"[..]));
    let response = client.post(&[], b"again").await;
    assert_eq!(response.body, b"re: again and a tail", "the connection is kept");
}

#[tokio::test(start_paused = true)]
async fn gzip_works_in_both_directions_if_the_client_says_so() {
    // HTTP-08, HTTP-11
    let harness = Harness::new(Limits::default());
    let mut client = harness.dial().await;
    let body = gzip(&harness.shared, b"compressed").await;
    let response = client.post(&["Content-Encoding: gzip", "Accept-Encoding: gzip"], &body).await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-encoding"), Some("gzip"));
    assert_eq!(response.header("content-type"), Some("application/x-protobuf"));
    assert_eq!(inflate(&response.body, harness.shared.stored(1_000)).await.unwrap(), "re: compressed");
    let response = client.post(&["Content-Encoding: identity", "Accept-Encoding: gzip;q=0"], b"plain").await;
    assert_eq!((response.header("content-encoding"), &response.body[..]), (None, &b"re: plain"[..]));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_opamp_message_is_turned_away_with_its_status() {
    // AMB-20, AMB-21, AUTH-03
    const PROTOBUF: &str = "Content-Type: application/x-protobuf";
    let mut harness = Harness::new(small());
    for (line, headers, body, status) in [
        ("POST /elsewhere", &[PROTOBUF][..], &b"x"[..], 404),
        ("PUT /v1/opamp", &[PROTOBUF], b"x", 405),
        ("GET /v1/opamp", &[PROTOBUF], b"", 405),
        ("GET /v1/opamp", &[PROTOBUF, "Upgrade: websocket", "Connection: upgrade"], b"", 405),
        ("POST /v1/opamp", &["Content-Type: application/json"], b"{}", 415),
        ("POST /v1/opamp", &[], b"x", 415),
        ("POST /v1/opamp", &[PROTOBUF, "Content-Encoding: zstd"], b"x", 415),
        ("POST /v1/opamp", &[PROTOBUF, "Content-Encoding: gzip"], b"no gzip", 400),
        ("POST /v1/opamp", &[PROTOBUF, "Authorization: Basic eA=="], b"x", 401),
        ("GET /v1/opamp", &[], b"", 400),
    ] {
        let response = harness.dial().await.request(line, headers, body).await;
        assert_eq!(response.status, status, "{line} {headers:?}");
        assert!(!response.body.is_empty(), "{line} {headers:?}: says why");
    }
    assert!(harness.seen.try_recv().is_err(), "AUTH-04: no agent heard of any of it");
}

#[tokio::test(start_paused = true)]
async fn a_refused_credential_is_told_how_to_do_better() {
    // AUTH-02, AUTH-03
    let harness = Harness::new(Limits::default());
    let challenge = Some("Bearer realm=\"opamp\"");
    let response = harness.dial().await.post(&["Authorization: Bearer x"], b"hello").await;
    assert_eq!((response.status, response.header("www-authenticate")), (401, challenge));
    let response = harness.dial().await.handshake(&["Authorization: Bearer x"]).await;
    assert_eq!((response.status, response.header("www-authenticate")), (401, challenge));
}

#[tokio::test(start_paused = true)]
async fn an_oversized_message_gets_413() {
    // AMB-22, HTTP-09
    let harness = Harness::new(small());
    let bomb = gzip(&harness.shared, &vec![0; 100_000]).await;
    assert!(bomb.len() < 1_000, "the bomb itself is within the limit");
    let mut chunked = harness.dial().await;
    chunked
        .write(b"POST /v1/opamp HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    chunked.write(&[b"600\r\n", &[1; 0x600][..], b"\r\n0\r\n\r\n"].concat()).await;
    assert_eq!(chunked.response().await.status, 413);
    assert_eq!(harness.dial().await.post(&[], &[1; 1_001]).await.status, 413);
    assert_eq!(harness.dial().await.post(&["Content-Encoding: gzip"], &bomb).await.status, 413);
    assert_eq!(harness.dial().await.post(&[], &[1; 1_000]).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_message_is_answered_with_200() {
    // ERR-01, AMB-21: clients read the body of a 200 only.
    let harness = Harness::new(Limits::default());
    let response = harness.dial().await.post(&[], b"undecodable").await;
    assert_eq!((response.status, &response.body[..]), (200, &b"BAD_REQUEST"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_ends_after_the_time_for_a_head() {
    let harness = Harness::new(Limits::default());
    let start = Instant::now();
    let mut client = harness.dial().await;
    client.ended().await;
    assert_eq!(passed(start), Duration::from_secs(10));
    assert_eq!(harness.shared.metrics.timeouts.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn half_a_head_ends_after_the_time_for_a_head() {
    let harness = Harness::new(Limits::default());
    let mut client = harness.dial().await;
    assert_eq!(client.post(&[], b"hello").await.status, 200);
    sleep(Duration::from_secs(60)).await;
    let start = Instant::now();
    client.write(b"POST /v1/opamp HTTP/1.1\r\nHo").await;
    sleep(Duration::from_secs(8)).await;
    client.write(b"st: ").await;
    client.ended().await;
    assert_eq!(passed(start), Duration::from_secs(10), "more bytes do not buy more time");
}

#[tokio::test(start_paused = true)]
async fn half_a_body_gets_408_after_the_time_for_a_body() {
    let harness = Harness::new(Limits::default());
    let start = Instant::now();
    let mut client = harness.dial().await;
    client
        .write(b"POST /v1/opamp HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: 9\r\n\r\nhalf")
        .await;
    assert_eq!(client.response().await.status, 408);
    assert_eq!(passed(start), Duration::from_secs(60));
    client.ended().await;
}

#[tokio::test(start_paused = true)]
async fn pollers_keep_their_connection_and_idlers_do_not() {
    // HTTP-04
    let harness = Harness::new(Limits::default());
    let mut client = harness.dial().await;
    for _ in 0..3 {
        assert_eq!(client.post(&[], b"poll").await.status, 200);
        sleep(Duration::from_secs(110)).await;
    }
    assert_eq!(client.post(&[], b"poll").await.status, 200);
    let start = Instant::now();
    client.ended().await;
    assert_eq!(passed(start), Duration::from_secs(120));
}

#[tokio::test(start_paused = true)]
async fn a_uid_header_that_differs_is_counted_and_nothing_else() {
    // AMB-16
    let harness = Harness::new(Limits::default());
    let mut client = harness.dial().await;
    let right = format!("OpAMP-Instance-UID: {UID}");
    for (header, mismatches) in [(&right[..], 0), ("OpAMP-Instance-UID: b0a09001-d0c0-0070-8000-00000000abcd", 1)] {
        assert_eq!(client.post(&[header], b"hello").await.body, b"re: hello");
        assert_eq!(harness.shared.metrics.uid_header_mismatches.get(), mismatches, "{header}");
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_large_bodies_at_once_get_503() {
    let mut harness = Harness::new(Limits { unfinished_bytes: 50_000, message_bytes: 40_000, ..Limits::default() });
    let occupied = Arc::clone(&harness.shared.room).try_acquire_many_owned(40_000).unwrap();
    let response = harness.dial().await.post(&[], &vec![1; 30_000]).await;
    assert_eq!(response.status, 503);
    assert!((30..=60).contains(&response.retry_after()), "THR-05");
    assert_eq!(harness.dial().await.post(&[], &[1; 16_000]).await.status, 200, "small ones are not concerned");
    drop(occupied);
    assert_eq!(harness.dial().await.post(&[], &vec![1; 30_000]).await.status, 200);
    while harness.seen.try_recv().is_ok() {}
    assert_eq!(harness.shared.room.available_permits(), 50_000, "all room is given back");
}

#[tokio::test(start_paused = true)]
async fn a_noisy_connection_is_slowed_down_and_served() {
    // HTTP-05
    let harness = Harness::new(Limits { messages_per_second: 10, message_burst: 20, ..Limits::default() });
    let mut client = harness.dial().await;
    let start = Instant::now();
    for message in 0..20 {
        assert_eq!(client.post(&[], b"now").await.status, 200, "message {message}");
    }
    assert_eq!(passed(start), Duration::ZERO, "the burst is free");
    for _ in 0..10 {
        assert_eq!(client.post(&[], b"now").await.status, 200);
    }
    assert!((900..=1_100).contains(&passed(start).as_millis()), "{:?}", passed(start));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_http_gets_400_and_the_end() {
    for garbage in [&[0xff; 3_000][..], b"\x16\x03\x01 a TLS hello\r\n\r\n", b"NONSENSE\r\n\r\n"] {
        let harness = Harness::new(Limits::default());
        let mut client = harness.dial().await;
        client.write(garbage).await;
        assert_eq!(client.response().await.status, 400);
        client.ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_never_ends_is_refused() {
    let harness = Harness::new(Limits::default());
    let mut client = harness.dial().await;
    client.write(b"GET /v1/opamp HTTP/1.1\r\nX: ").await;
    client.write(&vec![b'x'; 40_000]).await;
    assert_eq!(client.response().await.status, 431);
    client.ended().await;
}
