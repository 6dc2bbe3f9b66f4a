//! HTTP/1.1 by hand: what tests send need not be lawful.

use std::{collections::BTreeMap, io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// The content type of OpAMP over HTTP.
pub const PROTOBUF: (&str, &str) = ("Content-Type", "application/x-protobuf");
/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a server answered.
#[derive(Debug)]
pub struct Response {
    /// Its status code.
    pub status: u16,
    /// Its headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: Vec<u8>,
}

/// GETs a path.
pub async fn get(address: SocketAddr, path: &str) -> io::Result<Response> {
    exchange(address, head("GET", path, &[]).as_bytes()).await
}

/// POSTs a body with these headers, and its true length.
pub async fn post(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<Response> {
    let length = body.len().to_string();
    let headers = [headers, &[("Content-Length", length.as_str())]].concat();
    exchange(address, &[head("POST", path, &headers).as_bytes(), body].concat()).await
}

/// The first lines of a request, up to the empty one.
pub fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: opamp.test\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    head + "\r\n"
}

/// Sends these bytes and reads one answer. A server may answer, and close, before it has read everything.
pub async fn exchange(address: SocketAddr, request: &[u8]) -> io::Result<Response> {
    exchange_over(TcpStream::connect(address).await?, request).await
}

/// The same over what is connected already.
pub async fn exchange_over(wire: impl AsyncRead + AsyncWrite, request: &[u8]) -> io::Result<Response> {
    let (mut reader, mut writer) = tokio::io::split(wire);
    let mut answer = Vec::new();
    let write = async {
        let _ = writer.write_all(request).await; // refused halfway: the answer says why
        std::future::pending::<()>().await;
    };
    let read = timeout(PATIENCE, reader.read_to_end(&mut answer));
    let outcome = tokio::select! {
        () = write => Ok(Ok(0)),
        outcome = read => outcome,
    };
    match (outcome, parse(&answer)) {
        (_, Some(response)) => Ok(response),
        (Ok(Ok(_)), None) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed without an answer")),
        (Ok(Err(error)), None) => Err(error),
        (Err(_), None) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {PATIENCE:?}"))),
    }
}

/// Whether the server closes a connection on which it is sent only this, within a time.
pub async fn is_closed_after(address: SocketAddr, bytes: &[u8], limit: Duration) -> bool {
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    stream.write_all(bytes).await.expect("it takes the bytes");
    let mut answer = Vec::new();
    timeout(limit, stream.read_to_end(&mut answer)).await.is_ok()
}

/// An answer that was read to its end; `None` if it is not complete.
pub fn parse(answer: &[u8]) -> Option<Response> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let text = std::str::from_utf8(&answer[..end]).ok()?;
    let mut lines = text.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let body = answer[end + 4..].to_vec();
    let complete = headers.get("content-length").is_none_or(|length| length.parse() == Ok(body.len()));
    complete.then_some(Response { status, headers, body })
}
