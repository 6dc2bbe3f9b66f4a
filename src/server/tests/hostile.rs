//! Peers that ask for more than they are due.

use std::time::Duration;

use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, sleep, timeout},
};

use super::{Harness, Limits, Seen, client::frame, passed};
use crate::server::CloseReason;

const HANDSHAKE: &[u8] = b"GET /v1/opamp HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

fn post(body: &[u8]) -> Vec<u8> {
    let head = "POST /v1/opamp HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: ";
    [format!("{head}{}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

#[tokio::test(start_paused = true)]
async fn a_connection_too_many_is_sent_away_whatever_it_asks_for() {
    let harness = Harness::new(Limits { connections: 1, ..Limits::default() });
    let _only = harness.open().await;
    for line in ["GET /elsewhere", "PUT /v1/opamp", "POST /v1/opamp"] {
        let mut client = harness.dial().await;
        assert_eq!(client.request(line, &[], b"").await.status, 503, "{line}");
        client.ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_turned_away_are_paced_as_well() {
    let harness = Harness::new(Limits { messages_per_second: 10, message_burst: 20, ..Limits::default() });
    let mut client = harness.dial().await;
    let start = Instant::now();
    for _ in 0..30 {
        assert_eq!(client.request("GET /elsewhere", &[], b"").await.status, 404);
    }
    assert!((900..=1_100).contains(&passed(start).as_millis()), "{:?}", passed(start));
}

#[tokio::test(start_paused = true)]
async fn large_messages_are_paced_by_their_size() {
    let harness = Harness::new(Limits { messages_per_second: 10, message_burst: 20, ..Limits::default() });
    let large = vec![1; 10 * 4096];
    let mut client = harness.dial().await;
    let start = Instant::now();
    for _ in 0..4 {
        assert_eq!(client.post(&[], &large).await.status, 200);
    }
    assert!(
        (1_300..=1_500).contains(&passed(start).as_millis()),
        "11 for each of three, 1 for the last: {:?}",
        passed(start)
    );
    let mut client = harness.open().await;
    let start = Instant::now();
    for _ in 0..4 {
        client.send(&large).await;
    }
    for _ in 0..4 {
        client.message().await;
    }
    assert!((1_300..=1_500).contains(&passed(start).as_millis()), "the fourth is not waited for: {:?}", passed(start));
}

#[tokio::test(start_paused = true)]
async fn who_has_said_all_and_closed_its_side_gets_the_answers() {
    let harness = Harness::new(Limits { messages_per_second: 1, message_burst: 1, ..Limits::default() });
    let mut client = harness.dial().await;
    client.write(&[post(b"one"), post(b"two"), post(b"three")].concat()).await;
    client.0.shutdown().await.unwrap();
    for expected in [b"re: one".to_vec(), b"re: two".to_vec(), b"re: three".to_vec()] {
        assert_eq!(client.response().await.body, expected);
    }
    client.ended().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_ends_with_its_peer() {
    let harness = Harness::new(Limits::default());
    let mut client = harness.dial().await;
    assert_eq!(client.post(&[], b"poll").await.status, 200);
    let start = Instant::now();
    client.0.shutdown().await.unwrap();
    client.ended().await;
    harness.shared.tasks.close();
    harness.shared.tasks.wait().await;
    assert_eq!(passed(start), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_not_read_ends_the_connection_and_a_slow_reader_gets_it() {
    let harness = Harness::new(Limits::default());
    *harness.agents.tail.lock().unwrap() = Some(vec![7; 1 << 20].into());
    let mut client = harness.dial().await;
    let start = Instant::now();
    client.write(&post(b"x")).await;
    while !harness.shared.tasks.is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(passed(start).as_secs(), 10);
    assert_eq!(harness.shared.metrics.timeouts.get(), 1);
    let mut client = harness.dial().await;
    client.write(&post(b"x")).await;
    let (mut received, mut part) = (0, vec![0; 128 << 10]);
    while received < 1 << 20 {
        sleep(Duration::from_secs(6)).await;
        let length = client.0.read(&mut part).await.unwrap();
        assert!(length > 0, "after {received} bytes");
        received += length;
    }
}

#[tokio::test(start_paused = true)]
async fn compressed_responses_that_nobody_reads_take_no_more_memory_than_there_is() {
    let harness = Harness::new(Limits { unfinished_bytes: 1 << 20, message_bytes: 1 << 20, ..Limits::default() });
    let noise: Vec<u8> =
        std::iter::successors(Some(1_u64), |state| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1)))
            .map(|state| state.to_be_bytes()[0])
            .take(400_000)
            .collect();
    *harness.agents.tail.lock().unwrap() = Some(noise.into());
    let mut codings = Vec::new();
    for _ in 0..10 {
        let mut client = harness.dial().await;
        client
            .write(
                b"POST /v1/opamp HTTP/1.1\r\nAccept-Encoding: gzip\r\nContent-Type: application/x-protobuf\r\n\
                  Content-Length: 1\r\n\r\nx",
            )
            .await;
        let mut head = vec![0; 100];
        client.0.read_exact(&mut head).await.unwrap();
        codings.push((String::from_utf8_lossy(&head).contains("content-encoding: gzip"), client));
    }
    let compressed = codings.iter().filter(|(compressed, _)| *compressed).count();
    assert!((1..10).contains(&compressed), "{compressed}");
    drop(codings);
    while !harness.shared.tasks.is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(harness.shared.room.available_permits(), 1 << 20, "all is given back");
}

#[tokio::test(start_paused = true)]
async fn messages_that_are_only_announced_keep_nobody_waiting() {
    let harness = Harness::new(Limits { unfinished_bytes: 1 << 20, message_bytes: 1 << 20, ..Limits::default() });
    let mut announcing = Vec::new();
    for _ in 0..8 {
        let mut client = harness.open().await;
        client.write(&[0x82, 0xff, 0, 0, 0, 0, 0, 0x0f, 0, 0, 1, 2, 3, 4]).await;
        announcing.push(client);
        let mut client = harness.dial().await;
        client
            .write(b"POST /v1/opamp HTTP/1.1\r\nContent-Type: application/x-protobuf\r\nContent-Length: 999999\r\n\r\n")
            .await;
        announcing.push(client);
    }
    let mut honest = harness.open().await;
    let start = Instant::now();
    honest.send(&vec![b'h'; 100_000]).await;
    honest.message().await;
    assert_eq!(harness.dial().await.post(&[], &vec![b'h'; 100_000]).await.status, 200);
    assert_eq!(passed(start), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_the_queue_leaves_its_turn_to_others() {
    let harness = Harness::new(Limits { handshakes_per_second: 100, handshake_queue: 1_000, ..Limits::default() });
    let _first = harness.open().await;
    let start = Instant::now();
    let mut leaving = Vec::new();
    for waiting in 1..=900 {
        let mut client = harness.dial().await;
        client.write(HANDSHAKE).await;
        while harness.shared.metrics.handshakes_waiting.get() < waiting {
            tokio::task::yield_now().await;
        }
        leaving.push(client);
    }
    drop(leaving);
    while harness.shared.metrics.handshakes_waiting.get() > 0 {
        tokio::task::yield_now().await;
    }
    let _second = harness.open().await;
    assert!(passed(start).as_millis() <= 20, "{:?}", passed(start));
}

#[tokio::test(start_paused = true)]
async fn who_hardly_reads_is_closed_all_the_same() {
    let mut harness = Harness::new(Limits::default());
    let (mut client, connection) = harness.reported().await;
    *harness.agents.tail.lock().unwrap() = Some(vec![7; 1 << 20].into());
    connection.wake();
    sleep(Duration::from_secs(1)).await;
    connection.close(CloseReason::Superseded);
    let start = Instant::now();
    let mut part = vec![0; 1_000];
    while !harness.shared.tasks.is_empty() {
        client.0.read_exact(&mut part).await.unwrap();
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(passed(start).as_secs(), 3);
    while !matches!(harness.next().await, Seen::Closed) {}
}

/// Something that a peer may send, in this or another order.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let chunked =
        b"POST /v1/opamp HTTP/1.1\r\nContent-Type: application/x-protobuf\r\nTransfer-Encoding: chunked\r\n\r\n";
    let gzip = b"POST /v1/opamp HTTP/1.1\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: gzip\r\n\
        Accept-Encoding: gzip\r\nContent-Length: 20\r\n\r\n\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0";
    let whole = prop::sample::select(vec![
        post(b"report"),
        post(&vec![1; 30_000]),
        HANDSHAKE.to_vec(),
        chunked.to_vec(),
        b"7\r\na chunk\r\n".to_vec(),
        b"0\r\n\r\n".to_vec(),
        gzip.to_vec(),
        b"GET /elsewhere HTTP/1.0\r\nExpect: 100-continue\r\n\r\n".to_vec(),
        frame(0x82, b"\0report"),
        frame(0x02, &vec![0; 20_000]),
        frame(0x80, b"the end"),
        frame(0x89, b"?"),
        frame(0x88, b"\x03\xe8"),
    ]);
    prop_oneof![
        6 => whole.clone(),
        2 => (whole, any::<prop::sample::Index>()).prop_map(|(bytes, end)| bytes[..end.index(bytes.len())].to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ]
}

/// How a peer goes.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    AtOnce,
    HalfClosed,
    WhenItIsSentAway,
}

async fn meet(pieces: Vec<(Vec<u8>, u64)>, leaves: Leaves) {
    let limits = Limits { unfinished_bytes: 60_000, message_bytes: 40_000, ..Limits::default() };
    let mut harness = Harness::new(limits);
    let mut client = harness.dial().await;
    for (piece, milliseconds) in pieces {
        // A peer that is not read from any more gives up.
        let _ = timeout(Duration::from_secs(1), client.0.write_all(&piece)).await;
        sleep(Duration::from_millis(milliseconds)).await;
    }
    match leaves {
        Leaves::AtOnce => drop(client),
        Leaves::HalfClosed | Leaves::WhenItIsSentAway => {
            if let Leaves::HalfClosed = leaves {
                let _ = client.0.shutdown().await;
            }
            tokio::spawn(async move {
                let mut part = [0; 4_096];
                while let Ok(1..) = client.0.read(&mut part).await {}
            });
        }
    }
    harness.shared.tasks.close();
    harness.shared.tasks.wait().await;
    while harness.seen.try_recv().is_ok() {}
    assert_eq!(harness.shared.room.available_permits(), 60_000, "memory");
    assert_eq!(harness.shared.metrics.handshakes_waiting.get(), 0, "turns");
    let admission = &harness.shared.admission;
    let limits = &harness.shared.limits;
    assert_eq!(admission.available(), (limits.connections, limits.unreported), "connections");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_comes_and_however_it_ends_everything_is_given_back(
        pieces in prop::collection::vec((piece(), prop::sample::select(vec![0, 0, 0, 1, 20_000])), 0..10),
        leaves in prop::sample::select(vec![Leaves::AtOnce, Leaves::HalfClosed, Leaves::WhenItIsSentAway]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(meet(pieces, leaves));
    }
}
