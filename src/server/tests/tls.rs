use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rustls::{
    AlertDescription, ClientConfig, Error, HandshakeKind, ProtocolVersion, SignatureScheme, client::ResolvesClientCert,
    crypto::aws_lc_rs, sign::CertifiedKey, version::TLS13,
};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    Harness, Limits, Protection, Proxies,
    authorities::{Authority, Issued, NAME, Trust, versions},
    client::{Client, Frame},
    endpoint, passed, peer,
};
use crate::server::{CertificateHeader, Endpoint, ServerCertificate, Tls, metrics::TlsOutcome};

type Connected = Client<TlsStream<DuplexStream>>;

/// A listener with TLS.
struct Secured {
    harness: Harness,
    /// Signs the server's certificate and those of clients.
    authority: Authority,
    shown: Arc<ServerCertificate>,
    trust: Arc<Trust>,
}

impl Secured {
    fn new() -> Self {
        Self::behind(Proxies::default())
    }

    fn behind(proxies: Proxies) -> Self {
        let authority = Authority::new("first");
        let (shown, trust) = (Arc::<ServerCertificate>::default(), Trust::in_certificates_of(&authority));
        authority.for_server().show(&shown);
        let tls = Tls::new(Arc::clone(&shown), Some(Arc::clone(&trust) as _)).unwrap();
        let endpoint = Endpoint { tls: Some(tls), proxies, ..endpoint() };
        Self { harness: Harness::at(endpoint, Limits::default()), authority, shown, trust }
    }

    /// A client whose handshake is done, as far as it knows.
    async fn connect(&self, config: &Arc<ClientConfig>) -> io::Result<Connected> {
        let stream = self.harness.connect(peer().address).await;
        let name = ServerName::try_from(NAME).unwrap();
        TlsConnector::from(Arc::clone(config)).connect(name, stream).await.map(Client::new)
    }

    /// A client with this certificate.
    async fn client(&self, own: Option<&Issued>) -> Connected {
        self.connect(&Arc::new(self.authority.client(&TLS13, own))).await.unwrap()
    }

    /// The alert that whoever has this certificate gets. In TLS 1.3 it comes when the client thinks itself connected.
    async fn alert(&self, config: ClientConfig) -> AlertDescription {
        let error = match self.connect(&Arc::new(config)).await {
            Ok(mut client) => client.0.read_u8().await.unwrap_err(),
            Err(error) => error,
        };
        match error.get_ref().and_then(|error| error.downcast_ref()) {
            Some(Error::AlertReceived(alert)) => *alert,
            _ => panic!("{error:?}"),
        }
    }

    fn count(&self, outcome: TlsOutcome) -> u64 {
        self.harness.shared.metrics.tls_ended(outcome)
    }
}

async fn echo(client: &mut Connected) {
    client.send(b"report").await;
    assert_eq!(client.message().await, "re: report");
}

