use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::join_all;
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    net::TcpStream,
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    Echo, Harness, Limits, Metrics,
    client::{Client, Frame},
    endpoint, passed,
};
use crate::server::{Server, raise_descriptor_limit};

#[tokio::test(start_paused = true)]
async fn handshakes_over_the_rate_wait_and_are_all_served() {
    let harness = Harness::new(Limits { handshakes_per_second: 100, ..Limits::default() });
    let start = Instant::now();
    join_all((0..51).map(|_| async {
        let mut client = harness.open().await;
        client.send(b"report").await;
        client.message().await;
    }))
    .await;
    assert_eq!(passed(start), Duration::from_millis(500), "one each 10 ms");
    assert_eq!(harness.shared.metrics.handshakes_waiting.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn handshakes_over_the_queue_get_503_before_the_upgrade() {
    // THR-04, THR-05, AMB-44
    let harness = Harness::new(Limits { handshakes_per_second: 10, handshake_queue: 20, ..Limits::default() });
    let responses = join_all((0..30).map(|_| async { harness.dial().await.handshake(&[]).await })).await;
    let (opened, refused): (Vec<_>, Vec<_>) = responses.iter().partition(|response| response.status == 101);
    assert_eq!((opened.len(), refused.len()), (21, 9), "one at once, twenty that waited");
    for response in refused {
        assert_eq!(response.status, 503);
        assert!((30..=60).contains(&response.retry_after()));
    }
}

#[tokio::test(start_paused = true)]
async fn silent_websockets_are_limited_in_number_and_time() {
    let harness = Harness::new(Limits { unreported: 3, ..Limits::default() });
    let start = Instant::now();
    let mut silent = join_all((0..3).map(|_| harness.open())).await;
    let refused = harness.dial().await.handshake(&[]).await;
    assert_eq!(refused.status, 503);
    assert!(refused.retry_after() >= 30);
    silent[0].send(b"report").await;
    assert_eq!(silent[0].message().await, "re: report");
    let _fourth = harness.open().await;
    assert_eq!(harness.dial().await.handshake(&[]).await.status, 503, "full again");
    assert_eq!(harness.dial().await.post(&[], b"poll").await.status, 200, "HTTP is not concerned");
    assert_eq!(silent[1].receive().await, Frame::Close(Some(1008)));
    assert_eq!(passed(start).as_secs(), 30);
    assert_eq!(harness.dial().await.handshake(&[]).await.status, 101, "there is room again");
}

#[tokio::test(start_paused = true)]
async fn malformed_messages_do_not_count_as_a_report() {
    let harness = Harness::new(Limits { unreported: 1, ..Limits::default() });
    let mut client = harness.open().await;
    client.send(b"undecodable").await;
    assert_eq!(client.message().await, "BAD_REQUEST");
    assert!(harness.shared.admission.is_crowded());
}

#[tokio::test(start_paused = true)]
async fn a_connection_too_many_is_told_so_on_either_transport() {
    let harness = Harness::new(Limits { connections: 1, ..Limits::default() });
    let mut only = harness.open().await;
    for response in [harness.dial().await.handshake(&[]).await, harness.dial().await.post(&[], b"x").await] {
        assert_eq!(response.status, 503);
        assert!(response.retry_after() >= 30);
        assert_eq!(response.header("connection"), Some("close"));
    }
    only.send(b"still here").await;
    assert_eq!(only.message().await, "re: still here");
    only.frame(0x88, &1000_u16.to_be_bytes()).await;
    assert_eq!(only.receive().await, Frame::Close(Some(1000)));
    drop(only);
    let mut next = loop {
        let mut client = harness.dial().await;
        if client.handshake(&[]).await.status == 101 {
            break client;
        }
    };
    next.send(b"my turn").await;
    assert_eq!(next.message().await, "re: my turn");
}

#[tokio::test(start_paused = true)]
async fn who_leaves_the_queue_leaves_nothing_behind() {
    let harness = Harness::new(Limits { handshakes_per_second: 1, ..Limits::default() });
    let _first = harness.open().await;
    let mut waiting = harness.dial().await;
    waiting
        .write(
            b"GET /v1/opamp HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .await;
    while harness.shared.metrics.handshakes_waiting.get() == 0 {
        tokio::task::yield_now().await;
    }
    drop(waiting);
    while harness.shared.metrics.handshakes_waiting.get() == 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(harness.shared.tasks.len(), 1, "only the first is left");
}

#[tokio::test]
async fn of_many_at_once_each_is_served_or_refused_and_served_on_retry() {
    const CLIENTS: usize = 120;
    let (sender, _seen) = mpsc::unbounded_channel();
    let agents = Arc::new(Echo::new(sender));
    // A busy machine must not make a client look silent.
    let patient = Limits { head_timeout: Duration::from_secs(600), ..Limits::default() };
    let limits = Limits { handshakes_per_second: 1_000, handshake_queue: 20, unreported: 30, ..patient };
    raise_descriptor_limit().unwrap();
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let generation = watch::Sender::new(0);
    let server = Server::bind(endpoint(), limits, agents, generation.subscribe(), metrics).unwrap();
    let mut reported = Vec::new();
    while reported.len() < CLIENTS {
        let attempts = (reported.len()..CLIENTS).map(|_| attempt(server.local_address()));
        reported.extend(join_all(attempts).await.into_iter().flatten());
    }
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains(&format!("connections{{transport=\"websocket\"}} {CLIENTS}\n")), "{text}");
    assert!(text.contains(&format!("handshakes_total{{outcome=\"Opened\"}} {CLIENTS}\n")), "{text}");
    assert!(!text.contains("closes_total{"), "none was closed:\n{text}");
    drop(reported);
}

/// Connects and reports, unless it is told to come later.
async fn attempt(address: SocketAddr) -> Option<Client<TcpStream>> {
    let mut client = Client::new(TcpStream::connect(address).await.unwrap());
    let response = client.handshake(&[]).await;
    if response.status == 503 {
        assert!(response.retry_after() >= 30);
        return None;
    }
    assert_eq!(response.status, 101);
    client.send(b"report").await;
    assert_eq!(client.message().await, "re: report");
    Some(client)
}
