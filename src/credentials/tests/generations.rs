//! The CA's Secret over its life: made, replaced, broken, mended.

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::ResourceExt as _;

use super::{at, intermediate};
use crate::credentials::{
    authority::AuthorityError,
    facts::CertificateFacts,
    generations::{GenerationError, Generations, ROTATE_ANNOTATION},
    key::KeyId,
    published::{CLUSTER_ANNOTATION, ISSUERS_ANNOTATION},
};

/// What is stored of the CA.
#[derive(Clone, Default)]
struct Stored {
    secret: Option<Secret>,
    config_map: Option<ConfigMap>,
}

impl Stored {
    fn look(&self, seconds: i64) -> Result<Generations, GenerationError> {
        let (secret, config_map) = (self.secret.as_ref(), self.config_map.as_ref());
        Generations::settle(secret, config_map, None, "opamp-system", at(seconds))
    }

    /// Secret, then ConfigMap, are written.
    fn settle(&mut self, seconds: i64) -> Generations {
        let settled = self.look(seconds).unwrap();
        if let Some(secret) = &settled.secret {
            self.secret = Some(secret.clone());
        }
        self.config_map = Some(settled.published.to_config_map("opamp-system"));
        settled
    }

    fn value(&mut self, key: &str) -> &mut Vec<u8> {
        let data = self.secret.as_mut().unwrap().data.as_mut().unwrap();
        &mut data.entry(key.into()).or_insert_with(|| ByteString(Vec::new())).0
    }

    fn annotate(&mut self, name: &str, value: &str) {
        self.secret.as_mut().unwrap().annotations_mut().insert(name.into(), value.into());
    }
}

fn active(settled: &Generations) -> KeyId {
    settled.authority.facts().key
}

/// The keys of all that are believed about agents.
fn believed(settled: &Generations) -> Vec<KeyId> {
    let keys = settled.published.bundle.iter().map(|ca| CertificateFacts::read(ca).unwrap().key);
    keys.filter(|key| settled.published.issuers.contains(key)).collect()
}

#[test]
fn the_authority_is_made_once() {
    let mut stored = Stored::default();
    let first = stored.settle(0);
    let secret = stored.secret.clone().unwrap();
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    assert_eq!(first.published.cluster.len(), 10, "ten hexadecimal digits");
    assert_eq!(secret.annotations()[CLUSTER_ANNOTATION], first.published.cluster);
    let second = stored.look(1).unwrap();
    assert_eq!((active(&second), second.secret.is_none()), (active(&first), true));
    assert_eq!(second.published, first.published);
}

#[test]
fn a_leader_that_stopped_between_the_two_writes_is_followed_by_one_that_makes_no_other() {
    let mut stored = Stored::default();
    stored.secret = stored.look(0).unwrap().secret;
    let first = stored.look(0).unwrap();
    assert_eq!(first.secret, None);
    let second = stored.settle(1);
    assert_eq!((active(&second), believed(&second)), (active(&first), vec![active(&first)]));
}

#[test]
fn what_cannot_be_read_is_never_made_anew() {
    let mut good = Stored::default();
    good.settle(0);
    let broken = |change: &dyn Fn(&mut Stored)| {
        let mut stored = good.clone();
        change(&mut stored);
        stored.look(1).map(|_| ())
    };
    let unusable = |error| Err(GenerationError::Unusable(error));
    let garbage = || b"-----BEGIN CERTIFICATE-----\ncanary".to_vec();
    for (case, found, expected) in [
        ("key emptied", broken(&|it| it.value("tls.key").clear()), unusable(AuthorityError::Key)),
        ("key garbage", broken(&|it| *it.value("tls.key") = b"canary".to_vec()), unusable(AuthorityError::Key)),
        ("key not text", broken(&|it| *it.value("tls.key") = vec![0xff]), unusable(AuthorityError::Key)),
        (
            "certificate garbage",
            broken(&|it| *it.value("tls.crt") = garbage()),
            unusable(AuthorityError::Certificate(crate::credentials::pem::PemError::Malformed)),
        ),
        (
            "bundle garbage",
            broken(&|it| *it.value("ca.crt") = garbage()),
            Err(GenerationError::Bundle(crate::credentials::pem::PemError::Malformed)),
        ),
        ("no such cluster", broken(&|it| it.annotate(CLUSTER_ANNOTATION, "a/b")), Err(GenerationError::Cluster)),
    ] {
        assert_eq!(found, expected, "{case}");
        let error = found.unwrap_err();
        assert!(error.to_string().contains("Secret opamp-ca"), "{case}: {error}");
        assert!(!format!("{error} {error:?}").contains("canary"), "{case}");
    }
}

