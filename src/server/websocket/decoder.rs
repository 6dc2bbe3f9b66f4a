//! What a client sends, from bytes to messages.

use bytes::Bytes;

use super::super::{connection::CloseReason, room::FREE_BYTES};

/// The longest payload of a control frame (RFC 6455 §5.5).
const CONTROL_BYTES: u8 = 125;

/// Reads frames out of a stream of bytes that may be cut anywhere. Holds nothing but the unfinished message.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    /// How many bytes of the unfinished message were asked for by [`Event::Reserve`] or are free.
    reserved: usize,
    stage: Stage,
    message: Option<Message>,
}

/// Where in a frame the stream stands.
#[derive(Debug)]
enum Stage {
    Head(Head),
    Payload(Payload),
    Failed(Fault),
}

/// A frame whose payload arrives.
#[derive(Debug)]
struct Payload {
    frame: Frame,
    read: usize,
    /// What has arrived, if it is a control frame.
    control: Vec<u8>,
}

/// The first bytes of a frame, up to its payload.
#[derive(Debug, Default)]
struct Head {
    bytes: [u8; 14],
    filled: usize,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    opcode: Opcode,
    last: bool,
    mask: [u8; 4],
    length: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Opcode {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

/// A data message of which the last frame is still to come.
#[derive(Debug)]
enum Message {
    Binary(Vec<u8>),
    /// Only counted: no text is ever used.
    Text(usize),
}

/// What the bytes amount to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// A whole binary message.
    Binary(Bytes),
    /// A whole text message; its content is not kept.
    Text,
    /// To be answered by a pong with the same payload.
    Ping(Bytes),
    /// The answer to the ping of this payload, or sent unasked.
    Pong(Bytes),
    /// The peer closes, with this code unless it gave none.
    Close(Option<u16>),
    /// So many bytes more are going to be stored. Whoever limits memory does not go on before it has room for them.
    Reserve(usize),
}

/// How a client can break the framing. The connection cannot go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    /// RFC 6455 §5.2: no extension was negotiated that gives them a meaning.
    #[error("a reserved bit is set")]
    ReservedBit,
    /// RFC 6455 §5.2.
    #[error("opcode {0} is not defined")]
    UnknownOpcode(u8),
    /// RFC 6455 §5.1.
    #[error("a frame from a client is not masked")]
    Unmasked,
    /// RFC 6455 §5.2: the shortest form is required, and the topmost bit is 0.
    #[error("the length of a frame is not encoded as required")]
    LengthEncoding,
    /// RFC 6455 §5.5.
    #[error("a control frame is fragmented")]
    FragmentedControl,
    /// RFC 6455 §5.5.
    #[error("a control frame has more than 125 bytes")]
    LongControl,
    /// RFC 6455 §5.4.
    #[error("a continuation frame continues nothing")]
    NothingToContinue,
    /// RFC 6455 §5.4.
    #[error("a message begins inside another")]
    Interleaved,
    /// RFC 6455 §5.5.1 and §7.4.
    #[error("a Close frame has a code that must not be sent")]
    CloseCode,
    /// RFC 6455 §5.5.1.
    #[error("the reason in a Close frame is not UTF-8")]
    CloseText,
    /// AMB-22.
    #[error("a message is over the size limit")]
    TooLarge,
}

impl Fault {
    /// What the peer is told.
    #[must_use]
    pub fn close_reason(self) -> CloseReason {
        match self {
            Self::ReservedBit
            | Self::UnknownOpcode(_)
            | Self::Unmasked
            | Self::LengthEncoding
            | Self::FragmentedControl
            | Self::LongControl
            | Self::NothingToContinue
            | Self::Interleaved
            | Self::CloseCode => CloseReason::ProtocolError,
            Self::CloseText => CloseReason::InvalidText,
            Self::TooLarge => CloseReason::TooLarge,
        }
    }

    /// The broken rule: a row of the conformance matrix, and the label of the metric.
    #[must_use]
    pub fn rule(self) -> &'static str {
        match self {
            Self::TooLarge => "AMB-22",
            Self::ReservedBit
            | Self::UnknownOpcode(_)
            | Self::Unmasked
            | Self::LengthEncoding
            | Self::FragmentedControl
            | Self::LongControl
            | Self::NothingToContinue
            | Self::Interleaved
            | Self::CloseCode
            | Self::CloseText => "WS-08",
        }
    }
}

