//! A certificate that was replaced counts until its successor is used, and no longer (CON-10).

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::Time};
use kube::{ResourceExt as _, runtime::watcher::Event};
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::CertificateDer;

use super::{
    at, authority, name,
    stored::{holder, patched},
    world::World,
};
use crate::{
    credentials::{
        anchors::ChainError,
        authority::{Authority, Issued},
        certificates::Certificates,
        facts::date,
        key::PrivateKey,
        pem::read_certificates,
        published::PublishedAuthorities,
        request::PublicKey,
        roll::{KeyWish, Standing},
        serial::Serial,
        trust::{Trust, TrustSnapshot},
    },
    kubernetes::Scope,
    opamp::identity::Principal,
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

/// The same Secret, in another namespace and written later.
fn elsewhere(secret: &Secret) -> Secret {
    let mut copy = secret.clone();
    copy.metadata.namespace = Some("bank".into());
    copy.metadata.creation_timestamp = Some(Time(at(1)));
    copy
}

#[test]
fn a_secret_of_another_namespace_says_nothing_of_a_certificate() {
    let (authority, pair) = (authority(), KeyPair::generate().unwrap());
    let ((own, _), trust) = (issued(&authority, 0, 600), trusting(&authority));
    let mut longest = CertificateParams::default();
    (longest.not_before, longest.not_after) = (rcgen::date_time_ymd(2098, 1, 1), rcgen::date_time_ymd(2099, 1, 1));
    let chain = longest.self_signed(&pair).unwrap().pem();
    let key = PrivateKey::from_pem(pair.serialize_pem());
    let given = Issued { ca: chain.clone(), chain, serial: Serial::random(), not_after: at(600) };
    let secret = holder(1).issued(&key, &key.id().unwrap(), &given);
    let certificates = Certificates::new(&Scope::All);
    certificates.take(&None, Event::Apply(elsewhere(&secret)));
    assert!(certificates.identify(&trust, &own, at(0)).is_ok());
    certificates.take(&None, Event::Apply(secret));
    assert_eq!(certificates.identify(&trust, &own, at(0)), Err(ChainError::Superseded), "one of its own does");
}

#[test]
fn a_copy_of_a_certificate_in_another_namespace_neither_draws_its_holder_nor_turns_it_away() {
    let (others, pair, trust) = (authority(), KeyPair::generate().unwrap(), trusting(&authority()));
    let mut nameless = CertificateParams::default();
    (nameless.not_before, nameless.not_after) = (date(at(0)).unwrap(), date(at(600)).unwrap());
    let chain = nameless.signed_by(&pair, others.issuer()).unwrap().pem();
    let certificate = read_certificates(chain.as_bytes()).unwrap().remove(0);
    let key = PrivateKey::from_pem(pair.serialize_pem());
    let given = Issued { chain, ca: others.chain(), serial: Serial::random(), not_after: at(600) };
    let mut own = holder(1).issued(&key, &key.id().unwrap(), &given);
    own.annotations_mut().insert("opamp.dev/issuer".into(), "CertManager".into());
    own.metadata.creation_timestamp = Some(Time(at(0)));
    let copy = elsewhere(&own);
    for secrets in [[&own, &copy], [&copy, &own]] {
        let certificates = Certificates::new(&Scope::All);
        secrets.into_iter().for_each(|secret| certificates.take(&None, Event::Apply(secret.clone())));
        let identify = || certificates.identify(&trust, &certificate, at(0)).map(|found| found.identity);
        assert_eq!(identify(), Ok(name(1).identity()));
        let found = certificates.identify(&trust, &certificate, at(0)).unwrap();
        let principal = Principal { proof: found.proof(), identity: found.identity, ..Principal::anonymous() };
        certificates.take(&None, Event::Delete(copy.clone()));
        assert_eq!(identify(), Ok(name(1).identity()), "its Secret is still there");
        certificates.take(&None, Event::Apply(copy.clone()));
        certificates.take(&None, Event::Delete(own.clone()));
        assert!(!certificates.still_counts(&trust, &principal), "whoever was let in by its own Secret goes with it");
    }
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
    let (shorter, shorter_secret) = issued(&authority, 300, 60);
    certificates.take(&None, Event::Apply(shorter_secret));
    assert_eq!(identify(&former), Err(ChainError::Superseded), "its successor ends before it");
    assert_eq!(identify(&shorter), expected);
}

#[test]
fn however_often_a_certificate_is_renewed_the_one_in_use_stays() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Own);
    let name = world.ask(1);
    world.settle();
    let serials = |world: &World| world.of(1)[0].held().map(|held| held.serial.clone()).collect::<Vec<_>>();
    let mut used = serials(&world)[0].clone();
    world.member(1).in_use = Some(used.clone());
    for (case, is_last_used) in
        [("first", false), ("second", false), ("third", true), ("used when asked for", false), ("again", false)]
    {
        world.pass(10);
        let renewal = world.of(1)[0].ask_again("edge");
        world.secrets.insert(name.clone(), patched(&world.secrets[&name], &renewal));
        world.settle();
        let held = serials(&world);
        assert_eq!((held.len(), &held[1]), (2, &used), "{case}");
        if is_last_used {
            used = held[0].clone();
            world.member(1).in_use = Some(used.clone());
        }
    }
    world.member(1).in_use = Some(serials(&world)[0].clone());
    world.settle();
    assert_eq!(serials(&world).len(), 1);
}
