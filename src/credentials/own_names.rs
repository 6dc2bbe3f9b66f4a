//! Names in requests for issuers that are not ours, and in what they sign: the agent's own, or none.
//!
//! The operator's CA takes nothing but the key of a request. Other issuers copy subject, names and extensions into the
//! certificate, and whatever trusts them believes those: an agent that asks to be `system:masters` must not get that signed
//! on the operator's word.

use x509_parser::{
    asn1_rs::Header,
    certificate::X509Certificate,
    certification_request::X509CertificationRequest,
    cri_attributes::{ParsedCriAttribute, X509CriAttribute},
    extensions::{ExtendedKeyUsage, GeneralName, ParsedExtension, X509Extension},
    oid_registry::OID_X509_COMMON_NAME,
    prelude::FromDer as _,
    x509::X509Name,
};

use super::{name::AgentName, request::uuid};

/// The one bit of a key usage that is left to an agent.
const DIGITAL_SIGNATURE: u16 = 1;

/// What goes beyond an agent's own name. No variant quotes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Foreign {
    /// The subject.
    #[error("its subject must be empty, or the common name the agent's instance_uid and nothing else")]
    Subject,
    /// A subject alternative name.
    #[error(
        "its only alternative names may be the URIs urn:uuid:<instance_uid> and opamp:// of the agent in its fleet"
    )]
    AlternativeName,
    /// Certifying others.
    #[error("it must not be for a CA")]
    Authority,
    /// What the key may be used for.
    #[error("its only usages may be digital signature and client authentication")]
    Usage,
    /// Anything else that an issuer might copy.
    #[error("it must not have attributes or extensions beyond names, usages and basic constraints")]
    Extension,
}

/// Checks a request before somebody else is asked to sign it.
pub(super) fn check_request(request: &X509CertificationRequest<'_>, own: &AgentName) -> Result<(), Foreign> {
    let information = &request.certification_request_info;
    check_subject(&information.subject, own)?;
    match information.attributes() {
        [] => Ok(()),
        [only] => check_requested(only, own),
        // Parsers differ in which of several they take.
        [_, _, ..] => Err(Foreign::Extension),
    }
}

fn check_requested(attribute: &X509CriAttribute<'_>, own: &AgentName) -> Result<(), Foreign> {
    let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() else {
        return Err(Foreign::Extension);
    };
    // A second value in the set would have been passed over.
    let is_one = Header::from_der(attribute.value)
        .is_ok_and(|(content, header)| header.length().definite().is_ok_and(|length| length == content.len()));
    if !is_one {
        return Err(Foreign::Extension);
    }
    for extension in &requested.extensions {
        let is_judged = check_extension(extension, own)?;
        if is_judged == Judged::No {
            return Err(Foreign::Extension);
        }
    }
    Ok(())
}

/// Checks what somebody else has signed. Extensions that speak of the issuer are its own business.
pub(super) fn check_certificate(certificate: &X509Certificate<'_>, own: &AgentName) -> Result<(), Foreign> {
    check_subject(certificate.subject(), own)?;
    certificate.extensions().iter().try_for_each(|extension| check_extension(extension, own).map(|_| ()))
}

fn check_subject(subject: &X509Name<'_>, own: &AgentName) -> Result<(), Foreign> {
    let mut attributes = subject.iter_attributes();
    let Some(first) = attributes.next() else { return Ok(()) };
    let is_own = *first.attr_type() == OID_X509_COMMON_NAME
        && first.as_str().is_ok_and(|text| uuid(text) == Some(own.uid))
        && attributes.next().is_none();
    if is_own { Ok(()) } else { Err(Foreign::Subject) }
}

/// Whether an extension is of a kind that says something of its holder.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Judged {
    Yes,
    No,
}

fn check_extension(extension: &X509Extension<'_>, own: &AgentName) -> Result<Judged, Foreign> {
    let (is_own, otherwise) = match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => {
            (names.general_names.iter().all(|name| is_own_name(name, own)), Foreign::AlternativeName)
        }
        ParsedExtension::BasicConstraints(constraints) => (!constraints.ca, Foreign::Authority),
        ParsedExtension::KeyUsage(usage) => (usage.flags & !DIGITAL_SIGNATURE == 0, Foreign::Usage),
        ParsedExtension::ExtendedKeyUsage(usage) => (is_for_clients(usage), Foreign::Usage),
        // A digest of the key.
        ParsedExtension::SubjectKeyIdentifier(_) => (true, Foreign::Extension),
        // Nobody knows what it says.
        ParsedExtension::ParseError { .. } => (false, Foreign::Extension),
        // The foreign enum: what the caller decides on.
        _ => return Ok(Judged::No),
    };
    if is_own { Ok(Judged::Yes) } else { Err(otherwise) }
}

