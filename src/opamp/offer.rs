//! What an agent is to have, ready for the wire.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// The SHA-256 over exactly the configuration that one agent gets (CFG-08, AMB-35): the `config_hash` on the wire.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConfigHash([u8; 32]);

impl ConfigHash {
    /// The hash of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Wraps a digest made elsewhere.
    #[must_use]
    pub const fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// The first 10 hex digits, for columns.
    #[must_use]
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(10);
        text
    }

    /// The raw bytes as they stand on the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ConfigHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for ConfigHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A remote configuration, encoded once and shared by all agents that get the same.
pub struct RemoteConfigOffer {
    /// Over the names, content types and bodies of the files, in the order of their names.
    pub hash: ConfigHash,
    /// The whole field 3 of `ServerToAgent`, tag and length included: protobuf messages concatenate.
    pub encoded: Bytes,
}

impl fmt::Debug for RemoteConfigOffer {
    /// The content may come from a Secret and is not shown.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RemoteConfigOffer").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// Everything that one agent is to have now. `None` means: nothing is offered and nothing is withdrawn.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Its configuration.
    pub remote_config: Option<Arc<RemoteConfigOffer>>,
}
