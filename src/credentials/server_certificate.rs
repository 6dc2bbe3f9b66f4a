//! The certificate that the OpAMP port serves when people give none: its Secret, and when it is made anew.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use rustls_pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _};

use super::{
    authority::{Authority, BACKDATED, Issued},
    facts::{CertificateFacts, between, later},
    key::{KeyId, PrivateKey},
    pem::read_certificates,
    profile::{SERVER_LIFETIME, ServerName},
    published::PublishedAuthorities,
};

/// The name of the Secret, in the operator's own namespace.
pub const SERVER_NAME: &str = "opamp-server-tls";
const CERTIFICATE_KEY: &str = "tls.crt";
const PRIVATE_KEY: &str = "tls.key";
const CA_KEY: &str = "ca.crt";

/// Why a certificate for the server is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// There is none.
    Missing,
    /// It cannot be read, or its key is another's.
    Unusable,
    /// It has other names than are wanted.
    Names,
    /// Its CA is not trusted any more.
    Untrusted,
    /// Two thirds of its time are over.
    Age,
}

/// What the Secret holds.
struct Found {
    facts: CertificateFacts,
    names: Vec<ServerName>,
    issuer: Option<KeyId>,
}

/// Whether a certificate is to be made, and when to look again if not.
pub fn need(
    secret: Option<&Secret>,
    names: &[ServerName],
    trusted: &PublishedAuthorities,
    now: Timestamp,
) -> Result<Timestamp, Reason> {
    let secret = secret.ok_or(Reason::Missing)?;
    let found = read(secret).ok_or(Reason::Unusable)?;
    let is_trusted =
        |key: &KeyId| trusted.bundle.iter().any(|ca| CertificateFacts::read(ca).is_ok_and(|facts| facts.key == *key));
    if found.names != names {
        return Err(Reason::Names);
    }
    if !found.issuer.as_ref().is_some_and(is_trusted) {
        return Err(Reason::Untrusted);
    }
    let due = renewal(&found.facts);
    // A certificate that ends with its CA is not made anew again and again: the CA must be replaced first. The one that signs
    // is the first of the bundle.
    let signs_until =
        trusted.bundle.first().and_then(|ca| CertificateFacts::read(ca).ok()).map(|facts| facts.not_after);
    let is_cut = between(found.facts.not_before, found.facts.not_after) < SERVER_LIFETIME
        && signs_until.is_none_or(|end| end <= found.facts.not_after);
    let due = if is_cut { found.facts.not_after } else { due };
    if now < due { Ok(due) } else { Err(Reason::Age) }
}

/// Whether the certificate was made so long ago that it should be made anew by the CA that is about to be replaced:
/// agents that know only that CA then have most of its lifetime to learn of the next.
#[must_use]
pub fn is_worn(secret: Option<&Secret>, authority: &Authority, now: Timestamp) -> bool {
    let Some(found) = secret.and_then(read) else { return false };
    let age = between(found.facts.not_before, now);
    found.issuer == Some(authority.facts().key) && age > SERVER_LIFETIME / 30
}

/// The end of the certificate in the Secret.
#[must_use]
pub fn not_after(secret: &Secret) -> Option<Timestamp> {
    read(secret).map(|found| found.facts.not_after)
}

fn renewal(facts: &CertificateFacts) -> Timestamp {
    let lifetime = between(facts.not_before, facts.not_after).saturating_sub(BACKDATED);
    later(facts.not_before, BACKDATED + lifetime * 2 / 3)
}

fn read(secret: &Secret) -> Option<Found> {
    let value = |key: &str| secret.data.as_ref()?.get(key).map(|value| value.0.as_slice());
    let chain = read_certificates(value(CERTIFICATE_KEY)?).ok()?;
    let facts = CertificateFacts::read(&chain[0]).ok()?;
    let key = PrivateKey::from_pem(String::from_utf8(value(PRIVATE_KEY)?.to_vec()).ok()?);
    if key.id() != Some(facts.key) {
        return None;
    }
    let ca = read_certificates(value(CA_KEY)?).ok()?;
    let issuer = CertificateFacts::read(ca.first()?).ok().map(|facts| facts.key);
    Some(Found { facts, names: names(&chain[0])?, issuer })
}

fn names(certificate: &CertificateDer<'_>) -> Option<Vec<ServerName>> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let extension = certificate.subject_alternative_name().ok()??;
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(ServerName::Dns((*name).to_owned())),
        GeneralName::IPAddress(bytes) => address(bytes).map(ServerName::Address),
        // The foreign enum: no other kind is written.
        _ => None,
    };
    let mut names: Vec<_> = extension.value.general_names.iter().map(name).collect::<Option<_>>()?;
    names.sort();
    Some(names)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The Secret with this certificate; `found` is what it replaces.
