//! HTTP peers that break the rules: each gets its answer, and nobody else notices.

use std::{process::Command, time::Duration};

use bytes::Bytes;
use opamp_operator::opamp::messages::{AgentToServer, ServerToAgent};
use prost::Message as _;

use crate::harness::{
    Scenario, fleet,
    http::{self, PROTOBUF},
    scripted::{BAD_REQUEST, error_kind, full_report, new_uid},
    swarm::agents,
    system,
};

const SOON: Duration = Duration::from_secs(10);
const PATH: &str = "/v1/opamp";

/// A gigabyte of zeros, as gzip makes about a megabyte of it.
fn bomb() -> Vec<u8> {
    let file = std::env::temp_dir().join(format!("opamp-bomb-{}.gz", std::process::id()));
    let mut command = Command::new("bash");
    command.args(["-c", &format!("head -c 1G /dev/zero | gzip -1 > '{}'", file.display())]);
    system::run(command, "").expect("gzip works");
    let bomb = std::fs::read(&file).expect("it is there");
    std::fs::remove_file(&file).expect("it is removed");
    bomb
}

#[tokio::test(flavor = "multi_thread")]
async fn each_faulty_request_gets_its_status_and_memory_stays_bounded() {
    let scenario = Scenario::begin("bad-requests").await;
    let operator = scenario.operator().await;
    scenario.apply(&[fleet("edge").build()]);
    let swarm = agents(5, "edge").with("-heartbeat", "1s").start(&operator.websocket());
    scenario.fleet_counts("edge", &[("connected", 5)], SOON).await;
    let report = full_report(&new_uid(), "edge").encode_to_vec();
    let (large, bomb) = (vec![0; (4 << 20) + 1], bomb());
    let gzip = ("Content-Encoding", "gzip");
    let before = operator.memory();

    for (case, path, headers, body, expected) in [
        ("AMB-22: too large", PATH, &[PROTOBUF][..], &large, 413..=413),
        ("HTTP-09: a bomb", PATH, &[PROTOBUF, gzip], &bomb, 413..=413),
        ("HTTP-08: not gzip", PATH, &[PROTOBUF, gzip], &report, 400..=400),
        ("HTTP-08: unknown coding", PATH, &[PROTOBUF, ("Content-Encoding", "zstd")], &report, 415..=415),
        ("HTTP-07: wrong content type", PATH, &[("Content-Type", "application/json")], &report, 400..=499),
        ("HTTP-07: no content type", PATH, &[], &report, 400..=499),
        ("TRN-02: unknown path", "/v1/other", &[PROTOBUF], &report, 404..=404),
    ] {
        let response = http::post(operator.listen, path, headers, body).await;
        let response = response.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(expected.contains(&response.status), "{case}: {}", response.status);
    }
    for method in ["GET", "PUT", "DELETE"] {
        let request = http::head(method, PATH, &[PROTOBUF, ("Content-Length", "0")]);
        let response = http::exchange(operator.listen, request.as_bytes()).await.expect("an answer");
        assert_eq!(response.status, 405, "HTTP-01: {method}");
    }
    let grown = operator.memory().saturating_sub(before);
    assert!(grown < 64 << 20, "memory grew by {grown} bytes");
    assert_eq!(swarm.summary().await.connections, 5, "nobody else noticed");
    scenario.fleet_counts("edge", &[("matched", 5), ("connected", 5)], SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_message_is_answered_with_an_error_response() {
    let scenario = Scenario::begin("bad-bodies").await;
    let operator = scenario.operator().await;
    scenario.apply(&[fleet("edge").build()]);
    scenario.condition((crate::harness::Kind::Fleet, "edge"), ("Ready", "True", "Completed"), SOON).await;
    let report = full_report(&new_uid(), "edge").encode_to_vec();
    let short_uid = AgentToServer { instance_uid: Bytes::from_static(&[7; 15]), ..AgentToServer::default() };
    for (case, body) in [
        ("ERR-01: cut off", report[..report.len() - 3].to_vec()),
        ("ERR-01: garbage", vec![0xff; 64]),
        ("A2S-02: uid of 15 bytes", short_uid.encode_to_vec()),
        ("AMB-17: no uid", Vec::new()),
    ] {
        let response = http::post(operator.listen, PATH, &[PROTOBUF], &body).await.expect("an answer");
        assert_eq!(response.status, 200, "AMB-21: {case}");
        assert_eq!(response.headers["content-type"], PROTOBUF.1, "HTTP-12: {case}");
        let answer = ServerToAgent::decode(response.body.as_slice()).expect("a ServerToAgent");
        assert_eq!(error_kind(&answer), Some(BAD_REQUEST), "{case}");
    }
    let response = http::post(operator.listen, PATH, &[PROTOBUF], &report).await.expect("an answer");
    let answer = ServerToAgent::decode(response.body.as_slice()).expect("a ServerToAgent");
    assert_eq!(error_kind(&answer), None, "a lawful one is served");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_finish_a_request_is_let_go() {
    let scenario = Scenario::begin("half-requests").await;
    let operator = scenario.operator().await;
    let head = http::head("POST", PATH, &[PROTOBUF, ("Content-Length", "100")]);
    let (half_head, half_body) = (&head[..head.len() - 2], format!("{head}0123456789"));
    let (silent, half_head, half_body) = tokio::join!(
        http::is_closed_after(operator.listen, b"", Duration::from_secs(25)),
        http::is_closed_after(operator.listen, half_head.as_bytes(), Duration::from_secs(25)),
        http::is_closed_after(operator.listen, half_body.as_bytes(), Duration::from_secs(80)),
    );
    assert!(silent, "a silent TCP connection is closed");
    assert!(half_head, "half a head is not waited for");
    assert!(half_body, "half a body is not waited for");
}
