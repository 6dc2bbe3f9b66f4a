//! One agent's conversation.

use bytes::Bytes;

/// The number of a WebSocket connection in this process.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnectionId(pub u64);

/// A `ServerToAgent` on the wire: own head, shared tail.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// What is only this agent's.
    pub head: Bytes,
    /// What others get as well.
    pub tail: Option<Bytes>,
}
