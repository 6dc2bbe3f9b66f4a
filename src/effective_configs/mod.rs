//! scratch
pub mod redaction;
