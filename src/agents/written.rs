//! How values of the protocol are written in an Agent's status, and read back.

use std::fmt::Write as _;

use crate::opamp::{InstanceUid, record::OfferState};

/// Bytes as lower-case hex digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of [`hex`]; `None` for anything else.
#[must_use]
pub fn bytes(hex: &str) -> Option<Box<[u8]>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    if !hex.len().is_multiple_of(2) {
        return None;
    }
    hex.as_bytes().chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// The longest beginning of a text that has at most so many bytes.
#[must_use]
pub fn beginning(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// What stands in `status.remoteConfig.status` and in `status.connectionSettings.status`.
#[must_use]
pub fn state(state: OfferState) -> String {
    match state {
        OfferState::Unset => "Unset".into(),
        OfferState::Applied => "Applied".into(),
        OfferState::Applying => "Applying".into(),
        OfferState::Failed => "Failed".into(),
        OfferState::Unknown(number) => format!("Unknown{number}"),
    }
}

/// Reads [`state`] back; `None` for what this version never writes.
#[must_use]
pub fn read_state(text: &str) -> Option<OfferState> {
    match text {
        "Unset" => Some(OfferState::Unset),
        "Applied" => Some(OfferState::Applied),
        "Applying" => Some(OfferState::Applying),
        "Failed" => Some(OfferState::Failed),
        other => other.strip_prefix("Unknown")?.parse().ok().map(OfferState::Unknown),
    }
}

/// What an agent that a person denied is told to be, and how it comes back.
pub const DENIED: &str = "spec.access is Denied; Approved lets the agent in again";

/// What an agent that a person revoked is told to be, and how it comes back: its certificates do not.
pub const REVOKED: &str = "spec.access is Revoked; Approved lets the agent enrol anew";

/// The command with which a person approves of an agent, ready to be pasted: what the condition of one that waits says.
#[must_use]
pub fn approving(namespace: &str, uid: &InstanceUid) -> String {
    format!(r#"kubectl -n {namespace} patch agent {uid} --type=merge -p '{{"spec":{{"access":"Approved"}}}}'"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits_read_back_as_the_same_bytes_and_nothing_else_does() {
        for original in [&[][..], &[0], &[0x0a, 0xff, 0x10]] {
            assert_eq!(bytes(&hex(original)).as_deref(), Some(original));
        }
        assert_eq!(hex(&[0x0a, 0xff]), "0aff");
        for wrong in ["a", "zz", "+1", "äa", "0aff1"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_beginning_ends_at_a_character() {
        for (text, limit, expected) in [("abc", 5, "abc"), ("abc", 2, "ab"), ("ää", 3, "ä"), ("ä", 1, ""), ("", 0, "")]
        {
            assert_eq!(beginning(text, limit), expected);
        }
    }

    #[test]
    fn every_state_reads_back() {
        for original in [
            OfferState::Unset,
            OfferState::Applied,
            OfferState::Applying,
            OfferState::Failed,
            OfferState::Unknown(7),
            OfferState::Unknown(-1),
        ] {
            assert_eq!(read_state(&state(original)), Some(original));
        }
        assert_eq!(read_state("applied"), None);
    }
}
