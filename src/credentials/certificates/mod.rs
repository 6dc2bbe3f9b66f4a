//! The certificates of all agents as the API server has them, in each replica, kept up by a watch.
//!
//! One task feeds the index; everybody else reads, and never waits for the API server.

mod known;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, runtime::watcher::Event};
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use tokio::sync::{broadcast, watch};

use self::known::Known;
use super::{
    anchors::{ChainError, ClientCertificate},
    key::KeyId,
    serial::Serial,
    stored::{AGENT_CERTIFICATE_TYPE, AgentCertificate, Given, Held, Signer},
    trust::TrustSnapshot,
};
use crate::{
    kubernetes::{Mirror, ObjectKey, Part, Scope, WatchClient, watch_config},
    opamp::{
        InstanceUid,
        identity::{Identity, Principal, Proof},
    },
};

/// How many changes a slow listener may be behind. Whoever falls further behind is told so, and reads everything.
const CHANGES_KEPT: usize = 1024;

/// The certificates of all agents. A clone reads the same index.
#[derive(Clone)]
pub struct Certificates {
    shared: Arc<Shared>,
}

struct Shared {
    known: RwLock<Known>,
    changes: broadcast::Sender<InstanceUid>,
    generation: watch::Sender<u64>,
    synced: watch::Sender<bool>,
}

impl Certificates {
    /// An index that knows nothing until [`Self::run`] has listed the Secrets of this scope.
    #[must_use]
    pub fn new(scope: &Scope) -> Self {
        let known = Known {
            mirror: Mirror::new(scope.parts()),
            of_agents: BTreeMap::new(),
            holders: HashMap::new(),
            ca: "".into(),
        };
        Self {
            shared: Arc::new(Shared {
                known: RwLock::new(known),
                changes: broadcast::Sender::new(CHANGES_KEPT),
                generation: watch::Sender::new(0),
                synced: watch::Sender::new(false),
            }),
        }
    }

    /// Watches these Secrets in the scope that the index was made for, until the future is dropped.
    pub async fn run(self, watches: WatchClient, scope: Scope) {
        let client = watches.client();
        let mut events = stream::select_all(scope.parts().into_iter().map(|part| {
            let api: Api<Secret> = match &part {
                None => Api::all(client.clone()),
                Some(namespace) => Api::namespaced(client.clone(), namespace),
            };
            let config = watch_config().fields(&format!("type={AGENT_CERTIFICATE_TYPE}"));
            watches.watch(api, config).map(move |event| (part.clone(), event))
        }));
        while let Some((part, event)) = events.next().await {
            if let Some(event) = event {
                self.take(&part, event);
            }
        }
    }

    /// Follows an event of the watch over `part`.
    pub fn take(&self, part: &Part, event: Event<Secret>) {
        self.follow(|known| known.take(part, event));
    }

    /// Follows what the API server has answered to this replica: it need not wait until the watch shows the same. That may
    /// have shown what came after it, such as the answer to a request, and would not show that again.
    pub fn note(&self, secret: Secret) {
        self.follow(|known| known.note(secret));
    }

    fn follow(&self, change: impl FnOnce(&mut Known) -> Vec<InstanceUid>) {
        let (agents, synced) = {
            let mut known = self.shared.known.write().unwrap_or_else(PoisonError::into_inner);
            (change(&mut known), known.mirror.is_complete())
        };
        self.shared.synced.send_if_modified(|was| std::mem::replace(was, synced) != synced);
        if agents.is_empty() {
            return;
        }
        self.shared.generation.send_modify(|generation| *generation += 1);
        for agent in agents {
            // An error means that nobody listens.
            let _ = self.shared.changes.send(agent);
        }
    }

