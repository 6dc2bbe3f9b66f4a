//! Certificates in PEM, in and out.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

/// Most certificates of a text: a chain or the generations of a CA are a handful.
pub(super) const MOST: usize = 64;
/// Most bytes of such a text.
const LONGEST: usize = 256 << 10;

/// Why a text is no list of certificates.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PemError {
    /// It has none.
    #[error("there is no certificate in PEM in it")]
    Empty,
    /// A block cannot be decoded.
    #[error("it is not valid PEM")]
    Malformed,
    /// More than is reasonable.
    #[error("it has more than {MOST} certificates or {LONGEST} bytes")]
    TooLarge,
}

/// The certificates of a text, in their order, each once. Blocks of other kinds are passed over.
pub fn read_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    if pem.len() > LONGEST {
        return Err(PemError::TooLarge);
    }
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| PemError::Malformed)?;
        if certificates.len() == MOST {
            return Err(PemError::TooLarge);
        }
        if !certificates.contains(&certificate) {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() { Err(PemError::Empty) } else { Ok(certificates) }
}

/// Writes certificates one after the other.
#[must_use]
pub fn write_certificates<'a>(certificates: impl IntoIterator<Item = &'a CertificateDer<'static>>) -> String {
    certificates.into_iter().map(|certificate| write_block("CERTIFICATE", certificate)).collect()
}

/// One block: lines of 64 characters (RFC 7468 §2).
#[must_use]
pub fn write_block(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    // 48 bytes make a line of 64 characters.
    for line in der.chunks(48) {
        text.push_str(&STANDARD.encode(line));
        text.push('\n');
    }
    text + "-----END " + label + "-----\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_read_back_each_once() {
        let written: Vec<_> = (1..=3_u8).map(|byte| CertificateDer::from(vec![byte; 100])).collect();
        let text = write_certificates(written.iter().chain(&written));
        assert!(text.lines().all(|line| line.len() <= 64));
        assert_eq!(read_certificates(text.as_bytes()), Ok(written));
    }

    #[test]
    fn what_holds_no_certificate_is_an_error() {
        let many: String = (0..=64_u8).map(|byte| write_block("CERTIFICATE", &[byte; 4])).collect();
        for (case, text, expected) in [
            ("nothing", "", PemError::Empty),
            ("another kind", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", PemError::Empty),
            ("no base64", "-----BEGIN CERTIFICATE-----\n~\n-----END CERTIFICATE-----\n", PemError::Malformed),
            ("cut off", "-----BEGIN CERTIFICATE-----\nAAAA\n", PemError::Malformed),
            ("too many", &many, PemError::TooLarge),
            ("too long", &" ".repeat(300_000), PemError::TooLarge),
        ] {
            assert_eq!(read_certificates(text.as_bytes()), Err(expected), "{case}");
        }
    }
}
