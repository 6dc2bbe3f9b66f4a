//! A certificate that was replaced counts until its successor is used, and no longer (CON-10).

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::runtime::watcher::Event;
use rustls_pki_types::CertificateDer;

use super::{at, authority, name, stored::holder};
use crate::{
    credentials::{
        anchors::ChainError,
        authority::Authority,
        certificates::Certificates,
        key::PrivateKey,
        pem::read_certificates,
        published::PublishedAuthorities,
        request::PublicKey,
        trust::{Trust, TrustSnapshot},
    },
    kubernetes::Scope,
};

/// A certificate of agent 1 that counts from this second on for so many, and its Secret.
fn issued(authority: &Authority, from: i64, lifetime: u64) -> (CertificateDer<'static>, Secret) {
    let (key, pair) = PrivateKey::generate().unwrap();
    let public = PublicKey::of(&pair).unwrap();
    let issued = authority.issue_agent(&name(1), &public, Duration::from_secs(lifetime), at(from)).unwrap();
    let certificate = read_certificates(issued.chain.as_bytes()).unwrap().remove(0);
    let mut secret = holder(1).issued(&key, &public.id(), &issued);
    secret.metadata.uid = Some(format!("uid-{from}"));
    secret.metadata.resource_version = Some("1".into());
    (certificate, secret)
}

fn trusting(authority: &Authority) -> std::sync::Arc<TrustSnapshot> {
    let trust = Trust::new();
    let issuers = BTreeSet::from([authority.facts().key]);
    let bundle = vec![authority.certificate().clone()];
    trust.take(&PublishedAuthorities { cluster: "c".into(), bundle, issuers }.to_config_map("opamp-system"));
    trust.snapshot()
}

#[test]
fn a_certificate_counts_until_its_successor_is_used_and_no_longer() {
    let authority = authority();
    let trust = trusting(&authority);
    let ((former, former_secret), (later, later_secret)) = (issued(&authority, 0, 600), issued(&authority, 300, 600));
    let certificates = Certificates::new(&Scope::All);
    let identify = |certificate| {
        let found = certificates.identify(&trust, certificate, at(310));
        found.map(|found| found.identity.issued_to())
    };
    let expected = Ok(Some(super::uid(1)));
    certificates.take(&None, Event::Init);
    certificates.take(&None, Event::InitApply(former_secret.clone()));
    certificates.take(&None, Event::InitDone);
    assert_eq!(identify(&former), expected, "the only one");
    assert_eq!(identify(&later), expected, "one that this replica has not heard of yet");
    certificates.take(&None, Event::Apply(later_secret.clone()));
    assert_eq!((identify(&former), identify(&later)), (expected, expected), "neither is used yet");
    certificates.take(&None, Event::Delete(former_secret));
    assert_eq!(identify(&former), Err(ChainError::Superseded), "the later one was used");
    assert_eq!(identify(&later), expected);
    certificates.take(&None, Event::Delete(later_secret));
    assert_eq!(identify(&former), expected, "nothing is known of any, such as after a restore of the namespace");
}
