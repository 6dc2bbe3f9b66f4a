//! Agent record → `Agent.status`, written within the API server's budget.
//!
//! Three pure parts decide: [`difference`] what a patch says, [`queue`] whose turn it is, [`budget`] how fast. None knows
//! the API server.

pub mod budget;
pub mod difference;
pub mod queue;
