//! What an agent is to have, ready for the wire.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// The SHA-256 over exactly the configuration that one agent gets (CFG-08, AMB-35): the `config_hash` on the wire.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConfigHash([u8; 32]);

/// The SHA-256 over exactly the connection settings that one agent gets (CON-05, AMB-25): the `hash` on the wire.
///
/// It covers secrets: whoever sees it and knows the rest can try out guesses, so they must be long enough to withstand
/// that, as tokens and keys are.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnectionSettingsHash([u8; 32]);

/// What both hashes are able to do; they stay two types, so that one is never compared with the other.
macro_rules! wire_hash {
    ($name:ident) => {
        impl $name {
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

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        }
    };
}

wire_hash!(ConfigHash);
wire_hash!(ConnectionSettingsHash);

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

/// Connection settings, encoded for one agent or for all that get the same; made by [`super::connection_settings`].
pub struct ConnectionSettingsOffer {
    /// Over the encoded settings without their hash.
    pub hash: ConnectionSettingsHash,
    /// The whole field 4 of `ServerToAgent`, tag and length included: protobuf messages concatenate.
    pub encoded: Bytes,
}

impl fmt::Debug for ConnectionSettingsOffer {
    /// The content is made of tokens and keys and is not shown.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ConnectionSettingsOffer").field("hash", &self.hash).finish_non_exhaustive()
    }
}

/// Whether the agent may ask for a certificate: the bit `AcceptsConnectionSettingsRequest` that it is told (CSR-12).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CertificateRequests {
    /// A request is acknowledged and ignored (AMB-32).
    #[default]
    NotServed,
    /// A request is handed to the owner of the session.
    Served,
}

/// Everything that one agent is to have now. `None` means: nothing is offered and nothing is withdrawn.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Its configuration.
    pub remote_config: Option<Arc<RemoteConfigOffer>>,
    /// How it is to connect.
    pub connection_settings: Option<Arc<ConnectionSettingsOffer>>,
    /// Whether it may ask for a certificate.
    pub certificate_requests: CertificateRequests,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_an_offer_is_never_shown() {
        let content = Bytes::from_static(b"Bearer secret");
        let offer = Offer {
            remote_config: Some(Arc::new(RemoteConfigOffer { hash: ConfigHash::of(b"a"), encoded: content.clone() })),
            connection_settings: Some(Arc::new(ConnectionSettingsOffer {
                hash: ConnectionSettingsHash::of(b"a"),
                encoded: content,
            })),
            certificate_requests: CertificateRequests::Served,
        };
        let shown = format!("{offer:?}");
        assert!(shown.contains("ca978112ca1bbdca"), "{shown}");
        assert!(!shown.contains("secret"), "{shown}");
        assert_eq!(offer.connection_settings.unwrap().hash.short(), "ca978112ca");
    }
}
