//! What every user of the API server shares: clients, the namespaces in scope, the pace of retries, mirrors of what
//! watches show, and errors put into words that are fit for a log.
//!
//! Nothing here knows our kinds, or decides anything about them.

mod backoff;
mod client;
mod failure;
mod mirror;
mod scope;

pub use backoff::QuickBackoff;
pub use client::{client_for_watches, client_without_retry, watch_config};
pub use failure::{describe, describe_watch};
pub use mirror::{Mirror, Moved, ObjectKey, Part};
pub use scope::Scope;
