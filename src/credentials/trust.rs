//! Whom this replica believes: the CAs and the revocations as the API server has them, without any secret.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use arc_swap::ArcSwap;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _, runtime::watcher::Event};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, pem::PemObject as _};
use tokio::sync::watch;

use super::{
    anchors::{Anchors, ChainError, ClientCertificate},
    authority::BACKDATED,
    facts::{CertificateFacts, later},
    key::KeyId,
    pem::write_certificates,
    published::{AUTHORITY_NAME, PublishedAuthorities, PublishedError, PublishedRevocations, REVOCATIONS_NAME},
    revocations::HolderId,
    serial::Serial,
};
use crate::{
    kubernetes::{WatchClient, watch_config},
    opamp::identity::Identity,
};

/// The names of the two objects that are followed.
const OBJECTS: [&str; 2] = [AUTHORITY_NAME, REVOCATIONS_NAME];

/// What was known at one moment.
#[derive(Clone, Debug, Default)]
pub struct TrustSnapshot {
    authorities: Option<Arc<KnownAuthorities>>,
    revocations: Option<Arc<KnownRevocations>>,
}

#[derive(Debug)]
struct KnownRevocations {
    published: PublishedRevocations,
    holders: HashMap<HolderId, Timestamp>,
}

#[derive(Debug)]
struct KnownAuthorities {
    published: PublishedAuthorities,
    anchors: Anchors,
    bundle: Arc<str>,
}

impl TrustSnapshot {
    /// This, after the ConfigMap was written.
    pub fn with_authorities(&self, config_map: &ConfigMap) -> Result<Self, PublishedError> {
        let published = PublishedAuthorities::read(config_map)?;
        let believed = published.bundle.iter().filter(|certificate| {
            CertificateFacts::read(certificate).is_ok_and(|facts| published.issuers.contains(&facts.key))
        });
        let anchors = Anchors::new(believed);
        let bundle = write_certificates(&published.bundle).into();
        Ok(Self { authorities: Some(Arc::new(KnownAuthorities { published, anchors, bundle })), ..self.clone() })
    }

    /// This, after the ConfigMap was written.
    pub fn with_revocations(&self, config_map: &ConfigMap) -> Result<Self, PublishedError> {
        let published = PublishedRevocations::read(config_map)?;
        let holders = published.revocations.holders();
        Ok(Self { revocations: Some(Arc::new(KnownRevocations { published, holders })), ..self.clone() })
    }

    /// Who holds this certificate, which its holder has proved to own in a handshake.
    pub fn identify(&self, certificate: &CertificateDer<'_>, now: Timestamp) -> Result<ClientCertificate, ChainError> {
        let known = self.authorities.as_ref().ok_or(ChainError::Untrusted)?;
        let found = known.anchors.identify(certificate, &known.published.cluster, now)?;
        let is_revoked = self.is_revoked(&found.issuer, &found.serial) || self.was_taken_back(&found);
        if is_revoked { Err(ChainError::Revoked) } else { Ok(found) }
    }

    /// Whether its holder was revoked after it was made. It may be one that was replaced before, and then no Secret tells of
    /// it, nor any list.
    fn was_taken_back(&self, found: &ClientCertificate) -> bool {
        let Identity::Certificate { namespace, uid, .. } = &found.identity else { return false };
        let known = self.revocations.as_ref();
        let at = known.and_then(|known| known.holders.get(&HolderId::of(namespace, uid)));
        at.is_some_and(|at| later(found.not_before, BACKDATED) <= *at)
    }

    /// Whether a certificate was taken back.
    #[must_use]
    pub fn is_revoked(&self, issuer: &KeyId, serial: &Serial) -> bool {
        self.revocations.as_ref().is_some_and(|known| known.published.revocations.contains(issuer, serial))
    }

    /// Whether certificates of the CA with this key are still believed at this moment.
    #[must_use]
    pub fn trusts(&self, issuer: &KeyId) -> bool {
        self.authorities.as_ref().is_some_and(|known| known.anchors.keys().any(|key| key == *issuer))
    }

