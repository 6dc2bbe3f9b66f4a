//! The leader's election and each replica's sign of life.
