//! Compression of bodies (HTTP-08, HTTP-09, HTTP-11).

use std::io::{self, Write};

use bytes::Bytes;
use flate2::{
    Compression,
    write::{GzEncoder, MultiGzDecoder},
};
use http::{HeaderMap, header};
use tokio::task::yield_now;

use super::super::room::{StoreError, Stored};

/// Bytes that are decoded or encoded before other tasks have their turn: at most a few milliseconds' work, whatever a
/// peer has made of them.
const SLICE: usize = 32 << 10;

/// How the body of a request is encoded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Coding {
    /// As it is.
    Identity,
    /// RFC 1952.
    Gzip,
}

/// Why a body cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum CodingError {
    /// RFC 9110 §8.4 knows others, this server does not.
    #[error("Content-Encoding must be gzip or identity")]
    Unknown,
    /// It says gzip and is not.
    #[error("the body is not valid gzip")]
    Corrupt(#[source] io::Error),
    /// There is no room for what it becomes.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What `Content-Encoding` says.
pub fn of_request(headers: &HeaderMap) -> Result<Coding, CodingError> {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    let (first, second) = (codings.next(), codings.next());
    if second.is_some() {
        return Err(CodingError::Unknown);
    }
    match first.map(|value| value.as_bytes().trim_ascii()) {
        None | Some(b"") => Ok(Coding::Identity),
        Some(name) if name.eq_ignore_ascii_case(b"identity") => Ok(Coding::Identity),
        Some(name) if name.eq_ignore_ascii_case(b"gzip") || name.eq_ignore_ascii_case(b"x-gzip") => Ok(Coding::Gzip),
        Some(_) => Err(CodingError::Unknown),
    }
}

/// What the response may be, by `Accept-Encoding`. Identity is what a client gets that says nothing.
#[must_use]
pub fn of_response(headers: &HeaderMap) -> Coding {
    let mut wildcard = Coding::Identity;
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    for entry in values.flat_map(|value| value.split(',')) {
        let (name, parameters) = entry.split_once(';').unwrap_or((entry, ""));
        let coding = if is_refused(parameters) { Coding::Identity } else { Coding::Gzip };
        match name.trim() {
            "*" => wildcard = coding,
            name if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => return coding,
            _ => {}
        }
    }
    wildcard
}

/// Whether the weight is zero (RFC 9110 §12.4.2).
fn is_refused(parameters: &str) -> bool {
    parameters
        .split(';')
        .filter_map(|parameter| parameter.split_once('='))
        .filter(|(name, _)| name.trim().eq_ignore_ascii_case("q"))
        .any(|(_, weight)| weight.trim().trim_start_matches(['0', '.']).is_empty())
}

/// The body as it was before compression, put into `stored`. Stops at its limit, whatever is still to come.
pub async fn inflate(body: &[u8], stored: Stored) -> Result<Bytes, CodingError> {
    let mut decoder = MultiGzDecoder::new(stored);
    for (index, slice) in body.chunks(SLICE).enumerate() {
        if index > 0 {
            yield_now().await;
        }
        decoder.write_all(slice).map_err(failure)?;
    }
    decoder.finish().map(Bytes::from).map_err(failure)
}

fn failure(error: io::Error) -> CodingError {
    error.downcast::<StoreError>().map_or_else(CodingError::Corrupt, CodingError::Store)
}

/// The parts of a body, one after the other, compressed into `stored`. Fast, because each reply is compressed anew.
pub async fn deflate(parts: [&[u8]; 2], stored: Stored) -> io::Result<Bytes> {
    let mut encoder = GzEncoder::new(stored, Compression::fast());
    for (index, slice) in parts.into_iter().flat_map(|part| part.chunks(SLICE)).enumerate() {
        if index > 1 {
            yield_now().await;
        }
        encoder.write_all(slice)?;
    }
    encoder.finish().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::HeaderValue;
    use tokio::sync::Semaphore;

    use super::*;

    async fn inflated(body: &[u8], limit: usize) -> Result<Bytes, CodingError> {
        inflate(body, Stored::new(&Arc::new(Semaphore::new(4 << 20)), limit)).await
    }

    async fn deflated(body: &[u8]) -> Bytes {
        deflate([body, &[]], Stored::new(&Arc::new(Semaphore::new(4 << 20)), usize::MAX)).await.unwrap()
    }

    fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn content_encoding_is_gzip_identity_or_refused() {
        assert_eq!(of_request(&HeaderMap::new()).unwrap(), Coding::Identity);
        for (value, expected) in [
            ("gzip", Some(Coding::Gzip)),
            ("GZIP", Some(Coding::Gzip)),
            ("x-gzip", Some(Coding::Gzip)),
            ("identity", Some(Coding::Identity)),
            ("", Some(Coding::Identity)),
            ("zstd", None),
            ("gzip, gzip", None),
        ] {
            assert_eq!(of_request(&headers(header::CONTENT_ENCODING, value)).ok(), expected, "{value:?}");
        }
    }

    #[test]
    fn a_response_is_gzip_only_where_the_client_allows_it() {
        assert_eq!(of_response(&HeaderMap::new()), Coding::Identity);
        for (value, expected) in [
            ("gzip", Coding::Gzip),
            ("deflate, GZip;q=0.5", Coding::Gzip),
            ("*", Coding::Gzip),
            ("gzip;q=0", Coding::Identity),
            ("gzip; q=0.000", Coding::Identity),
            ("gzip;q=0, *", Coding::Identity),
            ("*;q=0", Coding::Identity),
            ("*;q=0, gzip;q=0.001", Coding::Gzip),
            ("br, deflate", Coding::Identity),
            ("", Coding::Identity),
        ] {
            assert_eq!(of_response(&headers(header::ACCEPT_ENCODING, value)), expected, "{value:?}");
        }
    }

    #[tokio::test]
    async fn what_is_deflated_inflates_to_the_same() {
        let noise: Vec<u8> =
            (0..1_000_000_u32).map(|index| index.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        for (case, head, tail) in
            [("one slice", &b"own head, "[..], &b"shared tail"[..]), ("many slices", &noise, &noise)]
        {
            let room = Arc::new(Semaphore::new(4 << 20));
            let body = deflate([head, tail], Stored::new(&room, usize::MAX)).await.unwrap();
            let whole = [head, tail].concat();
            assert_eq!(inflated(&body, whole.len()).await.unwrap(), whole, "{case}");
            let over = inflated(&body, whole.len() - 1).await;
            assert!(matches!(over, Err(CodingError::Store(StoreError::TooLarge(_)))), "{case}");
        }
    }

    #[tokio::test]
    async fn a_bomb_stops_at_the_limit() {
        let bomb = deflated(&vec![0; 64 << 20]).await;
        assert!(bomb.len() < 1 << 20);
        assert!(matches!(inflated(&bomb, 4096).await, Err(CodingError::Store(StoreError::TooLarge(4096)))));
    }

    #[tokio::test]
    async fn what_is_no_gzip_is_corrupt() {
        let whole = deflated(b"a message that was cut").await;
        let trailing = [&whole[..], b"more"].concat();
        for (case, body) in [
            ("plain", &b"no gzip"[..]),
            ("cut", &whole[..whole.len() - 3]),
            ("empty", &[]),
            ("something behind it", &trailing),
        ] {
            assert!(matches!(inflated(body, 4096).await, Err(CodingError::Corrupt(_))), "{case}");
        }
    }

    #[tokio::test]
    async fn members_that_follow_each_other_are_one_body() {
        // RFC 1952 §2.2
        let members = [deflated(b"one, ").await, deflated(b"two").await].concat();
        assert_eq!(inflated(&members, 100).await.unwrap(), "one, two");
    }

    #[tokio::test]
    async fn other_tasks_have_their_turn_while_a_body_of_empty_blocks_is_decoded() {
        // What takes longest for its size: blocks with the code of RFC 1951 §3.2.6 that end at once, in ten bits each.
        let blocks = [0b0000_0010, 0b0000_1000, 0b0010_0000, 0b1000_0000, 0b0000_0000].repeat(200_000);
        let body = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &blocks].concat();
        let mut decoding = std::pin::pin!(inflated(&body, 4096));
        let mut turns = 0;
        let outcome = loop {
            match futures::poll!(&mut decoding) {
                std::task::Poll::Ready(outcome) => break outcome,
                std::task::Poll::Pending => turns += 1,
            }
        };
        assert!(matches!(outcome, Err(CodingError::Corrupt(_))), "the last block is missing");
        assert_eq!(turns, body.len() / SLICE);
    }
}
