//! Keys: the public ones by their digest, the private ones without a way to show them.

use std::fmt;

use rcgen::{KeyPair, PublicKeyData as _};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// SHA-256 of a key's `SubjectPublicKeyInfo`: the name of a key, whatever certificate it is in.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct KeyId(pub [u8; 32]);

impl KeyId {
    /// The id of the key in this `SubjectPublicKeyInfo`, in DER.
    #[must_use]
    pub fn of(subject_public_key_info: &[u8]) -> Self {
        Self(Sha256::digest(subject_public_key_info).into())
    }

    /// Reads the text form: 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut digest = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(digest)).filter(|id| id.to_string() == text)
    }

    /// The first 16 hexadecimal digits, which name the Secret of a certificate.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string()[..16].to_owned()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A private key in PEM. It is never shown, and overwritten when it is dropped.
#[derive(Clone, Eq, PartialEq)]
pub struct PrivateKey(Zeroizing<String>);

impl PrivateKey {
    /// Takes over the PEM text of a key; whether it is one shows when it is used.
    #[must_use]
    pub fn from_pem(pem: String) -> Self {
        Self(Zeroizing::new(pem))
    }

    /// Makes a key on the curve P-256, which every TLS library knows.
    pub(super) fn generate() -> Result<(Self, KeyPair), rcgen::Error> {
        let pair = KeyPair::generate()?;
        Ok((Self::from_pem(pair.serialize_pem()), pair))
    }

    /// The key itself, for whoever must hand it on: a Secret, or the agent that it was made for.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub(super) fn pair(&self) -> Result<KeyPair, rcgen::Error> {
        KeyPair::from_pem(&self.0)
    }

    /// The id of its public half; `None` if this is no key.
    #[must_use]
    pub fn id(&self) -> Option<KeyId> {
        self.pair().ok().map(|pair| KeyId::of(&pair.subject_public_key_info()))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PrivateKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_key_shows_nothing() {
        let (key, pair) = PrivateKey::generate().unwrap();
        assert_eq!(format!("{key:?}"), "PrivateKey(…)");
        assert_eq!(key.id(), Some(KeyId::of(&pair.subject_public_key_info())));
    }

    #[test]
    fn what_is_no_key_has_no_id() {
        for text in ["", "canary", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            assert_eq!(PrivateKey::from_pem(text.into()).id(), None, "{text}");
        }
    }

    #[test]
    fn the_id_of_a_key_is_read_back_from_its_text() {
        let id = KeyId::of(b"key");
        assert_eq!(KeyId::parse(&id.to_string()), Some(id));
        assert_eq!(id.short(), id.to_string()[..16]);
        for text in ["", "5e", &"5E".repeat(32), &"+e".repeat(32), &"é".repeat(32)] {
            assert_eq!(KeyId::parse(text), None, "{text}");
        }
    }
}
