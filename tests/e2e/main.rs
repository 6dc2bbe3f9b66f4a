//! End-to-end tests: the operator's own binary, a real API server, real agents. One module a story.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, unused_imports, reason = "each test binary uses its part")]
#[path = "../harness/mod.rs"]
mod harness;

mod attacks;
mod authority_kills;
mod broken_configs;
mod clients;
mod credential_canaries;
mod crowds;
mod effective_configs;
mod enrollment;
mod fleet_changes;
mod hostile_http;
mod hostile_websockets;
mod issuer_kills;
mod issuers;
mod issuing_kills;
mod kills;
mod memory;
mod outage;
mod remote_configs;
mod renewal_kills;
mod renewals;
mod replicas;
mod restarts;
mod returns;
mod revocation_kills;
mod revocations;
mod rotation;
mod scale;
mod secrets;
mod service_accounts;
mod templates;
mod tls;
