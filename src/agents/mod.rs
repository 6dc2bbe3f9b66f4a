//! What the API server says of all Agents; on the leader: orphans and retention.
//!
//! [`summary::AgentSummary`] is what is kept of one Agent, [`index::AgentIndex`] all of them, fed by a plain watch: ten
//! thousand whole objects would be most of the operator's memory. [`written`] is how values of the protocol are put into
//! a status and read back.

pub mod departures;
pub mod index;
pub mod orphans;
pub mod retention;
pub mod summary;
pub(crate) mod written;
