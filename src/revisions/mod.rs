//! Inputs → validated, immutable revisions; leader only.
