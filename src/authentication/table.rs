//! Tokens and passwords that Secrets hold: by their digests, never by their text.

use std::{collections::HashMap, str::FromStr as _};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use subtle::ConstantTimeEq as _;

use super::{
    credential::{LONGEST, digest, is_presentable},
    fault::Fault,
};
use crate::{
    api::FLEET_LABEL,
    opamp::identity::{Digest, Identity},
};

/// Tokens that could be guessed within years do not count: 16 random characters hold at least 64 bits.
const SHORTEST_TOKEN: usize = 16;
/// The scheme and the space before it must fit into the header too.
const LONGEST_TOKEN: usize = LONGEST - "Bearer ".len();
/// The user's name is part of an identity, which objects and logs show.
const LONGEST_USER: usize = 256;
/// Base64 makes three bytes to four characters.
const LONGEST_PASSWORD: usize = (LONGEST - "Basic ".len()) / 4 * 3 - LONGEST_USER - 1;

/// Why a Secret opens nothing. Its content is not quoted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("it has no key {0}")]
    Missing(&'static str),
    #[error("its token has fewer than {SHORTEST_TOKEN} bytes")]
    TooShort,
    #[error("its {0} is too long")]
    TooLong(&'static str),
    #[error("its {0} is empty or has characters that no header can carry")]
    NotPresentable(&'static str),
    #[error("its expiresAt is not a time of RFC 3339")]
    Expiry,
    #[error("its label {FLEET_LABEL} names no fleet")]
    Fleet,
}

/// One Secret that opens something.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Row {
    /// Of what is to be shown.
    pub digest: Digest,
    /// Whoever shows it is this one.
    pub identity: Identity,
    /// Its namespace.
    pub namespace: String,
    /// It counts until then.
    pub expires: Option<Timestamp>,
}

impl Row {
    /// Reads a Secret of type `opamp.dev/enrollment-token`.
    pub(super) fn of_token(secret: &Secret) -> Result<Self, Unusable> {
        let token = text(secret, "token")?.ok_or(Unusable::Missing("token"))?;
        if token.len() < SHORTEST_TOKEN {
            return Err(Unusable::TooShort);
        }
        if token.len() > LONGEST_TOKEN {
            return Err(Unusable::TooLong("token"));
        }
        if !is_presentable(token) {
            return Err(Unusable::NotPresentable("token"));
        }
        let namespace = secret.namespace().unwrap_or_default();
        let fleet = secret.labels().get(FLEET_LABEL).cloned();
        if fleet.as_ref().is_some_and(String::is_empty) {
            return Err(Unusable::Fleet);
        }
        let expires = text(secret, "expiresAt")?.map(|text| Timestamp::from_str(text).map_err(|_| Unusable::Expiry));
        Ok(Self {
            digest: digest(token.as_bytes()),
            identity: Identity::EnrollmentToken { namespace: namespace.clone(), fleet },
            namespace,
            expires: expires.transpose()?,
        })
    }

    /// Reads a Secret of type `kubernetes.io/basic-auth`.
    pub(super) fn of_user(secret: &Secret) -> Result<Self, Unusable> {
        let user = text(secret, "username")?.ok_or(Unusable::Missing("username"))?;
        let password = text(secret, "password")?.ok_or(Unusable::Missing("password"))?;
        if user.is_empty() || user.contains(':') || user.chars().any(char::is_control) {
            return Err(Unusable::NotPresentable("username"));
        }
        if password.is_empty() || password.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(Unusable::NotPresentable("password"));
        }
        if user.len() > LONGEST_USER {
            return Err(Unusable::TooLong("username"));
        }
        if password.len() > LONGEST_PASSWORD {
            return Err(Unusable::TooLong("password"));
        }
        let namespace = secret.namespace().unwrap_or_default();
        let fleet = secret.labels().get(FLEET_LABEL).filter(|fleet| !fleet.is_empty()).cloned();
        let fleet = fleet.ok_or(Unusable::Fleet)?;
        Ok(Self {
            digest: digest([user, password].join(":").as_bytes()),
            identity: Identity::Basic { namespace: namespace.clone(), fleet, user: user.into() },
            namespace,
            expires: None,
        })
    }

    fn is_current(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// The value of a key without one line break at its end, which editors and `echo` leave there.
fn text<'a>(secret: &'a Secret, key: &'static str) -> Result<Option<&'a str>, Unusable> {
    let Some(value) = secret.data.as_ref().and_then(|data| data.get(key)) else { return Ok(None) };
    let value = std::str::from_utf8(&value.0).map_err(|_| Unusable::NotPresentable(key))?;
    let value = value.strip_suffix('\n').map_or(value, |value| value.strip_suffix('\r').unwrap_or(value));
    Ok(Some(value))
}

/// Where the digests lie: by their first bytes, so that what is looked up is compared as a whole in constant time.
type Place = [u8; 8];

/// All Secrets of one method. Never changed: a newer one takes its place.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: HashMap<Place, Vec<Row>>,
}

impl Table {
    pub(super) fn new<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        let mut table = Self::default();
        for row in rows {
            table.rows.entry(place(row.digest)).or_default().push(row.clone());
        }
        table
    }

    /// Who shows this. The same text in several Secrets that bind it alike is one credential, which counts as long as
    /// one of them does; if they bind it differently, nobody can say which is meant.
    pub(super) fn find(&self, digest: Digest, now: Timestamp) -> Result<Row, (Fault, Option<Identity>)> {
        let mut best: Option<Row> = None;
        let mut expired = None;
        for row in self.rows_of(digest) {
            if !row.is_current(now) {
                expired = Some(row.identity.clone());
                continue;
            }
            best = match best {
                None => Some(row.clone()),
                Some(best) if best.identity != row.identity => return Err((Fault::Ambiguous, None)),
                Some(best) => Some(if lasts_longer(row, &best) { row.clone() } else { best }),
            };
        }
        best.ok_or(match expired {
            Some(identity) => (Fault::Expired, Some(identity)),
            None => (Fault::UnknownToken, None),
        })
    }

    /// Whether a Secret still holds it for this identity. That another one came to hold it too ends nobody's session:
    /// else whoever knows a token and may write Secrets anywhere could disconnect those who joined by it.
    pub(super) fn holds(&self, digest: Digest, identity: &Identity, now: Timestamp) -> bool {
        self.rows_of(digest).any(|row| row.identity == *identity && row.is_current(now))
    }

    /// Whether something counts here at this moment that does not count there.
    pub(super) fn has_more_than(&self, newer: &Self, now: Timestamp) -> bool {
        let mut rows = self.rows.values().flatten().filter(|row| row.is_current(now));
        rows.any(|row| !newer.holds(row.digest, &row.identity, now))
    }

    /// When the next of them expires.
    pub(super) fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        self.rows.values().flatten().filter_map(|row| row.expires).filter(|expires| *expires > now).min()
    }

    /// Namespaces whose Secrets hold the same text and bind it differently; each group once, sorted.
    pub(super) fn clashes(&self) -> Vec<Vec<String>> {
        let mut clashes = Vec::new();
        for rows in self.rows.values() {
            for (at, row) in rows.iter().enumerate() {
                let alike = |other: &&Row| other.digest == row.digest;
                if rows[..at].iter().any(|other| alike(&other)) {
                    continue;
                }
                let mut bindings: Vec<_> = rows.iter().filter(alike).map(|row| row.identity.to_string()).collect();
                bindings.sort();
                bindings.dedup();
                if bindings.len() > 1 {
                    clashes.push(bindings);
                }
            }
        }
        clashes.sort();
        clashes
    }

    /// How many Secrets there are.
    pub(super) fn len(&self) -> usize {
        self.rows.values().map(Vec::len).sum()
    }

    fn rows_of(&self, digest: Digest) -> impl Iterator<Item = &Row> {
        let rows = self.rows.get(&place(digest)).into_iter().flatten();
        rows.filter(move |row| row.digest.0.ct_eq(&digest.0).into())
    }
}

