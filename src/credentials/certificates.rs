//! The certificates of all agents as the API server has them, in each replica, kept up by a watch.
//!
//! One task feeds the index; everybody else reads, and never waits for the API server.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _, runtime::watcher::Event};
use rustls_pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use tokio::sync::{broadcast, watch};

use super::stored::{AGENT_CERTIFICATE_TYPE, AgentCertificate, Given, Held};
use crate::{
    kubernetes::{Mirror, ObjectKey, Part, Scope, WatchClient, watch_config},
    opamp::InstanceUid,
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
}

struct Known {
    mirror: Mirror<Arc<AgentCertificate>>,
    of_agents: BTreeMap<InstanceUid, Vec<ObjectKey>>,
    /// By the digest of the certificate.
    holders: HashMap<[u8; 32], ObjectKey>,
    /// Nearly all agents have the same.
    ca: Arc<str>,
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

    /// Follows an event of the watch over `part`. Also for what this replica has written itself: it need not wait until
    /// the watch shows it.
    pub fn take(&self, part: &Part, event: Event<Secret>) {
        let agents = self.shared.known.write().unwrap_or_else(PoisonError::into_inner).take(part, event);
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
        self.read(|known| known.mirror.is_complete())
    }

    /// The certificates and requests of an agent, in all namespaces.
    #[must_use]
    pub fn of(&self, agent: &InstanceUid) -> Vec<Arc<AgentCertificate>> {
        self.read(|known| known.of(agent))
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
    /// it has made itself, and of several the one that lasts longest. It keeps what is offered until that has been
    /// renewed, so that the same is offered again and again.
    #[must_use]
    pub fn offered(
        &self,
        agent: &InstanceUid,
        namespace: &str,
        fleet: &str,
        now: Timestamp,
    ) -> Option<(Arc<AgentCertificate>, Arc<Given>)> {
        let certificates = self.of(agent).into_iter();
        certificates
            .filter(|it| it.key.namespace == namespace && it.fleet == fleet)
            .filter_map(|it| it.given.clone().map(|given| (it, given)))
            .filter(|(_, given)| given.certificate.not_before <= now && now < given.certificate.not_after)
            .max_by_key(|(it, given)| (it.origin, given.certificate.not_after, it.key.name.clone()))
    }

    /// The Secret that this very certificate is in, and what identifies it. So the holder of a certificate is found
    /// whose issuer is not ours: what it says of names is that issuer's word.
    #[must_use]
    pub fn holder_of(&self, certificate: &CertificateDer<'_>) -> Option<(Arc<AgentCertificate>, Held)> {
        let digest: [u8; 32] = Sha256::digest(certificate).into();
        let found = self.read(|known| known.mirror.get(known.holders.get(&digest)?).cloned())?;
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

impl Known {
    fn of(&self, agent: &InstanceUid) -> Vec<Arc<AgentCertificate>> {
        let keys = self.of_agents.get(agent).into_iter().flatten();
        keys.filter_map(|key| self.mirror.get(key).cloned()).collect()
    }

    fn take(&mut self, part: &Part, event: Event<Secret>) -> Vec<InstanceUid> {
        let ca = &mut self.ca;
        let moved = self.mirror.apply(part, event, |secret: Secret| reduce(&secret, ca));
        let mut agents = Vec::new();
        for moved in moved {
            if let Some(former) = moved.former {
                self.forget(&moved.key, &former);
                agents.push(former.agent);
            }
            if let Some(known) = self.mirror.get(&moved.key).cloned() {
                self.remember(&known);
                agents.push(known.agent);
            }
        }
        agents.dedup();
        agents
    }

    fn forget(&mut self, key: &ObjectKey, former: &AgentCertificate) {
        if let Some(keys) = self.of_agents.get_mut(&former.agent) {
            keys.retain(|known| known != key);
            if keys.is_empty() {
                self.of_agents.remove(&former.agent);
            }
        }
        for held in former.held() {
            self.holders.remove(&held.digest);
        }
    }

    fn remember(&mut self, known: &AgentCertificate) {
        self.of_agents.entry(known.agent).or_default().push(known.key.clone());
        self.holders.extend(known.held().map(|held| (held.digest, known.key.clone())));
    }
}

/// What is kept of a Secret. One that cannot be read is left as it was known: people may mend it.
fn reduce(secret: &Secret, ca: &mut Arc<str>) -> Option<Arc<AgentCertificate>> {
    let mut read = match AgentCertificate::read(secret) {
        Ok(read) => read,
        Err(error) => {
            let (namespace, name) = (secret.namespace().unwrap_or_default(), secret.name_any());
            tracing::warn!(namespace, name, %error, "a Secret of an agent's certificate cannot be read");
            return None;
        }
    };
    if let Some(given) = read.given.as_mut().and_then(Arc::get_mut) {
        if given.ca == *ca {
            given.ca = Arc::clone(ca);
        } else {
            *ca = Arc::clone(&given.ca);
        }
    }
    Some(Arc::new(read))
}
