//! The OpAMP protocol: messages, framing, hashes and, in [`session`], one agent's conversation as a state machine.
//!
//! Nothing here knows of sockets, Kubernetes or `async`; time, identity and offers are arguments.

pub mod capabilities;
pub mod connection_settings;
pub mod frame;
pub mod identity;
pub mod inbound;
pub mod instance_uid;
pub mod normalise;
pub mod now;
pub mod offer;
pub mod record;
#[cfg(test)]
mod schema;
pub mod session;
pub mod violation;

/// The generated messages of `proto/opamp/v1`.
#[allow(
    missing_docs,
    clippy::pedantic,
    clippy::use_self,
    reason = "generated from proto/, where every message and field has its comment"
)]
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/opamp.proto.v1.rs"));
}

pub use instance_uid::InstanceUid;
