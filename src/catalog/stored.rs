//! A revision as it is kept: an immutable Secret, named after its content and owned by its fleet.

use std::{
    collections::BTreeMap,
    fmt,
    io::{Read, Write},
};

use flate2::{Compression, bufread::GzDecoder, write::GzEncoder};
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Resource, ResourceExt};

use super::revision::{CanonicalError, Revision, RevisionHash};
use crate::api::{FLEET_LABEL, agent_fleet::AgentFleet};

/// The type of Secrets that hold revisions.
pub const REVISION_TYPE: &str = "opamp.dev/revision";
/// How the names of the Secrets of all revisions of all fleets begin.
pub const NAME_PREFIX: &str = "opamp-revision-";
/// Annotation with the digest of the inputs that a revision was made from.
pub const INPUTS_ANNOTATION: &str = "opamp.dev/inputs-digest";
/// Label that tells the operator's objects from people's.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Its value.
pub const MANAGED_BY: &str = "opamp-operator";

/// Most bytes of all values of the Secret. The API server takes 1,048,576; the rest is room for its own growth.
pub const MAX_STORED: usize = 1_000_000;
/// Most bytes of the canonical form: what a replica is willing to hold for one revision.
pub const MAX_CANONICAL: usize = 32 << 20;

const CONTENT_KEY: &str = "revision.json.gz";
const HASH_KEY: &str = "hash";

/// A digest of everything that a revision is made from. While it stays the same no new revision is made, even if
/// another version of the operator would write the same inputs in another form.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct InputsDigest([u8; 32]);

impl InputsDigest {
    /// Wraps a SHA-256.
    #[must_use]
    pub const fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

impl fmt::Display for InputsDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for InputsDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// More than one Secret can hold, or one replica wants to.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TooLarge {
    /// Compressed it does not fit into a Secret.
    #[error("the revision has {0} bytes compressed, the limit is {MAX_STORED}")]
    Compressed(usize),
    /// Its content is more than replicas hold.
    #[error("the revision has {0} bytes of content, the limit is {MAX_CANONICAL}")]
    Content(usize),
}

/// Why a Secret gives no revision. No variant holds content.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum RevisionError {
    /// It is some other Secret.
    #[error("its type is not {REVISION_TYPE}")]
    Type,
    /// A key is missing.
    #[error("the key {0} is missing")]
    Missing(&'static str),
    /// It cannot be decompressed.
    #[error("its content is no gzip")]
    Compression,
    /// It would be larger than any revision that is ever stored.
    #[error("its content has more than {MAX_CANONICAL} bytes")]
    TooLarge,
    /// The content is not what the hash says.
    #[error("its content does not have the hash that it claims")]
    Hash,
    /// The content is no revision.
    #[error(transparent)]
    Content(#[from] CanonicalError),
}

/// A revision ready to be stored.
#[derive(Clone, Eq, PartialEq)]
pub struct PackedRevision {
    hash: RevisionHash,
    compressed: Vec<u8>,
}

impl fmt::Debug for PackedRevision {
    /// The content may come from Secrets and is not shown.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PackedRevision")
            .field("hash", &self.hash)
            .field("size", &self.compressed.len())
            .finish_non_exhaustive()
    }
}

/// The name of the Secret that holds a revision of a fleet; `short_hash` is what the fleet's status shows.
#[must_use]
pub fn revision_secret_name(fleet_uid: &str, short_hash: &str) -> String {
    let fleet: String = fleet_uid.chars().filter(|character| *character != '-').take(8).collect();
    format!("{NAME_PREFIX}{fleet}-{short_hash}")
}

impl Revision {
    /// Compresses the canonical form, and refuses what would not fit.
    pub fn pack(&self) -> Result<PackedRevision, TooLarge> {
        if self.size() > MAX_CANONICAL {
            return Err(TooLarge::Content(self.size()));
        }
        let canonical = self.canonical();
        if canonical.len() > MAX_CANONICAL {
            return Err(TooLarge::Content(canonical.len()));
        }
        let hash = RevisionHash::of(&canonical);
        let compressed = compress(&canonical);
        let stored = compressed.len() + hash.to_string().len();
        if stored > MAX_STORED {
            return Err(TooLarge::Compressed(stored));
        }
        Ok(PackedRevision { hash, compressed })
    }

