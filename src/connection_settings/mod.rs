//! What the leader says of ConnectionSettings in their status; the values that they refer to are judged by
//! [`crate::revisions::credentials`], and kept for each fleet by [`crate::fleets::credentials`].

pub mod plan;
