//! The certificate of a client, as the proxy tells it that ended its TLS (RFC 9440).

use std::sync::Arc;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::{HeaderMap, HeaderName, HeaderValue};
use rustls_pki_types::CertificateDer;
use x509_parser::parse_x509_certificate;

use super::CertificateHeader;

/// The certificate of the client itself (RFC 9440 §2.2).
const LEAF: HeaderName = HeaderName::from_static("client-cert");

/// What it came with (RFC 9440 §2.3).
const CHAIN: HeaderName = HeaderName::from_static("client-cert-chain");

/// Bytes of one certificate in base64: several times a usual one.
const CERTIFICATE_BYTES: usize = 8 << 10;

/// Certificates of a chain: real ones have up to three.
const CHAIN_LENGTH: usize = 8;

/// Base64 as in RFC 8941 §4.2.7, which asks for tolerance in padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Why the headers of a proxy are not understood: it is not known then who speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HeaderError {
    /// Which of them holds cannot be told.
    #[error("there are several headers Client-Cert")]
    Several,
    /// A client may have sent what a proxy takes for another name, and the next one for the same.
    #[error("a header has the name Client-Cert or Client-Cert-Chain with an underscore")]
    Underscore,
    /// RFC 9440 §2.3.
    #[error("there is a header Client-Cert-Chain and none Client-Cert")]
    ChainAlone,
    /// It is too long, or has too many.
    #[error("the certificate or its chain is too long")]
    TooLong,
    /// It is no byte sequence by RFC 8941.
    #[error("a certificate is not in base64 between colons")]
    Encoding,
    /// It is no certificate.
    #[error("a certificate cannot be read")]
    Certificate,
}

/// Takes the headers out, whoever sent them; gives the certificates if they are believed, the client's own first.
pub fn take(
    headers: &mut HeaderMap,
    belief: CertificateHeader,
) -> Result<Option<Arc<[CertificateDer<'static>]>>, HeaderError> {
    let certificates = match belief {
        CertificateHeader::Ignored => Ok(None),
        CertificateHeader::Believed => read(headers),
    };
    let mistaken: Vec<_> = headers.keys().filter(|name| is_mistakable(name)).cloned().collect();
    for name in mistaken.iter().chain([&LEAF, &CHAIN]) {
        headers.remove(name);
    }
    certificates
}

/// Whether others may take this name for one of the two.
fn is_mistakable(name: &HeaderName) -> bool {
    name.as_str().contains('_') && [LEAF, CHAIN].iter().any(|meant| name.as_str().replace('_', "-") == meant.as_str())
}

fn read(headers: &HeaderMap) -> Result<Option<Arc<[CertificateDer<'static>]>>, HeaderError> {
    if headers.keys().any(is_mistakable) {
        return Err(HeaderError::Underscore);
    }
    let mut leaves = headers.get_all(LEAF).iter();
    let Some(leaf) = leaves.next() else {
        return if headers.contains_key(CHAIN) { Err(HeaderError::ChainAlone) } else { Ok(None) };
    };
    if leaves.next().is_some() {
        return Err(HeaderError::Several);
    }
    let mut certificates = vec![certificate(text(leaf)?)?];
    for line in headers.get_all(CHAIN) {
        for member in text(line)?.split(',') {
            if certificates.len() > CHAIN_LENGTH {
                return Err(HeaderError::TooLong);
            }
            certificates.push(certificate(member)?);
        }
    }
    Ok(Some(certificates.into()))
}

fn text(value: &HeaderValue) -> Result<&str, HeaderError> {
    value.to_str().map_err(|_| HeaderError::Encoding)
}