    /// Reads what [`PackedRevision::to_secret`] wrote. The hash is computed anew, so that neither a damaged nor a
    /// forged Secret is taken for another revision; memory is bounded whatever the content claims to be.
    pub fn from_secret(secret: &Secret) -> Result<(RevisionHash, Self), RevisionError> {
        if secret.type_.as_deref() != Some(REVISION_TYPE) {
            return Err(RevisionError::Type);
        }
        let value = |key| {
            secret
                .data
                .as_ref()
                .and_then(|data| data.get(key))
                .map(|value| &value.0[..])
                .ok_or(RevisionError::Missing(key))
        };
        let claimed = std::str::from_utf8(value(HASH_KEY)?).ok().and_then(RevisionHash::parse);
        let canonical = decompress(value(CONTENT_KEY)?)?;
        let hash = RevisionHash::of(&canonical);
        if claimed != Some(hash) {
            return Err(RevisionError::Hash);
        }
        Ok((hash, Self::from_canonical(&canonical)?))
    }
}

impl PackedRevision {
    /// The hash of the whole revision.
    #[must_use]
    pub fn hash(&self) -> RevisionHash {
        self.hash
    }

    /// The Secret in the fleet's namespace, owned by the fleet. Creating it twice is a conflict that means success.
    #[must_use]
    pub fn to_secret(&self, fleet: &AgentFleet, inputs: InputsDigest) -> Secret {
        let fleet_uid = fleet.uid().unwrap_or_default();
        Secret {
            metadata: ObjectMeta {
                name: Some(revision_secret_name(&fleet_uid, &self.hash.short())),
                namespace: fleet.namespace(),
                labels: Some(BTreeMap::from([
                    (FLEET_LABEL.into(), fleet.name_any()),
                    (MANAGED_BY_LABEL.into(), MANAGED_BY.into()),
                ])),
                annotations: Some(BTreeMap::from([(INPUTS_ANNOTATION.into(), inputs.to_string())])),
                owner_references: fleet.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            type_: Some(REVISION_TYPE.into()),
            immutable: Some(true),
            data: Some(BTreeMap::from([
                (CONTENT_KEY.into(), ByteString(self.compressed.clone())),
                (HASH_KEY.into(), ByteString(self.hash.to_string().into_bytes())),
            ])),
            ..Secret::default()
        }
    }
}

fn compress(canonical: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    #[expect(clippy::expect_used, reason = "writing into a Vec does not fail")]
    encoder.write_all(canonical).and_then(|()| encoder.finish()).expect("a Vec takes every byte")
}

fn decompress(compressed: &[u8]) -> Result<Vec<u8>, RevisionError> {
    let mut canonical = Vec::new();
    let limit = u64::try_from(MAX_CANONICAL).unwrap_or(u64::MAX);
    GzDecoder::new(compressed).take(limit + 1).read_to_end(&mut canonical).map_err(|_| RevisionError::Compression)?;
    if canonical.len() > MAX_CANONICAL { Err(RevisionError::TooLarge) } else { Ok(canonical) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        api::{
            agent_fleet::AgentFleetSpec,
            remote_config::{ConfigFormat, TemplateMode},
        },
        catalog::revision::{Origin, RevisionEntry, RevisionFile},
    };

    fn fleet() -> AgentFleet {
        let spec: AgentFleetSpec = serde_json::from_value(serde_json::json!({"selector": {}})).unwrap();
        let mut fleet = AgentFleet::new("edge", spec);
        fleet.metadata.namespace = Some("telemetry".into());
        fleet.metadata.uid = Some("0c1d2e3f-4a5b-6c7d-8e9f-000000000000".into());
        fleet
    }

    fn revision(body: impl Into<Bytes>) -> Revision {
        let file = RevisionFile {
            name: "collector.yaml".into(),
            content_type: String::new(),
            origin: Origin::Inline,
            body: body.into(),
        };
        Revision {
            entries: vec![RevisionEntry {
                name: "base".into(),
                selector: None,
                template: TemplateMode::Disabled,
                format: ConfigFormat::Opaque,
                files: vec![file],
            }],
            ..Revision::default()
        }
    }

    fn stored(revision: &Revision) -> Secret {
        revision.pack().unwrap().to_secret(&fleet(), InputsDigest::from_digest([7; 32]))
    }

    #[test]
    fn the_secret_is_immutable_owned_and_named_after_fleet_and_content() {
        let revision = revision("a: 1");
        let secret = stored(&revision);
        assert_eq!(secret.name_any(), format!("opamp-revision-0c1d2e3f-{}", revision.hash().short()));
        assert_eq!(secret.namespace().as_deref(), Some("telemetry"));
        assert_eq!((secret.type_.as_deref(), secret.immutable), (Some("opamp.dev/revision"), Some(true)));
        assert_eq!(secret.labels()["opamp.dev/fleet"], "edge");
        assert_eq!(secret.annotations()[INPUTS_ANNOTATION], "07".repeat(32));
        let owner = &secret.owner_references()[0];
        assert_eq!((owner.kind.as_str(), owner.controller), ("AgentFleet", Some(true)));
    }

    #[test]
    fn the_same_revision_gives_the_same_bytes() {
        assert_eq!(stored(&revision("a: 1")), stored(&revision("a: 1")));
    }

    #[test]
    fn a_secret_that_was_tampered_with_is_refused() {
        let set = |key: &str, value: &[u8]| {
            let mut secret = stored(&revision("a: 1"));
            secret.data.get_or_insert_default().insert(key.into(), ByteString(value.into()));
            Revision::from_secret(&secret)
        };
        let other = revision("a: 2").pack().unwrap();
        assert_eq!(set(CONTENT_KEY, &other.compressed), Err(RevisionError::Hash));
        assert_eq!(set(HASH_KEY, other.hash().to_string().as_bytes()), Err(RevisionError::Hash));
        assert_eq!(set(CONTENT_KEY, b"no gzip"), Err(RevisionError::Compression));
        assert_eq!(set(CONTENT_KEY, &compress(&vec![b' '; MAX_CANONICAL + 1])), Err(RevisionError::TooLarge));
        for (key, error) in
            [(HASH_KEY, RevisionError::Missing("hash")), (CONTENT_KEY, RevisionError::Missing(CONTENT_KEY))]
        {
            let mut secret = stored(&revision("a: 1"));
            secret.data.get_or_insert_default().remove(key);
            assert_eq!(Revision::from_secret(&secret), Err(error));
        }
        let opaque = Secret { type_: Some("Opaque".into()), ..stored(&revision("a: 1")) };
        assert_eq!(Revision::from_secret(&opaque), Err(RevisionError::Type));
    }

    #[test]
    fn what_does_not_fit_into_a_secret_is_refused_before_it_is_written() {
        // Bytes of a linear congruential generator do not compress; base64 adds a third, gzip takes it off again.
        let noise = std::iter::successors(Some(1_u64), |state| {
            Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        });
        let noise: Vec<u8> = noise.map(|state| state.to_be_bytes()[0]).take(MAX_STORED).collect();
        assert!(matches!(revision(noise).pack(), Err(TooLarge::Compressed(size)) if size > MAX_STORED));
        assert!(matches!(revision(vec![b'a'; MAX_CANONICAL + 1]).pack(), Err(TooLarge::Content(_))));
        assert!(revision(vec![b'a'; 1 << 20]).pack().is_ok(), "text compresses");
    }

    proptest! {
        #[test]
        fn what_is_stored_reads_back(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8), name in ".{0,20}") {
            let entries = bodies.into_iter().map(|body| RevisionEntry { name: name.clone(), ..revision(body).entries.remove(0) }).collect();
            let original = Revision { entries, ..Revision::default() };
            let (hash, read) = Revision::from_secret(&stored(&original)).unwrap();
            prop_assert_eq!(hash, original.hash());
            prop_assert_eq!(read, original);
        }
    }
}
