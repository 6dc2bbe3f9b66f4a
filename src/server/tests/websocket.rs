use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::{
    io::AsyncReadExt,
    time::{Instant, sleep},
};
use tokio_tungstenite::{
    client_async,
    tungstenite::{Message, protocol::frame::coding::CloseCode},
};

use super::{
    Harness, Limits, Seen,
    client::{Frame, frame},
    passed,
};
use crate::server::CloseReason;

#[tokio::test(start_paused = true)]
async fn tungstenite_is_answered_in_order_pinged_and_closed() {
    // WS-01, WS-02, WS-06, CONN-04
    let mut harness = Harness::new(Limits::default());
    *harness.agents.tail.lock().unwrap() = Some(vec![7; 70_000].into());
    let stream = harness.dial().await.0;
    let (mut socket, response) = client_async("ws://opamp.example.com/v1/opamp", stream).await.unwrap();
    assert!(!response.headers().contains_key("sec-websocket-protocol"), "WS-08");
    for number in 0..5 {
        socket.feed(Message::binary(format!("\0report {number}"))).await.unwrap();
    }
    socket.flush().await.unwrap();
    for number in 0..5 {
        let reply = socket.next().await.unwrap().unwrap().into_data();
        assert!(reply.starts_with(format!("\0re: report {number}").as_bytes()), "reply {number}");
        assert_eq!(reply.len(), "\0re: report n".len() + 70_000);
    }
    socket.send(Message::Ping(Bytes::from_static(b"there?"))).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::Pong(Bytes::from_static(b"there?")));
    socket.close(None).await.unwrap();
    assert!(matches!(socket.next().await, Some(Ok(Message::Close(_)))));
    assert!(socket.next().await.is_none(), "the server ends TCP");
    while !matches!(harness.next().await, Seen::Closed) {}
}

