//! Requests for certificates, honest and otherwise.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use super::{at, authority, name, uid};
use crate::{
    credentials::{
        pem::{read_certificates, write_block},
        request::{CertificateRequest, MAX_REQUEST, RequestError},
    },
    opamp::InstanceUid,
};

/// A request as an honest agent makes it, changed by `change`.
fn request(change: impl FnOnce(&mut CertificateParams)) -> String {
    let mut parameters = CertificateParams::default();
    change(&mut parameters);
    parameters.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

fn nobody(_: &InstanceUid) -> bool {
    false
}

/// Agent 1 sends it; agents 1 and 2 are known.
fn check(pem: impl AsRef<[u8]>) -> Result<CertificateRequest, RequestError> {
    CertificateRequest::check(pem.as_ref(), uid(1), |known| [uid(1), uid(2)].contains(known))
}

#[test]
fn only_keys_of_a_served_kind_and_strength_get_a_certificate() {
    use RequestError::{KeyKind, KeyStrength, SignatureKind};
    for (case, pem, expected) in [
        ("P-384", include_str!("csr/p-384.pem"), Ok(())),
        ("Ed25519", include_str!("csr/ed25519.pem"), Ok(())),
        ("RSA 2048", include_str!("csr/rsa-2048.pem"), Ok(())),
        ("RSA 2048, signed with PSS", include_str!("csr/rsa-2048-pss.pem"), Ok(())),
        ("RSA 2048, signed with SHA-1", include_str!("csr/rsa-2048-sha1.pem"), Err(SignatureKind)),
        ("RSA 1024", include_str!("csr/rsa-1024.pem"), Err(KeyStrength)),
        ("RSA with exponent 3", include_str!("csr/rsa-exponent-3.pem"), Err(KeyStrength)),
        ("an RSA key for PSS only", include_str!("csr/rsa-pss-key.pem"), Err(KeyKind)),
        ("P-192", include_str!("csr/p-192.pem"), Err(KeyKind)),
        ("P-521", include_str!("csr/p-521.pem"), Err(KeyKind)),
        ("P-256 with its parameters spelt out", include_str!("csr/p-256-explicit.pem"), Err(KeyKind)),
        ("secp256k1", include_str!("csr/secp256k1.pem"), Err(KeyKind)),
        ("Ed448", include_str!("csr/ed448.pem"), Err(KeyKind)),
    ] {
        assert_eq!(check(pem).map(|_| ()), expected, "{case}");
    }
    assert!(check(request(|_| ())).is_ok(), "P-256");
}

#[test]
fn only_one_block_of_pem_is_read() {
    let good = request(|_| ());
    let der = CertificateParams::default().serialize_request(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
    let key = KeyPair::generate().unwrap().serialize_pem();
    for (case, pem, expected) in [
        ("nothing", Vec::new(), RequestError::NotPem),
        ("DER", der.clone(), RequestError::NotPem),
        ("text", b"please".to_vec(), RequestError::NotPem),
        ("two requests", format!("{good}{good}").into_bytes(), RequestError::SeveralBlocks),
        ("with its private key", format!("{good}{key}").into_bytes(), RequestError::SeveralBlocks),
        ("text before", format!("note\n{good}").into_bytes(), RequestError::SeveralBlocks),
        ("text behind", format!("{good}note").into_bytes(), RequestError::SeveralBlocks),
        ("another label", write_block("CERTIFICATE", &der).into_bytes(), RequestError::NotPem),
        ("cut off", good.as_bytes()[..good.len() / 2].to_vec(), RequestError::SeveralBlocks),
        ("not PKCS #10", write_block("CERTIFICATE REQUEST", b"x").into_bytes(), RequestError::Malformed),
        (
            "bytes behind the request",
            write_block("CERTIFICATE REQUEST", &[&der[..], &[5, 0]].concat()).into_bytes(),
            RequestError::Malformed,
        ),
        ("huge", good.repeat(100).into_bytes(), RequestError::TooLarge(good.len() * 100)),
        ("one byte too many", vec![b' '; MAX_REQUEST + 1], RequestError::TooLarge(16_385)),
    ] {
        assert_eq!(check(pem).unwrap_err(), expected, "{case}");
    }
    assert!(check(format!("\n{good}\n").replace('\n', "\r\n")).is_ok(), "line ends of Windows");
}

#[test]
fn whoever_does_not_have_the_key_gets_nothing() {
    let der = CertificateParams::default().serialize_request(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
    let mut forged = der.clone();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(check(write_block("CERTIFICATE REQUEST", &forged)).unwrap_err(), RequestError::Signature);
    // Whatever is cut off or turned, nothing panics and nothing is believed.
    for at in 0..der.len() {
        let mut broken = der.clone();
        broken[at] ^= 0xff;
        assert!(check(write_block("CERTIFICATE REQUEST", &broken)).is_err(), "byte {at} turned");
        assert!(check(write_block("CERTIFICATE REQUEST", &der[..at])).is_err(), "cut at {at}");
    }
}

fn subject(kind: DnType, value: &str) -> String {
    request(|parameters| {
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(kind, value);
    })
}

fn alternative(name: SanType) -> String {
    request(|parameters| parameters.subject_alt_names = vec![name])
}

#[test]
fn a_uid_in_the_request_must_be_the_senders() {
    let (own, other, stranger) = (uid(1).to_string(), uid(2).to_string(), uid(9).to_string());
    let serial_number = || DnType::CustomDnType(vec![2, 5, 4, 5]);
    let uri = |text: String| alternative(SanType::URI(text.try_into().unwrap()));
    let dns = |text: &str| alternative(SanType::DnsName(text.try_into().unwrap()));
    let both = |one: &str, two: &str| {
        request(|parameters| {
            parameters.distinguished_name.push(DnType::CommonName, one);
            parameters.distinguished_name.push(DnType::OrganizationalUnitName, two);
        })
    };
    let refused = Err(RequestError::AnotherAgent);
    for (case, pem, expected) in [
        ("none", request(|_| ()), Ok(())),
        ("its own as common name", subject(DnType::CommonName, &own), Ok(())),
        ("in upper case", subject(DnType::CommonName, &own.to_uppercase()), Ok(())),
        ("its own as serial number", subject(serial_number(), &own), Ok(())),
        ("its own as unit", subject(DnType::OrganizationalUnitName, &own), Ok(())),
        ("its own as URN", uri(format!("urn:uuid:{own}")), Ok(())),
        ("its own as DNS name", dns(&own), Ok(())),
        ("its own, and a tenant", both(&own, &stranger), Ok(())),
        ("no UUID", subject(DnType::CommonName, "collector"), Ok(())),
        ("another's as common name", subject(DnType::CommonName, &other), refused),
        ("another's as serial number", subject(serial_number(), &other), refused),
        ("another's as unit", subject(DnType::OrganizationalUnitName, &other), refused),
        ("another's as URN", uri(format!("urn:uuid:{other}")), refused),
        ("another's as DNS name", dns(&other), refused),
        ("its own, and another's", both(&own, &other), refused),
        ("a stranger's alone", subject(DnType::CommonName, &stranger), refused),
        ("another's former name", uri(name(2).to_string()), refused),
    ] {
        assert_eq!(check(pem).map(|_| ()), expected, "{case}");
    }
}

#[test]
fn a_request_with_a_crowd_of_identifiers_is_not_looked_through() {
    let crowd = request(|parameters| {
        parameters.subject_alt_names =
            (1..=17).map(|number| SanType::URI(format!("urn:uuid:{}", uid(number)).try_into().unwrap())).collect();
    });
    let refusal = CertificateRequest::check(crowd.as_bytes(), uid(1), nobody).unwrap_err();
    assert_eq!(refusal, RequestError::TooManyIdentifiers);
}

#[test]
fn nothing_of_a_request_but_its_key_gets_into_the_certificate() {
    let demanding = request(|parameters| {
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::Any];
        parameters.subject_alt_names = vec![
            SanType::DnsName("opamp.example.com".try_into().unwrap()),
            SanType::URI("opamp://c/telemetry/other/0190a5c4-7e2f-7cc0-8000-000000000001".try_into().unwrap()),
            SanType::IpAddress([10, 0, 0, 1].into()),
        ];
        parameters.distinguished_name.push(DnType::CommonName, "system:masters");
        parameters.distinguished_name.push(DnType::OrganizationName, "canary");
    });
    for (case, pem) in [("made here", demanding.as_str()), ("made elsewhere", include_str!("csr/demanding.pem"))] {
        let request = check(pem).unwrap();
        let lifetime = std::time::Duration::from_secs(3_600);
        let issued = authority().issue_agent(&name(1), request.key(), lifetime, at(0)).unwrap();
        let der = &read_certificates(issued.chain.as_bytes()).unwrap()[0];
        let (_, certificate) = X509Certificate::from_der(der).unwrap();
        assert_eq!(certificate.subject().to_string(), format!("CN={}", uid(1)), "{case}");
        assert!(!certificate.is_ca(), "{case}");
        let usage = certificate.key_usage().unwrap().unwrap().value;
        assert_eq!(usage.flags, 1, "{case}: digital signature alone");
        let extended = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(extended.client_auth && !extended.server_auth && !extended.any && extended.other.is_empty(), "{case}");
        let names = certificate.subject_alternative_name().unwrap().unwrap().value;
        assert_eq!(names.general_names.len(), 1, "{case}");
        assert_eq!(names.general_names[0].to_string(), format!("URI({})", name(1)), "{case}");
        assert_eq!(certificate.validity().not_after.timestamp(), at(3_600).as_second(), "{case}");
    }
}

#[test]
fn a_request_is_not_shown() {
    let request = check(request(|_| ())).unwrap();
    assert_eq!(format!("{request:?}"), format!("CertificateRequest({})", request.key().id()));
}