    fn read<T>(&self, question: impl FnOnce(&Known) -> T) -> T {
        question(&self.shared.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether all have been listed once: before, absence means nothing.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// Waits until [`Self::is_synced`].
    pub async fn synced(&self) {
        // The sender is here, so that waiting cannot fail.
        let _ = self.shared.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// The certificates and requests of an agent, in all namespaces.
    #[must_use]
    pub fn of(&self, agent: &InstanceUid) -> Vec<Arc<AgentCertificate>> {
        self.read(|known| known.of(agent))
    }

    /// Those of the agent's fleets of one namespace. Whoever may write Secrets of another has no say about these.
    #[must_use]
    pub fn within(&self, namespace: &str, agent: &InstanceUid) -> Vec<Arc<AgentCertificate>> {
        self.of(agent).into_iter().filter(|it| it.key.namespace == namespace).collect()
    }

    /// All of them, by namespace and name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<AgentCertificate>> {
        self.read(|known| known.mirror.iter().map(|(_, certificate)| Arc::clone(certificate)).collect())
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<AgentCertificate>> {
        self.read(|known| known.mirror.get(key).cloned())
    }

    /// What the agent is to be offered as a member of this fleet: of its certificates that count now the one whose key
    /// it has made itself, and of several the one that was made last. It keeps what is offered until that has been
    /// renewed, so that the same is offered again and again.
    #[must_use]
    pub fn offered(
        &self,
        agent: &InstanceUid,
        namespace: &str,
        fleet: &str,
        trust: &TrustSnapshot,
        now: Timestamp,
    ) -> Option<(Arc<AgentCertificate>, Arc<Given>)> {
        let certificates = self.within(namespace, agent).into_iter();
        certificates
            .filter(|it| it.fleet == fleet)
            .filter_map(|it| it.counting(|issuer| trust.trusts(issuer), now).cloned().map(|given| (it, given)))
            .max_by(|(one, _), (other, _)| one.rank().cmp(&other.rank()))
    }

    /// Who holds this certificate, which its holder has proved to own in a handshake. One of our CAs must have signed it;
    /// or an issuer that is not ours, and then it must be the very one that is in the Secret of its holder, for what it
    /// says of names is that issuer's word.
    pub fn identify(
        &self,
        trust: &TrustSnapshot,
        certificate: &CertificateDer<'_>,
        now: Timestamp,
    ) -> Result<ClientCertificate, ChainError> {
        let refusal = match trust.identify(certificate, now) {
            Ok(found) if self.is_superseded(&found) => return Err(ChainError::Superseded),
            Ok(found) => return Ok(found),
            Err(refusal) => refusal,
        };
        let Some((found, held)) = self.holder_of(certificate) else { return Err(refusal) };
        if found.given.as_ref().is_none_or(|given| given.signer == Signer::Operator) {
            return Err(refusal);
        }
        let Held { issuer, serial, not_before, not_after, .. } = held;
        if trust.is_revoked(&issuer, &serial) {
            return Err(ChainError::Revoked);
        }
        if now < not_before {
            return Err(ChainError::NotYetValid);
        }
        if not_after <= now {
            return Err(ChainError::Expired);
        }
        let name = Identity::Certificate {
            namespace: found.key.namespace.clone(),
            fleet: found.fleet.clone(),
            uid: found.agent,
        };
        Ok(ClientCertificate { identity: name, issuer, serial, not_before, not_after })
    }

    /// Whether what somebody was admitted by still counts, if that was an issued certificate: it was not taken back, and
    /// its CA is still trusted; or it is in the Secret of its holder, if somebody else has signed it. To be asked when
    /// [`super::trust::Trust::changed`] or [`Self::changed`] tells of a change.
    #[must_use]
    pub fn still_counts(&self, trust: &TrustSnapshot, principal: &Principal) -> bool {
        let (Identity::Certificate { namespace, uid, .. }, Proof::Certificate { issuer, serial }) =
            (&principal.identity, &principal.proof)
        else {
            return true;
        };
        let (issuer, Some(serial)) = (KeyId(*issuer), Serial::from_der(serial)) else { return false };
        let is_it = |held: &Held| held.issuer == issuer && held.serial == serial;
        let is_others = |it: &Arc<AgentCertificate>| {
            it.given.as_ref().is_some_and(|given| given.signer == Signer::Other) && it.held().any(is_it)
        };
        !trust.is_revoked(&issuer, &serial)
            && (trust.trusts(&issuer) || self.within(namespace, uid).iter().any(is_others))
    }

    /// Whether the agent has connected with a later certificate: then the Secrets hold this one no more, and one that was
    /// made after it (CON-10). One that a replica has not heard of yet was made after those that it knows.
    fn is_superseded(&self, found: &ClientCertificate) -> bool {
        let Identity::Certificate { namespace, uid, .. } = &found.identity else { return false };
        let known = self.within(namespace, uid);
        let mut is_latest = true;
        for held in known.iter().flat_map(|it| it.held()) {
            if held.issuer == found.issuer && held.serial == found.serial {
                return false;
            }
            is_latest &= held.not_before <= found.not_before;
        }
        !is_latest
    }

    /// The Secret that this very certificate is in, and what identifies it. Certificates are no secrets, and whoever copies
    /// one into another namespace must not draw its holder there: the Secret counts that was there first.
    #[must_use]
    pub fn holder_of(&self, certificate: &CertificateDer<'_>) -> Option<(Arc<AgentCertificate>, Held)> {
        let digest: [u8; 32] = Sha256::digest(certificate).into();
        let found = self.read(|known| {
            let secrets = known.holders.get(&digest)?.iter().filter_map(|key| known.mirror.get(key));
            secrets.min_by(|one, other| (one.created_at, &one.key).cmp(&(other.created_at, &other.key))).cloned()
        })?;
        let held = found.held().find(|held| held.digest == digest)?.clone();
        Some((found, held))
    }

    /// Tells of the agents whose certificates or requests have changed.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<InstanceUid> {
        self.shared.changes.subscribe()
    }

    /// Tells of each change, without saying whose.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.shared.generation.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;

    use super::*;
    use crate::credentials::{
        authority::Authority,
        key::PrivateKey,
        published::PublishedAuthorities,
        request::PublicKey,
        roll::Issuer,
        tests::{
            at, authority, name,
            stored::{holder, patched, request},
            uid,
        },
    };

    fn trusting(authority: &Authority) -> TrustSnapshot {
        let bundle = vec![authority.certificate().clone()];
        let issuers = [authority.facts().key].into();
        let published = PublishedAuthorities { cluster: "c".into(), bundle, issuers };
        TrustSnapshot::default().with_authorities(&published.to_config_map("opamp-system")).unwrap()
    }

    fn versioned(mut secret: Secret, version: u32) -> Secret {
        secret.metadata.resource_version = Some(version.to_string());
        secret
    }

    /// Whose key it is, and when the certificate was made, for 600 s.
    fn operator_born(authority: &Authority, seconds: i64) -> Secret {
        let (key, pair) = PrivateKey::generate().unwrap();
        let public = PublicKey::of(&pair).unwrap();
        let issued = issue(authority, &public, seconds);
        versioned(holder(1).issued(&key, &public.id(), &issued), 1)
    }

    fn agent_born(authority: &Authority, seconds: i64) -> Secret {
        issued_for(authority, seconds, 600)
    }

    fn issue(authority: &Authority, key: &PublicKey, seconds: i64) -> crate::credentials::authority::Issued {
        authority.issue_agent(&name(1), key, std::time::Duration::from_secs(600), at(seconds)).unwrap()
    }

    /// The same for another time than 600 s.
    fn issued_for(authority: &Authority, seconds: i64, lifetime: u64) -> Secret {
        let request = request(1);
        let secret = holder(1).request(&request);
        let lifetime = std::time::Duration::from_secs(lifetime);
        let issued = authority.issue_agent(&name(1), request.key(), lifetime, at(seconds)).unwrap();
        let patch = AgentCertificate::read(&secret).unwrap().answer_with(&issued, &Issuer::Internal);
        versioned(patched(&secret, &patch), 1)
    }

    #[test]
    fn the_agents_own_key_is_preferred_then_the_certificate_that_was_made_last() {
        let own = authority();
        let (older, newer) = (operator_born(&own, 0), operator_born(&own, 100));
        let (agents, foreign) = (agent_born(&own, 0), operator_born(&authority(), 200));
        let (rekeyed, shorter) = (agent_born(&own, 100), issued_for(&own, 50, 100));
        for (case, secrets, seconds, expected) in [
            ("none", vec![], 0, None),
            ("one", vec![&older], 0, Some(&older)),
            ("two", vec![&older, &newer], 100, Some(&newer)),
            ("the agent's own", vec![&older, &newer, &agents], 100, Some(&agents)),
            ("its next key", vec![&rekeyed, &agents], 100, Some(&rekeyed)),
            ("its next key, for a shorter time", vec![&agents, &shorter], 100, Some(&shorter)),
            ("the agent's own has expired", vec![&older, &newer, &agents], 600, Some(&newer)),
            ("of a CA that is not trusted", vec![&older, &foreign], 200, Some(&older)),
            ("all have expired", vec![&older, &newer], 700, None),
        ] {
            let certificates = Certificates::new(&Scope::All);
            secrets.into_iter().for_each(|secret| certificates.take(&None, Event::Apply(secret.clone())));
            let offered = certificates.offered(&uid(1), "telemetry", "edge", &trusting(&own), at(seconds));
            assert_eq!(offered.map(|(it, _)| it.key.name.clone()), expected.map(Secret::name_any), "{case}");
            for (namespace, fleet) in [("telemetry", "other"), ("bank", "edge")] {
                assert!(certificates.offered(&uid(1), namespace, fleet, &trusting(&own), at(seconds)).is_none());
            }
        }
    }

    #[test]
    fn who_was_admitted_stays_while_the_certificate_counts() {
        let (own, certificates) = (authority(), Certificates::new(&Scope::All));
        let trusted = trusting(&own);
        let mut others = agent_born(&authority(), 0);
        others.annotations_mut().insert("opamp.dev/issuer".into(), "CertManager".into());
        let principal = |secret: &Secret| {
            let chain = AgentCertificate::read(secret).unwrap().given.unwrap().chain.clone();
            let leaf = super::super::pem::read_certificates(chain.as_bytes()).unwrap().remove(0);
            let found = certificates.identify(&trusted, &leaf, at(0)).unwrap();
            Principal { proof: found.proof(), identity: found.identity, ..Principal::anonymous() }
        };
        certificates.take(&None, Event::Apply(others.clone()));
        let (by_ours, by_others) = (principal(&agent_born(&own, 0)), principal(&others));
        for (case, principal, trust, expected) in [
            ("nothing has happened", &by_ours, &trusted, true),
            ("our CA is trusted no more", &by_ours, &trusting(&authority()), false),
            ("another's, our CA is trusted no more", &by_others, &trusting(&authority()), true),
            ("no certificate", &Principal::anonymous(), &TrustSnapshot::default(), true),
        ] {
            assert_eq!(certificates.still_counts(trust, principal), expected, "{case}");
        }
        certificates.take(&None, Event::Delete(others));
        assert!(!certificates.still_counts(&trusted, &by_others), "its Secret is gone");
    }

    #[test]
    fn a_late_answer_to_a_write_does_not_undo_what_the_watch_has_shown() {
        let (own, request) = (authority(), request(1));
        let asked = versioned(holder(1).request(&request), 9);
        let issued = issue(&own, request.key(), 0);
        let patch = AgentCertificate::read(&asked).unwrap().answer_with(&issued, &Issuer::Internal);
        let answered = versioned(patched(&asked, &patch), 10);
        let certificates = Certificates::new(&Scope::All);
        let is_answered = || certificates.of(&uid(1)).first().map(|it| it.given.is_some());
        certificates.note(asked.clone());
        assert_eq!(is_answered(), Some(false));
        certificates.take(&None, Event::Apply(answered));
        certificates.note(asked);
        assert_eq!(is_answered(), Some(true));
    }

    #[test]
    fn what_a_new_list_does_not_show_is_forgotten() {
        let own = authority();
        let (one, two) = (operator_born(&own, 0), operator_born(&own, 0));
        let certificates = Certificates::new(&Scope::All);
        let mut changes = certificates.subscribe();
        assert!(!certificates.is_synced());
        for secrets in [vec![&one, &two], vec![&two]] {
            certificates.take(&None, Event::Init);
            secrets.into_iter().for_each(|secret| certificates.take(&None, Event::InitApply(secret.clone())));
            certificates.take(&None, Event::InitDone);
        }
        assert!(certificates.is_synced());
        assert_eq!(certificates.of(&uid(1)).len(), 1);
        let chain = |secret: &Secret| AgentCertificate::read(secret).unwrap().given.unwrap().chain.clone();
        let leaf = |secret: &Secret| super::super::pem::read_certificates(chain(secret).as_bytes()).unwrap().remove(0);
        assert!(certificates.holder_of(&leaf(&one)).is_none());
        assert!(certificates.holder_of(&leaf(&two)).is_some());
        let told: Vec<_> = std::iter::from_fn(|| changes.try_recv().ok()).collect();
        assert_eq!(told, [uid(1); 3], "two came, one went");
    }

    #[test]
    fn a_secret_that_cannot_be_read_leaves_what_was_known() {
        let good = operator_born(&authority(), 0);
        let certificates = Certificates::new(&Scope::All);
        certificates.take(&None, Event::Apply(good.clone()));
        let mut broken = versioned(good, 2);
        broken.data = None;
        certificates.take(&None, Event::Apply(broken));
        assert!(certificates.of(&uid(1))[0].given.is_some());
    }
}
