//! Certificates: the CA, those that it issues, and what it has taken back.

pub mod anchors;
pub mod authority;
pub mod facts;
pub mod key;
pub mod name;
pub mod pem;
pub mod profile;
pub mod request;
pub mod revocations;
pub mod serial;

#[cfg(test)]
mod tests;
