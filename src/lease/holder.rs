//! Who holds a Lease: a replica, and which run of it.

use std::fmt;

use rand::RngExt as _;

/// One run of a process, 10 random hex digits: a replica that restarts under its old name is somebody else.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Incarnation(String);

impl Incarnation {
    /// A new one, for a process that begins.
    #[must_use]
    pub fn random() -> Self {
        Self(format!("{:010x}", rand::rng().random::<u64>() >> 24))
    }

    /// One that was read somewhere; compared, never checked.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as it stands in Leases and in `Agent.status.connection.incarnation`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A replica in one of its runs.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Holder {
    /// The replica's name, which survives a restart.
    pub replica: String,
    /// The run, which does not.
    pub incarnation: Incarnation,
}

impl Holder {
    /// The holder that `holderIdentity` names, if it was written by [`fmt::Display`] of this type.
    #[must_use]
    pub fn parse(identity: &str) -> Option<Self> {
        let (replica, incarnation) = identity.rsplit_once('_')?;
        Some(Self { replica: replica.into(), incarnation: Incarnation::from_text(incarnation) })
    }
}

impl fmt::Display for Holder {
    /// `<replica>_<incarnation>`, the form that Kubernetes' own components use.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}_{}", self.replica, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_has_ten_hexadecimal_digits() {
        let incarnation = Incarnation::random();
        assert_eq!(incarnation.as_str().len(), 10);
        assert!(incarnation.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn a_holder_is_read_as_it_was_written() {
        for replica in ["opamp-operator-0", "host_with_underscores", ""] {
            let holder = Holder { replica: replica.into(), incarnation: Incarnation::from_text("0123456789") };
            assert_eq!(Holder::parse(&holder.to_string()), Some(holder));
        }
        assert_eq!(Holder::parse("somebody-else"), None);
    }
}