#[must_use]
pub fn secret(found: Option<&Secret>, namespace: &str, key: &PrivateKey, issued: &Issued) -> Secret {
    let mut secret = found.cloned().unwrap_or_else(|| Secret {
        metadata: ObjectMeta {
            name: Some(SERVER_NAME.into()),
            namespace: Some(namespace.into()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".into()),
        ..Secret::default()
    });
    let data = secret.data.get_or_insert_default();
    for (key, text) in
        [(CERTIFICATE_KEY, issued.chain.as_str()), (PRIVATE_KEY, key.expose()), (CA_KEY, issued.ca.as_str())]
    {
        data.insert(key.into(), ByteString(text.as_bytes().to_vec()));
    }
    secret
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::credentials::{
        profile::server_names,
        tests::{at, authority},
    };

    const DAY: i64 = 86_400;

    fn trusting(authorities: &[&Authority]) -> PublishedAuthorities {
        PublishedAuthorities {
            cluster: "c".into(),
            bundle: authorities.iter().map(|authority| authority.certificate().clone()).collect(),
            issuers: BTreeSet::new(),
        }
    }

    fn made(authority: &Authority, names: &[ServerName], seconds: i64) -> Secret {
        let (issued, key) = authority.issue_server(names, at(seconds)).unwrap();
        secret(None, "opamp-system", &key, &issued)
    }

    #[test]
    fn a_certificate_is_made_anew_when_it_is_of_no_more_use() {
        let (own, other) = (authority(), authority());
        let names = server_names(&[], "opamp-system");
        let more = server_names(&[ServerName::parse("opamp.example.com").unwrap()], "opamp-system");
        let good = made(&own, &names, 0);
        let mut another_key = good.clone();
        let foreign = made(&own, &names, 0).data.unwrap();
        another_key.data.as_mut().unwrap().insert("tls.key".into(), foreign["tls.key"].clone());
        for (case, secret, names, trusted, seconds, expected) in [
            ("none", None, &names, trusting(&[&own]), 0, Err(Reason::Missing)),
            ("empty", Some(Secret::default()), &names, trusting(&[&own]), 0, Err(Reason::Unusable)),
            ("another's key", Some(another_key), &names, trusting(&[&own]), 0, Err(Reason::Unusable)),
            ("fresh", Some(good.clone()), &names, trusting(&[&own]), 0, Ok(at(60 * DAY))),
            ("of a former CA", Some(good.clone()), &names, trusting(&[&other, &own]), 0, Ok(at(60 * DAY))),
            ("another name", Some(good.clone()), &more, trusting(&[&own]), 0, Err(Reason::Names)),
            ("CA gone", Some(good.clone()), &names, trusting(&[&other]), 0, Err(Reason::Untrusted)),
            ("after two thirds", Some(good), &names, trusting(&[&own]), 60 * DAY, Err(Reason::Age)),
        ] {
            assert_eq!(need(secret.as_ref(), names, &trusted, at(seconds)), expected, "{case}");
        }
    }

    #[test]
    fn a_certificate_that_ends_with_its_authority_is_left_until_then() {
        let (authority, names) = (authority(), server_names(&[], "opamp-system"));
        let end = authority.facts().not_after.as_second() - at(0).as_second();
        let secret = made(&authority, &names, end - DAY);
        assert_eq!(need(Some(&secret), &names, &trusting(&[&authority]), at(end - 60)), Ok(at(end)));
    }

    #[test]
    fn a_certificate_that_ends_with_a_former_authority_is_made_anew_in_time() {
        let (former, names) = (authority(), server_names(&[], "opamp-system"));
        let end = former.facts().not_after.as_second() - at(0).as_second();
        let (next, _) = Authority::generate("c", at(end - DAY)).unwrap();
        let (secret, trusted) = (made(&former, &names, end - DAY), trusting(&[&next, &former]));
        let due = end - DAY + 57_600;
        for (seconds, expected) in [(due - 1, Ok(at(due))), (due, Err(Reason::Age))] {
            assert_eq!(need(Some(&secret), &names, &trusted, at(seconds)), expected, "two thirds of a day");
        }
    }

    #[test]
    fn an_old_certificate_is_made_anew_before_its_authority_is_replaced() {
        let (own, other) = (authority(), authority());
        let secret = made(&own, &server_names(&[], "opamp-system"), 0);
        for (case, authority, seconds, expected) in
            [("fresh", &own, DAY, false), ("old", &own, 4 * DAY, true), ("of another", &other, 4 * DAY, false)]
        {
            assert_eq!(is_worn(Some(&secret), authority, at(seconds)), expected, "{case}");
        }
        assert!(!is_worn(None, &own, at(0)));
    }
}