fn is_own_name(name: &GeneralName<'_>, own: &AgentName) -> bool {
    match name {
        GeneralName::URI(uri) => {
            *uri == own.to_string() || uri.strip_prefix("urn:uuid:").and_then(uuid) == Some(own.uid)
        }
        // The foreign enum: an agent has no name of another kind.
        _ => false,
    }
}

fn is_for_clients(usage: &ExtendedKeyUsage<'_>) -> bool {
    let ExtendedKeyUsage {
        any,
        server_auth,
        client_auth,
        code_signing,
        email_protection,
        time_stamping,
        ocsp_signing,
        other,
    } = usage;
    let others = [any, server_auth, code_signing, email_protection, time_stamping, ocsp_signing];
    *client_auth && others.iter().all(|other| !**other) && other.is_empty()
}

#[cfg(test)]
mod tests {
    use rcgen::{
        Attribute, BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType,
        ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
    };

    use super::*;
    use crate::credentials::{
        request::{CertificateRequest, RequestError},
        tests::{authority, name, uid},
    };

    /// Without a name.
    fn plain() -> CertificateParams {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        parameters
    }

    fn named(attributes: &[(DnType, &str)]) -> CertificateParams {
        let mut parameters = plain();
        for (kind, value) in attributes {
            parameters.distinguished_name.push(kind.clone(), *value);
        }
        parameters
    }

    fn alternative(names: impl IntoIterator<Item = SanType>) -> CertificateParams {
        let mut parameters = plain();
        parameters.subject_alt_names = names.into_iter().collect();
        parameters
    }

    fn uri(text: impl Into<String>) -> SanType {
        SanType::URI(text.into().try_into().unwrap())
    }

    fn usages(key: &[KeyUsagePurpose], extended: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
        let mut parameters = plain();
        (parameters.key_usages, parameters.extended_key_usages) = (key.to_vec(), extended.to_vec());
        parameters
    }

    fn certifying(is_ca: IsCa) -> CertificateParams {
        let mut parameters = plain();
        parameters.is_ca = is_ca;
        parameters
    }

    /// Of agent 1, in the fleet `edge`.
    fn cases() -> Vec<(&'static str, CertificateParams, Result<(), Foreign>)> {
        use ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
        use Foreign::{AlternativeName, Authority, Subject, Usage};
        use KeyUsagePurpose::{DigitalSignature, KeyCertSign, KeyEncipherment};
        let (own, other) = (uid(1).to_string(), uid(2).to_string());
        let of = |change: fn(&mut AgentName)| {
            let mut changed = name(1);
            change(&mut changed);
            alternative([uri(changed.to_string())])
        };
        vec![
            ("nothing", plain(), Ok(())),
            ("its uid", named(&[(DnType::CommonName, &own)]), Ok(())),
            ("in upper case", named(&[(DnType::CommonName, &own.to_uppercase())]), Ok(())),
            ("another uid", named(&[(DnType::CommonName, &other)]), Err(Subject)),
            ("a name of its choice", named(&[(DnType::CommonName, "collector")]), Err(Subject)),
            ("an organisation", named(&[(DnType::OrganizationName, "system:masters")]), Err(Subject)),
            (
                "its uid, and an organisation",
                named(&[(DnType::CommonName, &own), (DnType::OrganizationName, "system:masters")]),
                Err(Subject),
            ),
            ("its uid as unit", named(&[(DnType::OrganizationalUnitName, &own)]), Err(Subject)),
            ("its URN", alternative([uri(format!("urn:uuid:{own}"))]), Ok(())),
            ("its name", of(|_| ()), Ok(())),
            ("both", alternative([uri(format!("urn:uuid:{own}")), uri(name(1).to_string())]), Ok(())),
            ("another's URN", alternative([uri(format!("urn:uuid:{other}"))]), Err(AlternativeName)),
            ("of another uid", of(|name| name.uid = uid(2)), Err(AlternativeName)),
            ("of another fleet", of(|name| name.fleet = "other".into()), Err(AlternativeName)),
            ("of another namespace", of(|name| name.namespace = "bank".into()), Err(AlternativeName)),
            ("of another cluster", of(|name| name.cluster = "d".into()), Err(AlternativeName)),
            ("a SPIFFE id", alternative([uri("spiffe://corp/admin")]), Err(AlternativeName)),
            ("a DNS name", alternative([SanType::DnsName("api.corp".try_into().unwrap())]), Err(AlternativeName)),
            ("its uid as DNS name", alternative([SanType::DnsName(own.try_into().unwrap())]), Err(AlternativeName)),
            ("an address", alternative([SanType::IpAddress([10, 0, 0, 1].into())]), Err(AlternativeName)),
            ("mail", alternative([SanType::Rfc822Name("root@corp".try_into().unwrap())]), Err(AlternativeName)),
            (
                "its name, and a DNS name",
                alternative([uri(name(1).to_string()), SanType::DnsName("api.corp".try_into().unwrap())]),
                Err(AlternativeName),
            ),
            ("a CA", certifying(IsCa::Ca(BasicConstraints::Unconstrained)), Err(Authority)),
            ("no CA, and it says so", certifying(IsCa::ExplicitNoCa), Ok(())),
            ("a client's usages", usages(&[DigitalSignature], &[ClientAuth]), Ok(())),
            ("certifying", usages(&[DigitalSignature, KeyCertSign], &[]), Err(Usage)),
            ("encipherment", usages(&[KeyEncipherment], &[]), Err(Usage)),
            ("a server's", usages(&[], &[ClientAuth, ServerAuth]), Err(Usage)),
            ("any", usages(&[], &[Any]), Err(Usage)),
        ]
    }

