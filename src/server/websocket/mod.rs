//! The WebSocket transport (RFC 6455).
//!
//! | module | its work |
//! |---|---|
//! | [`handshake`] | is this request a WebSocket's opening, and what answers it |
//! | [`decoder`] | bytes → messages and control frames, without I/O |
//! | [`encoder`] | what goes out → bytes |
//! | [`conversation`] | one connection's rules: limits, pings, offences, deadlines; no I/O either |
//! | [`socket`] | moves the bytes of one connection |
//!
//! An idle connection keeps no buffer: bytes are read onto the stack, and only an unfinished message is stored.

mod conversation;
mod decoder;
mod encoder;
pub(super) mod handshake;
mod socket;

pub(super) use conversation::Conversation;
pub(super) use socket::{Opened, serve};
