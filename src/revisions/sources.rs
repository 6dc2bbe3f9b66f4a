//! Where file bodies come from, and what became of looking for them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::{
    api::remote_config::{BodySource, ConfigFile, KeyReference, RemoteConfigSpec},
    catalog::Origin,
};

pub use crate::catalog::SourceKind;

/// A key of an object in the namespace of the `RemoteConfig`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct BodyReference {
    /// The object's kind.
    pub kind: SourceKind,
    /// The object's name.
    pub name: String,
    /// The key in it.
    pub key: String,
}

/// What a reference did not lead to. It may still come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Missing {
    /// The object does not exist.
    Object,
    /// The object has no such key.
    Key,
}

/// What references led to. A reference that is not in it counts as a missing object.
pub type Bodies = BTreeMap<BodyReference, Result<Bytes, Missing>>;

/// Everything that the files of a `RemoteConfig` refer to.
#[must_use]
pub fn references(spec: &RemoteConfigSpec) -> BTreeSet<BodyReference> {
    spec.files.iter().filter_map(reference).collect()
}

/// The body of one file, and where it came from.
pub(super) fn resolve(file: &ConfigFile, bodies: &Bodies) -> Result<(Origin, Bytes), String> {
    let Some(reference) = reference(file) else {
        let body = file.body.as_ref().ok_or("it has neither body nor bodyFrom")?;
        return Ok((Origin::Inline, Bytes::copy_from_slice(body.as_bytes())));
    };
    let BodyReference { kind, name, key } = &reference;
    match bodies.get(&reference) {
        Some(Ok(body)) => Ok((reference.origin(), body.clone())),
        Some(Err(Missing::Key)) => Err(format!("{kind} {name} has no key {key}")),
        Some(Err(Missing::Object)) | None => Err(format!("{kind} {name} does not exist")),
    }
}

impl BodyReference {
    fn new(kind: SourceKind, reference: &KeyReference) -> Self {
        Self { kind, name: reference.name.clone(), key: reference.key.clone() }
    }

    fn origin(&self) -> Origin {
        match self.kind {
            SourceKind::ConfigMap => Origin::ConfigMap,
            SourceKind::Secret => Origin::Secret,
        }
    }
}

fn reference(file: &ConfigFile) -> Option<BodyReference> {
    let BodySource { config_map_key_ref, secret_key_ref } = file.body_from.as_ref()?;
    let secret = secret_key_ref.as_ref().map(|reference| BodyReference::new(SourceKind::Secret, reference));
    secret.or_else(|| config_map_key_ref.as_ref().map(|reference| BodyReference::new(SourceKind::ConfigMap, reference)))
}
