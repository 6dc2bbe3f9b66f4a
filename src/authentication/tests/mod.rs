//! The whole against an API server in memory.
