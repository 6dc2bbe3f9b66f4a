//! A configuration as it is kept: an immutable Secret, named after its redacted content and owned by its fleet.
//!
//! Each file is a key of its own, in plain text, so that `kubectl get secret -o yaml` and `kubectl describe` are all that
//! is needed to read it.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Resource, ResourceExt, core::PartialObjectMeta};
use sha2::{Digest, Sha256};

use super::redaction::{redact, scrub};
use crate::{
    api::{FLEET_LABEL, agent::NotStored, agent_fleet::AgentFleet},
    catalog::{
        FleetEntry,
        stored::{MANAGED_BY, MANAGED_BY_LABEL},
    },
    kubernetes::ObjectKey,
    opamp::normalise::EffectiveConfigText,
};

/// The type of Secrets that hold effective configurations.
pub const EFFECTIVE_CONFIG_TYPE: &str = "opamp.dev/effective-config";
/// Annotation with the whole hash of the content, for those who watch metadata only.
pub const HASH_ANNOTATION: &str = "opamp.dev/effective-config-hash";
/// Annotation with the names of those files that are no legal keys: a JSON object, by key.
pub const FILES_ANNOTATION: &str = "opamp.dev/file-names";

/// Most bytes of a text that is stored, as the agent reports it.
pub const MAX_BYTES: usize = 256 << 10;
/// What a mark takes more than the secret that it replaces may double a text; what is beyond was made for that.
const MAX_REDACTED: usize = 2 * MAX_BYTES;
/// Most files of a text.
const MAX_FILES: usize = 64;
/// Most bytes of all their names, which go into an annotation.
const MAX_NAMES: usize = 16 << 10;
/// The longest key, short of the API server's 253 characters by what tells equal keys apart.
const LONGEST_KEY: usize = 240;

/// A text ready to be stored.
#[derive(Clone, PartialEq)]
pub struct Draft {
    key: ObjectKey,
    hash: String,
    secret: Secret,
    size: usize,
}

impl fmt::Debug for Draft {
    /// What was not recognised as a secret is not shown either.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Draft").field("key", &self.key).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Draft {
    /// Redacts what a member of `fleet` reports. `secretive` are the fleets whose Secrets may be in it.
    pub fn of<'f>(
        text: &EffectiveConfigText,
        fleet: &FleetEntry,
        secretive: impl Iterator<Item = &'f FleetEntry> + Clone,
    ) -> Result<Self, NotStored> {
        let size: usize = text.files.values().map(|file| file.body.len()).sum();
        let names: usize = text.files.keys().map(String::len).sum();
        if size > MAX_BYTES || text.files.len() > MAX_FILES || names > MAX_NAMES {
            return Err(NotStored::TooLarge);
        }
        let mut files = BTreeMap::new();
        for (name, file) in &text.files {
            let body = std::str::from_utf8(&file.body).map_err(|_| NotStored::NotText)?;
            files.insert(scrub(name, secretive.clone()).into_owned(), redact(body, secretive.clone()));
        }
        let size = files.values().map(String::len).sum();
        if size > MAX_REDACTED {
            return Err(NotStored::TooLarge);
        }
        Ok(Self::new(files, fleet, size))
    }

    fn new(files: BTreeMap<String, String>, fleet: &FleetEntry, size: usize) -> Self {
        let hash = hash(&files);
        let name = format!("{}{}", name_prefix(&fleet.uid), &hash[..10]);
        let mut data = BTreeMap::new();
        let mut renamed = BTreeMap::new();
        for (name, body) in files {
            let key = legal_key(&name, |key| data.contains_key(key));
            if key != name {
                renamed.insert(key.clone(), name);
            }
            data.insert(key, ByteString(body.into_bytes()));
        }
        let mut annotations = BTreeMap::from([(HASH_ANNOTATION.to_owned(), hash.clone())]);
        if !renamed.is_empty() {
            annotations.insert(FILES_ANNOTATION.into(), serde_json::json!(renamed).to_string());
        }
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(fleet.namespace.clone()),
                labels: Some(BTreeMap::from([
                    (FLEET_LABEL.into(), fleet.name.clone()),
                    (MANAGED_BY_LABEL.into(), MANAGED_BY.into()),
                ])),
                annotations: Some(annotations),
                owner_references: Some(vec![owner(fleet)]),
                ..ObjectMeta::default()
            },
            type_: Some(EFFECTIVE_CONFIG_TYPE.into()),
            immutable: Some(true),
            data: Some(data),
            ..Secret::default()
        };
        Self { key: ObjectKey::new(&fleet.namespace, name), hash, secret, size }
    }

    /// Where it is kept.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The hash of its content, 64 hex digits.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// What is written.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Bytes of its files.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
}

#[cfg(test)]
impl Draft {
    /// The same text, as a fleet of another uid would keep it.
    pub(super) fn of_another_fleet(&self, fleet_uid: &str) -> Self {
        let name = format!("{}{}", name_prefix(fleet_uid), &self.hash[..10]);
        Self { key: ObjectKey::new(&self.key.namespace, name), ..self.clone() }
    }
}

/// How the names of a fleet's Secrets begin.
#[must_use]
pub fn name_prefix(fleet_uid: &str) -> String {
    let fleet: String = fleet_uid.chars().filter(|character| *character != '-').take(8).collect();
    format!("opamp-effective-{fleet}-")
}

/// The part of the name of one of these Secrets that its fleet has in common.
#[must_use]
pub fn prefix_of(name: &str) -> &str {
    name.rfind('-').map_or(name, |end| &name[..=end])
}

fn owner(fleet: &FleetEntry) -> OwnerReference {
    OwnerReference {
        api_version: AgentFleet::api_version(&()).into_owned(),
        kind: AgentFleet::kind(&()).into_owned(),
        name: fleet.name.clone(),
        uid: fleet.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// A SHA-256 over the names and bodies in the order of the names, each preceded by its length.
fn hash(files: &BTreeMap<String, String>) -> String {
    let mut hasher = Sha256::new();
    for part in files.iter().flat_map(|(name, body)| [name, body]) {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A key of a Secret for a file of this name: letters, digits, `-`, `_` and `.`, and not taken.
fn legal_key(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let is_legal = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let legal: String =
        name.chars().take(LONGEST_KEY).map(|letter| if is_legal(letter) { letter } else { '_' }).collect();
    let legal = match legal.as_str() {
        "" => "config".to_owned(),
        dots if dots == "." || dots.starts_with("..") => format!("_{dots}"),
        _ => legal,
    };
    if !is_taken(&legal) {
        return legal;
    }
    // There are fewer files than numbers.
    (2..).map(|number| format!("{legal}-{number}")).find(|key| !is_taken(key)).unwrap_or(legal)
}

/// One of these Secrets, by its metadata.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Kept {
    /// Where it is.
    pub key: ObjectKey,
    /// The Secret's uid and resourceVersion, for its deletion.
    pub uid: String,
    /// See `uid`.
    pub version: String,
    /// The whole hash that it claims.
    pub hash: String,
}

impl Kept {
    /// Reads what [`Draft`] wrote; of another Secret the hash is empty.
    #[must_use]
    pub fn of(secret: &PartialObjectMeta<Secret>) -> Self {
        Self {
            key: ObjectKey::of(secret),
            uid: secret.uid().unwrap_or_default(),
            version: secret.resource_version().unwrap_or_default(),
            hash: secret.annotations().get(HASH_ANNOTATION).cloned().unwrap_or_default(),
        }
    }
}
