use rcgen::{BasicConstraints, CertificateParams, CertifiedKey, IsCa, Issuer, KeyPair, generate_simple_self_signed};
use serde_json::json;

use super::*;
use crate::revisions::settings::freeze;

/// A certificate and its key, in PEM.
struct Pair {
    certificate: String,
    key: String,
}

fn self_signed() -> Pair {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["agent".into()]).expect("a certificate");
    Pair { certificate: cert.pem(), key: signing_key.serialize_pem() }
}

/// A certificate that a CA signed, and that CA's.
fn signed() -> (Pair, String) {
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, "corp");
    let authority_key = KeyPair::generate().expect("a key");
    let authority_pem = authority.self_signed(&authority_key).expect("a certificate").pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(vec!["agent".into()]).expect("parameters");
    let certificate = leaf.signed_by(&key, &issuer).expect("a certificate").pem();
    (Pair { certificate, key: key.serialize_pem() }, authority_pem)
}

fn settings() -> Settings {
    let reference = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
    let spec = json!({
        "endpoint": "wss://a",
        "headers": [{"name": "Authorization", "valueFrom": reference("edge-token", "header")}],
        "certificate": {"source": "Secret", "secretRef": {"name": "client"}},
        "tls": {"caFrom": reference("corp-ca", "ca.crt")},
    });
    freeze("edge", &serde_json::from_value(spec).expect("a spec")).expect("settings")
}

fn reference(name: &str, key: &str) -> CredentialReference {
    CredentialReference::secret(name, key)
}

fn value(value: impl Into<Bytes>) -> Credential {
    Credential { kind: CredentialKind::Value, value: value.into() }
}

fn good() -> Found {
    let (pair, authority) = signed();
    Found::from([
        (reference("edge-token", "header"), Ok(value("Bearer canary-0123456789"))),
        (reference("client", "tls.crt"), Ok(value(pair.certificate))),
        (reference("client", "tls.key"), Ok(value(pair.key))),
        (reference("client", "ca.crt"), Ok(value(authority.clone()))),
        (reference("corp-ca", "ca.crt"), Ok(value(authority))),
    ])
}

/// The values with one of them replaced.
fn with(name: &str, key: &str, found: Result<Credential, NotFound>) -> Found {
    let mut all = good();
    all.insert(reference(name, key), found);
    all
}

fn faults(found: &Found) -> Vec<(ConnectionSettingsReason, String)> {
    judge(&settings(), found).faults
}

#[test]
fn values_that_are_what_they_must_be_are_taken() {
    let judgement = judge(&settings(), &good());
    assert_eq!(judgement.faults, []);
    assert_eq!(judgement.verdicts.len(), 5);
    assert!(judgement.verdicts.values().all(|verdict| *verdict == Verdict::Take));
}

#[test]
fn a_value_that_is_not_there_may_still_come() {
    for (case, found, expected) in [
        (
            "no Secret",
            with("edge-token", "header", Err(NotFound::Object)),
            "header Authorization: Secret edge-token does not exist",
        ),
        (
            "no key",
            with("edge-token", "header", Err(NotFound::Key)),
            "header Authorization: Secret edge-token has no key header",
        ),
        ("no CA", with("corp-ca", "ca.crt", Err(NotFound::Object)), "caFrom: Secret corp-ca does not exist"),
        (
            "no certificate",
            with("client", "tls.crt", Err(NotFound::Key)),
            "certificate: Secret client has no key tls.crt",
        ),
        (
            "no CA of a signed certificate",
            with("client", "ca.crt", Err(NotFound::Key)),
            "certificate: Secret client has no key ca.crt",
        ),
        (
            "not readable",
            with("edge-token", "header", Err(NotFound::Unreadable("403 Forbidden".into()))),
            "header Authorization: Secret edge-token could not be read: 403 Forbidden",
        ),
    ] {
        assert_eq!(faults(&found), [(ConnectionSettingsReason::ReferenceNotFound, expected.into())], "{case}");
    }
}

