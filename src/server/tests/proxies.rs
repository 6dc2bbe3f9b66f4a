use std::{net::SocketAddr, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

use super::{Harness, Limits, Proxies, authorities::Authority, client::Client, endpoint, passed, peer};
use crate::server::{CertificateHeader, Endpoint, ProxyProtocol};

/// From 198.51.100.7, port 40000 (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>, §2.2).
const HEADER: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc6\x33\x64\x07\xcb\x00\x71\x01\x9c\x40\x10\xe0";

fn behind(protocol: ProxyProtocol, certificate_header: CertificateHeader) -> Harness {
    let trusted = vec!["192.0.2.0/24".parse().unwrap()];
    Harness::at(
        Endpoint { proxies: Proxies { trusted, protocol, certificate_header }, ..endpoint() },
        Limits::default(),
    )
}

fn elsewhere() -> SocketAddr {
    ([203, 0, 113, 9], 50_000).into()
}

#[tokio::test(start_paused = true)]
async fn a_trusted_proxy_tells_where_a_connection_comes_from() {
    let mut harness = behind(ProxyProtocol::Required, CertificateHeader::Ignored);
    let mut client = harness.dial().await;
    client.write(HEADER).await;
    client.upgrade().await;
    client.send(b"report").await;
    client.message().await;
    let super::Seen::Received(connection, _) = harness.next().await else { panic!("received comes first") };
    let told = SocketAddr::from(([198, 51, 100, 7], 40_000));
    assert_eq!((connection.remote, harness.asked()[0].0.address), (told, told));
    let mut itself = harness.dial().await;
    itself.write(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0").await;
    assert_eq!(itself.post(&[], b"report").await.status, 200);
    assert_eq!(harness.asked()[0].0.address, peer().address, "the proxy speaks for itself");
}

#[tokio::test(start_paused = true)]
async fn a_trusted_proxy_that_says_nothing_of_use_is_closed() {
    let harness = behind(ProxyProtocol::Required, CertificateHeader::Ignored);
    for (case, bytes) in [
        ("none", &b"POST /v1/opamp HTTP/1.1\r\nContent-Length: 0\r\n\r\n"[..]),
        ("version 1", b"PROXY TCP4 198.51.100.7 203.0.113.1 40000 4320\r\n"),
        ("UDP", b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c\xc6\x33\x64\x07\xcb\x00\x71\x01\x9c\x40\x10\xe0"),
        ("too long", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"),
    ] {
        let mut client = harness.dial().await;
        client.write(bytes).await;
        assert_eq!(client.0.read(&mut [0; 10]).await.unwrap(), 0, "{case}");
    }
    assert_eq!(harness.shared.metrics.proxy_header_errors.get(), 4);
    let start = Instant::now();
    let mut slow = harness.dial().await;
    slow.write(&HEADER[..27]).await;
    slow.ended().await;
    assert_eq!(passed(start), Duration::from_secs(10));
    assert_eq!(harness.shared.metrics.proxy_header_errors.get(), 5);
    assert!(harness.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_proxy_header_from_elsewhere_is_only_bad_http() {
    for protocol in [ProxyProtocol::Required, ProxyProtocol::NotSpoken] {
        let harness = behind(protocol, CertificateHeader::Ignored);
        let mut stream = harness.connect(elsewhere()).await;
        stream.write_all(HEADER).await.unwrap();
        stream.write_all(b"POST /v1/opamp HTTP/1.1\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
        assert!(harness.asked().is_empty());
        let mut direct = Client::new(harness.connect(elsewhere()).await);
        assert_eq!(direct.post(&[], b"report").await.status, 200, "who is no proxy needs no header");
        assert_eq!(harness.asked()[0].0.address, elsewhere());
    }
}

/// A certificate, and the line that tells it.
fn told(serial: u64) -> (CertificateDer<'static>, String) {
    let certificate = Authority::new("fleet").for_client(serial).certificate.der().clone();
    let line = format!("Client-Cert: :{}:", STANDARD.encode(&certificate));
    (certificate, line)
}

#[tokio::test(start_paused = true)]
async fn a_trusted_proxy_tells_the_certificate_of_each_request() {
    let harness = behind(ProxyProtocol::NotSpoken, CertificateHeader::Believed);
    let [(one, one_line), (two, two_line)] = [told(1), told(2)];
    let mut client = harness.dial().await;
    for line in [&[&*one_line][..], &[&two_line], &[]] {
        assert_eq!(client.post(line, b"report").await.status, 200);
    }
    assert_eq!(harness.dial().await.handshake(&[&one_line]).await.status, 101);
    let asked = harness.asked();
    let certificates: Vec<_> = asked.iter().map(|(peer, _)| peer.certificates.as_deref()).collect();
    let (one, two) = ([one], [two]);
    assert_eq!(certificates, [Some(&one[..]), Some(&two[..]), None, Some(&one[..])]);
    assert!(asked.iter().all(|(_, headers)| !headers.contains_key("client-cert")), "nobody else reads it");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_told_in_a_doubtful_way_is_a_bad_request() {
    let harness = behind(ProxyProtocol::NotSpoken, CertificateHeader::Believed);
    let (_, line) = told(1);
    let (underscore, chain) = (line.replace("Client-Cert", "Client_Cert"), line.replace("Cert", "Cert-Chain"));
    for (case, lines) in [
        ("twice", &[&*line, &line][..]),
        ("a name with an underscore", &[&line, &underscore]),
        ("a chain alone", &[&chain]),
        ("no base64", &["Client-Cert: :?:"]),
        ("no colons", &["Client-Cert: eA=="]),
    ] {
        assert_eq!(harness.dial().await.post(lines, b"report").await.status, 400, "{case}");
        assert_eq!(harness.dial().await.handshake(lines).await.status, 400, "{case}");
    }
    assert!(harness.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_certificate_told_by_anybody_else_is_not_heard() {
    let (_, line) = told(1);
    let underscore = line.replace("Client-Cert", "Client_Cert");
    for (case, believed, remote) in [
        ("from elsewhere", CertificateHeader::Believed, elsewhere()),
        ("no header was asked for", CertificateHeader::Ignored, peer().address),
    ] {
        let harness = behind(ProxyProtocol::NotSpoken, believed);
        for lines in [&[&*line][..], &[&line, &line], &[&underscore], &["Client-Cert-Chain: :?:"]] {
            let mut client = Client::new(harness.connect(remote).await);
            assert_eq!(client.post(lines, b"report").await.status, 200, "{case}");
            let [(peer, headers)] = &harness.asked()[..] else { panic!("asked once") };
            assert!(peer.certificates.is_none(), "{case}");
            assert!(!headers.keys().any(|name| name.as_str().contains("cert")), "{case}: {headers:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whom_a_proxy_speaks_for_gains_no_trust_by_the_address() {
    // The address that a proxy tells is an agent's, even where it lies among those of proxies.
    let harness = behind(ProxyProtocol::Required, CertificateHeader::Believed);
    let (_, line) = told(1);
    let mut stream = harness.connect(elsewhere()).await;
    let mut header = HEADER.to_vec();
    header[16..20].copy_from_slice(&[192, 0, 2, 1]);
    stream.write_all(&header).await.unwrap();
    stream.write_all(format!("POST /v1/opamp HTTP/1.1\r\n{line}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400"));
    assert!(harness.asked().is_empty());
}
