//! The limit of open files, which is a limit of connections.

use std::io;

use super::{admission::SURPLUS, limits::Limits};

/// Descriptors for all else: the API server, the admin port, the runtime, standard streams.
const RESERVED: u64 = 128;

/// Why the limit could not be raised.
#[derive(Debug, thiserror::Error)]
#[error("cannot raise the limit of open files")]
pub struct DescriptorError(#[source] io::Error);

/// Raises the soft limit of open files to the hard one, and tells what it is then.
pub fn raise_descriptor_limit() -> Result<u64, DescriptorError> {
    rlimit::increase_nofile_limit(u64::MAX).map_err(DescriptorError)
}

impl Limits {
    /// The same limits, but no more connections than so many descriptors allow.
    #[must_use]
    pub fn within_descriptors(mut self, descriptors: u64) -> Self {
        let usable = descriptors.saturating_sub(RESERVED + SURPLUS as u64);
        let usable = usize::try_from(usable).unwrap_or(usize::MAX).max(1);
        self.connections = self.connections.min(usable);
        self.unreported = self.unreported.min(self.connections);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_lowered_to_what_descriptors_allow() {
        for (descriptors, connections, unreported) in
            [(1 << 20, 15_000, 2_000), (1_024, 640, 640), (384, 1, 1), (0, 1, 1)]
        {
            let limits = Limits::default().within_descriptors(descriptors);
            assert_eq!((limits.connections, limits.unreported), (connections, unreported), "{descriptors}");
        }
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let raised = raise_descriptor_limit().unwrap();
        let (soft, hard) = rlimit::getrlimit(rlimit::Resource::NOFILE).unwrap();
        assert_eq!((soft, soft), (hard, raised));
    }
}
