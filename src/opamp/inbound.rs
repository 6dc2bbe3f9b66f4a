//! From the bytes of a payload to a message of a known agent.

use std::hash::{DefaultHasher, Hasher};

use bytes::Bytes;
use prost::Message;

use super::{InstanceUid, messages::AgentToServer, normalise::cut, violation::Violation};

/// The decoder's complaint names every message on the way to the fault; more than this helps nobody.
const DETAIL_LIMIT: usize = 256;

/// A message whose sender is known.
///
/// Its byte fields are slices of the payload: whoever keeps one keeps the whole payload, so copy what is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Inbound {
    /// Who speaks.
    pub uid: InstanceUid,
    /// What it says.
    pub message: AgentToServer,
    /// Of the bytes as they came.
    pub digest: Digest,
}

/// Tells whether two payloads are the same bytes, for retransmissions (AMB-03). An agent that makes one collide with
/// another fools nobody but itself, so 64 bits without a secret are enough.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Digest(u64);

impl Digest {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        Self(hasher.finish())
    }
}

impl Inbound {
    /// The heartbeat that an empty payload stands for, where the connection has spoken for one agent only (AMB-17).
    #[must_use]
    pub fn bare(uid: InstanceUid) -> Self {
        let message =
            AgentToServer { instance_uid: Bytes::copy_from_slice(uid.as_bytes()), ..AgentToServer::default() };
        Self { uid, digest: Digest::of(&[]), message }
    }
}

/// Reads one `AgentToServer` and who speaks in it.
///
/// An empty payload is [`Violation::EmptyMessage`]; whoever knows that the connection has exactly one agent takes
/// [`Inbound::bare`] instead (WS-05, AMB-17).
pub fn decode(payload: Bytes) -> Result<Inbound, Violation> {
    if payload.is_empty() {
        return Err(Violation::EmptyMessage);
    }
    let digest = Digest::of(&payload);
    let message = AgentToServer::decode(payload)
        .map_err(|error| Violation::Undecodable { detail: cut(&error.to_string(), DETAIL_LIMIT).into() })?;
    let uid = InstanceUid::from_wire(&message.instance_uid)
        .ok_or_else(|| Violation::UidLength { length: message.instance_uid.len() })?;
    Ok(Inbound { uid, message, digest })
}
