//! Revisions and fleets → the offer for one agent.
//!
//! A [`Revision`] is the whole function attributes → files, frozen: the leader makes it once from validated inputs and
//! stores it ([`PackedRevision`]); every replica loads it ([`LoadedRevision`]) and evaluates selectors and templates
//! itself. A [`Catalog`] is a snapshot of all fleets with what they offer; [`Catalog::assign`] is a pure function of
//! it and of one agent, so that any replica gives any agent the same answer. The [`Loader`] is the only part that
//! talks to the API server: it swaps the snapshot whole.
//!
//! Nothing here knows of sockets, sessions or the inputs that revisions were made from.

pub mod assignment;
mod cache;
pub mod credentials;
pub mod fleet;
pub mod library;
pub mod loader;
pub mod offers;
pub mod revision;
pub mod scrub;
pub mod settings;
pub mod stored;
pub mod template;
pub mod threshold;
pub mod yaml;

pub use assignment::{Assignment, Catalog, Outcome, Subject, UnmatchedReason};
pub use credentials::Credentials;
pub use fleet::{AnonymousNamespaces, Claimant, FleetEntry, Policy, SecretContent};
pub use loader::{CatalogHandle, Loader};
pub use offers::LoadedRevision;
pub use revision::{Origin, Revision, RevisionEntry, RevisionFile, RevisionHash};
pub use settings::{Connection, Settings, SourceKind, Values, Withheld};
pub use stored::{InputsDigest, PackedRevision};
pub use threshold::{Bucket, Threshold};

pub use crate::opamp::offer::ConfigHash;
