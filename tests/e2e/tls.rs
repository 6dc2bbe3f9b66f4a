//! The listener with TLS: its certificate comes from a Secret, and is replaced under what is connected.

use std::{io, sync::Arc, time::Duration};

use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::harness::{Operator, Scenario, wait_for};

const SOON: Duration = Duration::from_secs(10);
const NAME: &str = "opamp.example.com";

/// A certificate of a server that vouches for itself.
struct Issued {
    certificate: CertificateDer<'static>,
    pem: String,
    key: String,
}

impl Issued {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([NAME.to_owned()]).unwrap().self_signed(&key).unwrap();
        Self { certificate: certificate.der().clone(), pem: certificate.pem(), key: key.serialize_pem() }
    }
}

fn apply(scenario: &Scenario, certificate: &str, key: &str) {
    scenario.apply(&[json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "listener"}, "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": certificate, "tls.key": key},
    })]);
}

/// Connects, if the operator shows this certificate.
async fn connect(operator: &Operator, shown: &Issued) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(shown.certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(operator.listen).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(NAME).unwrap(), stream).await
}

async fn is_answered(stream: &mut TlsStream<TcpStream>) {
    stream.write_all(b"GET /v1/opamp HTTP/1.1\r\nHost: opamp.example.com\r\n\r\n").await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 400", "it asked for nothing that is served");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_of_the_listener_is_that_of_its_secret() {
    let scenario = Scenario::begin("tls").await;
    let secret = format!("{}/listener", scenario.namespace);
    let log = scenario.folder.join("replica-0.log");
    let [first, second] = [Issued::new(), Issued::new()];
    let flags = ["--tls-secret", &secret];
    let (operator, ()) = tokio::join!(scenario.tls_replica("replica-0", &flags), async {
        wait_for("the certificate is missed", SOON, async || {
            let told = std::fs::read_to_string(&log).unwrap_or_default();
            if told.contains("the certificate of the listener is not there yet") { Ok(()) } else { Err(told) }
        })
        .await;
        apply(&scenario, &first.pem, &first.key);
    });
    let mut open = connect(&operator, &first).await.unwrap();
    assert!(operator.metric("opamp_operator_listener_tls").await > 0.0);

    apply(&scenario, &second.pem, &second.key);
    wait_for("the new certificate is shown", SOON, async || {
        connect(&operator, &second).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    is_answered(&mut open).await;

    apply(&scenario, &second.pem, &first.key);
    wait_for("the mismatch is counted", SOON, async || {
        let failures = operator.metric("opamp_operator_server_certificate_failures_total").await;
        if failures > 0.0 { Ok(()) } else { Err(failures.to_string()) }
    })
    .await;
    is_answered(&mut connect(&operator, &second).await.unwrap()).await;
    let told = operator.log();
    let line =
        told.lines().find(|line| line.contains("the private key does not belong")).expect("it says what is wrong");
    assert!(line.contains(&secret), "and where: {line}");
    for key in [&first.key, &second.key] {
        assert!(!told.contains(key.lines().nth(1).unwrap()), "no key is in the log");
    }
}
