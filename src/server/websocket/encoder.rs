//! What the server sends, as bytes.

use bytes::{Buf, Bytes};

use super::super::connection::CloseReason;
use crate::opamp::{frame, session::Outbound};

/// One frame to send; never masked, never fragmented.
#[derive(Clone, Debug)]
pub enum Outgoing {
    /// A `ServerToAgent`.
    Message(Outbound),
    /// Asks for a pong with the same payload.
    Ping(Bytes),
    /// Answers a ping with its payload.
    Pong(Bytes),
    /// Begins the closing handshake.
    Close(CloseReason),
    /// Answers the peer's Close frame with its code.
    CloseReply(Option<u16>),
}

impl Outgoing {
    /// The bytes on the wire. A tail that many agents share is not copied.
    pub fn into_buffer(self) -> impl Buf + Send {
        let (opcode, before, head, tail) = match self {
            Self::Message(Outbound { head, tail }) => {
                (0x2, Before::of(&[frame::HEADER]), head, tail.unwrap_or_default())
            }
            Self::Ping(payload) => (0x9, Before::of(&[]), payload, Bytes::new()),
            Self::Pong(payload) => (0xa, Before::of(&[]), payload, Bytes::new()),
            Self::Close(reason) => (
                0x8,
                Before::of(&reason.code().to_be_bytes()),
                Bytes::from_static(reason.text().as_bytes()),
                Bytes::new(),
            ),
            Self::CloseReply(Some(code)) => (0x8, Before::of(&code.to_be_bytes()), Bytes::new(), Bytes::new()),
            Self::CloseReply(None) => (0x8, Before::of(&[]), Bytes::new(), Bytes::new()),
        };
        before.framed(opcode, head.len() + tail.len()).chain(head).chain(tail)
    }
}

/// The bytes before the payload that is stored elsewhere: the head of the frame and at most two more.
#[derive(Debug)]
struct Before {
    bytes: [u8; 12],
    start: usize,
    end: usize,
}

impl Before {
    /// Where the head of the longest frame ends: 2 bytes and 8 of length.
    const PAYLOAD: usize = 10;

    /// The first bytes of the payload.
    fn of(payload: &[u8]) -> Self {
        let mut bytes = [0; 12];
        let end = Self::PAYLOAD + payload.len();
        bytes[Self::PAYLOAD..end].copy_from_slice(payload);
        Self { bytes, start: Self::PAYLOAD, end }
    }

    /// Puts the head of a frame in front of it, whose payload goes on for `further` bytes (RFC 6455 §5.2).
    fn framed(mut self, opcode: u8, further: usize) -> Self {
        let length = (self.end - Self::PAYLOAD + further) as u64;
        let wide = length.to_be_bytes();
        match length {
            0..=125 => self.prepend(&wide[7..]),
            126..=0xffff => {
                self.prepend(&wide[6..]);
                self.prepend(&[126]);
            }
            _ => {
                self.prepend(&wide);
                self.prepend(&[127]);
            }
        }
        self.prepend(&[0x80 | opcode]);
        self
    }

    fn prepend(&mut self, front: &[u8]) {
        let start = self.start - front.len();
        self.bytes[start..self.start].copy_from_slice(front);
        self.start = start;
    }
}

impl Buf for Before {
    fn remaining(&self) -> usize {
        self.end - self.start
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn advance(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(outgoing: Outgoing) -> Vec<u8> {
        let mut buffer = outgoing.into_buffer();
        buffer.copy_to_bytes(buffer.remaining()).to_vec()
    }

    fn message(head: &[u8], tail: Option<&[u8]>) -> Outgoing {
        Outgoing::Message(Outbound { head: Bytes::copy_from_slice(head), tail: tail.map(Bytes::copy_from_slice) })
    }

    #[test]
    fn the_head_of_a_frame_has_the_shortest_length() {
        for (payload, expected) in [
            (0, vec![0x82, 1]),
            (124, vec![0x82, 125]),
            (125, vec![0x82, 126, 0, 126]),
            (65_534, vec![0x82, 126, 0xff, 0xff]),
            (65_535, vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let sent = bytes(message(&vec![7; payload], None));
            assert_eq!(sent[..expected.len()], expected, "{payload} bytes and the header");
            assert_eq!(sent.len(), expected.len() + 1 + payload);
        }
    }

    #[test]
    fn a_message_is_header_head_and_tail_in_this_order() {
        assert_eq!(bytes(message(b"own", Some(b"shared"))), b"\x82\x0a\x00ownshared");
    }

    #[test]
    fn control_frames_are_as_rfc_6455_has_them() {
        for (outgoing, expected) in [
            (Outgoing::Ping(Bytes::new()), b"\x89\x00".to_vec()),
            (Outgoing::Ping(Bytes::from_static(b"?")), b"\x89\x01?".to_vec()),
            (Outgoing::Pong(Bytes::from_static(b"Hello")), b"\x8a\x05Hello".to_vec()),
            (Outgoing::CloseReply(None), b"\x88\x00".to_vec()),
            (Outgoing::CloseReply(Some(1000)), b"\x88\x02\x03\xe8".to_vec()),
            (Outgoing::Close(CloseReason::TextMessages), b"\x88\x1b\x03\xebOpAMP messages are binary".to_vec()),
        ] {
            assert_eq!(bytes(outgoing.clone()), expected, "{outgoing:?}");
        }
    }
}
