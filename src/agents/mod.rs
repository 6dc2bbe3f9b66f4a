//! What the API server says of all Agents; on the leader: orphans and retention.
