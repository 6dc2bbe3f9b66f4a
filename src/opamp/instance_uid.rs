//! The one name of an agent in the protocol.

use std::fmt;

use uuid::Uuid;

/// The 16 bytes by which an agent is known (A2S-02). Shown as canonical UUID text, which is also the name of its
/// `Agent` object.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct InstanceUid([u8; 16]);

impl InstanceUid {
    /// Reads the field `instance_uid`; `None` unless it has exactly 16 bytes.
    #[must_use]
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Reads canonical UUID text, such as the name of an `Agent`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Uuid::try_parse(name).ok().map(|uuid| Self(uuid.into_bytes()))
    }

    /// A fresh version 7 UUID (S2A-04).
    #[must_use]
    pub fn generate() -> Self {
        Self(Uuid::now_v7().into_bytes())
    }

    /// The bytes as they stand on the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The nil UUID: lawful, but most likely an agent that never made one up (AMB-17).
    #[must_use]
    pub fn is_nil(&self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for InstanceUid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).as_hyphenated().fmt(formatter)
    }
}

impl fmt::Debug for InstanceUid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sixteen_bytes_make_a_uid() {
        for length in [0, 15, 17, 26] {
            assert_eq!(InstanceUid::from_wire(&vec![7; length]), None, "{length} bytes");
        }
        assert!(InstanceUid::from_wire(&[7; 16]).is_some());
    }

    #[test]
    fn the_name_of_an_object_reads_back_as_the_same_uid() {
        let uid = InstanceUid::generate();
        assert_eq!(InstanceUid::from_name(&uid.to_string()), Some(uid));
        assert_eq!(uid.as_bytes()[6] >> 4, 7, "version 7");
        assert_eq!(uid.as_bytes()[8] >> 6, 2, "variant of RFC 9562");
    }
}