/// One byte sequence: base64 between colons (RFC 8941 §3.3.5).
fn certificate(text: &str) -> Result<CertificateDer<'static>, HeaderError> {
    if text.len() > CERTIFICATE_BYTES {
        return Err(HeaderError::TooLong);
    }
    let inner = text.trim_matches([' ', '\t']).strip_prefix(':').and_then(|text| text.strip_suffix(':'));
    let der = BASE64.decode(inner.ok_or(HeaderError::Encoding)?).map_err(|_| HeaderError::Encoding)?;
    match parse_x509_certificate(&der) {
        Ok(([], _)) => Ok(der.into()),
        Ok(_) | Err(_) => Err(HeaderError::Certificate),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// The value of the header for the certificate of somebody with this name.
    fn value(name: &str) -> (String, CertificateDer<'static>) {
        let parameters = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone();
        (format!(":{}:", base64::engine::general_purpose::STANDARD.encode(&certificate)), certificate)
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_trusted_proxy_tells_the_certificate_and_its_chain() {
        let [(leaf, leaf_der), (ca, ca_der), (root, root_der)] = ["agent", "ca", "root"].map(value);
        let (unpadded, chain) = (leaf.replace('=', ""), format!("{ca} ,\t{root}"));
        for (case, lines, expected) in [
            ("no header", &[][..], None),
            ("alone", &[("client-cert", &*leaf)], Some(vec![&leaf_der])),
            ("without padding", &[("client-cert", &unpadded)], Some(vec![&leaf_der])),
            (
                "with its chain",
                &[("client-cert", &leaf), ("client-cert-chain", &chain)],
                Some(vec![&leaf_der, &ca_der, &root_der]),
            ),
            (
                "with a chain in several lines",
                &[("client-cert", &leaf), ("client-cert-chain", &ca), ("client-cert-chain", &root)],
                Some(vec![&leaf_der, &ca_der, &root_der]),
            ),
        ] {
            let mut headers = headers(lines);
            let taken = take(&mut headers, CertificateHeader::Believed).unwrap();
            let expected = expected.map(|certificates| certificates.into_iter().cloned().collect::<Vec<_>>());
            assert_eq!(taken.as_deref(), expected.as_deref(), "{case}");
            assert!(headers.is_empty(), "{case}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_refused_from_a_proxy_and_dropped_from_others() {
        let (leaf, der) = value("agent");
        let trailing = base64::engine::general_purpose::STANDARD.encode([&der[..], b"more"].concat());
        let (long, trailing) = (format!(":{}:", "A".repeat(8 << 10)), format!(":{trailing}:"));
        let (bare, chain) = (leaf.trim_matches(':'), [&*leaf; 9].join(","));
        for (case, lines, expected) in [
            ("twice", &[("client-cert", &*leaf), ("client-cert", &leaf)][..], HeaderError::Several),
            ("a list", &[("client-cert", &format!("{leaf},{leaf}"))], HeaderError::Encoding),
            ("an underscore", &[("client-cert", &leaf), ("client_cert", &leaf)], HeaderError::Underscore),
            ("underscores alone", &[("client_cert_chain", &leaf)], HeaderError::Underscore),
            ("one underscore of two", &[("client-cert_chain", &leaf)], HeaderError::Underscore),
            ("a chain alone", &[("client-cert-chain", &leaf)], HeaderError::ChainAlone),
            ("a long certificate", &[("client-cert", &long)], HeaderError::TooLong),
            ("a long chain", &[("client-cert", &leaf), ("client-cert-chain", &chain)], HeaderError::TooLong),
            ("without colons", &[("client-cert", bare)], HeaderError::Encoding),
            ("nothing", &[("client-cert", "")], HeaderError::Encoding),
            ("one colon", &[("client-cert", ":")], HeaderError::Encoding),
            ("no bytes", &[("client-cert", "::")], HeaderError::Certificate),
            ("wrong base64", &[("client-cert", ":a%b=:")], HeaderError::Encoding),
            ("no certificate", &[("client-cert", ":bm90aGluZw==:")], HeaderError::Certificate),
            ("more than a certificate", &[("client-cert", &trailing)], HeaderError::Certificate),
            ("a parameter", &[("client-cert", &format!("{leaf};a=1"))], HeaderError::Encoding),
        ] {
            let mut from_proxy = headers(lines);
            assert_eq!(take(&mut from_proxy, CertificateHeader::Believed), Err(expected), "{case}");
            let mut from_others = headers(lines);
            assert_eq!(take(&mut from_others, CertificateHeader::Ignored), Ok(None), "{case}");
            assert!(from_proxy.is_empty() && from_others.is_empty(), "{case}: taken out");
        }
    }
}
