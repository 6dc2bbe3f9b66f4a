//! What a peer can do wrong, and how it is answered.

use std::time::{Duration, Instant};

/// A breach of the protocol, one variant a rule. The text is what the peer is told: it holds nothing of the message
/// but numbers and the names of the schema's own fields (ERR-03).
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Violation {
    /// A WebSocket message of no bytes.
    #[error("message header missing: a WebSocket message begins with the varint 0")]
    HeaderMissing,
    /// The message ends within its header.
    #[error("message header truncated: the message ends within the varint")]
    HeaderTruncated,
    /// The header does not fit into 64 bits.
    #[error("message header too long: a varint has at most 10 bytes and 64 bits")]
    HeaderTooLong,
    /// The header has a value that is reserved.
    #[error("message header is {0}, only 0 is defined")]
    HeaderNotZero(u64),
    /// A text frame.
    #[error("text message refused: OpAMP messages are binary")]
    NotBinary,
    /// More bytes than are taken.
    #[error("message too large: at most {limit} bytes are accepted")]
    TooLarge {
        /// The most that is taken, after decompression.
        limit: usize,
    },
    /// No valid protobuf.
    #[error("not a valid AgentToServer: {detail}")]
    Undecodable {
        /// The decoder's complaint, cut; it names fields of the schema.
        detail: String,
    },
    /// No bytes of data, lawful in itself, but nobody can tell who speaks.
    #[error("instance_uid missing")]
    EmptyMessage,
    /// The uid has a wrong length.
    #[error("instance_uid has {length} bytes, it must have exactly 16")]
    UidLength {
        /// Its bytes.
        length: usize,
    },
}

impl Violation {
    /// The rule that was broken: a row of the conformance matrix, and the label of the metric.
    #[must_use]
    pub fn rule(&self) -> &'static str {
        match self {
            Self::HeaderNotZero(_) => "WS-03",
            Self::HeaderMissing | Self::HeaderTruncated | Self::HeaderTooLong => "WS-04",
            Self::NotBinary => "WS-01",
            Self::TooLarge { .. } => "AMB-22",
            Self::Undecodable { .. } => "ERR-01",
            Self::EmptyMessage => "AMB-17",
            Self::UidLength { .. } => "A2S-02",
        }
    }

    /// How a WebSocket peer is answered the first times (AMB-19, AMB-22).
    #[must_use]
    pub fn answer(&self) -> Answer {
        match self {
            Self::TooLarge { .. } => Answer::Close,
            Self::HeaderMissing
            | Self::HeaderTruncated
            | Self::HeaderTooLong
            | Self::HeaderNotZero(_)
            | Self::NotBinary
            | Self::Undecodable { .. }
            | Self::EmptyMessage
            | Self::UidLength { .. } => Answer::BadRequest,
        }
    }

    /// The code of the Close frame, where the connection ends because of it (RFC 6455 §7.4.1, AMB-19, AMB-22).
    #[must_use]
    pub fn close_code(&self) -> u16 {
        match self {
            Self::NotBinary => 1003,
            Self::Undecodable { .. } => 1007,
            Self::TooLarge { .. } => 1009,
            Self::HeaderMissing
            | Self::HeaderTruncated
            | Self::HeaderTooLong
            | Self::HeaderNotZero(_)
            | Self::EmptyMessage
            | Self::UidLength { .. } => 1008,
        }
    }
}

/// The answer to a violation on a WebSocket. Over HTTP all but [`Violation::TooLarge`] (413) are a `BAD_REQUEST` in a
/// `200` (AMB-21).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// A `ServerToAgent` with an `error_response`; the connection stays.
    BadRequest,
    /// A Close frame with [`Violation::close_code`].
    Close,
}

/// The violations of one connection: one bad message does not cost an agent its session, a stream of them does
/// (AMB-19).
#[derive(Clone, Copy, Debug, Default)]
pub struct Offences {
    count: u32,
    since: Option<Instant>,
}

impl Offences {
    /// So many within [`Self::WINDOW`] end the connection.
    pub const LIMIT: u32 = 10;
    /// The time in which they are counted.
    pub const WINDOW: Duration = Duration::from_secs(60);

    /// Counts one more and says what to do about it.
    #[must_use]
    pub fn commit(&mut self, violation: &Violation, now: Instant) -> Answer {
        match self.since {
            Some(since) if now.saturating_duration_since(since) < Self::WINDOW => self.count += 1,
            Some(_) | None => (self.count, self.since) = (1, Some(now)),
        }
        if self.count >= Self::LIMIT { Answer::Close } else { violation.answer() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_violation_says_what_is_wrong_and_which_rule_it_breaks() {
        for (violation, rule, code, text) in [
            (Violation::HeaderMissing, "WS-04", 1008, "header missing"),
            (Violation::HeaderTruncated, "WS-04", 1008, "truncated"),
            (Violation::HeaderTooLong, "WS-04", 1008, "at most 10 bytes"),
            (Violation::HeaderNotZero(10), "WS-03", 1008, "header is 10"),
            (Violation::NotBinary, "WS-01", 1003, "binary"),
            (Violation::TooLarge { limit: 64 }, "AMB-22", 1009, "at most 64 bytes"),
            (Violation::Undecodable { detail: "AgentToServer.flags".into() }, "ERR-01", 1007, "AgentToServer.flags"),
            (Violation::EmptyMessage, "AMB-17", 1008, "instance_uid missing"),
            (Violation::UidLength { length: 15 }, "A2S-02", 1008, "has 15 bytes"),
        ] {
            assert_eq!(violation.rule(), rule);
            assert_eq!(violation.close_code(), code, "{rule}");
            assert!(violation.to_string().contains(text), "{violation}");
        }
    }

    #[test]
    fn only_an_oversized_message_closes_at_once() {
        let now = Instant::now();
        assert_eq!(Offences::default().commit(&Violation::TooLarge { limit: 1 }, now), Answer::Close); // AMB-22
        assert_eq!(Offences::default().commit(&Violation::NotBinary, now), Answer::BadRequest); // AMB-19
    }

    #[test]
    fn the_tenth_offence_within_a_minute_closes() {
        // AMB-19
        let begin = Instant::now();
        let mut offences = Offences::default();
        for second in 0..9 {
            let answer = offences.commit(&Violation::HeaderMissing, begin + Duration::from_secs(second));
            assert_eq!(answer, Answer::BadRequest, "offence {}", second + 1);
        }
        assert_eq!(offences.commit(&Violation::HeaderMissing, begin + Duration::from_secs(59)), Answer::Close);
        let minute_later = begin + Duration::from_secs(120);
        assert_eq!(offences.commit(&Violation::HeaderMissing, minute_later), Answer::BadRequest, "a new minute");
    }
}
