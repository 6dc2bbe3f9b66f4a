//! What people of one namespace put into Secrets there says nothing of agents of another.

use std::collections::BTreeSet;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::Time};
use kube::{ResourceExt as _, runtime::watcher::Event};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose};
use rustls_pki_types::CertificateDer;

use super::{
    at, authority,
    stored::{holder, request},
};
use crate::{
    api::FLEET_LABEL,
    credentials::{
        anchors::ChainError, authority::Authority, certificates::Certificates, facts::date, pem::write_certificates,
        published::PublishedAuthorities, request::CertificateRequest, trust::TrustSnapshot,
    },
    kubernetes::Scope,
    opamp::identity::Principal,
};

/// A certificate without a name that somebody else has signed for this request.
fn signed(request: &CertificateRequest, by: &Authority, until: i64) -> CertificateDer<'static> {
    let mut parameters = CertificateParams::default();
    (parameters.not_before, parameters.not_after) = (date(at(0)).unwrap(), date(at(until)).unwrap());
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    parameters.signed_by(request.key(), by.issuer()).unwrap().der().clone()
}

/// The Secret that the fleet of agent 1 has it in.
fn stored(request: &CertificateRequest, certificate: &CertificateDer<'static>) -> Secret {
    let mut secret = holder(1).request(request);
    let pem = write_certificates(std::slice::from_ref(certificate)).into_bytes();
    secret.data.as_mut().unwrap().insert("tls.crt".into(), ByteString(pem));
    secret.annotations_mut().insert("opamp.dev/issuer".into(), "CertManager".into());
    secret.metadata.resource_version = Some("1".into());
    secret.metadata.creation_timestamp = Some(Time(at(0)));
    secret
}

/// The same, as somebody writes it into another namespace later.
fn copied(secret: &Secret) -> Secret {
    let mut copy = secret.clone();
    copy.metadata.namespace = Some("bank".into());
    copy.metadata.creation_timestamp = Some(Time(at(1)));
    copy.labels_mut().insert(FLEET_LABEL.into(), "branch".into());
    copy
}

fn nobody() -> TrustSnapshot {
    TrustSnapshot::default()
}

#[test]
fn a_copy_of_a_certificate_changes_nobodys_identity_and_keeps_nobody_in() {
    let (issuer, request) = (authority(), request(1));
    let certificate = signed(&request, &issuer, 600);
    let own = stored(&request, &certificate);
    let copy = copied(&own);
    for (case, first, second) in [("the copy comes later", &own, &copy), ("the copy is seen first", &copy, &own)] {
        let certificates = Certificates::new(&Scope::All);
        let identify = || certificates.identify(&nobody(), &certificate, at(10));
        certificates.take(&None, Event::Apply(first.clone()));
        certificates.take(&None, Event::Apply(second.clone()));
        let found = identify().unwrap();
        assert_eq!(found.identity.to_string(), format!("certificate:telemetry/edge/{}", super::uid(1)), "{case}");
        let principal = Principal { proof: found.proof(), identity: found.identity, ..Principal::anonymous() };
        assert!(certificates.still_counts(&nobody(), &principal), "{case}");
        certificates.take(&None, Event::Delete(copy.clone()));
        assert_eq!(identify().unwrap().identity, principal.identity, "{case}: the copy has gone");
        certificates.take(&None, Event::Apply(copy.clone()));
        certificates.take(&None, Event::Delete(own.clone()));
        assert!(!certificates.still_counts(&nobody(), &principal), "{case}: it ends with its own Secret");
    }
}

#[test]
fn a_certificate_of_another_namespace_replaces_none() {
    let (own, foreign, request) = (authority(), authority(), request(1));
    let issued = own.issue_agent(&super::name(1), request.key(), std::time::Duration::from_secs(600), at(0)).unwrap();
    let certificate = crate::credentials::pem::read_certificates(issued.chain.as_bytes()).unwrap().remove(0);
    let bundle = vec![own.certificate().clone()];
    let published = PublishedAuthorities { cluster: "c".into(), bundle, issuers: BTreeSet::from([own.facts().key]) };
    let trust = nobody().with_authorities(&published.to_config_map("opamp-system")).unwrap();
    let longer = stored(&request, &signed(&request, &foreign, 6_000));
    for (case, secret, expected) in
        [("of another namespace", copied(&longer), None), ("of its own", longer, Some(ChainError::Superseded))]
    {
        let certificates = Certificates::new(&Scope::All);
        certificates.take(&None, Event::Apply(secret));
        assert_eq!(certificates.identify(&trust, &certificate, at(10)).err(), expected, "{case}");
    }
}
