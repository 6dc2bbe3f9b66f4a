//! Agents that say exactly what a test has them say, lies included.

use std::{io, net::SocketAddr, pin::Pin, time::Duration};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use opamp_operator::opamp::messages::{
    AgentDescription, AgentToServer, AnyValue, ComponentHealth, KeyValue, ServerToAgent, any_value::Value,
};
use prost::Message as _;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        self, Message,
        client::IntoClientRequest as _,
        http::{HeaderName, HeaderValue, StatusCode},
        protocol::frame::coding::CloseCode,
    },
};
use uuid::Uuid;

/// Status, remote configuration (accepted and reported), health, heartbeat.
pub const USUAL_CAPABILITIES: u64 = 0x1 | 0x2 | 0x800 | 0x1000 | 0x2000;
/// `ServerErrorResponseType`.
pub const BAD_REQUEST: i32 = 1;
/// `ServerErrorResponseType`.
pub const UNAVAILABLE: i32 = 2;
/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a WebSocket goes over: plain text or TLS.
pub trait Wire: AsyncRead + AsyncWrite + Send {}
impl<Stream: AsyncRead + AsyncWrite + Send> Wire for Stream {}

/// An open WebSocket.
pub struct Socket(WebSocketStream<Pin<Box<dyn Wire>>>);

/// Why there is no WebSocket.
#[derive(Debug)]
pub enum Refused {
    /// An HTTP answer instead of the upgrade.
    Answered {
        /// Its status.
        status: StatusCode,
        /// Whether it says when to come back.
        retry_after: bool,
    },
    /// The connection failed.
    Broken(String),
}

/// What comes over a WebSocket.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(Box<ServerToAgent>),
    /// The server closed, with this code.
    Closed(Option<CloseCode>),
    /// The connection broke.
    Broken(String),
}

impl Socket {
    /// Opens a WebSocket.
    pub async fn connect(address: SocketAddr) -> Result<Self, Refused> {
        let stream = TcpStream::connect(address).await.map_err(|error| Refused::Broken(error.to_string()))?;
        Self::open(Box::pin(stream), address, &[]).await
    }

    /// Opens a WebSocket over what is connected already, with these headers as well.
    pub async fn open(
        wire: Pin<Box<dyn Wire>>,
        address: SocketAddr,
        headers: &[(String, String)],
    ) -> Result<Self, Refused> {
        let mut request = format!("ws://{address}/v1/opamp").into_client_request().expect("it is a URL");
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("the name of a header");
            request.headers_mut().append(name, HeaderValue::from_str(value).expect("the value of a header"));
        }
        match client_async(request, wire).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(tungstenite::Error::Http(response)) => Err(Refused::Answered {
                status: response.status(),
                retry_after: response.headers().contains_key("retry-after"),
            }),
            Err(error) => Err(Refused::Broken(error.to_string())),
        }
    }

    /// Sends a message in its frame.
    pub async fn send(&mut self, message: &AgentToServer) -> io::Result<()> {
        self.send_frame(Message::Binary(frame(message))).await
    }

    /// Sends any frame.
    pub async fn send_frame(&mut self, frame: Message) -> io::Result<()> {
        self.0.send(frame).await.map_err(|error| io::Error::other(error.to_string()))
    }

    /// The next message, or the end. Pings are answered on the way.
    pub async fn receive(&mut self) -> Received {
        match timeout(PATIENCE, self.next()).await {
            Ok(received) => received,
            Err(_) => Received::Broken(format!("nothing came in {PATIENCE:?}")),
        }
    }

    /// Whether nothing comes for a while, and the connection stays open.
    pub async fn stays_silent_for(&mut self, time: Duration) -> bool {
        timeout(time, self.next()).await.is_err()
    }

    /// Sends a message and returns the answer to it.
    pub async fn exchange(&mut self, message: &AgentToServer) -> ServerToAgent {
        self.send(message).await.expect("the server takes the message");
        self.answer().await
    }

    /// The next message, which must come.
    pub async fn answer(&mut self) -> ServerToAgent {
        match self.receive().await {
            Received::Message(message) => *message,
            other => panic!("no answer: {other:?}"),
        }
    }

    async fn next(&mut self) -> Received {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Binary(bytes))) => {
                    assert_eq!(bytes.first(), Some(&0), "the header of a message is one zero byte (WS-02)");
                    let message = ServerToAgent::decode(bytes.slice(1..)).expect("the server sends protobuf");
                    return Received::Message(Box::new(message));
                }
                Some(Ok(Message::Close(frame))) => return Received::Closed(frame.map(|frame| frame.code)),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Received::Broken(error.to_string()),
                None => return Received::Closed(None),
            }
        }
    }
}

/// A message as it stands in a WebSocket frame.
pub fn frame(message: &AgentToServer) -> Bytes {
    let mut bytes = vec![0];
    message.encode(&mut bytes).expect("a vector has room");
    bytes.into()
}

/// A uid of its own.
pub fn new_uid() -> Bytes {
    Bytes::copy_from_slice(Uuid::now_v7().as_bytes())
}

/// The text form of a uid, which is the name of its Agent.
pub fn uid_text(uid: &[u8]) -> String {
    Uuid::from_slice(uid).expect("a uid has 16 bytes").to_string()
}

/// A first report: everything that an agent of this `service.name` has to say.
pub fn full_report(uid: &Bytes, service: &str) -> AgentToServer {
    AgentToServer {
        instance_uid: uid.clone(),
        sequence_num: 1,
        agent_description: Some(AgentDescription {
            identifying_attributes: vec![attribute("service.name", service)],
            non_identifying_attributes: vec![attribute("os.type", "linux")],
        }),
        capabilities: USUAL_CAPABILITIES,
        health: Some(ComponentHealth { healthy: true, start_time_unix_nano: 1, ..ComponentHealth::default() }),
        ..AgentToServer::default()
    }
}

/// A heartbeat with this number.
pub fn heartbeat(uid: &Bytes, sequence_num: u64) -> AgentToServer {
    AgentToServer {
        instance_uid: uid.clone(),
        sequence_num,
        capabilities: USUAL_CAPABILITIES,
        ..AgentToServer::default()
    }
}

/// An attribute.
pub fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(Value::StringValue(value.to_owned())) }) }
}

/// The kind of error that a message tells of; `None` if it tells of none.
pub fn error_kind(message: &ServerToAgent) -> Option<i32> {
    message.error_response.as_ref().map(|error| error.r#type)
}
