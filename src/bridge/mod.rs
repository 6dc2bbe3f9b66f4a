//! Ties sessions to sockets, catalog and status; runs in every replica.
