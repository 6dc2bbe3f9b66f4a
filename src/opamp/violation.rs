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
    /// Settings are asked for, and not what for.
    #[error("connection_settings_request.opamp has no certificate_request")]
    CertificateRequestMissing,
    /// No request for a certificate is that long.
    #[error("certificate_request.csr has {length} bytes, the limit is {limit}")]
    CertificateRequestTooLarge {
        /// Its bytes.
        length: usize,
        /// So many may be.
        limit: usize,
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
            Self::Undecodable { .. } => "ERR-01",
            Self::EmptyMessage => "AMB-17",
            Self::UidLength { .. } => "A2S-02",
            Self::CertificateRequestMissing => "CSR-02",
            Self::CertificateRequestTooLarge { .. } => "CSR-03",
        }
    }
}

/// The answer to a violation on a WebSocket. Over HTTP each is a `BAD_REQUEST` in a `200` (AMB-21).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// A `ServerToAgent` with an `error_response`; the connection stays.
    BadRequest,
    /// The same, and then a Close frame.
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
    pub fn commit(&mut self, now: Instant) -> Answer {
        match self.since {
            Some(since) if now.saturating_duration_since(since) < Self::WINDOW => self.count += 1,
            Some(_) | None => (self.count, self.since) = (1, Some(now)),
        }
        if self.count >= Self::LIMIT { Answer::Close } else { Answer::BadRequest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_violation_says_what_is_wrong_and_which_rule_it_breaks() {
        for (violation, rule, text) in [
            (Violation::HeaderMissing, "WS-04", "header missing"),
            (Violation::HeaderTruncated, "WS-04", "truncated"),
            (Violation::HeaderTooLong, "WS-04", "at most 10 bytes"),
            (Violation::HeaderNotZero(10), "WS-03", "header is 10"),
            (Violation::NotBinary, "WS-01", "binary"),
            (Violation::Undecodable { detail: "AgentToServer.flags".into() }, "ERR-01", "AgentToServer.flags"),
            (Violation::EmptyMessage, "AMB-17", "instance_uid missing"),
            (Violation::UidLength { length: 15 }, "A2S-02", "has 15 bytes"),
            (Violation::CertificateRequestMissing, "CSR-02", "no certificate_request"),
            (Violation::CertificateRequestTooLarge { length: 20_000, limit: 16_384 }, "CSR-03", "limit is 16384"),
        ] {
            assert_eq!(violation.rule(), rule);
            assert!(violation.to_string().contains(text), "{violation}");
        }
    }

    #[test]
    fn the_tenth_offence_within_a_minute_closes() {
        // AMB-19
        let begin = Instant::now();
        let mut offences = Offences::default();
        for second in 0..9 {
            let answer = offences.commit(begin + Duration::from_secs(second));
            assert_eq!(answer, Answer::BadRequest, "offence {}", second + 1);
        }
        assert_eq!(offences.commit(begin + Duration::from_secs(59)), Answer::Close);
        let minute_later = begin + Duration::from_secs(120);
        assert_eq!(offences.commit(minute_later), Answer::BadRequest, "a new minute");
    }
}
