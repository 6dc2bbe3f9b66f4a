//! What every user of the API server shares: clients, the namespaces in scope, watches and their age, the pace of
//! retries, mirrors of what watches show, and errors put into words that are fit for a log.
//!
//! Nothing here knows our kinds, or decides anything about them.

mod backoff;
mod client;
mod failure;
mod mirror;
mod scope;
mod watch;
mod watch_ages;

pub use backoff::QuickBackoff;
pub use client::{client_without_retry, watch_config};
pub use failure::describe;
pub use mirror::{Mirror, Moved, ObjectKey, Part};
pub use scope::Scope;
pub use watch::WatchClient;
pub use watch_ages::WatchAges;
