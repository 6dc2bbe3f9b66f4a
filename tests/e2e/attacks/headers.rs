//! Headers that are to be taken for something else.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use opamp_operator::opamp::messages::ServerToAgent;
use prost::Message as _;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{OTHER_TOKEN, TOKEN, World, report, try_both};
use crate::harness::{
    caller::Transport,
    http,
    scripted::{BAD_REQUEST, error_kind, full_report, new_uid},
};

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn headers_prove_nothing_but_one_authorization() {
    let world = World::begin("smuggling").await;
    let (victim, identity) = world.enrolled().await;
    let der = CertificateDer::from_pem_slice(identity.chain.as_bytes()).expect("a certificate");
    let byte_sequence = format!(":{}:", BASE64_STANDARD.encode(&der));
    let caller = || world.caller();
    let (token, other) = (format!("Bearer {TOKEN}"), format!("Bearer {OTHER_TOKEN}"));
    let in_basic = format!("Basic {}", BASE64_STANDARD.encode(format!("edge:{TOKEN}")));
    let unsigned = format!("Bearer {}.{}.", BASE64_STANDARD.encode(r#"{"alg":"none"}"#), BASE64_STANDARD.encode("{}"));
    let authorization = |value: &str| caller().header("Authorization", value);
    for (case, caller, expected) in [
        ("two tokens", authorization(&token).header("Authorization", &other), "401"),
        ("the same token twice", authorization(&token).header("Authorization", &token), "401"),
        ("two tokens in one header", authorization(&format!("{token}, {other}")), "401"),
        ("a token behind a tab", authorization(&format!("Bearer\t{TOKEN}")), "401"),
        ("a token as a password", authorization(&in_basic), "401"),
        ("a token without a scheme", authorization(TOKEN), "401"),
        ("a token with another ending", authorization(&format!("{token}=")), "401"),
        ("a JWT without a signature", authorization(&unsigned), "401"),
        ("a token in another header", caller().header("X-Auth-Token", TOKEN), "401"),
        ("Proxy-Authorization", caller().header("Proxy-Authorization", &token), "401"),
        ("a cookie", caller().header("Cookie", &format!("token={TOKEN}")), "401"),
        ("Client-Cert from no proxy", caller().header("Client-Cert", &byte_sequence), "401"),
        ("X-Forwarded-Client-Cert", caller().header("X-Forwarded-Client-Cert", &byte_sequence), "401"),
        ("X-SSL-Client-Cert", caller().header("X-SSL-Client-Cert", &byte_sequence), "401"),
        ("X-Remote-User", caller().header("X-Remote-User", "system:masters"), "401"),
        ("Client-Cert and another's token", authorization(&other).header("Client-Cert", &byte_sequence), "renamed"),
    ] {
        try_both(case, &caller, &report(&victim), expected).await;
    }
    world.served("after headers").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_let_in_once_vouches_for_no_later_request() {
    let world = World::begin("pipelined").await;
    let body = full_report(&new_uid(), "edge").encode_to_vec();
    let request = |authorization: &str| {
        let length = body.len();
        let head = format!(
            "POST /v1/opamp HTTP/1.1\r\nHost: opamp.test\r\nContent-Type: application/x-protobuf\r\n{authorization}Content-Length: {length}\r\n\r\n"
        );
        [head.as_bytes(), &body].concat()
    };
    let mut stream = world.caller().tls().await.expect("TLS");
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    stream.write_all(&[request(&token), request("")].concat()).await.expect("they are sent");
    let (mut answers, mut part) = (String::new(), [0; 4_096]);
    while !answers.contains("HTTP/1.1 401") {
        let read = timeout(PATIENCE, stream.read(&mut part)).await.expect("an answer").expect("bytes");
        assert!(read > 0, "{answers}");
        answers.push_str(&String::from_utf8_lossy(&part[..read]));
    }
    assert!(answers.starts_with("HTTP/1.1 200"), "{answers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_only_claimed_counts_for_nothing() {
    let world = World::begin("forwarded").await;
    let guesser = world.caller();
    let mut words = Vec::new();
    for number in 0..40 {
        let claimed = format!("198.51.100.{number}");
        let caller = guesser.clone().bearer("a-token-that-is-not-there-at-all");
        let caller = caller.header("X-Forwarded-For", &claimed).header("Forwarded", &format!("for={claimed}"));
        let caller = caller.header("X-Real-IP", &claimed);
        words.push(caller.says(&full_report(&new_uid(), "edge"), Transport::Http).await.word());
    }
    assert!(words.iter().any(|word| word == "429"), "it is slowed down as one: {words:?}");
    assert!(!world.operator.log().contains("198.51.100."), "the log names where it came from");
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_beyond_measure_and_doubtful_lengths_are_refused() {
    let world = World::begin("heads").await;
    let body = full_report(&new_uid(), "edge").encode_to_vec();
    let length = body.len().to_string();
    let large = "a".repeat(32 << 10);
    let many: Vec<_> = (0..200).map(|number| format!("X-Header-{number}")).collect();
    let token = format!("Bearer {TOKEN}");
    let usual = [http::PROTOBUF, ("Authorization", token.as_str())];
    let length = ("Content-Length", length.as_str());
    let with = |more: &[(&str, &str)]| http::head("POST", "/v1/opamp", &[&usual[..], more].concat());
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "x")).chain([length]).collect();
    for (case, head) in [
        ("a header of 32 KiB", with(&[length, ("X-Large", &large)])),
        ("a token of 32 KiB", http::head("POST", "/v1/opamp", &[http::PROTOBUF, ("Authorization", &large), length])),
        ("200 headers", with(&many)),
        ("two lengths", with(&[length, ("Content-Length", "0")])),
        ("a length and chunks", with(&[length, ("Transfer-Encoding", "chunked")])),
        ("a folded header", with(&[length, ("X-Folded", "a\r\n b")])),
        // A bare line feed may end a line (RFC 9112 §2.2): the head ends there, and what follows is no message.
        ("a head that ends early", with(&[length, ("X-Bare", "a\n\nGET / HTTP/1.1\nX: ")])),
        ("a space before the colon", with(&[length, ("Authorization ", "x")])),
        ("a zero byte", with(&[length, ("X-Zero", "a\0b")])),
        (
            "a token in the URL",
            http::head("POST", &format!("/v1/opamp?access_token={TOKEN}"), &[http::PROTOBUF, length]),
        ),
    ] {
        let request = [head.as_bytes(), &body].concat();
        match world.caller().send(&request).await {
            Ok(response) if response.status == 200 => {
                let answer = ServerToAgent::decode(response.body.as_slice()).expect("a ServerToAgent");
                assert_eq!(error_kind(&answer), Some(BAD_REQUEST), "{case}");
            }
            Ok(response) => assert!((400..500).contains(&response.status), "{case}: {}", response.status),
            Err(error) => println!("{case}: cut, {error}"),
        }
    }
    let secret = "a-token-that-nobody-guesses";
    assert!(!world.operator.log().contains(secret), "no header value is in the log");
    world.served("after doubtful heads").await;
}
