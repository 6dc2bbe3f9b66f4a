//! Inputs → validated, immutable revisions; leader only.
pub mod settle;
