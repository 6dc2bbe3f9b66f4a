//! Certificates: the CA, those that it issues, and what it has taken back.

pub mod anchors;
pub mod authority;
pub mod carry;
pub mod certificates;
mod external;
pub mod facts;
pub mod generations;
pub mod key;
pub mod metrics;
pub mod name;
pub mod pem;
pub mod plan;
pub mod profile;
pub mod published;
pub mod registrar;
pub mod renewal;
pub mod request;
pub mod requests;
pub mod revocations;
pub mod roll;
pub mod serial;
pub mod server_certificate;
pub mod stored;
pub mod trust;
mod writes;

#[cfg(test)]
mod tests;
