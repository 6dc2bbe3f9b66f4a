//! The header of a WebSocket message.

use bytes::{Buf, Bytes};

use super::violation::Violation;

/// The payload after the header.
pub fn strip_header(mut message: Bytes) -> Result<Bytes, Violation> {
    match message.first() {
        Some(0) => {
            message.advance(1);
            Ok(message)
        }
        _ => Err(Violation::Header),
    }
}