#[test]
fn a_new_authority_is_made_when_people_ask_for_it_and_the_former_stays_trusted() {
    type Way = fn(&mut Stored);
    let empty: Way = |stored| stored.value("tls.crt").clear();
    let annotate: Way = |stored| stored.annotate(ROTATE_ANNOTATION, "2026-11-29");
    let delete: Way = |stored| stored.secret = None;
    for (case, way) in [("tls.crt emptied", empty), ("annotation", annotate), ("Secret deleted", delete)] {
        let mut stored = Stored::default();
        let first = stored.settle(0);
        way(&mut stored);
        let second = stored.settle(1);
        assert_ne!(active(&second), active(&first), "{case}");
        assert_eq!(believed(&second), [active(&second), active(&first)], "{case}");
        assert_eq!(second.published.cluster, first.published.cluster, "{case}");
        let third = stored.settle(2);
        assert_eq!((active(&third), third.secret), (active(&second), None), "{case}: once");
        assert_eq!(second.outgoing.is_some(), case == "annotation");
    }
}

#[test]
fn each_new_wish_makes_one_new_authority() {
    let mut stored = Stored::default();
    let mut seen = vec![active(&stored.settle(0))];
    for wish in ["one", "two", "two", "three"] {
        stored.annotate(ROTATE_ANNOTATION, wish);
        seen.push(active(&stored.settle(1)));
    }
    assert_eq!(seen[2], seen[3]);
    seen.dedup();
    assert_eq!(seen.len(), 4);
}

#[test]
fn what_people_take_out_of_the_bundle_is_trusted_no_more() {
    let mut stored = Stored::default();
    let first = stored.settle(0);
    stored.annotate(ROTATE_ANNOTATION, "1");
    let second = stored.settle(1);
    *stored.value("ca.crt") = second.authority.chain().into_bytes();
    let third = stored.settle(2);
    assert_eq!(believed(&third), [active(&second)]);
    assert!(!stored.secret.as_ref().unwrap().annotations()[ISSUERS_ANNOTATION].contains(&active(&first).to_string()));
    assert_eq!(stored.look(3).unwrap().secret, None, "it does not come back");
}

#[test]
fn a_bundle_that_was_removed_is_written_anew() {
    let mut stored = Stored::default();
    let first = stored.settle(0);
    stored.annotate(ROTATE_ANNOTATION, "1");
    let second = stored.settle(1);
    stored.value("ca.crt").clear();
    let third = stored.settle(2);
    assert_eq!(believed(&third), [active(&second), active(&first)]);
    assert!(third.secret.is_some());
}

#[test]
fn a_former_authority_leaves_the_bundle_when_it_expires() {
    let mut stored = Stored::default();
    let first = stored.settle(0);
    stored.annotate(ROTATE_ANNOTATION, "1");
    stored.settle(100_000_000);
    let end = first.authority.facts().not_after.as_second() - at(0).as_second();
    assert_eq!(believed(&stored.look(end - 1).unwrap()).len(), 2);
    assert_eq!(believed(&stored.look(end).unwrap()).len(), 1);
}

#[test]
fn an_intermediate_of_people_takes_over_and_its_root_is_not_believed() {
    let mut stored = Stored::default();
    let first = stored.settle(0);
    let (authority, root) = intermediate(at(0));
    let key = authority.issuer().key().serialize_pem();
    *stored.value("tls.crt") = authority.chain().into_bytes();
    *stored.value("tls.key") = key.into_bytes();
    // As `kubectl create secret tls` leaves it.
    stored.secret.as_mut().unwrap().metadata.annotations = None;
    stored.secret.as_mut().unwrap().data.as_mut().unwrap().remove("ca.crt");
    let second = stored.settle(1);
    assert_eq!(active(&second), authority.facts().key);
    assert_eq!(believed(&second), [active(&second), active(&first)]);
    assert!(second.published.bundle.contains(&root), "agents recognise the server by it");
    assert_eq!(second.published.cluster, first.published.cluster);
    let before = stored.secret.clone();
    assert_eq!((stored.settle(2).secret, &stored.secret), (None, &before));
}

#[test]
fn whoever_deletes_all_begins_anew() {
    let mut stored = Stored::default();
    let first = stored.settle(0);
    stored = Stored::default();
    let second = stored.settle(1);
    assert_eq!(believed(&second), [active(&second)]);
    assert_ne!(active(&second), active(&first));
}

#[test]
fn the_name_of_the_cluster_is_kept_unless_the_flag_gives_another() {
    let mut stored = Stored::default();
    stored.settle(0);
    let (secret, config_map) = (stored.secret.as_ref(), stored.config_map.as_ref());
    let named = Generations::settle(secret, config_map, Some("prod-eu"), "opamp-system", at(1)).unwrap();
    assert_eq!(named.published.cluster, "prod-eu");
    assert_eq!(named.secret.unwrap().annotations()[CLUSTER_ANNOTATION], "prod-eu");
}

#[test]
fn a_bundle_never_grows_so_long_that_nobody_can_read_it() {
    let mut stored = Stored::default();
    stored.settle(0);
    for number in 1..64 {
        stored.annotate(ROTATE_ANNOTATION, &format!("{number}"));
        stored.settle(number);
    }
    let before = active(&stored.look(64).unwrap());
    stored.annotate(ROTATE_ANNOTATION, "once too often");
    assert_eq!(stored.look(65).map(|_| ()), Err(GenerationError::Full));
    stored.annotate(ROTATE_ANNOTATION, "63");
    assert_eq!(active(&stored.look(66).unwrap()), before, "the wish was taken back");
}
