//! Serial numbers of certificates.

use std::fmt;

/// Longest serial number that is read: RFC 5280 §4.1.2.2 has 20 bytes, some CAs have a few more.
const LONGEST: usize = 32;

/// The number of a certificate, unique within its issuer. Shown as lower-case hexadecimal digits.
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Serial(Box<[u8]>);

impl Serial {
    /// A fresh one: 126 random bits in 16 bytes, so that it can be neither guessed nor met twice, and is positive
    /// (RFC 5280 §4.1.2.2).
    #[must_use]
    pub fn random() -> Self {
        let mut bytes: [u8; 16] = rand::random();
        bytes[0] = bytes[0] & 0x3f | 0x40;
        Self(bytes.into())
    }

    /// The content of a DER integer; leading zeros do not count.
    #[must_use]
    pub fn from_der(bytes: &[u8]) -> Option<Self> {
        let start = bytes.iter().position(|byte| *byte != 0)?;
        (bytes.len() - start <= LONGEST).then(|| Self(bytes[start..].into()))
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if !is_hex || !text.len().is_multiple_of(2) || text.len() > 2 * LONGEST {
            return None;
        }
        let digits = text.as_bytes().chunks_exact(2);
        let bytes: Option<Vec<u8>> =
            digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
        Self::from_der(&bytes?).filter(|serial| serial.0.len() * 2 == text.len())
    }

    /// Its bytes, most significant first, without leading zeros.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_is_read_back_from_its_text() {
        let serial = Serial::random();
        assert_eq!((serial.as_bytes().len(), serial.as_bytes()[0] >> 6), (16, 1), "positive, and never shorter");
        assert_eq!(Serial::parse(&serial.to_string()), Some(serial.clone()));
        assert_ne!(serial, Serial::random());
    }

    #[test]
    fn leading_zeros_do_not_count() {
        assert_eq!(Serial::from_der(&[0, 0x80, 1]), Serial::parse("8001"));
        assert_eq!(Serial::from_der(&[0, 0]), None);
    }

    #[test]
    fn text_of_another_shape_is_no_serial() {
        for text in ["", "0", "abc", "ABCD", "00ab", "+1", "é", &"11".repeat(33)] {
            assert_eq!(Serial::parse(text), None, "{text}");
        }
    }
}
