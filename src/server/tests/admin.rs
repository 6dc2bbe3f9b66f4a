use prometheus_client::registry::Registry;
use tokio::{io::AsyncReadExt as _, net::TcpStream};

use super::client::{Client, Response};
use crate::server::{
    Metrics, Transport,
    admin::{Admin, Pages, Readiness},
};

async fn get(client: &mut Client<TcpStream>, path: &str) -> Response {
    client.request(&format!("GET {path}"), &[], b"").await
}

fn pages(readiness: Readiness, registry: Registry) -> Pages {
    Pages { readiness, registry, revocations: Box::new(|| Some("a list".into())) }
}

#[tokio::test]
async fn the_list_of_what_was_taken_back_is_shown() {
    let admin = Admin::bind(([127, 0, 0, 1], 0).into(), pages(Readiness::default(), Registry::default()));
    let admin = admin.await.unwrap();
    let mut client = Client::new(TcpStream::connect(admin.local_address()).await.unwrap());
    let response = get(&mut client, "/crl").await;
    assert_eq!((response.status, &response.body[..]), (200, &b"a list"[..]));
}

#[tokio::test]
async fn readiness_names_what_is_missing_and_health_does_not_care() {
    let readiness = Readiness::default();
    readiness.missing("fleets");
    readiness.missing("agents");
    let admin = Admin::bind(([127, 0, 0, 1], 0).into(), pages(readiness.clone(), Registry::default())).await.unwrap();
    let mut client = Client::new(TcpStream::connect(admin.local_address()).await.unwrap());
    for (obtained, status, text) in [
        (None, 503, "not ready, missing: agents, fleets\n"),
        (Some("agents"), 503, "not ready, missing: fleets\n"),
        (Some("fleets"), 200, "ready\n"),
    ] {
        if let Some(what) = obtained {
            readiness.obtained(what);
        }
        let response = get(&mut client, "/readyz").await;
        assert_eq!((response.status, &response.body[..]), (status, text.as_bytes()));
        assert_eq!(readiness.is_ready(), status == 200);
        assert_eq!(get(&mut client, "/healthz").await.status, 200);
    }
    assert_eq!(get(&mut client, "/elsewhere").await.status, 404);
    assert_eq!(client.request("POST /healthz", &[], b"").await.status, 405);
}

#[tokio::test]
async fn whoever_keeps_connections_open_takes_none_from_probes() {
    let pages = pages(Readiness::default(), Registry::default());
    let admin = Admin::bind(([127, 0, 0, 1], 0).into(), pages).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(admin.local_address()).await.unwrap());
    }
    let mut probe = Client::new(TcpStream::connect(admin.local_address()).await.unwrap());
    let answer = tokio::time::timeout(std::time::Duration::from_secs(5), get(&mut probe, "/healthz")).await;
    assert_eq!(answer.expect("an answer").status, 200);
    assert_eq!(idle[0].read(&mut [0; 1]).await.unwrap_or_default(), 0, "the oldest has made room");
}

#[tokio::test]
async fn metrics_are_in_the_openmetrics_format() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let _open = metrics.open(Transport::WebSocket);
    let admin = Admin::bind(([127, 0, 0, 1], 0).into(), pages(Readiness::default(), registry)).await.unwrap();
    let mut client = Client::new(TcpStream::connect(admin.local_address()).await.unwrap());
    let response = get(&mut client, "/metrics").await;
    assert_eq!(response.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    let text = String::from_utf8(response.body).unwrap();
    assert!(text.contains("opamp_operator_connections{transport=\"websocket\"} 1\n"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}
