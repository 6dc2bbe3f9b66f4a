//! What a token of a `ServiceAccount` says of itself. Nothing of it is believed: it only shows which tokens the API server
//! need not be asked about.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::Deserialize;

use super::fault::Fault;
use crate::opamp::identity::Identity;

/// The claims of a token (RFC 7519 §4.1) that are looked at.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Claims {
    /// The account, as [`Identity::ServiceAccount`].
    pub account: Identity,
    /// Whom it is meant for.
    pub audiences: Vec<String>,
    /// It counts until then.
    pub expires: Timestamp,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
}

#[derive(Deserialize)]
struct Payload {
    sub: String,
    aud: Audiences,
    exp: i64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

/// Whether a token has the three parts of a signed JWT (RFC 7515 §7.1).
pub(super) fn looks_like_jwt(token: &str) -> bool {
    token.starts_with("ey") && token.bytes().filter(|byte| *byte == b'.').count() == 2
}

impl Claims {
    /// Reads the claims of a token that could be one of a `ServiceAccount`.
    pub(super) fn read(token: &str) -> Result<Self, Fault> {
        let mut parts = token.split('.');
        let mut part = || parts.next().filter(|part| !part.is_empty()).ok_or(Fault::Malformed);
        let (header, payload, _signature) = (part()?, part()?, part()?);
        let header: Header = decode(header)?;
        // Whatever else the API server signs with, it is one of the asymmetric algorithms (RFC 7518 §3.1, RFC 8037 §3.1).
        if !["RS", "ES", "PS", "Ed"].iter().any(|kind| header.alg.starts_with(kind)) {
            return Err(Fault::Malformed);
        }
        let payload: Payload = decode(payload)?;
        let audiences = match payload.aud {
            Audiences::One(audience) => vec![audience],
            Audiences::Several(audiences) => audiences,
        };
        let account = account(&payload.sub).ok_or(Fault::NotServiceAccount)?;
        let expires = Timestamp::from_second(payload.exp).map_err(|_| Fault::Malformed)?;
        Ok(Self { account, audiences, expires })
    }
}

fn decode<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, Fault> {
    let json = URL_SAFE_NO_PAD.decode(part).map_err(|_| Fault::Malformed)?;
    serde_json::from_slice(&json).map_err(|_| Fault::Malformed)
}

/// The account of a user name of Kubernetes; `None` if it is the name of somebody else.
pub(super) fn account(user: &str) -> Option<Identity> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let is_name = |text: &str| {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        !text.is_empty() && text.len() <= 253 && text.bytes().all(is_plain)
    };
    (is_name(namespace) && is_name(name))
        .then(|| Identity::ServiceAccount { namespace: namespace.into(), name: name.into() })
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A token with these parts; its signature is of nobody.
    pub(in crate::authentication) fn token(header: &Value, payload: &Value) -> String {
        let [header, payload] = [header, payload].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        format!("{header}.{payload}.c2lnbmF0dXJl")
    }

    #[test]
    fn the_claims_of_a_token_are_read() {
        for aud in [json!("opamp.dev"), json!(["opamp.dev"])] {
            let payload = json!({"sub": "system:serviceaccount:shop:collector", "aud": aud, "exp": 100, "iat": 1});
            let claims = Claims::read(&token(&json!({"alg": "RS256"}), &payload)).unwrap();
            assert_eq!(claims.account.to_string(), "serviceaccount:shop/collector");
            assert_eq!((claims.audiences, claims.expires.as_second()), (vec!["opamp.dev".to_owned()], 100));
        }
    }

    #[test]
    fn a_token_that_cannot_be_of_a_service_account_is_a_fault() {
        let (good, account) = (json!({"alg": "RS256"}), "system:serviceaccount:shop:collector");
        let payload = |sub: &str| json!({"sub": sub, "aud": "opamp.dev", "exp": 100});
        for (case, token, expected) in [
            ("alg none", token(&json!({"alg": "none"}), &payload(account)), Fault::Malformed),
            ("alg None", token(&json!({"alg": "None"}), &payload(account)), Fault::Malformed),
            ("alg HS256", token(&json!({"alg": "HS256"}), &payload(account)), Fault::Malformed),
            ("no alg", token(&json!({}), &payload(account)), Fault::Malformed),
            ("no exp", token(&good, &json!({"sub": account, "aud": "opamp.dev"})), Fault::Malformed),
            ("no aud", token(&good, &json!({"sub": account, "exp": 100})), Fault::Malformed),
            ("exp of no time", token(&good, &json!({"sub": account, "aud": "a", "exp": i64::MAX})), Fault::Malformed),
            ("a user", token(&good, &payload("kubernetes-admin")), Fault::NotServiceAccount),
            ("a node", token(&good, &payload("system:node:a")), Fault::NotServiceAccount),
            ("no name", token(&good, &payload("system:serviceaccount:shop:")), Fault::NotServiceAccount),
            ("a path", token(&good, &payload("system:serviceaccount:shop:a/b")), Fault::NotServiceAccount),
            ("three names", token(&good, &payload("system:serviceaccount:shop:a:b")), Fault::NotServiceAccount),
            ("no payload", "eyJhbGciOiJSUzI1NiJ9..c2ln".into(), Fault::Malformed),
            ("no signature", token(&good, &payload(account)).replace("c2lnbmF0dXJl", ""), Fault::Malformed),
            ("no base64", "ey~.ey~.c2ln".into(), Fault::Malformed),
        ] {
            assert_eq!(Claims::read(&token), Err(expected), "{case}");
        }
    }

    #[test]
    fn three_parts_make_a_jwt() {
        for (token, expected) in [("eyJ.eyJ.c2ln", true), ("eyJ.eyJ", false), ("a.b.c", false), ("eyJ.a.b.c.d", false)]
        {
            assert_eq!(looks_like_jwt(token), expected, "{token}");
        }
    }
}
