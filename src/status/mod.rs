//! Agent record → `Agent.status`, written within the API server's budget.
//!
//! Whoever owns an agent's session shows a [`view::AgentView`] of it through [`writer::AgentViews`] when its turn comes.
//! The pure parts decide: [`render`] what a status says, [`difference`] what a patch says, [`queue`] whose turn it is,
//! [`budget`] how fast, [`room`] for whom there is an object at all. [`writer`] and its turns are the shell around them;
//! [`recall`] is the way back, from a status to a record.

pub mod budget;
mod complaints;
pub mod difference;
mod findings;
mod held;
pub mod labels;
mod ledger;
pub mod metrics;
mod objects;
mod pace;
pub mod queue;
pub mod recall;
pub mod render;
pub mod room;
mod turn;
pub mod view;
pub mod writer;

#[cfg(test)]
pub(crate) mod tests;
