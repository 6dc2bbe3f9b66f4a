//! The header in front of each message on a WebSocket.

use bytes::{Buf, Bytes};

use super::violation::Violation;

/// What stands in front of each outgoing WebSocket message: zero, in its shortest form (WS-02).
pub const HEADER: u8 = 0;

/// A 64-bit varint never takes more bytes (SPEC, WebSocket Message Format).
const LONGEST_HEADER: usize = 10;

/// The payload of a WebSocket message, without the varint in front of it.
///
/// Every encoding of zero in 1 to 10 bytes is accepted; the rest may be empty (WS-03, WS-04, WS-05, AMB-18). There is
/// no mode for the messages without a header that very old clients send.
pub fn strip_header(mut message: Bytes) -> Result<Bytes, Violation> {
    let (value, length) = read_varint(&message)?;
    if value != 0 {
        return Err(Violation::HeaderNotZero(value));
    }
    message.advance(length);
    Ok(message)
}

/// Value and length of the base-128 varint at the beginning.
fn read_varint(bytes: &[u8]) -> Result<(u64, usize), Violation> {
    if bytes.is_empty() {
        return Err(Violation::HeaderMissing);
    }
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().take(LONGEST_HEADER).enumerate() {
        let seven = u64::from(byte & 0x7f);
        if index == LONGEST_HEADER - 1 && seven > 1 {
            return Err(Violation::HeaderTooLong);
        }
        value |= seven << (7 * index);
        if byte & 0x80 == 0 {
            return Ok((value, index + 1));
        }
    }
    Err(if bytes.len() < LONGEST_HEADER { Violation::HeaderTruncated } else { Violation::HeaderTooLong })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(message: &[u8]) -> Result<Vec<u8>, Violation> {
        strip_header(Bytes::copy_from_slice(message)).map(|payload| payload.to_vec())
    }

    #[test]
    fn zero_in_any_length_is_the_header() {
        // WS-03, WS-04, WS-05, AMB-18
        for (case, message, payload) in [
            ("one byte", &[0, 0x0a, 0x10][..], &[0x0a, 0x10][..]),
            ("two bytes", &[0x80, 0, 7], &[7]),
            ("ten bytes", &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 7], &[7]),
            ("no data", &[0], &[]),
            ("data that looks like a header", &[0, 0x80], &[0x80]),
        ] {
            assert_eq!(strip(message), Ok(payload.to_vec()), "{case}");
        }
    }

    #[test]
    fn every_other_header_is_malformed() {
        // WS-03, WS-04
        let largest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 7];
        let overflowing = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 7];
        for (case, message, violation) in [
            ("no bytes at all", &[][..], Violation::HeaderMissing),
            ("one", &[1, 7], Violation::HeaderNotZero(1)),
            ("five", &[5, 7], Violation::HeaderNotZero(5)),
            ("a protobuf without header", &[0x0a, 0x10, 1], Violation::HeaderNotZero(10)),
            ("the largest number", &largest, Violation::HeaderNotZero(u64::MAX)),
            ("65 bits", &overflowing, Violation::HeaderTooLong),
            ("truncated", &[0x80], Violation::HeaderTruncated),
            ("nine bytes, truncated", &[0x80; 9], Violation::HeaderTruncated),
            (
                "eleven bytes",
                &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0],
                Violation::HeaderTooLong,
            ),
        ] {
            assert_eq!(strip(message), Err(violation), "{case}");
        }
    }
}