impl Decoder {
    /// A decoder at the beginning of a stream; a message may have `limit` bytes, all its frames together.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, reserved: FREE_BYTES, stage: Stage::Head(Head::default()), message: None }
    }

    /// Takes bytes off the front of `input` up to the next event. `None` means that all were taken and more are needed.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Fault> {
        let outcome = self.advance(input);
        if let Err(fault) = outcome {
            self.stage = Stage::Failed(fault);
            self.message = None;
        }
        outcome
    }

    /// Whether a frame or a message was begun and not finished.
    #[must_use]
    pub fn is_amid(&self) -> bool {
        self.message.is_some()
            || match &self.stage {
                Stage::Head(head) => head.filled > 0,
                Stage::Payload(_) => true,
                Stage::Failed(_) => false,
            }
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Event>, Fault> {
        loop {
            match &mut self.stage {
                Stage::Failed(fault) => return Err(*fault),
                Stage::Head(head) => {
                    let Some(frame) = head.fill(input)? else { return Ok(None) };
                    self.begin(frame)?;
                    self.stage = Stage::Payload(Payload { frame, read: 0, control: Vec::new() });
                }
                Stage::Payload(payload) => {
                    let reserve = payload.take(input, &mut self.message, &mut self.reserved);
                    if payload.missing() > 0 {
                        return Ok(reserve);
                    }
                    let (frame, control) = (payload.frame, std::mem::take(&mut payload.control));
                    self.stage = Stage::Head(Head::default());
                    if let Some(event) = self.finish(frame, control)? {
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    /// Takes note of a frame that begins.
    fn begin(&mut self, frame: Frame) -> Result<(), Fault> {
        match (frame.opcode, &self.message) {
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => return Ok(()),
            (Opcode::Continuation, None) => return Err(Fault::NothingToContinue),
            (Opcode::Text | Opcode::Binary, Some(_)) => return Err(Fault::Interleaved),
            (Opcode::Continuation, Some(_)) => {}
            (Opcode::Text, None) => self.message = Some(Message::Text(0)),
            (Opcode::Binary, None) => self.message = Some(Message::Binary(Vec::new())),
        }
        let stored = self.message.as_ref().map_or(0, Message::length);
        let total = stored.checked_add(frame.length);
        if total.is_some_and(|total| total <= self.limit) { Ok(()) } else { Err(Fault::TooLarge) }
    }

    /// Says what a finished frame amounts to.
    fn finish(&mut self, frame: Frame, control: Vec<u8>) -> Result<Option<Event>, Fault> {
        Ok(Some(match frame.opcode {
            Opcode::Ping => Event::Ping(control.into()),
            Opcode::Pong => Event::Pong(control.into()),
            Opcode::Close => Event::Close(close_code(&control)?),
            Opcode::Continuation | Opcode::Text | Opcode::Binary => {
                if !frame.last {
                    return Ok(None);
                }
                self.reserved = FREE_BYTES;
                match self.message.take() {
                    Some(Message::Binary(bytes)) => Event::Binary(bytes.into()),
                    Some(Message::Text(_)) => Event::Text,
                    None => return Err(Fault::NothingToContinue),
                }
            }
        }))
    }
}

impl Message {
    fn length(&self) -> usize {
        match self {
            Self::Binary(bytes) => bytes.len(),
            Self::Text(length) => *length,
        }
    }
}

impl Payload {
    fn missing(&self) -> usize {
        self.frame.length - self.read
    }

    /// Takes what belongs to it off the front of `input`. Asks for room when all that is reserved is filled and more has
    /// come: who only announces much takes none from others.
    fn take(&mut self, input: &mut &[u8], message: &mut Option<Message>, reserved: &mut usize) -> Option<Event> {
        let missing = self.missing();
        let Self { frame, read, control } = self;
        *read += match message {
            Some(Message::Binary(bytes)) if frame.opcode.is_data() => {
                let most = missing.min(*reserved - bytes.len());
                if frame.opcode == Opcode::Binary && frame.last {
                    bytes.reserve_exact(most);
                }
                unmask(front(input, most), frame.mask, *read, bytes)
            }
            Some(Message::Text(length)) if frame.opcode.is_data() => {
                let taken = front(input, missing).len();
                *length += taken;
                taken
            }
            Some(_) | None => unmask(front(input, missing), frame.mask, *read, control),
        };
        if input.is_empty() || self.missing() == 0 {
            return None;
        }
        let more = self.missing().min(*reserved);
        *reserved += more;
        Some(Event::Reserve(more))
    }
}

/// Takes so many bytes off the front, or as many as there are.
fn front<'i>(input: &mut &'i [u8], most: usize) -> &'i [u8] {
    let (taken, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    taken
}

impl Opcode {
    /// Whether its payload belongs to a message.
    fn is_data(self) -> bool {
        match self {
            Self::Continuation | Self::Text | Self::Binary => true,
            Self::Close | Self::Ping | Self::Pong => false,
        }
    }
}

impl Head {
    /// Takes what is missing of the head; says what it means once it is complete.
    fn fill(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, Fault> {
        loop {
            let missing = self.needed() - self.filled;
            let taken = front(input, missing);
            self.bytes[self.filled..self.filled + taken.len()].copy_from_slice(taken);
            self.filled += taken.len();
            if taken.len() < missing {
                return Ok(None);
            }
            if self.filled > 2 {
                return self.frame().map(Some);
            }
            self.check()?;
        }
    }

    /// How many bytes it has: 2 until they tell of more.
    fn needed(&self) -> usize {
        if self.filled < 2 {
            return 2;
        }
        match self.bytes[1] & 0x7f {
            126 => 2 + 2 + 4,
            127 => 2 + 8 + 4,
            _ => 2 + 4,
        }
    }

    /// Refuses what the first two bytes already show.
    fn check(&self) -> Result<(), Fault> {
        let [first, second, ..] = self.bytes;
        if first & 0x70 != 0 {
            return Err(Fault::ReservedBit);
        }
        if second & 0x80 == 0 {
            return Err(Fault::Unmasked);
        }
        match opcode(first)? {
            Opcode::Close | Opcode::Ping | Opcode::Pong if first & 0x80 == 0 => Err(Fault::FragmentedControl),
            Opcode::Close | Opcode::Ping | Opcode::Pong if second & 0x7f > CONTROL_BYTES => Err(Fault::LongControl),
            Opcode::Continuation | Opcode::Text | Opcode::Binary | Opcode::Close | Opcode::Ping | Opcode::Pong => {
                Ok(())
            }
        }
    }

    fn frame(&self) -> Result<Frame, Fault> {
        let [first, second, ..] = self.bytes;
        let extended = &self.bytes[2..self.filled - 4];
        let length = extended.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let length = match second & 0x7f {
            126 if length < 126 => return Err(Fault::LengthEncoding),
            127 if length <= 0xffff || length >> 63 == 1 => return Err(Fault::LengthEncoding),
            126 | 127 => length,
            short => u64::from(short),
        };
        let mut mask = [0; 4];
        mask.copy_from_slice(&self.bytes[self.filled - 4..self.filled]);
        Ok(Frame {
            opcode: opcode(first)?,
            last: first & 0x80 != 0,
            mask,
            length: usize::try_from(length).map_err(|_| Fault::TooLarge)?,
        })
    }
}

fn opcode(first: u8) -> Result<Opcode, Fault> {
    Ok(match first & 0x0f {
        0x0 => Opcode::Continuation,
        0x1 => Opcode::Text,
        0x2 => Opcode::Binary,
        0x8 => Opcode::Close,
        0x9 => Opcode::Ping,
        0xa => Opcode::Pong,
        unknown => return Err(Fault::UnknownOpcode(unknown)),
    })
}

/// Appends the bytes that stand at `position` of their frame, unmasked (RFC 6455 §5.3); says how many.
fn unmask(masked: &[u8], mut mask: [u8; 4], position: usize, into: &mut Vec<u8>) -> usize {
    mask.rotate_left(position % 4);
    let start = into.len();
    into.extend_from_slice(masked);
    // Four at a time: the compiler makes wide operations of it.
    let mut quads = into[start..].chunks_exact_mut(4);
    for quad in &mut quads {
        for (byte, key) in quad.iter_mut().zip(mask) {
            *byte ^= key;
        }
    }
    for (byte, key) in quads.into_remainder().iter_mut().zip(mask) {
        *byte ^= key;
    }
    masked.len()
}

/// The code in the payload of a Close frame (RFC 6455 §5.5.1, §7.4).
fn close_code(payload: &[u8]) -> Result<Option<u16>, Fault> {
    let (code, reason) = match payload {
        [] => return Ok(None),
        [_] => return Err(Fault::CloseCode),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
    };
    match code {
        1000..=1003 | 1007..=1014 | 3000..=4999 => {}
        _ => return Err(Fault::CloseCode),
    }
    std::str::from_utf8(reason).map_err(|_| Fault::CloseText)?;
    Ok(Some(code))
}

#[cfg(test)]
#[path = "decoder_tests.rs"]
mod tests;
