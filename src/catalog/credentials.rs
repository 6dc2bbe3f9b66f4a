//! The values that connection settings refer to, as they are kept for a fleet: one Secret, written by the leader alone
//! and read by every replica.
//!
//! Its keys are digests of the references, because two references may have long and similar names; an annotation tells
//! people which is which. A key begins with `token-` where the value is, or was, that of an enrollment token: agents with
//! a certificate of their own are not offered it, also after its Secret is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use bytes::Bytes;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Resource, ResourceExt};
use sha2::{Digest, Sha256};

use super::{
    scrub::Scrubber,
    settings::{CredentialReference, SourceKind},
    stored::{MANAGED_BY, MANAGED_BY_LABEL},
};
use crate::api::{FLEET_LABEL, agent_fleet::AgentFleet};

/// The type of Secrets that hold the credentials of a fleet.
pub const CREDENTIALS_TYPE: &str = "opamp.dev/credentials";
/// How the names of the Secrets with the credentials of all fleets begin.
pub const CREDENTIALS_PREFIX: &str = "opamp-credentials-";
/// The annotation that tells people which key of the Secret is which reference.
pub const REFERENCES_ANNOTATION: &str = "opamp.dev/references";

const VALUE: &str = "value-";
const TOKEN: &str = "token-";

/// The name of the Secret with the credentials of a fleet.
#[must_use]
pub fn credentials_secret_name(fleet_uid: &str) -> String {
    let fleet: String = fleet_uid.chars().filter(|character| *character != '-').take(8).collect();
    format!("{CREDENTIALS_PREFIX}{fleet}")
}

/// What a value is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CredentialKind {
    /// Nothing special.
    Value,
    /// A token by which agents enrol.
    EnrollmentToken,
}

/// A value.
#[derive(Clone, Eq, PartialEq)]
pub struct Credential {
    /// What it is.
    pub kind: CredentialKind,
    /// As it stands in its source; empty for an enrollment token whose Secret is gone.
    pub value: Bytes,
}

impl fmt::Debug for Credential {
    /// The value is never shown.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credential").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Why a Secret holds no credentials of a fleet.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoCredentials {
    /// It is some other Secret.
    #[error("its type is not {CREDENTIALS_TYPE}")]
    Type,
    /// No fleet owns it.
    #[error("no AgentFleet owns it")]
    Owner,
}

/// The values of a fleet's credentials.
#[derive(Default)]
pub struct Credentials {
    owner: String,
    entries: BTreeMap<String, Credential>,
    scrubber: Scrubber,
}

impl fmt::Debug for Credentials {
    /// It consists of secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl PartialEq for Credentials {
    /// What is taken out of text follows from the rest.
    fn eq(&self, other: &Self) -> bool {
        (&self.owner, &self.entries) == (&other.owner, &other.entries)
    }
}

impl Credentials {
    /// Credentials of the fleet of this uid.
    #[must_use]
    pub fn new(owner: &str, values: &BTreeMap<CredentialReference, Credential>) -> Self {
        let entries = values.iter().map(|(reference, credential)| (digest(reference), credential.clone()));
        Self::of_entries(owner.into(), entries.collect())
    }

    /// Reads what [`Self::to_secret`] wrote. Keys of other forms are nobody's and do not count.
    pub fn from_secret(secret: &Secret) -> Result<Self, NoCredentials> {
        if secret.type_.as_deref() != Some(CREDENTIALS_TYPE) {
            return Err(NoCredentials::Type);
        }
        let owners = secret.owner_references();
        let kind = AgentFleet::kind(&());
        let owner = owners.iter().find(|owner| owner.kind == kind).ok_or(NoCredentials::Owner)?;
        let values = secret.data.iter().flatten().map(|(key, value)| (key.as_str(), &value.0[..]));
        Ok(Self::read(&owner.uid, values))
    }

