//! The writer against an API server in memory: what it asks for, in which order, and when.

pub(crate) mod api_server;
mod bench;
mod claims;
mod objects;
mod pace;