    /// The `<cluster>` of the names in certificates; `None` until there is a CA.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        self.authorities.as_ref().map(|known| known.published.cluster.as_str())
    }

    /// All CAs by which agents recognise the server, in PEM; `None` until there is one.
    #[must_use]
    pub fn bundle(&self) -> Option<Arc<str>> {
        self.authorities.as_ref().map(|known| Arc::clone(&known.bundle))
    }

    /// The CAs, as the leader has published them last.
    #[must_use]
    pub fn authorities(&self) -> Option<&PublishedAuthorities> {
        self.authorities.as_ref().map(|known| &known.published)
    }

    /// What was taken back, as the leader has published it last.
    #[must_use]
    pub fn revocations(&self) -> Option<&PublishedRevocations> {
        self.revocations.as_ref().map(|known| &known.published)
    }

    /// The signed list of what was taken back, in PEM; `None` until the leader has published one.
    #[must_use]
    pub fn revocation_list_pem(&self) -> Option<String> {
        self.revocations().map(|known| known.list.clone())
    }

    /// The same in DER, as RFC 2585 §4 has it behind a URL.
    #[must_use]
    pub fn revocation_list_der(&self) -> Option<Vec<u8>> {
        let list = CertificateRevocationListDer::from_pem_slice(self.revocations()?.list.as_bytes()).ok()?;
        Some(list.to_vec())
    }
}

/// Whom this replica believes. A clone reads the same.
#[derive(Clone, Default)]
pub struct Trust {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    snapshot: ArcSwap<TrustSnapshot>,
    generation: watch::Sender<u64>,
    synced: watch::Sender<bool>,
}

impl Trust {
    /// Believes nobody until [`Self::run`] has seen the CA.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What is known now.
    #[must_use]
    pub fn snapshot(&self) -> Arc<TrustSnapshot> {
        self.shared.snapshot.load_full()
    }

    /// Tells of each change: whoever holds a session checks then whether its certificate still counts.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.shared.generation.subscribe()
    }

    /// Waits until both objects were read, or looked for: before, what was taken back is not known.
    pub async fn synced(&self) {
        // The sender is here, so that waiting cannot fail.
        let _ = self.shared.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Watches the two objects of the operator's own namespace until the future is dropped.
    pub async fn run(self, watches: WatchClient, namespace: String) {
        let api: Api<ConfigMap> = Api::namespaced(watches.client().clone(), &namespace);
        let events = OBJECTS.map(|name| {
            let one = watch_config().fields(&format!("metadata.name={name}"));
            watches.watch(api.clone(), one).map(move |event| (name, event))
        });
        let mut events = stream::select_all(events);
        let mut sights = BTreeMap::from(OBJECTS.map(|name| (name, Sight::Unknown)));
        while let Some((name, event)) = events.next().await {
            let (Some(event), Some(sight)) = (event, sights.get_mut(name)) else { continue };
            *sight = self.follow(*sight, event);
            if sights.values().all(|sight| *sight == Sight::Known) {
                self.shared.synced.send_replace(true);
            }
        }
    }

    /// Follows the watch over one of the two objects. Says what is known of that object now.
    fn follow(&self, before: Sight, event: Event<ConfigMap>) -> Sight {
        match (event, before) {
            (Event::InitApply(config_map) | Event::Apply(config_map), before) => match (self.read(&config_map), before)
            {
                (Ok(()), _) | (Err(_), Sight::Known) => Sight::Known,
                (Err(_), Sight::Unknown | Sight::Unreadable) => Sight::Unreadable,
            },
            (Event::Init, Sight::Unknown | Sight::Unreadable) => Sight::Unknown,
            // It is not there.
            (Event::InitDone, Sight::Unknown) => Sight::Known,
            (Event::Init | Event::InitDone, before) => before,
            // Whom we believe does not depend on a slip: the leader writes the ConfigMap anew, and what was known is
            // known until then.
            (Event::Delete(config_map), before) => {
                tracing::warn!(config_map = config_map.name_any(), "a ConfigMap was deleted; its last content counts");
                before
            }
        }
    }

    /// Follows one of the two objects; others say nothing.
    pub fn take(&self, config_map: &ConfigMap) {
        // It has been logged, and its last content counts.
        let _ = self.read(config_map);
    }

    fn read(&self, config_map: &ConfigMap) -> Result<(), PublishedError> {
        let before = self.snapshot();
        let after = match config_map.metadata.name.as_deref() {
            Some(AUTHORITY_NAME) => before.with_authorities(config_map),
            Some(REVOCATIONS_NAME) => before.with_revocations(config_map),
            Some(_) | None => return Ok(()),
        };
        let after = after.inspect_err(|error| {
            let config_map = config_map.name_any();
            tracing::error!(config_map, %error, "a ConfigMap cannot be read; its last content counts");
        })?;
        self.shared.snapshot.store(Arc::new(after));
        self.shared.generation.send_modify(|generation| *generation += 1);
        Ok(())
    }
}

