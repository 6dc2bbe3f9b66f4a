//! The Secret of a certificate: written, read, changed by patches, and what others may put into it.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::ResourceExt as _;
use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;

use super::{at, authority, name, uid};
use crate::{
    api::FLEET_LABEL,
    credentials::{
        authority::{Authority, Issued},
        key::{KeyId, PrivateKey},
        request::{CertificateRequest, PublicKey},
        roll::Issuer,
        stored::{
            AGENT_LABEL, AgentCertificate, Holder, KeyOrigin, REFUSED_ANNOTATION, SERIAL_ANNOTATION, StoredError,
        },
    },
};

pub(in crate::credentials) fn holder(number: u8) -> Holder {
    Holder { agent: uid(number), namespace: "telemetry".into(), fleet: "edge".into() }
}

pub(in crate::credentials) fn request(number: u8) -> CertificateRequest {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    let pem = parameters.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    CertificateRequest::check(pem.as_bytes(), uid(number), |_| false).unwrap()
}

fn issue(authority: &Authority, key: &PublicKey, seconds: i64) -> Issued {
    authority.issue_agent(&name(1), key, std::time::Duration::from_secs(600), at(seconds)).unwrap()
}

/// The Secret of agent 1 with a key and certificate of the operator's.
fn operator_born() -> Secret {
    let (key, pair) = PrivateKey::generate().unwrap();
    let public = PublicKey::of(&pair).unwrap();
    holder(1).issued(&key, &public.id(), &issue(&authority(), &public, 0))
}

/// As the API server applies a merge patch.
pub(super) fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = serde_json::json!({});
    }
    for (field, value) in fields {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(field);
        } else {
            merge(&mut into[field], value);
        }
    }
}

pub(in crate::credentials) fn patched(secret: &Secret, patch: &Value) -> Secret {
    let mut object = serde_json::to_value(secret).unwrap();
    merge(&mut object, patch);
    serde_json::from_value(object).unwrap()
}

#[test]
fn a_request_waits_for_its_answer() {
    let request = request(1);
    let secret = holder(1).request(&request);
    let read = AgentCertificate::read(&secret).unwrap();
    assert_eq!(secret.name_any(), format!("opamp-cert-{}-{}", uid(1), request.key().id().short()));
    assert!(read.is_due() && read.given.is_none() && read.private_key.is_none());
    assert_eq!((read.origin, read.request.as_deref()), (KeyOrigin::Agent, Some(request.pem())));
    assert_eq!(secret.data.unwrap().len(), 1, "the request and nothing else");
}

#[test]
fn an_answer_is_written_beside_the_request() {
    let (authority, request) = (authority(), request(1));
    let secret = holder(1).request(&request);
    let issued = issue(&authority, request.key(), 0);
    let answered = patched(&secret, &AgentCertificate::read(&secret).unwrap().answer_with(&issued, &Issuer::Internal));
    let read = AgentCertificate::read(&answered).unwrap();
    let given = read.given.clone().unwrap();
    assert!(!read.is_due());
    assert_eq!(read.request, None, "not needed any more");
    assert_eq!((&*given.chain, &*given.ca), (issued.chain.as_str(), issued.ca.as_str()));
    assert_eq!((&given.certificate.serial, given.certificate.issuer), (&issued.serial, authority.facts().key));
    assert_eq!(answered.annotations()[SERIAL_ANNOTATION], issued.serial.to_string());
    assert!(!answered.data.unwrap().contains_key("tls.key"));
}

#[test]
fn a_renewal_for_the_same_key_keeps_both_certificates_until_the_new_one_is_used() {
    let (authority, request) = (authority(), request(1));
    let mut secret = holder(1).request(&request);
    let read = |secret: &Secret| AgentCertificate::read(secret).unwrap();
    let first = issue(&authority, request.key(), 0);
    secret = patched(&secret, &read(&secret).answer_with(&first, &Issuer::Internal));
    secret = patched(&secret, &read(&secret).ask_again("edge"));
    assert!(read(&secret).is_due());
    assert!(read(&secret).request.is_some());
    let second = issue(&authority, request.key(), 300);
    secret = patched(&secret, &read(&secret).answer_with(&second, &Issuer::Internal));
    assert!(!read(&secret).is_due());
    let serials: Vec<_> = read(&secret).held().map(|held| held.serial.clone()).collect();
    assert_eq!(serials, [second.serial.clone(), first.serial]);
    assert!(read(&secret).held().all(|held| held.issuer == authority.facts().key));
    secret = patched(&secret, &read(&secret).settle());
    let serials: Vec<_> = read(&secret).held().map(|held| held.serial.clone()).collect();
    assert_eq!(serials, [second.serial]);
}

