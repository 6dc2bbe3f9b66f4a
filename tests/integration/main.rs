//! Integration tests: against a real API server, without agents. One module a story.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, unused_imports, reason = "each test binary uses its part")]
#[path = "../harness/mod.rs"]
mod harness;

mod access_policy;
mod authentication;
mod command_line;
mod crd_rules;
mod rule_table;
mod samples;
