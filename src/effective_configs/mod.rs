//! The configurations that agents report as running, kept for fleets that ask for it: redacted, one Secret for all
//! agents that run the same.
//!
//! A bridge hands in what an agent reports ([`Store::put`]). The text is redacted at once ([`redaction`]) and named after
//! what is left of it ([`stored`]), so that nobody waits where the Secret exists already. Otherwise it waits on the
//! [`shelf`] until it is written; the agent's owner is told through [`Reporters`], and nothing of the text is kept. The
//! leader deletes what no Agent names any more ([`unused`]). Only the [`Store`]'s own task talks to the API server: it
//! watches these Secrets by their metadata, and writes within the budget that the status writer spends from.
//!
//! Nothing here knows sessions, or what an Agent's status looks like.

mod metrics;
pub mod redaction;
pub mod shelf;
mod store;
pub mod stored;
pub mod unused;
mod write;

#[cfg(test)]
mod tests;

pub use self::{
    metrics::Metrics,
    shelf::{Handed, News},
    store::{Reporters, Store},
};
