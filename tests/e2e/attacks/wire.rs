//! What is no TLS, or a TLS that is too old, or never comes to its end.

use std::time::{Duration, Instant};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{SOON, World};
use crate::harness::{
    http::{self, PROTOBUF},
    scripted::{Refused, Socket},
    wait_for,
};

/// More than a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(15);
/// RFC 8446 §6.
const ALERT: u8 = 21;

/// A `ClientHello` of this version, with one cipher suite and no extension (RFC 5246 §7.4.1.2).
fn client_hello(version: [u8; 2]) -> Vec<u8> {
    let body = [&version[..], &[7; 32], &[0], &[0, 2, 0, 0x2f], &[1, 0]].concat();
    let length = u8::try_from(body.len()).expect("it is short");
    let handshake = [&[1, 0, 0, length][..], &body].concat();
    [&[22, 3, 1, 0, length + 4][..], &handshake].concat()
}

async fn answer_to(world: &World, bytes: &[u8]) -> Vec<u8> {
    let mut stream = world.caller().tcp().await.expect("the port is open");
    let _ = stream.write_all(bytes).await; // the operator may have closed already
    let mut answer = Vec::new();
    let ended = timeout(HANDSHAKE, stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection ends");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_handshake_of_tls_nobody_gets_anywhere() {
    let world = World::begin("no-tls").await;
    let post = http::head("POST", "/v1/opamp", &[PROTOBUF, ("Content-Length", "0")]);
    let told = answer_to(&world, post.as_bytes()).await;
    let status = http::parse(&told).map(|response| response.status);
    assert_eq!(status, Some(400), "plain HTTP is told to use TLS");
    match Socket::connect(world.operator.listen).await {
        Err(Refused::Answered { status, .. }) => assert_eq!(status.as_u16(), 400, "a downgrade to ws://"),
        Err(Refused::Broken(_)) => {}
        Ok(_) => panic!("a WebSocket without TLS"),
    }
    for (case, bytes) in [
        ("garbage", vec![0x5a; 4_096]),
        ("zeros", vec![0; 65_536]),
        ("SSH", b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()),
        ("HTTP/2 in the clear", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("a record of application data", [&[23, 3, 3, 0x40, 0][..], &[0; 16_384]].concat()),
        ("PROXY from no proxy", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01\0\x50\x01\xbb".to_vec()),
    ] {
        let answer = answer_to(&world, &bytes).await;
        assert!(!answer.starts_with(b"HTTP/1.1 1") && !answer.starts_with(b"HTTP/1.1 2"), "{case}: {answer:?}");
    }
    for version in [[3, 0], [3, 1], [3, 2]] {
        let answer = answer_to(&world, &client_hello(version)).await;
        assert_eq!(answer.first(), Some(&ALERT), "TLS {version:?} gets an alert and nothing else");
        assert!(answer.len() <= 7, "{answer:?}");
    }
    world.served("after what is no TLS").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_drips_is_ended_and_keeps_nobody_waiting() {
    let world = World::begin("slow-tls").await;
    let mut drips = Vec::new();
    for _ in 0..50 {
        let mut stream = world.caller().tcp().await.expect("the port is open");
        drips.push(tokio::spawn(async move {
            let (began, hello) = (Instant::now(), client_hello([3, 3]));
            for byte in hello.iter().cycle().take(60) {
                if stream.write_all(&[*byte]).await.is_err() {
                    break;
                }
                let mut answer = [0; 64];
                // An end, or an alert before it.
                if let Ok(Ok(_) | Err(_)) = timeout(Duration::from_secs(1), stream.read(&mut answer)).await {
                    break;
                }
            }
            began.elapsed()
        }));
    }
    wait_for("all handshakes are open", SOON, async || {
        let open = world.operator.metric("opamp_operator_tls_handshakes_open").await;
        if open >= 50.0 { Ok(()) } else { Err(open.to_string()) }
    })
    .await;
    world.served("beside slow handshakes").await;
    for drip in drips {
        let took = drip.await.expect("it ends");
        assert!(took < HANDSHAKE, "a handshake was waited for {took:?}");
    }
}