#[test]
fn a_refusal_stays_until_the_agent_asks_again() {
    let secret = holder(1).request(&request(1));
    let refused = patched(&secret, &AgentCertificate::read(&secret).unwrap().refuse("the agent is denied", at(5)));
    let read = AgentCertificate::read(&refused).unwrap();
    assert!(!read.is_due());
    let refusal = read.refused.clone().unwrap();
    assert_eq!((refusal.why.as_str(), refusal.at), ("the agent is denied", at(5)));
    let again = patched(&refused, &read.ask_again("other"));
    let read = AgentCertificate::read(&again).unwrap();
    assert!(read.is_due() && !again.annotations().contains_key(REFUSED_ANNOTATION));
    assert_eq!(read.fleet, "other");
}

#[test]
fn the_operators_key_is_read_and_never_shown() {
    let secret = operator_born();
    let read = AgentCertificate::read(&secret).unwrap();
    assert_eq!((read.origin, read.is_due()), (KeyOrigin::Operator, false));
    let key = read.private_key.as_ref().unwrap();
    assert!(read.is_for(&key.id().unwrap()));
    let middle = key.expose().lines().nth(1).unwrap();
    assert!(!format!("{read:?}").contains(middle));
}

#[test]
fn what_others_put_there_is_an_error() {
    let good = operator_born();
    let change = |change: &dyn Fn(&mut Secret)| {
        let mut secret = good.clone();
        change(&mut secret);
        secret
    };
    let value = |key: &'static str, value: Vec<u8>| {
        change(&|secret| {
            secret.data.as_mut().unwrap().insert(key.into(), ByteString(value.clone()));
        })
    };
    let foreign = operator_born();
    let of_foreign = |key: &str| foreign.data.as_ref().unwrap()[key].0.clone();
    let authority = authority().chain().into_bytes();
    for (case, secret, expected) in [
        ("another type", change(&|secret| secret.type_ = Some("Opaque".into())), StoredError::Type),
        ("no agent", change(&|secret| secret.metadata.labels = None), StoredError::Label(AGENT_LABEL)),
        (
            "no UUID",
            change(&|secret| drop(secret.labels_mut().insert(AGENT_LABEL.into(), "x".into()))),
            StoredError::Label(AGENT_LABEL),
        ),
        ("no fleet", change(&|secret| drop(secret.labels_mut().remove(FLEET_LABEL))), StoredError::Label(FLEET_LABEL)),
        (
            "another agent's",
            change(&|secret| drop(secret.labels_mut().insert(AGENT_LABEL.into(), uid(2).to_string()))),
            StoredError::Name,
        ),
        ("no data", change(&|secret| secret.data = None), StoredError::Empty),
        ("another key", value("tls.key", of_foreign("tls.key")), StoredError::Key),
        ("no key", value("tls.key", b"canary".to_vec()), StoredError::Key),
        ("no text", value("tls.key", vec![0xff; 9]), StoredError::Key),
        ("a huge key", value("tls.key", vec![b'a'; 20_000]), StoredError::TooLarge("tls.key")),
        ("a huge request", value("csr", vec![b'a'; 20_000]), StoredError::TooLarge("csr")),
        ("a huge chain", value("tls.crt", vec![b'a'; 40_000]), StoredError::TooLarge("tls.crt")),
        ("another's certificate", value("tls.crt", of_foreign("tls.crt")), StoredError::Certificate("tls.crt")),
        ("a CA's certificate", value("tls.crt", authority.clone()), StoredError::Certificate("tls.crt")),
        ("no certificate", value("tls.crt", b"canary".to_vec()), StoredError::Certificate("tls.crt")),
        ("no CA", value("ca.crt", b"canary".to_vec()), StoredError::Certificate("ca.crt")),
        ("another's former", value("former.crt", of_foreign("tls.crt")), StoredError::Certificate("former.crt")),
    ] {
        let error = AgentCertificate::read(&secret).unwrap_err();
        assert_eq!(error, expected, "{case}");
        assert!(!format!("{error} {error:?}").contains("canary"), "{case}");
    }
}

#[test]
fn a_reason_is_cut_and_a_strange_renewal_asks_for_nothing() {
    let mut secret = operator_born();
    secret.annotations_mut().insert(REFUSED_ANNOTATION.into(), "x".repeat(5_000));
    secret.annotations_mut().insert("opamp.dev/renew".into(), "not hexadecimal".into());
    let read = AgentCertificate::read(&secret).unwrap();
    assert_eq!(read.refused.as_ref().map(|refused| refused.why.len()), Some(1_024));
    assert_eq!(read.renew, None);
    assert!(!read.is_for(&KeyId::of(b"another")));
}
