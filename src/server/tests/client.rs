//! A client that writes and reads bytes, and so can be wrong in every way.

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

#[derive(Debug)]
pub struct Client<S>(pub S);

/// A response, as it came.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find_map(|(header, value)| header.eq_ignore_ascii_case(name).then_some(value))
    }

    pub fn retry_after(&self) -> u64 {
        self.header("retry-after").unwrap().parse().unwrap()
    }
}

/// A frame of the server.
#[derive(Debug, Eq, PartialEq)]
pub enum Frame {
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub fn new(stream: S) -> Self {
        Self(stream)
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// A request with a body that is announced as it is.
    pub async fn request(&mut self, line: &str, headers: &[&str], body: &[u8]) -> Response {
        let mut head = format!("{line} HTTP/1.1\r\nHost: opamp.example.com\r\nContent-Length: {}\r\n", body.len());
        for header in headers {
            head += header;
            head += "\r\n";
        }
        self.write((head + "\r\n").as_bytes()).await;
        // A body that is refused is not read to its end.
        let _ = self.0.write_all(body).await;
        self.response().await
    }

    /// A message by plain HTTP.
    pub async fn post(&mut self, headers: &[&str], body: &[u8]) -> Response {
        let headers = [&["Content-Type: application/x-protobuf"], headers].concat();
        self.request("POST /v1/opamp", &headers, body).await
    }

    pub async fn response(&mut self) -> Response {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let mut response = Response { status: head[9..12].parse().unwrap(), head, body: Vec::new() };
        let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
        response.body.resize(length, 0);
        self.0.read_exact(&mut response.body).await.unwrap();
        response
    }

    /// A request to open a WebSocket, whatever the answer.
    pub async fn handshake(&mut self, headers: &[&str]) -> Response {
        let headers = [
            &[
                "Upgrade: websocket",
                "Connection: Upgrade",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            ],
            headers,
        ]
        .concat();
        self.request("GET /v1/opamp", &headers, b"").await
    }

    pub async fn upgrade(&mut self) {
        let response = self.handshake(&[]).await;
        assert_eq!(response.status, 101, "{response:?}");
        assert_eq!(response.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(response.header("sec-websocket-protocol"), None);
    }

    /// A masked frame with this first byte.
    pub async fn frame(&mut self, first: u8, payload: &[u8]) {
        self.write(&frame(first, payload)).await;
    }

    /// A message with its header.
    pub async fn send(&mut self, payload: &[u8]) {
        self.frame(0x82, &[b"\0", payload].concat()).await;
    }

    pub async fn receive(&mut self) -> Frame {
        let [first, length] = [self.0.read_u8().await.unwrap(), self.0.read_u8().await.unwrap()];
        let length = match length {
            127 => usize::try_from(self.0.read_u64().await.unwrap()).unwrap(),
            126 => self.0.read_u16().await.unwrap().into(),
            short => short.into(),
        };
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await.unwrap();
        match first {
            0x82 => Frame::Binary(payload),
            0x88 => Frame::Close(payload.first_chunk().map(|code| u16::from_be_bytes(*code))),
            0x89 => Frame::Ping(payload),
            0x8a => Frame::Pong(payload),
            _ => panic!("frame {first:x} {payload:?}"),
        }
    }

    /// The next message, without its header.
    pub async fn message(&mut self) -> Bytes {
        match self.receive().await {
            Frame::Binary(message) => {
                assert_eq!(message.first(), Some(&0), "WS-02");
                Bytes::from(message).slice(1..)
            }
            other => panic!("{other:?} instead of a message"),
        }
    }

    /// Reads to the end; nothing more may come.
    pub async fn ended(&mut self) {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty(), "{rest:?}");
    }
}

pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x11, 0x22, 0x33, 0x44];
    let mut bytes = match payload.len() {
        short @ 0..=125 => vec![first, 0x80 | u8::try_from(short).unwrap()],
        long => [&[first, 0xff][..], &(long as u64).to_be_bytes()].concat(),
    };
    if let Ok(medium @ 126..) = u16::try_from(payload.len()) {
        bytes = [&[first, 0xfe][..], &medium.to_be_bytes()].concat();
    }
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
    bytes
}
