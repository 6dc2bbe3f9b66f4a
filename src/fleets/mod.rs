//! The fleet's controller: plan, apply, counters, conditions; leader only.
//!
//! [`census`] counts the members of all fleets in one look at all Agents; [`credentials`] keeps the values that members
//! are offered; [`plan`] turns a fleet, what became of its inputs and its counters into what is to be written. All are pure; the writes are carried out by
//! [`crate::controllers`].

pub mod census;
pub mod credentials;
pub mod plan;