/// What is known of one of the two objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sight {
    /// It was not looked for yet.
    Unknown,
    /// It is there, and the leader will write it anew.
    Unreadable,
    /// It was read, or is not there.
    Known,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::credentials::{
        authority::Authority,
        pem::read_certificates,
        revocations::{Revocation, Revocations},
        tests::{at, authority, intermediate, issue, name, uid},
    };

    fn trusting(bundle: &[CertificateDer<'static>], issuers: &[&Authority]) -> ConfigMap {
        let issuers: BTreeSet<_> = issuers.iter().map(|authority| authority.facts().key).collect();
        let published = PublishedAuthorities { cluster: "c".into(), bundle: bundle.to_vec(), issuers };
        published.to_config_map("opamp-system")
    }

    fn revoking(authority: &Authority, serial: &Serial, number: u8) -> ConfigMap {
        let mut revocations = Revocations::default();
        let holder = HolderId::of("telemetry", &uid(number));
        let revocation = Revocation { holder, at: at(100), not_after: at(604_800) };
        revocations.revoke(authority.facts().key, serial.clone(), revocation);
        let list = revocations.sign(authority, 1, at(0)).unwrap();
        let signed_by = authority.facts().key;
        PublishedRevocations { number: 1, signed_at: at(0), signed_by, revocations, list }.to_config_map("opamp-system")
    }

    #[test]
    fn nobody_is_believed_before_the_authority_is_known() {
        let (trust, authority) = (Trust::new(), authority());
        let issued = issue(&authority, 0).unwrap();
        let certificate = read_certificates(issued.chain.as_bytes()).unwrap().remove(0);
        assert_eq!(trust.snapshot().identify(&certificate, at(0)).unwrap_err(), ChainError::Untrusted);
        let mut changed = trust.changed();
        trust.take(&trusting(&[authority.certificate().clone()], &[&authority]));
        assert!(changed.has_changed().unwrap());
        changed.mark_unchanged();
        let snapshot = trust.snapshot();
        assert_eq!(snapshot.identify(&certificate, at(0)).unwrap().identity, name(1).identity());
        assert_eq!((snapshot.cluster(), snapshot.bundle().as_deref()), (Some("c"), Some(authority.chain().as_str())));
        assert!(!changed.has_changed().unwrap());
    }

    #[test]
    fn a_revoked_certificate_is_not_believed() {
        let (trust, authority) = (Trust::new(), authority());
        let (revoked, other) = (issue(&authority, 0).unwrap(), issue(&authority, 0).unwrap());
        trust.take(&trusting(&[authority.certificate().clone()], &[&authority]));
        trust.take(&revoking(&authority, &revoked.serial, 2));
        let snapshot = trust.snapshot();
        for (case, issued, expected) in [("revoked", revoked, Some(ChainError::Revoked)), ("another", other, None)] {
            let certificate = read_certificates(issued.chain.as_bytes()).unwrap().remove(0);
            assert_eq!(snapshot.identify(&certificate, at(0)).err(), expected, "{case}");
        }
        let pem = snapshot.revocation_list_pem().unwrap();
        assert_eq!(super::super::pem::write_block("X509 CRL", &snapshot.revocation_list_der().unwrap()), pem);
    }

    #[test]
    fn what_was_replaced_before_its_holder_was_revoked_is_not_believed_either() {
        let (trust, authority) = (Trust::new(), authority());
        trust.take(&trusting(&[authority.certificate().clone()], &[&authority]));
        trust.take(&revoking(&authority, &issue(&authority, 50).unwrap().serial, 1));
        for (case, seconds, expected) in [
            ("replaced before", 0, Some(ChainError::Revoked)),
            ("of the same second", 100, Some(ChainError::Revoked)),
            ("made when it had come back", 101, None),
        ] {
            let issued = issue(&authority, seconds).unwrap();
            let certificate = read_certificates(issued.chain.as_bytes()).unwrap().remove(0);
            assert_eq!(trust.snapshot().identify(&certificate, at(200)).err(), expected, "{case}");
        }
    }

    #[test]
    fn the_root_above_an_intermediate_is_not_believed_about_agents() {
        let (trust, (active, root)) = (Trust::new(), intermediate(at(0)));
        trust.take(&trusting(&[active.certificate().clone(), root.clone()], &[&active]));
        let snapshot = trust.snapshot();
        assert!(snapshot.trusts(&active.facts().key));
        assert!(!snapshot.trusts(&CertificateFacts::read(&root).unwrap().key));
        assert_eq!(read_certificates(snapshot.bundle().unwrap().as_bytes()).unwrap().len(), 2);
    }

    #[test]
    fn a_config_map_that_cannot_be_read_changes_nothing() {
        let (trust, authority) = (Trust::new(), authority());
        let serial = issue(&authority, 0).unwrap().serial;
        trust.take(&trusting(&[authority.certificate().clone()], &[&authority]));
        trust.take(&revoking(&authority, &serial, 2));
        for name in [AUTHORITY_NAME, REVOCATIONS_NAME, "another"] {
            let mut broken = ConfigMap::default();
            broken.metadata.name = Some(name.into());
            trust.take(&broken);
        }
        let snapshot = trust.snapshot();
        assert!(snapshot.trusts(&authority.facts().key));
        assert!(snapshot.is_revoked(&authority.facts().key, &serial));
    }

    #[test]
    fn an_object_is_known_once_it_was_read_or_looked_for_in_vain() {
        let (trust, authority) = (Trust::new(), authority());
        let revoking = || revoking(&authority, &issue(&authority, 0).unwrap().serial, 1);
        let mut broken = ConfigMap::default();
        broken.metadata.name = Some(REVOCATIONS_NAME.into());
        for (case, events, expected) in [
            ("the list begins", vec![Event::Init], Sight::Unknown),
            ("it is there", vec![Event::Init, Event::InitApply(revoking())], Sight::Known),
            ("it is not there", vec![Event::Init, Event::InitDone], Sight::Known),
            (
                "it cannot be read",
                vec![Event::Init, Event::InitApply(broken.clone()), Event::InitDone],
                Sight::Unreadable,
            ),
            (
                "it is written anew",
                vec![Event::Init, Event::InitApply(broken.clone()), Event::InitDone, Event::Apply(revoking())],
                Sight::Known,
            ),
            (
                "it was deleted by somebody to be made anew",
                vec![Event::InitApply(broken.clone()), Event::Init, Event::InitDone],
                Sight::Known,
            ),
            ("it is broken later", vec![Event::InitApply(revoking()), Event::Apply(broken)], Sight::Known),
        ] {
            let sight = events.into_iter().fold(Sight::Unknown, |sight, event| trust.follow(sight, event));
            assert_eq!(sight, expected, "{case}");
        }
    }
}
