//! Certificates of agents and of the server: the CA, requests, issuing, renewal, revocation.
//!
//! | part | its work |
//! |---|---|
//! | [`request`], [`profile`], [`authority`], [`key`], [`serial`], [`name`] | what a request may be, and what a certificate says |
//! | [`own_names`] | what issuers that are not ours may be asked to sign, and may have signed |
//! | [`anchors`], [`facts`], [`pem`] | which certificates are believed |
//! | [`revocations`], [`renewal`] | what was taken back, and when a certificate is made anew |
//! | [`stored`], [`published`], [`generations`], [`server_certificate`] | what is stored, both ways |
//! | [`roll`], [`orphans`], [`plan`], [`carry`] | what the leader must know, decides, and writes |
//! | [`trust`], [`certificates`], [`requests`] | in every replica: whom it believes, what agents are offered, how a request is handed on |
//! | [`registrar`] | in the leader: reads, plans, writes |
//! | [`audit`] | what was decided, for those who look later |
//!
//! A request goes this way: a replica checks it ([`request::CertificateRequest::check`]) and creates a Secret
//! ([`requests::Requests::ask`]); the leader answers in it ([`registrar::Registrar`]); each replica sees the answer
//! ([`certificates::Certificates`]) and offers it. Everything is planned anew from what is stored, so that it does not
//! matter after which write a process ends. Every write is a create of a name that follows from its content, or carries
//! the resourceVersion that was seen.
//!
//! Nothing here knows sessions, or who may have a certificate: that is told by a [`roll::Roll`].

pub mod anchors;
pub mod audit;
pub mod authority;
pub mod carry;
pub mod certificates;
mod external;
pub mod facts;
pub mod generations;
pub mod key;
pub mod metrics;
pub mod name;
pub mod orphans;
pub mod own_names;
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
