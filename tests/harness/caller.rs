//! Somebody who calls the operator over TLS, with whatever he has, by right or not.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use opamp_operator::opamp::messages::{AgentToServer, ServerToAgent};
use prost::Message as _;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    forge::Identity,
    http::{self, PROTOBUF, Response},
    scripted::{Refused, Socket, error_kind},
};

const PATH: &str = "/v1/opamp";

/// By which transport somebody calls.
#[derive(Clone, Copy, Debug)]
pub enum Transport {
    /// A WebSocket.
    WebSocket,
    /// A POST.
    Http,
}

/// Both.
pub const BOTH: [Transport; 2] = [Transport::WebSocket, Transport::Http];

/// What becomes of a message.
#[derive(Debug)]
pub enum Outcome {
    /// The connection ended without an answer, with this error.
    Cut(String),
    /// An HTTP answer other than what was asked for.
    Status(u16),
    /// The server's message.
    Answered(Box<ServerToAgent>),
}

impl Outcome {
    /// In one or two words: `cut`, a status, `served`, `renamed`, or the kind of an error response.
    pub fn word(&self) -> String {
        match self {
            Self::Cut(_) => "cut".to_owned(),
            Self::Status(status) => status.to_string(),
            Self::Answered(answer) => match (error_kind(answer), &answer.agent_identification) {
                (Some(kind), _) => format!("error {kind}"),
                (None, Some(_)) => "renamed".to_owned(),
                (None, None) => "served".to_owned(),
            },
        }
    }
}

/// Somebody who calls, each from an address of his own: whoever fails often is slowed down by his address.
#[derive(Clone)]
pub struct Caller {
    source: IpAddr,
    address: SocketAddr,
    roots: Arc<RootCertStore>,
    connector: TlsConnector,
    headers: Vec<(String, String)>,
}

impl Caller {
    /// Somebody without any credential, who knows the server by the CA in this file.
    pub fn new(address: SocketAddr, ca: &Path) -> Self {
        let mut roots = RootCertStore::empty();
        let pem = fs::read(ca).expect("the CA's file");
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            roots.add(certificate.expect("a certificate")).expect("a CA");
        }
        let roots = Arc::new(roots);
        let connector = connector(&roots, None);
        Self { source: own_address(), address, roots, connector, headers: Vec::new() }
    }

    /// The same with this certificate, which need not be his.
    pub fn presenting(mut self, identity: &Identity) -> Self {
        self.connector = connector(&self.roots, Some(identity));
        self
    }

    /// The same from the address of another.
    pub fn beside(mut self, other: &Self) -> Self {
        self.source = other.source;
        self
    }

    /// The same with one more header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with this token.
    pub fn bearer(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    /// Opens a connection without TLS.
    pub async fn tcp(&self) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.source, 0).into())?;
        socket.connect(self.address).await
    }

    /// Opens a connection of TLS. With TLS 1.3 a refused certificate shows only when something is read.
    pub async fn tls(&self) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(ServerName::from(self.address.ip()), self.tcp().await?).await
    }

    /// Opens a WebSocket.
    pub async fn websocket(&self) -> Result<Socket, Refused> {
        let stream = self.tls().await.map_err(|error| Refused::Broken(error.to_string()))?;
        Socket::open(Box::pin(stream), self.address, &self.headers).await
    }

    /// Sends these bytes and reads an HTTP answer.
    pub async fn send(&self, request: &[u8]) -> io::Result<Response> {
        http::exchange_over(self.tls().await?, request).await
    }

    /// Posts these bytes.
    pub async fn post(&self, body: &[u8]) -> io::Result<Response> {
        let length = body.len().to_string();
        let mut headers = vec![PROTOBUF, ("Content-Length", length.as_str())];
        headers.extend(self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        self.send(&[http::head("POST", PATH, &headers).as_bytes(), body].concat()).await
    }

    /// Says one thing on a connection of its own.
    pub async fn says(&self, message: &AgentToServer, transport: Transport) -> Outcome {
        match transport {
            Transport::WebSocket => match self.websocket().await {
                Ok(mut socket) => Outcome::Answered(Box::new(socket.exchange(message).await)),
                Err(Refused::Answered { status, .. }) => Outcome::Status(status.as_u16()),
                Err(Refused::Broken(error)) => Outcome::Cut(error),
            },
            Transport::Http => match self.post(&message.encode_to_vec()).await {
                Ok(response) if response.status == 200 => {
                    let answer = ServerToAgent::decode(response.body.as_slice()).expect("a ServerToAgent");
                    Outcome::Answered(Box::new(answer))
                }
                Ok(response) => Outcome::Status(response.status),
                Err(error) => Outcome::Cut(error.to_string()),
            },
        }
    }
}

/// The next of the many loopback addresses.
fn own_address() -> IpAddr {
    static LAST: AtomicU16 = AtomicU16::new(0);
    let [high, low] = LAST.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low.max(1)).into()
}

/// It keeps sessions of TLS and resumes them, as clients do.
fn connector(roots: &Arc<RootCertStore>, identity: Option<&Identity>) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.expect("the provider has the versions").with_root_certificates(Arc::clone(roots));
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(identity.chain.as_bytes()).map(|it| it.expect("a certificate"));
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
            builder.with_client_auth_cert(chain.collect(), key).expect("a certificate and its key")
        }
    };
    TlsConnector::from(Arc::new(config))
}
