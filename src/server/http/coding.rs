//! Compression of bodies (HTTP-08, HTTP-09, HTTP-11).

use std::io::{self, Read, Write};

use bytes::Bytes;
use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use http::{HeaderMap, header};

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
    /// It grows beyond the limit.
    #[error("the decompressed body is over the limit of {0} bytes")]
    TooLarge(usize),
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

/// The body as it was before compression. Stops at the limit, whatever is still to come.
pub fn inflate(body: &[u8], limit: usize) -> Result<Bytes, CodingError> {
    let mut inflated = Vec::new();
    let mut decoder = MultiGzDecoder::new(body).take(limit as u64 + 1);
    decoder.read_to_end(&mut inflated).map_err(CodingError::Corrupt)?;
    if inflated.len() > limit { Err(CodingError::TooLarge(limit)) } else { Ok(inflated.into()) }
}

/// The parts of a body, one after the other, compressed. Fast, because each reply is compressed anew.
pub fn deflate(parts: [&[u8]; 2]) -> io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for part in parts {
        encoder.write_all(part)?;
    }
    encoder.finish().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

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

    #[test]
    fn what_is_deflated_inflates_to_the_same() {
        let body = deflate([b"own head, ", b"shared tail"]).unwrap();
        assert_eq!(inflate(&body, 21).unwrap(), "own head, shared tail");
        assert!(matches!(inflate(&body, 20), Err(CodingError::TooLarge(20))));
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let bomb = deflate([&vec![0; 64 << 20], &[]]).unwrap();
        assert!(bomb.len() < 1 << 20);
        assert!(matches!(inflate(&bomb, 4096), Err(CodingError::TooLarge(4096))));
    }

    #[test]
    fn what_is_no_gzip_is_corrupt() {
        let whole = deflate([b"a message that was cut", &[]]).unwrap();
        for (case, body) in [("plain", &b"no gzip"[..]), ("cut", &whole[..whole.len() - 3]), ("empty", &[])] {
            assert!(matches!(inflate(body, 4096), Err(CodingError::Corrupt(_))), "{case}");
        }
    }
}
