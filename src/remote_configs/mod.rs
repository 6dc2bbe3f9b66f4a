//! The status of RemoteConfigs; leader only.
//!
//! [`plan`] is pure. What is wrong with a RemoteConfig alone shows here, whether a fleet names it or not; what is wrong
//! between several shows on the fleet. The writes are carried out by [`crate::controllers`].

pub mod plan;