#[test]
fn a_value_that_cannot_be_used_tells_why_and_not_what_it_is() {
    let other = self_signed();
    let (pair, _) = signed();
    let both = format!("{}{}", pair.certificate, pair.key);
    let key_as_certificate = with("client", "tls.crt", Ok(value(pair.key.clone())));
    for (case, found, expected) in [
        ("a line break", with("edge-token", "header", Ok(value("canary\n"))), "control characters"),
        ("empty", with("edge-token", "header", Ok(value(""))), "is empty"),
        ("not text", with("edge-token", "header", Ok(value(&b"canary\xff"[..]))), "is not UTF-8"),
        ("too long", with("edge-token", "header", Ok(value("c".repeat(8_193)))), "more than 8192 bytes"),
        ("no PEM", with("corp-ca", "ca.crt", Ok(value("canary"))), "is no certificate in PEM"),
        ("a CA's key", with("corp-ca", "ca.crt", Ok(value(both))), "holds a private key"),
        ("a key for a certificate", key_as_certificate, "holds a private key"),
        ("no certificate", with("client", "tls.crt", Ok(value(CANARY_BLOCK))), "is no certificate in PEM"),
        ("no key", with("client", "tls.key", Ok(value("canary"))), "is no private key"),
        (
            "another's key",
            with("client", "tls.key", Ok(value(other.key.clone()))),
            "does not belong to the certificate",
        ),
        ("no CA", with("client", "ca.crt", Ok(value("canary"))), "is no certificate in PEM"),
    ] {
        let [(reason, message)] = &faults(&found)[..] else { panic!("{case}: {:?}", faults(&found)) };
        assert_eq!(*reason, ConnectionSettingsReason::InvalidReference, "{case}");
        assert!(message.contains(expected) && !message.contains("canary"), "{case}: {message}");
        let judgement = judge(&settings(), &found);
        assert!(judgement.verdicts.values().any(|verdict| *verdict == Verdict::Keep), "{case}");
    }
}

/// PEM that holds no certificate.
const CANARY_BLOCK: &str = "-----BEGIN CERTIFICATE-----\nY2FuYXJ5\n-----END CERTIFICATE-----\n";

#[test]
fn a_self_signed_certificate_needs_no_ca() {
    let pair = self_signed();
    let mut found = with("client", "tls.crt", Ok(value(pair.certificate)));
    found.insert(reference("client", "tls.key"), Ok(value(pair.key)));
    found.insert(reference("client", "ca.crt"), Err(NotFound::Key));
    assert_eq!(faults(&found), []);
    let kept = keep([&settings()], &found, None);
    assert!(!kept.contains_key(&reference("client", "ca.crt")) && kept.contains_key(&reference("client", "tls.key")));
}

fn kept(found: &Found, former: &Found) -> BTreeMap<CredentialReference, Credential> {
    let values = former.iter().filter_map(|(reference, found)| Some((reference.clone(), found.clone().ok()?)));
    keep([&settings()], found, Some(&Credentials::new("uid", &values.collect())))
}

#[test]
fn the_last_good_value_outlives_a_bad_one_and_no_deletion() {
    let (good, header) = (good(), reference("edge-token", "header"));
    let replaced = |found| {
        let mut all = good.clone();
        all.insert(header.clone(), found);
        kept(&all, &good).get(&header).map(|credential| credential.value.clone())
    };
    for (case, found, expected) in [
        ("rotated", Ok(value("Bearer other")), Some("Bearer other")),
        ("spoilt", Ok(value("Bearer\n")), Some("Bearer canary-0123456789")),
        ("not readable", Err(NotFound::Unreadable("500".into())), Some("Bearer canary-0123456789")),
        ("without the key", Err(NotFound::Key), None),
        ("deleted", Err(NotFound::Object), None),
    ] {
        assert_eq!(replaced(found).as_deref(), expected.map(str::as_bytes), "{case}");
    }
}

#[test]
fn certificate_key_and_ca_change_together_or_not_at_all() {
    let good = good();
    let (next, _) = signed();
    let mut half = good.clone();
    half.insert(reference("client", "tls.crt"), Ok(value(next.certificate)));
    let of_client = |all: BTreeMap<CredentialReference, Credential>| {
        all.into_iter().filter(|(reference, _)| reference.name == "client").collect::<Vec<_>>()
    };
    let before = of_client(kept(&good, &good));
    assert_eq!((of_client(kept(&half, &good)), before.len()), (before, 3), "its key is not there yet");
    half.insert(reference("client", "tls.key"), Err(NotFound::Key));
    assert_eq!(of_client(kept(&half, &good)), [], "a certificate without its key is of no use");
}

#[test]
fn an_enrollment_token_that_is_gone_is_remembered_as_one_and_no_longer_known() {
    let token = |value: &'static str| Credential { kind: CredentialKind::EnrollmentToken, value: value.into() };
    let header = reference("edge-token", "header");
    let former = with("edge-token", "header", Ok(token("Bearer token")));
    let gone = with("edge-token", "header", Err(NotFound::Object));
    assert_eq!(kept(&gone, &former).get(&header), Some(&token("")));
    let still_gone = with("edge-token", "header", Ok(token("")));
    assert_eq!(kept(&gone, &still_gone).get(&header), Some(&token("")));
    let plain = with("edge-token", "header", Ok(value("Bearer other")));
    assert_eq!(kept(&plain, &still_gone).get(&header), Some(&value("Bearer other")), "made anew, as something else");
}
