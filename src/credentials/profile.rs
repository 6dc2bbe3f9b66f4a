//! What the certificates say that are made here: of an agent, of the server. All of it is the operator's word.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyUsagePurpose, SanType};

use super::{
    authority::{Authority, AuthorityError, Issued, common_name},
    key::PrivateKey,
    name::AgentName,
    request::PublicKey,
};

/// How long a certificate of the server counts. It is renewed after two thirds.
pub const SERVER_LIFETIME: Duration = Duration::from_secs(90 * 86_400);
/// The Service that agents inside the cluster connect to.
const SERVICE: &str = "opamp-operator";

impl Authority {
    /// Issues the certificate of an agent for a key that it, or the operator, has made.
    pub fn issue_agent(
        &self,
        name: &AgentName,
        key: &PublicKey,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Issued, AuthorityError> {
        self.sign(agent_profile(name)?, key, lifetime, now)
    }

    /// Makes a key for the server, and issues its certificate.
    pub fn issue_server(&self, names: &[ServerName], now: Timestamp) -> Result<(Issued, PrivateKey), AuthorityError> {
        let (key, pair) = PrivateKey::generate()?;
        let mut profile = CertificateParams::default();
        profile.distinguished_name = common_name(SERVICE);
        profile.subject_alt_names = names.iter().map(ServerName::alternative_name).collect::<Result<_, _>>()?;
        profile.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        profile.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Ok((self.sign(profile, &pair, SERVER_LIFETIME, now)?, key))
    }
}

/// What the certificate of an agent says: who it is, and that it is a client.
pub(super) fn agent_profile(name: &AgentName) -> Result<CertificateParams, rcgen::Error> {
    let mut profile = CertificateParams::default();
    profile.distinguished_name = common_name(&name.uid.to_string());
    profile.subject_alt_names = vec![SanType::URI(name.to_string().try_into()?)];
    profile.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    profile.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(profile)
}

/// A name by which agents may reach the server.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum ServerName {
    /// An address.
    Address(IpAddr),
    /// A DNS name; the first label may be `*`.
    Dns(String),
}

/// The text is neither a DNS name nor an IP address.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0:?} is neither a DNS name nor an IP address")]
pub struct NotAName(pub String);

impl ServerName {
    /// Reads what a person gave; in lower case, as certificates have it.
    pub fn parse(text: &str) -> Result<Self, NotAName> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let name = text.to_ascii_lowercase();
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        let plain = name.strip_prefix("*.").unwrap_or(&name);
        let is_name = name.len() <= 253 && plain.split('.').all(is_label);
        if is_name { Ok(Self::Dns(name)) } else { Err(NotAName(text.chars().take(256).collect())) }
    }

    fn alternative_name(&self) -> Result<SanType, rcgen::Error> {
        Ok(match self {
            Self::Address(address) => SanType::IpAddress(*address),
            Self::Dns(name) => SanType::DnsName(name.as_str().try_into()?),
        })
    }
}

/// The names in the server's certificate: what people ask for, this machine, and the Service in the operator's own
/// namespace. In order, each once.
#[must_use]
pub fn server_names(wanted: &[ServerName], namespace: &str) -> Vec<ServerName> {
    let service = [
        SERVICE.to_owned(),
        format!("{SERVICE}.{namespace}"),
        format!("{SERVICE}.{namespace}.svc"),
        format!("{SERVICE}.{namespace}.svc.cluster.local"),
        "localhost".to_owned(),
    ];
    let addresses = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
    let mut names: Vec<_> = service
        .into_iter()
        .map(ServerName::Dns)
        .chain(addresses.into_iter().map(ServerName::Address))
        .chain(wanted.iter().cloned())
        .collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use x509_parser::{
        certificate::X509Certificate,
        extensions::{GeneralName, ParsedExtension},
        prelude::FromDer as _,
    };

    use super::*;
    use crate::credentials::{
        pem::read_certificates,
        tests::{at, authority, issue},
    };

    fn leaf(issued: &Issued) -> Vec<u8> {
        read_certificates(issued.chain.as_bytes()).unwrap()[0].to_vec()
    }

    #[test]
    fn an_agents_certificate_names_it_and_is_good_for_nothing_but_a_client() {
        let (authority, issued) = (authority(), issue(&authority(), 0).unwrap());
        let der = leaf(&issued);
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(certificate.subject().to_string(), "CN=0190a5c4-7e2f-7cc0-8000-000000000001");
        assert_eq!(certificate.validity().not_before.timestamp(), at(-300).as_second());
        let mut seen = Vec::new();
        for extension in certificate.extensions() {
            seen.push(match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(names) => match names.general_names[..] {
                    [GeneralName::URI(uri)] => uri.to_owned(),
                    ref other => panic!("{other:?}"),
                },
                ParsedExtension::BasicConstraints(constraints) => format!("CA:{}", constraints.ca),
                ParsedExtension::KeyUsage(usage) => usage.to_string(),
                ParsedExtension::ExtendedKeyUsage(usage) => {
                    assert!(usage.client_auth && !usage.server_auth && !usage.any && usage.other.is_empty());
                    "ClientAuth".to_owned()
                }
                ParsedExtension::AuthorityKeyIdentifier(_) | ParsedExtension::SubjectKeyIdentifier(_) => continue,
                other => panic!("{other:?}"),
            });
        }
        seen.sort();
        let uri = "opamp://c/telemetry/edge/0190a5c4-7e2f-7cc0-8000-000000000001";
        assert_eq!(seen, ["CA:false", "ClientAuth", "Digital Signature", uri]);
        assert!(authority.facts().not_after > issued.not_after);
    }

    #[test]
    fn the_servers_certificate_has_every_name_of_it() {
        let wanted = ["opamp.example.com", "*.Example.org", "192.0.2.7", "localhost"];
        let wanted: Vec<_> = wanted.iter().map(|name| ServerName::parse(name).unwrap()).collect();
        let names = server_names(&wanted, "opamp-system");
        let (issued, key) = authority().issue_server(&names, at(0)).unwrap();
        let der = leaf(&issued);
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let extension = certificate.subject_alternative_name().unwrap().unwrap();
        let mut found: Vec<_> = extension.value.general_names.iter().map(ToString::to_string).collect();
        found.sort();
        assert_eq!(
            found,
            [
                "DNSName(*.example.org)",
                "DNSName(localhost)",
                "DNSName(opamp-operator)",
                "DNSName(opamp-operator.opamp-system)",
                "DNSName(opamp-operator.opamp-system.svc)",
                "DNSName(opamp-operator.opamp-system.svc.cluster.local)",
                "DNSName(opamp.example.com)",
                "IPAddress(00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:01)",
                "IPAddress(7f:00:00:01)",
                "IPAddress(c0:00:02:07)",
            ]
        );
        assert!(certificate.extended_key_usage().unwrap().unwrap().value.server_auth);
        assert_eq!(key.id(), Some(super::super::key::KeyId::of(certificate.public_key().raw)));
        assert_eq!(issued.not_after, at(7_776_000), "90 days");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = "a".repeat(254);
        for text in ["", "a b", "-a", "a-", "a..b", ".", "*", "a.*.b", "https://a", "a:4320", "é.example", &long] {
            assert!(ServerName::parse(text).is_err(), "{text}");
        }
    }
}