fn lasts_longer(row: &Row, than: &Row) -> bool {
    match (row.expires, than.expires) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(row), Some(than)) => row > than,
    }
}

fn place(Digest(digest): Digest) -> Place {
    let mut place = Place::default();
    place.copy_from_slice(&digest[..size_of::<Place>()]);
    place
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn secret(labels: &Value, data: &Value) -> Secret {
        let encode = |(key, value): (&String, &Value)| {
            (key.clone(), k8s_openapi::ByteString(value.as_str().unwrap().as_bytes().to_vec()))
        };
        let mut secret: Secret = serde_json::from_value(json!({
            "metadata": {"namespace": "telemetry", "name": "s", "labels": labels},
        }))
        .unwrap();
        secret.data = Some(data.as_object().unwrap().iter().map(encode).collect());
        secret
    }

    fn token(labels: &Value, data: &Value) -> Result<String, Unusable> {
        Row::of_token(&secret(labels, data)).map(|row| row.identity.to_string())
    }

    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn a_token_is_bound_to_the_fleet_of_its_label_or_to_the_namespace() {
        assert_eq!(
            token(&json!({"opamp.dev/fleet": "edge"}), &json!({"token": TOKEN})),
            Ok("token:telemetry/edge".into())
        );
        assert_eq!(token(&json!({}), &json!({"token": TOKEN})), Ok("token:telemetry/*".into()));
    }

    #[test]
    fn a_secret_that_is_not_clear_opens_nothing() {
        for (labels, data, expected) in [
            (json!({}), json!({}), Unusable::Missing("token")),
            (json!({}), json!({"token": ""}), Unusable::TooShort),
            (json!({}), json!({"token": "0123456789abcde\n"}), Unusable::TooShort),
            (json!({}), json!({"token": "0123456789abcdef\n\n"}), Unusable::NotPresentable("token")),
            (json!({}), json!({"token": "0123456789 abcdef"}), Unusable::NotPresentable("token")),
            (json!({}), json!({"token": "a".repeat(9_000)}), Unusable::TooLong("token")),
            (json!({"opamp.dev/fleet": ""}), json!({"token": TOKEN}), Unusable::Fleet),
            (json!({}), json!({"token": TOKEN, "expiresAt": ""}), Unusable::Expiry),
            (json!({}), json!({"token": TOKEN, "expiresAt": "tomorrow"}), Unusable::Expiry),
            (json!({}), json!({"token": TOKEN, "expiresAt": "2026-11-29"}), Unusable::Expiry),
        ] {
            assert_eq!(token(&labels, &data), Err(expected), "{data}");
        }
    }

    #[test]
    fn one_line_break_at_the_end_is_not_part_of_a_token() {
        for value in ["0123456789abcdef", "0123456789abcdef\n", "0123456789abcdef\r\n"] {
            let row =
                Row::of_token(&secret(&json!({}), &json!({"token": value, "expiresAt": "2026-11-29T00:00:00Z\n"})));
            assert_eq!(row.unwrap().digest, digest(TOKEN.as_bytes()), "{value:?}");
        }
    }

    #[test]
    fn a_user_needs_a_fleet_a_name_and_a_password() {
        let labels = json!({"opamp.dev/fleet": "edge"});
        let read = |labels: &Value, data: Value| Row::of_user(&secret(labels, &data));
        let row = read(&labels, json!({"username": "gate\n", "password": "pa:ss\n"})).unwrap();
        assert_eq!(
            (row.identity.to_string().as_str(), row.digest),
            ("basic:telemetry/edge/gate", digest(b"gate:pa:ss"))
        );
        for (labels, data, expected) in [
            (json!({}), json!({"username": "gate", "password": "x"}), Unusable::Fleet),
            (json!({"opamp.dev/fleet": ""}), json!({"username": "gate", "password": "x"}), Unusable::Fleet),
            (labels.clone(), json!({"password": "x"}), Unusable::Missing("username")),
            (labels.clone(), json!({"username": "gate"}), Unusable::Missing("password")),
            (labels.clone(), json!({"username": "", "password": "x"}), Unusable::NotPresentable("username")),
            (labels.clone(), json!({"username": "a:b", "password": "x"}), Unusable::NotPresentable("username")),
            (labels.clone(), json!({"username": "gate", "password": "\n"}), Unusable::NotPresentable("password")),
            (labels.clone(), json!({"username": "a".repeat(257), "password": "x"}), Unusable::TooLong("username")),
            (labels, json!({"username": "gate", "password": "x".repeat(8_000)}), Unusable::TooLong("password")),
        ] {
            assert_eq!(read(&labels, data.clone()), Err(expected), "{data}");
        }
    }

    fn row(identity: &str, text: &str, expires: Option<i64>) -> Row {
        let identity = Identity::parse(identity).unwrap();
        let expires = expires.map(|second| Timestamp::from_second(second).unwrap());
        Row { digest: digest(text.as_bytes()), identity, namespace: "telemetry".into(), expires }
    }

    #[test]
    fn a_token_counts_until_it_expires_and_only_if_its_secrets_agree() {
        let (edge, all) = ("token:telemetry/edge", "token:telemetry/*");
        let at = |second| Timestamp::from_second(second).unwrap();
        for (case, rows, expected) in [
            ("none", vec![], Err(Fault::UnknownToken)),
            ("another", vec![row(edge, "b", None)], Err(Fault::UnknownToken)),
            ("one", vec![row(edge, "a", None)], Ok(None)),
            ("before its end", vec![row(edge, "a", Some(101))], Ok(Some(at(101)))),
            ("at its end", vec![row(edge, "a", Some(100))], Err(Fault::Expired)),
            ("the later of two", vec![row(edge, "a", Some(102)), row(edge, "a", Some(103))], Ok(Some(at(103)))),
            ("one without end", vec![row(edge, "a", Some(102)), row(edge, "a", None)], Ok(None)),
            ("one has expired", vec![row(edge, "a", Some(9)), row(edge, "a", None)], Ok(None)),
            ("bound differently", vec![row(edge, "a", None), row(all, "a", None)], Err(Fault::Ambiguous)),
            ("the other has expired", vec![row(edge, "a", None), row(all, "a", Some(9))], Ok(None)),
        ] {
            let found = Table::new(rows.iter()).find(digest(b"a"), at(100));
            assert_eq!(found.map(|row| row.expires).map_err(|(fault, _)| fault), expected, "{case}");
        }
    }

    #[test]
    fn what_is_taken_away_is_noticed_and_what_comes_is_not() {
        let (edge, all) = (row("token:telemetry/edge", "a", Some(101)), row("token:telemetry/*", "a", None));
        let table = |rows: &[&Row]| Table::new(rows.iter().copied());
        let bound_anew = row("token:telemetry/core", "a", None);
        for (case, old, new, second, expected) in [
            ("gone", vec![&edge], vec![], 100, true),
            ("it had expired", vec![&edge], vec![], 101, false),
            ("bound anew", vec![&all], vec![&bound_anew], 100, true),
            ("another came", vec![&edge], vec![&edge, &all], 100, false),
            ("the same", vec![&edge], vec![&edge], 100, false),
        ] {
            let now = Timestamp::from_second(second).unwrap();
            assert_eq!(table(&old).has_more_than(&table(&new), now), expected, "{case}");
        }
        assert_eq!(table(&[&edge, &all]).clashes(), [["token:telemetry/*", "token:telemetry/edge"]]);
        assert!(table(&[&edge, &edge]).clashes().is_empty());
    }
}
