//! Inputs → validated, immutable revisions; leader only.
//!
//! [`compile`](compile::compile) is the pure half: a fleet's entries, the `RemoteConfig`s that they name and the bodies
//! that those refer to become a [`Compiled`] revision, or [`Finding`]s that say on which object what is wrong. Whatever
//! is wrong, nothing is made, and the last good revision stays served. [`inspect`](inspect::inspect) is the part of it
//! that concerns one `RemoteConfig` alone, for that object's own status.
//!
//! [`inputs`] is what the watches show of all of these, and [`settle`] when it is quiet enough to be read. Nothing here
//! talks to the API server: the leader fetches what is ordered and applies what comes out.

pub mod clash;
pub mod collector;
pub mod compile;
pub mod content;
pub mod credentials;
mod digest;
pub mod exclusion;
pub mod finding;
pub mod inputs;
pub mod inspect;
mod possibilities;
pub mod settings;
pub mod settle;
pub mod sources;

pub use compile::{Compiled, Inputs, compile};
pub use finding::Finding;
pub use inspect::{Inspection, inspect};
pub use sources::{Bodies, BodyReference, Missing, SourceKind};
