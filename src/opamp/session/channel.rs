//! Which connection speaks.

use std::fmt;

/// The number of a WebSocket; never used twice within a process.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// Whoever accepts connections counts them.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Where a message came from, and where its reply goes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Channel {
    /// One of possibly several agents on this socket.
    WebSocket(ConnectionId),
    /// All exchanges over plain HTTP together: TCP connections mean nothing there (CONN-06).
    Http,
}
