//! Agent record → `Agent.status`, written within the API server's budget.
//!
//! The pure parts decide: [`render`] what a status says, [`difference`] what a patch says, [`queue`] whose turn it is,
//! [`budget`] how fast. None of them knows the API server.

pub mod budget;
pub mod difference;
mod findings;
pub mod labels;
pub mod queue;
pub mod recall;
pub mod render;
pub mod view;
