//! What the watch has shown of the certificates, and who holds which.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{ResourceExt as _, runtime::watcher::Event};

use super::super::stored::AgentCertificate;
use crate::{
    kubernetes::{Mirror, ObjectKey, Part},
    opamp::InstanceUid,
};

/// What is known of all certificates.
pub(super) struct Known {
    pub(super) mirror: Mirror<Arc<AgentCertificate>>,
    pub(super) of_agents: BTreeMap<InstanceUid, Vec<ObjectKey>>,
    /// By the digest of the certificate. Several have the same only if somebody has copied it.
    pub(super) holders: HashMap<[u8; 32], Vec<ObjectKey>>,
    /// Nearly all agents have the same.
    pub(super) ca: Arc<str>,
}

impl Known {
    pub(super) fn of(&self, agent: &InstanceUid) -> Vec<Arc<AgentCertificate>> {
        let keys = self.of_agents.get(agent).into_iter().flatten();
        keys.filter_map(|key| self.mirror.get(key).cloned()).collect()
    }

    pub(super) fn note(&mut self, secret: Secret) -> Vec<InstanceUid> {
        // Numbers of versions grow, as etcd counts them.
        let number = |version: &str| version.parse::<u64>().ok();
        let known = self.mirror.version(&ObjectKey::of(&secret)).and_then(number);
        let is_late = known > secret.metadata.resource_version.as_deref().and_then(number);
        if is_late { Vec::new() } else { self.take(&None, Event::Apply(secret)) }
    }

    pub(super) fn take(&mut self, part: &Part, event: Event<Secret>) -> Vec<InstanceUid> {
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
            if let Some(keys) = self.holders.get_mut(&held.digest) {
                keys.retain(|known| known != key);
                if keys.is_empty() {
                    self.holders.remove(&held.digest);
                }
            }
        }
    }

    fn remember(&mut self, known: &AgentCertificate) {
        self.of_agents.entry(known.agent).or_default().push(known.key.clone());
        for held in known.held() {
            self.holders.entry(held.digest).or_default().push(known.key.clone());
        }
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
