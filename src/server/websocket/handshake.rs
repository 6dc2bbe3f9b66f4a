//! The opening handshake (RFC 6455 §4.2).

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue, Method, Version, header, request::Parts};
use sha1::{Digest, Sha1};

/// What every client and server append to the key (RFC 6455 §1.3).
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The only version there is.
pub const VERSION: HeaderValue = HeaderValue::from_static("13");

/// Why a request opens no WebSocket.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HandshakeError {
    /// RFC 6455 §4.2.1: a GET request, HTTP/1.1 or later.
    #[error("a WebSocket is opened by a GET request of HTTP/1.1")]
    Method,
    /// RFC 6455 §4.2.1.
    #[error("the headers Upgrade: websocket and Connection: Upgrade are missing")]
    NoUpgrade,
    /// RFC 6455 §4.4; answered with the version that is understood.
    #[error("Sec-WebSocket-Version must be 13")]
    Version,
    /// RFC 6455 §4.2.1: 16 bytes in base64.
    #[error("Sec-WebSocket-Key is missing or is not 16 bytes in base64")]
    Key,
}

/// The value of `Sec-WebSocket-Accept`, if this request opens a WebSocket.
pub fn accept(request: &Parts) -> Result<HeaderValue, HandshakeError> {
    if request.method != Method::GET || request.version != Version::HTTP_11 {
        return Err(HandshakeError::Method);
    }
    if !has_token(&request.headers, &header::UPGRADE, "websocket")
        || !has_token(&request.headers, &header::CONNECTION, "upgrade")
    {
        return Err(HandshakeError::NoUpgrade);
    }
    if request.headers.get(header::SEC_WEBSOCKET_VERSION) != Some(&VERSION) {
        return Err(HandshakeError::Version);
    }
    let key = request.headers.get(header::SEC_WEBSOCKET_KEY).ok_or(HandshakeError::Key)?;
    match STANDARD.decode(key) {
        Ok(nonce) if nonce.len() == 16 => answer(key),
        Ok(_) | Err(_) => Err(HandshakeError::Key),
    }
}

fn answer(key: &HeaderValue) -> Result<HeaderValue, HandshakeError> {
    let digest = Sha1::new().chain_update(key).chain_update(KEY_SUFFIX).finalize();
    HeaderValue::try_from(STANDARD.encode(digest)).map_err(|_| HandshakeError::Key)
}

/// Whether a header that is a list of words, in one line or in several, has this one.
fn has_token(headers: &HeaderMap, name: &header::HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|word| word.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn opening() -> Request<()> {
        Request::get("/v1/opamp")
            .header("Host", "server.example.com")
            .header("Upgrade", "websocket")
            .header("Connection", "keep-alive, Upgrade")
            .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("Sec-WebSocket-Version", "13")
            .body(())
            .unwrap()
    }

    #[test]
    fn the_sample_of_rfc_6455_is_accepted_with_its_answer() {
        let (parts, ()) = opening().into_parts();
        assert_eq!(accept(&parts).unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn a_request_that_opens_no_websocket_is_told_why() {
        for (header, value, expected) in [
            ("Upgrade", None, HandshakeError::NoUpgrade),
            ("Upgrade", Some("h2c"), HandshakeError::NoUpgrade),
            ("Connection", Some("keep-alive"), HandshakeError::NoUpgrade),
            ("Sec-WebSocket-Version", None, HandshakeError::Version),
            ("Sec-WebSocket-Version", Some("8"), HandshakeError::Version),
            ("Sec-WebSocket-Key", None, HandshakeError::Key),
            ("Sec-WebSocket-Key", Some("c2hvcnQ="), HandshakeError::Key),
            ("Sec-WebSocket-Key", Some("not base64, but 24 chars"), HandshakeError::Key),
        ] {
            let (mut parts, ()) = opening().into_parts();
            parts.headers.remove(header);
            if let Some(value) = value {
                parts.headers.insert(header, HeaderValue::from_static(value));
            }
            assert_eq!(accept(&parts), Err(expected), "{header}: {value:?}");
        }
    }

    #[test]
    fn only_get_of_http_1_1_opens_a_websocket() {
        let (mut parts, ()) = opening().into_parts();
        parts.version = Version::HTTP_10;
        assert_eq!(accept(&parts), Err(HandshakeError::Method));
        let (mut parts, ()) = opening().into_parts();
        parts.method = Method::POST;
        assert_eq!(accept(&parts), Err(HandshakeError::Method));
    }
}