#[tokio::test(start_paused = true)]
async fn tungstenite_understands_why_it_is_sent_away() {
    let mut harness = Harness::new(Limits::default());
    let stream = harness.dial().await.0;
    let (mut socket, _) = client_async("ws://opamp.example.com/v1/opamp", stream).await.unwrap();
    socket.send(Message::binary("\0report")).await.unwrap();
    let Seen::Received(connection, _) = harness.next().await else { panic!() };
    connection.close(CloseReason::Superseded);
    assert_eq!(socket.next().await.unwrap().unwrap().into_data(), "\0re: report");
    let Some(Ok(Message::Close(Some(close)))) = socket.next().await else { panic!() };
    assert_eq!(close.code, CloseCode::Policy);
    assert_eq!(close.reason, CloseReason::Superseded.text());
    assert!(socket.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_message_over_four_frames_with_a_ping_between_is_one() {
    // WS-08
    let harness = Harness::new(Limits::default());
    let mut client = harness.open().await;
    for (first, payload) in [(0x02, &b"\0fo"[..]), (0x00, b"u"), (0x89, b"?"), (0x00, b"r p"), (0x80, b"arts")] {
        client.frame(first, payload).await;
    }
    assert_eq!(client.receive().await, Frame::Pong(b"?".to_vec()));
    assert_eq!(client.message().await, "re: four parts");
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_right_behind_the_handshake_counts() {
    let harness = Harness::new(Limits::default());
    let mut client = harness.dial().await;
    let opening = b"GET /v1/opamp HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    client.write(&[&opening[..], &frame(0x82, b"\0early")].concat()).await;
    assert_eq!(client.response().await.status, 101);
    assert_eq!(client.message().await, "re: early");
}

#[tokio::test(start_paused = true)]
async fn every_handshake_fault_has_its_status() {
    // CONN-01, AMB-21
    let harness = Harness::new(Limits::default());
    for (headers, status) in [
        (&["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"][..], 400),
        (
            &[
                "Upgrade: websocket",
                "Connection: Upgrade",
                "Sec-WebSocket-Version: 12",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            ],
            426,
        ),
    ] {
        let response = harness.dial().await.request("GET /v1/opamp", headers, b"").await;
        assert_eq!(response.status, status);
        assert_eq!(response.header("sec-websocket-version"), (status == 426).then_some("13"));
    }
}

#[tokio::test(start_paused = true)]
async fn broken_frames_are_closed_with_their_code() {
    // AMB-22
    let over = Limits { message_bytes: 1_000, ..Limits::default() };
    for (case, bytes, code) in [
        ("garbage", vec![0xff; 100], 1002),
        ("not masked", vec![0x82, 2, 0, 0], 1002),
        ("close reason that is no text", frame(0x88, b"\x03\xe8\xff"), 1007),
        ("oversized", frame(0x82, &[0; 2_000]), 1009),
        ("oversized in parts", [frame(0x02, &[0; 900]), frame(0x80, &[0; 900])].concat(), 1009),
    ] {
        let mut harness = Harness::new(over.clone());
        let (mut client, _) = harness.reported().await;
        let (mut other, _) = harness.reported().await;
        client.write(&bytes).await;
        assert_eq!(client.receive().await, Frame::Close(Some(code)), "{case}");
        client.ended().await;
        assert!(matches!(harness.next().await, Seen::Closed));
        other.send(b"undisturbed").await;
        assert_eq!(other.message().await, "re: undisturbed", "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_tenth_offence_closes_after_its_answer() {
    // AMB-19, ERR-06, WS-03, WS-04
    for (case, first, payload, rule, code) in [
        ("text", 0x81, &b"hello"[..], Some("WS-01"), 1003),
        ("no header", 0x82, b"\x0a\x10", Some("WS-03"), 1008),
        ("no bytes", 0x82, b"", Some("WS-04"), 1008),
        ("no protobuf", 0x82, b"\0undecodable", None, 1007),
    ] {
        let mut harness = Harness::new(Limits::default());
        let (mut client, _) = harness.reported().await;
        for offence in 0..10 {
            client.frame(first, payload).await;
            assert_eq!(client.message().await, "BAD_REQUEST", "{case} {offence}");
            match (harness.next().await, rule) {
                (Seen::Violated(seen), Some(rule)) => assert_eq!(seen, rule, "{case}"),
                (Seen::Received(..), None) => {}
                (other, _) => panic!("{case}: {other:?}"),
            }
            if offence < 9 {
                client.send(b"fine").await;
                assert_eq!(client.message().await, "re: fine", "{case}: the connection survives");
                harness.next().await;
            }
        }
        assert_eq!(client.receive().await, Frame::Close(Some(code)), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn agents_speak_unprompted_when_woken_and_when_the_catalog_moves() {
    // WS-06, WS-07
    let mut harness = Harness::new(Limits::default());
    let (mut client, connection) = harness.reported().await;
    connection.wake();
    assert_eq!(client.message().await, "push");
    harness.generation.send_modify(|generation| *generation += 1);
    assert_eq!(client.message().await, "push");
}

#[tokio::test(start_paused = true)]
async fn a_generation_that_moved_before_the_connection_is_no_news() {
    let mut harness = Harness::new(Limits::default());
    harness.generation.send_modify(|generation| *generation += 1);
    let (mut client, _) = harness.reported().await;
    assert_eq!(client.receive().await, Frame::Ping(vec![]), "the next to happen");
}

#[tokio::test(start_paused = true)]
async fn only_the_answer_to_a_ping_that_was_asked_for_is_reported() {
    // AMB-14
    let mut harness = Harness::new(Limits::default());
    let (mut client, connection) = harness.reported().await;
    client.frame(0x8a, b"alive?").await;
    client.send(b"so far").await;
    assert!(matches!(harness.next().await, Seen::Received(..)), "nobody had asked");
    assert_eq!(client.message().await, "re: so far");
    connection.ping();
    let Frame::Ping(payload) = client.receive().await else { panic!("not pinged") };
    connection.ping();
    for other in [&b""[..], b"alive"] {
        client.frame(0x8a, other).await;
    }
    client.send(b"still here").await;
    assert!(matches!(harness.next().await, Seen::Received(..)), "that was no answer");
    assert_eq!(client.message().await, "re: still here", "and one ping is enough for two who ask");
    client.frame(0x8a, &payload).await;
    assert!(matches!(harness.next().await, Seen::Pong));
    client.frame(0x8a, &payload).await;
    connection.ping();
    assert_eq!(client.receive().await, Frame::Ping(payload.clone()), "asked anew");
    client.frame(0x8a, &payload).await;
    assert!(matches!(harness.next().await, Seen::Pong), "once for each");
    connection.close(CloseReason::Draining);
    assert!(matches!(harness.next().await, Seen::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_pinged_and_lives_while_it_answers() {
    // AMB-12
    let mut harness = Harness::new(Limits::default());
    let (mut client, _) = harness.reported().await;
    for _ in 0..3 {
        let start = Instant::now();
        assert_eq!(client.receive().await, Frame::Ping(vec![]));
        assert_eq!(passed(start), Duration::from_secs(30));
        client.frame(0x8a, b"").await;
    }
    let start = Instant::now();
    assert_eq!(client.receive().await, Frame::Ping(vec![]));
    assert_eq!(client.receive().await, Frame::Close(Some(1011)));
    assert_eq!(passed(start), Duration::from_secs(50), "dead");
    assert!(matches!(harness.next().await, Seen::Closed));
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_message_is_waited_for_only_so_long() {
    let mut harness = Harness::new(Limits::default());
    let (mut client, _) = harness.reported().await;
    let start = Instant::now();
    let message = frame(0x82, &[0; 100]);
    for byte in &message[..13] {
        client.write(&[*byte]).await;
        sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(client.receive().await, Frame::Close(Some(1008)));
    assert_eq!(passed(start).as_secs(), 65, "60 s, noticed when the client looked");
    assert!(matches!(harness.next().await, Seen::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_is_dropped() {
    let mut harness = Harness::new(Limits::default());
    let (mut client, connection) = harness.reported().await;
    let start = Instant::now();
    *harness.agents.tail.lock().unwrap() = Some(vec![7; 1 << 20].into());
    connection.wake();
    assert!(matches!(harness.next().await, Seen::Due));
    assert!(matches!(harness.next().await, Seen::Closed));
    assert_eq!(passed(start), Duration::from_secs(10));
    let mut rest = Vec::new();
    client.0.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() < 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_everything() {
    let mut harness = Harness::new(Limits::default());
    let (mut client, connection) = harness.reported().await;
    *harness.agents.tail.lock().unwrap() = Some(vec![7; 1 << 20].into());
    connection.wake();
    let mut received = 0;
    let mut part = vec![0; 64 << 10];
    while received < 1 << 20 {
        sleep(Duration::from_secs(9)).await;
        received += client.0.read(&mut part).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_noisy_peer_is_slowed_down_and_answered_in_order() {
    let mut harness = Harness::new(Limits { messages_per_second: 10, message_burst: 20, ..Limits::default() });
    let (mut client, _) = harness.reported().await;
    let start = Instant::now();
    let burst: Vec<_> = (0..100).flat_map(|number| frame(0x82, format!("\0{number}").as_bytes())).collect();
    client.write(&burst).await;
    for number in 0..100 {
        assert_eq!(client.message().await, format!("re: {number}"));
    }
    assert!((7_900..=8_200).contains(&passed(start).as_millis()), "{:?}", passed(start));
}

#[tokio::test(start_paused = true)]
async fn large_messages_wait_for_room() {
    let mut harness = Harness::new(Limits { unfinished_bytes: 50_000, message_bytes: 50_000, ..Limits::default() });
    let (mut client, _) = harness.reported().await;
    let occupied = Arc::clone(&harness.shared.room).try_acquire_many_owned(40_000).unwrap();
    let large = frame(0x82, &[&b"\0large"[..], &vec![b' '; 40_000]].concat());
    let (small_part, rest) = large.split_at(10_000);
    client.write(small_part).await;
    client.write(rest).await;
    let (mut other, _) = harness.reported().await;
    other.send(b"small").await;
    assert_eq!(other.message().await, "re: small");
    drop(occupied);
    assert!(client.message().await.starts_with(b"re: large"));
    assert_eq!(harness.shared.room.available_permits(), 50_000, "all room is given back");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_socket_is_told_once_however_it_comes() {
    // CONN-04: with a Close frame and without.
    let mut harness = Harness::new(Limits::default());
    let (mut client, _) = harness.reported().await;
    client.frame(0x88, b"").await;
    assert_eq!(client.receive().await, Frame::Close(None));
    client.ended().await;
    assert!(matches!(harness.next().await, Seen::Closed));
    let (client, _) = harness.reported().await;
    drop(client);
    assert!(matches!(harness.next().await, Seen::Closed));
    assert!(harness.seen.try_recv().is_err());
    harness.shared.tasks.close();
    harness.shared.tasks.wait().await;
}
