//! Replicas in process: scripted agents on one side, an API server in memory on the other, and a clock that tests move.

mod access;
mod approval;
mod audited;
mod bench;
mod claims;
mod convergence;
mod credentials;
mod crowds;
mod duplicates;
mod fleets;
mod gateways;
mod identities;
mod moves;
mod offers;
mod office;
mod requests;
mod room;
mod secrets;
mod settings;
mod settling;
mod texts;
mod wishes;
