//! Who is this? Asked on every HTTP request, before a WebSocket is opened, and answered by the credential alone: never by
//! what an agent says of itself.
//!
//! | shown | checked against | its holder |
//! |---|---|---|
//! | a certificate of the operator's CA | [`crate::credentials`]: CAs that are trusted, serials that were revoked | one agent of one fleet |
//! | `Authorization: Bearer`, an enrollment token | Secrets of type `opamp.dev/enrollment-token` | a fleet, or a namespace |
//! | `Authorization: Bearer`, a token of a `ServiceAccount` | the API server's `TokenReview` | the account |
//! | `Authorization: Basic` | Secrets of type `kubernetes.io/basic-auth` with the label `opamp.dev/fleet` | a user of a fleet |
//! | a certificate of another CA | Secrets that `enrollment.clientCAs` name | whoever has the key, in that fleet |
//! | nothing | | anonymous |
//!
//! They are asked in this order, and the first that is shown decides; a certificate of the operator's CA that does not
//! count, or that no fleet takes any more, leaves it to `Authorization`, if that is there. What is shown and does not
//! count is never taken for nothing.
//!
//! The [`Authenticator`] answers from memory; the [`Feed`] keeps it up to date. Of tokens and passwords only SHA-256 is
//! kept. Who fails is told nothing but that; how often one address may fail is limited, so that guessing is slow. The
//! limit holds for everything but certificates that the operator issued: behind an address that many share, such as a
//! NAT or a proxy that does not tell whom it speaks for, agents that have theirs are not locked out by a neighbour who
//! guesses, and the others only as long as it does: one attempt a second is looked at, and ten are free after ten
//! seconds of quiet.
//!
//! Nothing here knows sessions, or which agent speaks: whether an identity may speak for a uid is the bridge's to say.

pub mod audit;
mod authenticator;
mod claims;
mod client_cas;
mod credential;
mod failures;
mod fault;
mod feed;
mod handshakes;
mod metrics;
mod notices;
mod rate;
mod refusals;
mod reviews;
mod table;

#[cfg(test)]
pub(crate) mod tests;

pub use self::{
    authenticator::{Authenticator, Surroundings},
    feed::{ENROLLMENT_TOKEN_TYPE, Feed},
    metrics::Metrics,
};

/// The clock of the runtime, which tests move by hand.
fn clock() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}