    /// Reads the content of a Secret that is known to be that of the fleet of this uid.
    #[must_use]
    pub fn read<'a>(owner: &str, values: impl Iterator<Item = (&'a str, &'a [u8])>) -> Self {
        let entries = values.filter_map(|(key, value)| entry(key, value));
        Self::of_entries(owner.into(), entries.collect())
    }

    fn of_entries(owner: String, entries: BTreeMap<String, Credential>) -> Self {
        let scrubber = Scrubber::of_texts(entries.values().map(|credential| &credential.value[..]));
        Self { owner, entries, scrubber }
    }

    /// The uid of the fleet that they belong to.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The value that a reference leads to.
    #[must_use]
    pub fn get(&self, reference: &CredentialReference) -> Option<&Bytes> {
        self.credential(reference).map(|credential| &credential.value).filter(|value| !value.is_empty())
    }

    /// What is kept for a reference.
    #[must_use]
    pub fn credential(&self, reference: &CredentialReference) -> Option<&Credential> {
        self.entries.get(&digest(reference))
    }

    /// Whether a reference leads to an enrollment token, or led to one.
    #[must_use]
    pub fn is_enrollment_token(&self, reference: &CredentialReference) -> bool {
        self.credential(reference).is_some_and(|credential| credential.kind == CredentialKind::EnrollmentToken)
    }

    /// What takes them out of text.
    #[must_use]
    pub fn scrubber(&self) -> &Scrubber {
        &self.scrubber
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// These credentials with everything that another set has for keys that this one does not name.
    #[must_use]
    pub fn with_others_of(self, other: &Self) -> Self {
        let mut entries = other.entries.clone();
        entries.extend(self.entries);
        Self::of_entries(self.owner, entries)
    }

    /// The Secret in the fleet's namespace, owned by the fleet; `references` are those that its annotation explains.
    #[must_use]
    pub fn to_secret(&self, fleet: &AgentFleet, references: &BTreeSet<CredentialReference>) -> Secret {
        let explained =
            references.iter().map(|reference| (digest(reference), reference)).filter_map(|(digest, reference)| {
                let credential = self.entries.get(&digest)?;
                Some(format!("{}: {reference}", key(credential.kind, &digest)))
            });
        let data = self
            .entries
            .iter()
            .map(|(digest, credential)| (key(credential.kind, digest), ByteString(credential.value.to_vec())));
        Secret {
            metadata: ObjectMeta {
                name: Some(credentials_secret_name(&self.owner)),
                namespace: fleet.namespace(),
                labels: Some(BTreeMap::from([
                    (FLEET_LABEL.into(), fleet.name_any()),
                    (MANAGED_BY_LABEL.into(), MANAGED_BY.into()),
                ])),
                annotations: Some(BTreeMap::from([(
                    REFERENCES_ANNOTATION.into(),
                    explained.collect::<Vec<_>>().join("\n"),
                )])),
                owner_references: fleet.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            type_: Some(CREDENTIALS_TYPE.into()),
            data: Some(data.collect()),
            ..Secret::default()
        }
    }
}

fn key(kind: CredentialKind, digest: &str) -> String {
    let prefix = match kind {
        CredentialKind::Value => VALUE,
        CredentialKind::EnrollmentToken => TOKEN,
    };
    format!("{prefix}{digest}")
}

fn entry(key: &str, value: &[u8]) -> Option<(String, Credential)> {
    let value = Bytes::copy_from_slice(value);
    let of = |prefix, kind| key.strip_prefix(prefix).map(|digest: &str| (digest.to_owned(), kind));
    let (digest, kind) = of(VALUE, CredentialKind::Value).or_else(|| of(TOKEN, CredentialKind::EnrollmentToken))?;
    Some((digest, Credential { kind, value }))
}

/// The SHA-256 over kind, name and key of a reference, which have no zero bytes, in hexadecimal digits.
fn digest(reference: &CredentialReference) -> String {
    let CredentialReference { kind, name, key } = reference;
    let kind = match kind {
        SourceKind::ConfigMap => "ConfigMap",
        SourceKind::Secret => "Secret",
    };
    let digest: [u8; 32] = Sha256::digest(format!("{kind}\0{name}\0{key}")).into();
    hex(&digest)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> AgentFleet {
        let spec = serde_json::from_value(serde_json::json!({"selector": {}})).unwrap();
        let mut fleet = AgentFleet::new("edge", spec);
        fleet.metadata.namespace = Some("telemetry".into());
        fleet.metadata.uid = Some(UID.into());
        fleet
    }

    const UID: &str = "0c1d2e3f-4a5b-6c7d-8e9f-000000000000";

    fn header() -> CredentialReference {
        CredentialReference::secret("edge-token", "header")
    }

    fn password() -> CredentialReference {
        CredentialReference::secret("proxy", "header")
    }

    fn credentials() -> Credentials {
        let credential = |kind, value: &'static str| Credential { kind, value: value.into() };
        Credentials::new(
            UID,
            &BTreeMap::from([
                (header(), credential(CredentialKind::EnrollmentToken, "Bearer token-canary")),
                (password(), credential(CredentialKind::Value, "Basic proxy-canary")),
            ]),
        )
    }

    fn stored() -> Secret {
        credentials().to_secret(&fleet(), &BTreeSet::from([header(), password()]))
    }

    #[test]
    fn the_secret_is_owned_by_its_fleet_and_tells_people_what_is_in_it() {
        let secret = stored();
        assert_eq!(secret.name_any(), "opamp-credentials-0c1d2e3f");
        assert_eq!(
            (secret.namespace().as_deref(), secret.type_.as_deref()),
            (Some("telemetry"), Some(CREDENTIALS_TYPE))
        );
        assert_eq!(secret.labels()["opamp.dev/fleet"], "edge");
        assert_eq!((secret.owner_references()[0].uid.as_str(), secret.immutable), (UID, None));
        // SHA-256 of "Secret\0edge-token\0header".
        let digest = hex(&Sha256::digest(b"Secret\0edge-token\0header"));
        let explained = &secret.annotations()[REFERENCES_ANNOTATION];
        assert!(explained.contains(&format!("token-{digest}: key header of Secret edge-token")), "{explained}");
        assert_eq!(explained.lines().count(), 2);
        assert!(!explained.contains("canary"));
        assert!(secret.data.is_some_and(|data| data.contains_key(&format!("token-{digest}"))));
    }

    #[test]
    fn what_was_written_reads_back() {
        let read = Credentials::from_secret(&stored()).unwrap();
        assert_eq!(read, credentials());
        assert_eq!(read.get(&header()).map(|value| &value[..]), Some(&b"Bearer token-canary"[..]));
        assert_eq!((read.is_enrollment_token(&header()), read.is_enrollment_token(&password())), (true, false));
        assert_eq!(read.get(&CredentialReference::secret("edge-token", "other")), None);
        assert_eq!(stored(), stored(), "the same values give the same bytes");
    }

    #[test]
    fn what_holds_no_credentials_of_a_fleet_is_refused() {
        let opaque = Secret { type_: Some("Opaque".into()), ..stored() };
        assert_eq!(Credentials::from_secret(&opaque), Err(NoCredentials::Type));
        let mut ownerless = stored();
        ownerless.metadata.owner_references = None;
        assert_eq!(Credentials::from_secret(&ownerless), Err(NoCredentials::Owner));
        let mut strange = stored();
        strange.data = Some(BTreeMap::from([("password".into(), ByteString(b"x".to_vec()))]));
        assert!(Credentials::from_secret(&strange).unwrap().is_empty(), "keys of other forms do not count");
    }

    #[test]
    fn agents_may_not_quote_them() {
        let scrubbed = credentials().scrubber().scrub("401 for token-canary, Basic proxy-canary").into_owned();
        assert_eq!(scrubbed, "401 for [redacted], [redacted]");
    }

    #[test]
    fn no_value_is_ever_shown() {
        let shown = format!("{:?} {:?}", credentials(), credentials().credential(&header()));
        assert!(!shown.contains("canary") && !shown.contains("99, 97"), "{shown}");
    }
}
