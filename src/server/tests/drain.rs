use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::{
    net::TcpStream,
    sync::{mpsc, watch},
    time::{Instant, sleep},
};

use super::{
    Echo, Harness, Limits, Metrics,
    client::{Client, Frame},
    endpoint, passed,
};
use crate::server::{Drained, Server, shared::now};

#[tokio::test(start_paused = true)]
async fn websockets_are_sent_away_one_after_the_other_and_served_until_then() {
    let harness = Harness::new(Limits { drains_per_second: 2, ..Limits::default() });
    let mut clients = join_all((0..4).map(|_| harness.open())).await;
    for client in &mut clients {
        client.send(b"report").await;
        client.message().await;
    }
    let start = Instant::now();
    harness.shared.drain.start(1, Duration::MAX, now().instant);
    sleep(Duration::from_millis(1)).await;
    let mut ends = join_all(clients.iter_mut().map(|client| async {
        client.send(b"still here?").await;
        let mut served = false;
        loop {
            match client.receive().await {
                Frame::Binary(_) => served = true,
                Frame::Close(Some(1001)) => return (passed(start).as_millis(), served),
                other => panic!("{other:?}"),
            }
        }
    }))
    .await;
    ends.sort_unstable();
    assert_eq!(ends, [(1, false), (500, true), (1_000, true), (1_500, true)]);
}

#[tokio::test(start_paused = true)]
async fn handshakes_that_wait_get_503_and_idle_connections_end() {
    let harness = Harness::new(Limits { handshakes_per_second: 1, ..Limits::default() });
    let _first = harness.open().await;
    let mut idle = harness.dial().await;
    assert_eq!(idle.post(&[], b"poll").await.status, 200);
    let start = Instant::now();
    let mut waiting = harness.dial().await;
    let (response, ()) = tokio::join!(waiting.handshake(&[]), async {
        while harness.shared.metrics.handshakes_waiting.get() == 0 {
            tokio::task::yield_now().await;
        }
        harness.shared.drain.start(1, Duration::MAX, now().instant);
    });
    assert_eq!(response.status, 503);
    idle.ended().await;
    assert_eq!(passed(start), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_request_in_flight_is_answered() {
    let harness = Harness::new(Limits::default());
    let mut client = harness.dial().await;
    client
        .write(b"POST /v1/opamp HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\nContent-Length: 5\r\n\r\nhe")
        .await;
    tokio::task::yield_now().await;
    harness.shared.drain.start(1, Duration::MAX, now().instant);
    tokio::task::yield_now().await;
    client.write(b"llo").await;
    let response = client.response().await;
    assert_eq!((response.status, &response.body[..]), (200, &b"re: hello"[..]));
    assert_eq!(response.header("connection"), Some("close"));
    client.ended().await;
}

#[tokio::test]
async fn a_drained_listener_has_nothing_left() {
    let (sender, _seen) = mpsc::unbounded_channel();
    let agents = Arc::new(Echo::new(sender));
    let generation = watch::Sender::new(0);
    let limits = Limits::default();
    let server = Server::bind(endpoint(), limits, agents, generation.subscribe(), Metrics::default()).unwrap();
    let local = server.local_address();
    let mut clients = join_all((0..20).map(|_| async {
        let mut client = Client::new(TcpStream::connect(local).await.unwrap());
        client.upgrade().await;
        client.send(b"report").await;
        client.message().await;
        client
    }))
    .await;
    let drained = tokio::spawn(server.drain(Duration::from_secs(20)));
    for client in &mut clients {
        assert_eq!(client.receive().await, Frame::Close(Some(1001)), "CONN-05");
        client.frame(0x88, &1001_u16.to_be_bytes()).await;
        client.ended().await;
    }
    drop(clients);
    assert_eq!(drained.await.unwrap(), Drained::Completely);
    assert!(TcpStream::connect(local).await.is_err(), "nobody listens");
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_in_time_even_if_a_peer_does_not() {
    let harness = Harness::new(Limits { drains_per_second: 1, ..Limits::default() });
    let _client = harness.open().await;
    let start = Instant::now();
    harness.shared.drain.start(1, Duration::MAX, now().instant);
    harness.shared.tasks.close();
    harness.shared.tasks.wait().await;
    assert_eq!(passed(start), harness.shared.limits.close_timeout, "its Close frame was awaited");
}