    fn check(pem: &str) -> Result<(), RequestError> {
        CertificateRequest::check(pem.as_bytes(), uid(1), |_| false)?.check_names(&name(1))
    }

    #[test]
    fn a_request_for_somebody_elses_signature_asks_for_no_name_but_its_own() {
        for (case, parameters, expected) in cases() {
            let pem = parameters.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
            let found = check(&pem);
            // A stranger's uid alone is refused whoever signs.
            let found = if found == Err(RequestError::AnotherAgent) { expected.map_err(Into::into) } else { found };
            assert_eq!(found, expected.map_err(RequestError::Foreign), "{case}");
        }
    }

    #[test]
    fn a_certificate_of_somebody_else_gives_no_name_but_its_own() {
        let authority = authority();
        for (case, parameters, expected) in cases() {
            let key = KeyPair::generate().unwrap();
            let signed = parameters.signed_by(&key, authority.issuer()).unwrap();
            let (_, certificate) = X509Certificate::from_der(signed.der()).unwrap();
            assert_eq!(check_certificate(&certificate, &name(1)), expected, "{case}");
        }
    }

    #[test]
    fn what_parsers_read_differently_is_not_handed_on() {
        const EXTENSIONS: &[u64] = &[1, 2, 840, 113_549, 1, 9, 14];
        const PASSWORD: &[u64] = &[1, 2, 840, 113_549, 1, 9, 7];
        const MICROSOFTS: &[u64] = &[1, 3, 6, 1, 4, 1, 311, 2, 1, 14];
        let empty = || vec![0x31, 2, 0x30, 0];
        let named = || alternative([uri(name(1).to_string())]);
        for (case, parameters, oid, values, expected) in [
            ("no extension", plain(), EXTENSIONS, empty(), Ok(())),
            ("two values", plain(), EXTENSIONS, vec![0x31, 4, 0x30, 0, 0x30, 0], Err(Foreign::Extension)),
            ("two attributes", named(), EXTENSIONS, empty(), Err(Foreign::Extension)),
            ("a password", plain(), PASSWORD, vec![0x31, 3, 0x0c, 1, b'x'], Err(Foreign::Extension)),
            ("another's attribute for extensions", plain(), MICROSOFTS, empty(), Err(Foreign::Extension)),
        ] {
            let attributes = vec![Attribute { oid, values }];
            let request = parameters.serialize_request_with_attributes(&KeyPair::generate().unwrap(), attributes);
            let pem = request.unwrap().pem().unwrap();
            assert_eq!(check(&pem), expected.map_err(RequestError::Foreign), "{case}");
        }
        let mut parameters = plain();
        parameters.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 2, 3], vec![5, 0])];
        let pem = parameters.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        assert_eq!(check(&pem), Err(RequestError::Foreign(Foreign::Extension)), "an extension of its own");
    }
}
