//! The leader's election and each replica's sign of life, both on Leases of the API server.
//!
//! [`decide`] is the rule, pure: renew, take or wait. It never compares clocks of two machines: a Lease is expired once
//! *this* process has watched it stand still for its whole duration. [`hold`] carries the rule out on one Lease;
//! [`election`] uses it for the one Lease that makes a leader, [`replica`] for the Lease that says which replicas live,
//! and [`presence`] is what the leader concludes from those.
//!
//! Every write carries the resourceVersion that was read, so of ten contenders exactly one wins. Losing the leader's
//! Lease stops the controllers, never the process: agents stay served.

pub mod decide;
pub mod election;
pub mod hold;
pub mod holder;
pub mod presence;
pub mod replica;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use election::{Election, Leading, Metrics};
pub use hold::Error;
pub use holder::{Holder, Incarnation};
pub use presence::Presence;
pub use replica::{ReplicaLease, SignOfLife, Uncounted};

/// How long a Lease holds without renewal.
pub const DURATION: Duration = Duration::from_secs(10);

/// How often a holder renews: three attempts fit into [`DURATION`].
pub const RENEWAL: Duration = Duration::from_secs(3);

/// When a leader that cannot renew stops: before another process can have watched the Lease stand still for
/// [`DURATION`], with room for a request on its way.
pub const RENEWAL_DEADLINE: Duration = Duration::from_secs(8);