#[tokio::test(start_paused = true)]
async fn tls_1_2_and_1_3_carry_both_transports() {
    // CONN-01
    let secured = Secured::new();
    for (version, expected) in versions().into_iter().zip([ProtocolVersion::TLSv1_2, ProtocolVersion::TLSv1_3]) {
        let config = Arc::new(secured.authority.client(version, None));
        let mut socket = secured.connect(&config).await.unwrap();
        let (_, session) = socket.0.get_ref();
        assert_eq!((session.protocol_version(), session.alpn_protocol()), (Some(expected), Some(&b"http/1.1"[..])));
        socket.upgrade().await;
        echo(&mut socket).await;
        let mut poll = secured.connect(&config).await.unwrap();
        for _ in 0..2 {
            assert_eq!(poll.post(&[], b"report").await.body, b"re: report");
        }
        for (peer, _) in secured.harness.asked() {
            assert_eq!((peer.protection, peer.certificates.is_none()), (Protection::Tls, true));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn large_messages_pass_and_who_does_not_read_is_cut_off() {
    let secured = Secured::new();
    let mut client = secured.client(None).await;
    client.upgrade().await;
    let tail = bytes::Bytes::from(vec![7; 1 << 20]);
    *secured.harness.agents.tail.lock().unwrap() = Some(tail.clone());
    client.send(b"report").await;
    assert_eq!(client.message().await, [b"re: report", &tail[..]].concat());
    let start = Instant::now();
    client.send(b"report").await;
    secured.harness.emptied_in_time().await;
    assert_eq!(passed(start).as_secs(), 10, "the time limit is for progress");
}

#[tokio::test(start_paused = true)]
async fn tls_1_1_is_told_that_it_is_too_old() {
    let secured = Secured::new();
    let hello = [&[3, 2][..], &[7; 32], &[0, 0, 4, 0xc0, 0x13, 0, 0x2f, 1, 0]].concat();
    let length = u8::try_from(hello.len()).unwrap();
    let record = [&[22, 3, 1, 0, length + 4, 1, 0, 0, length][..], &hello].concat();
    let mut stream = secured.harness.connect(peer().address).await;
    stream.write_all(&record).await.unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!((answer[0], answer[5]), (21, 2), "a fatal alert: {answer:?}");
    assert_eq!(secured.count(TlsOutcome::Incompatible), 1);
}

#[tokio::test(start_paused = true)]
async fn plain_http_is_told_to_use_tls_and_garbage_is_told_nothing() {
    let secured = Secured::new();
    let start = Instant::now();
    let mut plain = secured.harness.dial().await;
    let response = plain.post(&["Authorization: Bearer secret"], b"report").await;
    assert_eq!((response.status, response.header("connection")), (400, Some("close")));
    assert_eq!(response.body, b"this port speaks TLS: use https://\n");
    for garbage in [&b"\0"[..], b"\x80\x2e\x01\x03\x01", b"\x17\x03\x03\0\x01x", b"\xff\xff\xff\xff", b"get / HTTP/1.1"]
    {
        let mut client = secured.harness.dial().await;
        client.write(garbage).await;
        client.ended().await;
    }
    drop(secured.harness.dial().await);
    drop(plain);
    secured.harness.emptied().await;
    assert_eq!(passed(start), Duration::ZERO);
    for (outcome, expected) in [(TlsOutcome::PlainHttp, 1), (TlsOutcome::Malformed, 5), (TlsOutcome::Lost, 1)] {
        assert_eq!(secured.count(outcome), expected, "{outcome:?}");
    }
    assert!(secured.harness.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_breaks_the_rules_of_tls_gets_an_alert() {
    let secured = Secured::new();
    for record in [&[22, 3, 1, 0, 5, 2, 0, 0, 1, 0][..], &[22, 3, 1, 0xff, 0xff, 1]] {
        let mut stream = secured.harness.connect(peer().address).await;
        stream.write_all(record).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), 21);
    }
    assert_eq!(secured.count(TlsOutcome::Malformed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_hello_without_an_end_is_not_kept() {
    let secured = Secured::new();
    let start = Instant::now();
    let mut stream = secured.harness.connect(peer().address).await;
    // A message of 60,000 bytes, in records of 1,000.
    let record = [&[22, 3, 1, 3, 0xe8][..], &[0; 1_000]].concat();
    let mut first = record.clone();
    first[5..9].copy_from_slice(&[1, 0, 0xea, 0x60]);
    stream.write_all(&[first, record.repeat(40)].concat()).await.unwrap();
    assert_eq!(stream.read(&mut [0; 10]).await.unwrap(), 0);
    drop(stream);
    secured.harness.emptied().await;
    assert_eq!((secured.count(TlsOutcome::Malformed), passed(start)), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_takes_too_long_is_ended() {
    let secured = Secured::new();
    let start = Instant::now();
    let mut silent = secured.harness.connect(peer().address).await;
    let mut slow = secured.harness.connect(peer().address).await;
    slow.write_all(&[22, 3, 1, 2, 0]).await.unwrap();
    for _ in 0..9 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        slow.write_all(&[1]).await.unwrap();
    }
    assert_eq!(secured.harness.shared.metrics.tls_handshakes_open.get(), 2);
    for stream in [&mut silent, &mut slow] {
        assert_eq!(stream.read(&mut [0; 10]).await.unwrap(), 0);
    }
    assert_eq!(passed(start), Duration::from_secs(10));
    secured.harness.emptied().await;
    assert_eq!(
        (secured.count(TlsOutcome::TooSlow), secured.harness.shared.admission.available()),
        (2, (15_000, 2_000))
    );
}

#[tokio::test(start_paused = true)]
async fn a_certificate_reaches_whoever_admits() {
    let secured = Secured::new();
    let own = secured.authority.for_client(7);
    for version in versions() {
        let config = Arc::new(secured.authority.client(version, Some(&own)));
        assert_eq!(secured.connect(&config).await.unwrap().post(&[], b"report").await.status, 200);
        let [(peer, _)] = &secured.harness.asked()[..] else { panic!("asked once") };
        assert_eq!(peer.certificates.as_deref(), Some(&[own.certificate.der().clone()][..]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_does_not_count_gets_the_alert_that_says_why() {
    // AMB-43
    let secured = Secured::new();
    let (foreign, revoked) = (Authority::new("first"), secured.authority.for_client(7));
    secured.trust.revoked.lock().unwrap().push(7);
    for version in versions() {
        for (case, own, expected) in [
            ("a foreign authority of the same name", foreign.for_client(1), AlertDescription::UnknownCA),
            ("expired", secured.authority.expired(), AlertDescription::CertificateExpired),
            ("a server's", secured.authority.for_server(), AlertDescription::UnsupportedCertificate),
        ] {
            assert_eq!(secured.alert(secured.authority.client(version, Some(&own))).await, expected, "{case}");
        }
        let config = secured.authority.client(version, Some(&revoked));
        assert_eq!(secured.alert(config).await, AlertDescription::CertificateRevoked);
    }
    assert_eq!(secured.count(TlsOutcome::CertificateRefused), 8);
    let remotes = secured.trust.remotes.lock().unwrap();
    assert_eq!(*remotes, [peer().address].into(), "whoever judges knows where it comes from");
    assert!(secured.harness.asked().is_empty());
}

/// Shows a certificate without having its key.
#[derive(Debug)]
struct Thief(Arc<CertifiedKey>);

impl ResolvesClientCert for Thief {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_without_its_key_is_worth_nothing() {
    let secured = Secured::new();
    let (stolen, own) = (secured.authority.for_client(7), secured.authority.for_client(8));
    let key = aws_lc_rs::default_provider().key_provider.load_private_key(own.private_key()).unwrap();
    let certificate = Arc::new(CertifiedKey::new(vec![stolen.certificate.der().clone()], key));
    for version in versions() {
        let mut config = secured.authority.client(version, None);
        config.client_auth_cert_resolver = Arc::new(Thief(Arc::clone(&certificate)));
        assert_eq!(secured.alert(config).await, AlertDescription::DecryptError);
    }
    assert!(secured.harness.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_certificate_of_a_resumed_session_is_looked_at_anew() {
    let secured = Secured::new();
    let own = secured.authority.for_client(7);
    for (rounds, version) in (1..).zip(versions()) {
        let config = Arc::new(secured.authority.client(version, Some(&own)));
        for expected in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
            let mut client = secured.connect(&config).await.unwrap();
            client.upgrade().await;
            echo(&mut client).await;
            assert_eq!(client.0.get_ref().1.handshake_kind(), Some(expected));
            let [(peer, _)] = &secured.harness.asked()[..] else { panic!("asked once") };
            assert_eq!(peer.certificates.as_deref(), Some(&[own.certificate.der().clone()][..]), "{expected:?}");
        }
        assert_eq!(secured.trust.asked.load(Ordering::Relaxed), rounds, "the handshake itself asked once");
    }
    assert_eq!((secured.count(TlsOutcome::Full), secured.count(TlsOutcome::Resumed)), (2, 4));
}

#[tokio::test(start_paused = true)]
async fn certificate_and_authorities_are_replaced_under_an_open_websocket() {
    let secured = Secured::new();
    let own = secured.authority.for_client(7);
    let mut open = secured.client(Some(&own)).await;
    open.upgrade().await;
    echo(&mut open).await;
    let next = Authority::new("next");
    next.for_server().show(&secured.shown);
    secured.trust.move_to(&next);
    let before = secured.authority.client(&TLS13, None);
    let error = secured.connect(&Arc::new(before)).await.unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "the former server is no more: {error}");
    let config = Arc::new(next.client(&TLS13, Some(&next.for_client(8))));
    let mut client = secured.connect(&config).await.unwrap();
    client.upgrade().await;
    echo(&mut client).await;
    assert_eq!(secured.alert(next.client(&TLS13, Some(&own))).await, AlertDescription::UnknownCA);
    echo(&mut open).await;
    open.frame(0x88, &1000_u16.to_be_bytes()).await;
    assert_eq!(open.receive().await, Frame::Close(Some(1000)));
}

#[tokio::test(start_paused = true)]
async fn clients_are_told_the_names_of_the_authorities_that_count_now() {
    /// Keeps what it is told.
    #[derive(Debug, Default)]
    struct Listening(std::sync::Mutex<Vec<Vec<u8>>>);

    impl ResolvesClientCert for Listening {
        fn resolve(&self, names: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            *self.0.lock().unwrap() = names.iter().map(|name| name.to_vec()).collect();
            None
        }

        fn has_certs(&self) -> bool {
            true
        }
    }
    let secured = Secured::new();
    for name in ["first", "second"] {
        secured.trust.move_to(&Authority::new(name));
        let heard = Arc::new(Listening::default());
        let mut config = secured.authority.client(&TLS13, None);
        config.client_auth_cert_resolver = Arc::clone(&heard) as _;
        assert_eq!(secured.connect(&Arc::new(config)).await.unwrap().post(&[], b"report").await.status, 200);
        let names = heard.0.lock().unwrap();
        assert_eq!(names.len(), 1);
        assert!(names[0].ends_with(name.as_bytes()), "{names:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_anybody_to_judge_them_clients_are_not_asked_for_certificates() {
    let secured = Secured::new();
    let tls = Tls::new(Arc::clone(&secured.shown), None).unwrap();
    let harness = Harness::at(Endpoint { tls: Some(tls), ..endpoint() }, Limits::default());
    let secured = Secured { harness, ..secured };
    let own = secured.authority.for_client(7);
    assert_eq!(secured.client(Some(&own)).await.post(&[], b"report").await.status, 200);
    assert!(secured.harness.asked()[0].0.certificates.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_own_certificate_of_a_proxy_that_tells_others_says_nothing() {
    let trusted = vec![peer().address.ip().to_string().parse().unwrap()];
    let believed = CertificateHeader::Believed;
    let secured = Secured::behind(Proxies { trusted, certificate_header: believed, ..Proxies::default() });
    let own = secured.authority.for_client(7);
    assert_eq!(secured.client(Some(&own)).await.post(&[], b"report").await.status, 200);
    assert!(secured.harness.asked()[0].0.certificates.is_none());
}
