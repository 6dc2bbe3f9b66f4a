//! Sockets: WebSocket and HTTP, limits, admission, drain.
