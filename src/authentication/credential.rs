//! What a request shows in its `Authorization` header (RFC 9110 §11.6.2).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, header::AUTHORIZATION};
use sha2::{Digest as _, Sha256};

use super::fault::Fault;
use crate::opamp::identity::Digest;

/// The longest value that is looked at. Tokens of `ServiceAccounts` have about 1 KiB.
pub(super) const LONGEST: usize = 8 << 10;

/// A credential as it was shown. It has no `Debug`: it is a secret.
pub(super) enum Credential<'a> {
    /// `Bearer` (RFC 6750).
    Token(&'a str),
    /// `Basic` (RFC 7617): user and password with the colon between them.
    Password(Vec<u8>),
}

impl Credential<'_> {
    /// The digest by which it is looked up.
    pub(super) fn digest(&self) -> Digest {
        match self {
            Self::Token(token) => digest(token.as_bytes()),
            Self::Password(pair) => digest(pair),
        }
    }
}

/// SHA-256.
pub(super) fn digest(secret: &[u8]) -> Digest {
    Digest(Sha256::digest(secret).into())
}

/// What the request shows; `None` if it has no such header. A second header is a fault: two readers of one request
/// could each believe another one.
pub(super) fn shown(headers: &HeaderMap) -> Result<Option<Credential<'_>>, Fault> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() || value.len() > LONGEST {
        return Err(Fault::Malformed);
    }
    let value = value.to_str().map_err(|_| Fault::Malformed)?;
    let (scheme, rest) = value.split_once(' ').ok_or(Fault::Malformed)?;
    let rest = rest.trim_matches(' ');
    if !is_presentable(rest) {
        return Err(Fault::Malformed);
    }
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Ok(Some(Credential::Token(rest))),
        "basic" => password(rest).map(Some).ok_or(Fault::Malformed),
        _ => Err(Fault::Malformed),
    }
}

/// Whether a header can carry it: visible ASCII characters, at least one.
pub(super) fn is_presentable(secret: &str) -> bool {
    !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic())
}

fn password(encoded: &str) -> Option<Credential<'static>> {
    let pair = STANDARD.decode(encoded).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    let has_both = colon > 0 && colon + 1 < pair.len();
    (has_both && !pair.iter().any(u8::is_ascii_control)).then_some(Credential::Password(pair))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(values: &[&[u8]]) -> Result<Option<String>, Fault> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        shown(&headers).map(|credential| {
            credential.map(|credential| match credential {
                Credential::Token(token) => format!("token {token}"),
                Credential::Password(pair) => format!("password {}", String::from_utf8_lossy(&pair)),
            })
        })
    }

    #[test]
    fn tokens_and_passwords_are_read() {
        for (value, expected) in [
            ("Bearer abc.def_-~+/=", "token abc.def_-~+/="),
            ("bEARER  abc", "token abc"),
            ("Basic dXNlcjpwYXNz", "password user:pass"),
            ("basic dXNlcjpwYTpzcw==", "password user:pa:ss"),
            ("Basic dXNlcjrDqQ==", "password user:é"),
        ] {
            assert_eq!(read(&[value.as_bytes()]), Ok(Some(expected.into())), "{value}");
        }
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn anything_else_is_malformed() {
        let long = format!("Bearer {}", "a".repeat(LONGEST));
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer a b",
            "Bearer a\tb",
            "Bearer\tabc",
            "Bearer a,Basic dXNlcjpwYXNz",
            "abc",
            "Token abc",
            "Digest username=\"a\"",
            "Basic",
            "Basic ~",
            "Basic dXNlcjpwYXNz=",
            "Basic dXNlcjpwYTpzcw",
            "Basic dXNlcg==",
            "Basic OnBhc3M=",
            "Basic dXNlcjo=",
            "Basic dXNlcjoACg==",
            &long,
        ] {
            assert_eq!(read(&[value.as_bytes()]), Err(Fault::Malformed), "{value}");
        }
        assert_eq!(read(&["Bearer é".as_bytes()]), Err(Fault::Malformed), "not ASCII");
        assert_eq!(read(&[b"Bearer abc", b"Bearer abc"]), Err(Fault::Malformed), "twice");
        assert_eq!(read(&[b"Bearer abc", b"Basic dXNlcjpwYXNz"]), Err(Fault::Malformed), "two schemes");
    }
}
