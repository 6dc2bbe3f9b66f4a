//! How values of the protocol are written in an Agent's status, and read back.

use std::fmt::Write as _;

use crate::opamp::{
    InstanceUid,
    record::{ConnectionSettingsState, RemoteConfigState},
};

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

/// What stands in `status.remoteConfig.status`.
#[must_use]
pub fn state(state: RemoteConfigState) -> String {
    match state {
        RemoteConfigState::Unset => "Unset".into(),
        RemoteConfigState::Applied => "Applied".into(),
        RemoteConfigState::Applying => "Applying".into(),
        RemoteConfigState::Failed => "Failed".into(),
        RemoteConfigState::Unknown(number) => format!("Unknown{number}"),
    }
}

/// Reads [`state`] back; `None` for what this version never writes.
#[must_use]
pub fn read_state(text: &str) -> Option<RemoteConfigState> {
    match text {
        "Unset" => Some(RemoteConfigState::Unset),
        "Applied" => Some(RemoteConfigState::Applied),
        "Applying" => Some(RemoteConfigState::Applying),
        "Failed" => Some(RemoteConfigState::Failed),
        other => other.strip_prefix("Unknown")?.parse().ok().map(RemoteConfigState::Unknown),
    }
}

/// What stands in `status.connectionSettings.status`.
#[must_use]
pub fn settings_state(state: ConnectionSettingsState) -> String {
    self::state(match state {
        ConnectionSettingsState::Unset => RemoteConfigState::Unset,
        ConnectionSettingsState::Applied => RemoteConfigState::Applied,
        ConnectionSettingsState::Applying => RemoteConfigState::Applying,
        ConnectionSettingsState::Failed => RemoteConfigState::Failed,
        ConnectionSettingsState::Unknown(number) => RemoteConfigState::Unknown(number),
    })
}

/// Reads [`settings_state`] back; `None` for what this version never writes.
#[must_use]
pub fn read_settings_state(text: &str) -> Option<ConnectionSettingsState> {
    Some(match read_state(text)? {
        RemoteConfigState::Unset => ConnectionSettingsState::Unset,
        RemoteConfigState::Applied => ConnectionSettingsState::Applied,
        RemoteConfigState::Applying => ConnectionSettingsState::Applying,
        RemoteConfigState::Failed => ConnectionSettingsState::Failed,
        RemoteConfigState::Unknown(number) => ConnectionSettingsState::Unknown(number),
    })
}

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
            RemoteConfigState::Unset,
            RemoteConfigState::Applied,
            RemoteConfigState::Applying,
            RemoteConfigState::Failed,
            RemoteConfigState::Unknown(7),
            RemoteConfigState::Unknown(-1),
        ] {
            assert_eq!(read_state(&state(original)), Some(original));
        }
        assert_eq!(read_state("applied"), None);
    }
}
