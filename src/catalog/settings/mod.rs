//! How members of a fleet are to connect: the settings as a revision holds them, and as they go to one agent.
//!
//! A revision holds references and never what they lead to: a token that rotates is no new revision, is offered at once,
//! and is never rolled back with one. [`Connection::values`] joins the settings with the values of this moment. Without
//! any one of them it gives nothing, because an agent replaces all that it has by what it is offered (CON-18).

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{credentials::Credentials, fleet::SecretContent};
use crate::opamp::connection_settings::{
    Certificate, Confidential, Header, OpampSettings, Proxy, SystemAuthorities, Tls, Verification,
};

/// The key of a certificate in its Secret.
pub const CERTIFICATE_KEY: &str = "tls.crt";
/// The key of its private key.
pub const PRIVATE_KEY_KEY: &str = "tls.key";
/// The key of the CA that signed it.
pub const AUTHORITY_KEY: &str = "ca.crt";

/// What holds a value.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub enum SourceKind {
    /// A ConfigMap: `data` or `binaryData`.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl fmt::Display for SourceKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        })
    }
}

/// A key of an object in the fleet's namespace.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct CredentialReference {
    /// The object's kind.
    pub kind: SourceKind,
    /// The object's name.
    pub name: String,
    /// The key in it.
    pub key: String,
}

impl CredentialReference {
    /// A key of a Secret.
    #[must_use]
    pub fn secret(name: impl Into<String>, key: impl Into<String>) -> Self {
        Self { kind: SourceKind::Secret, name: name.into(), key: key.into() }
    }
}

impl fmt::Display for CredentialReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, key } = self;
        write!(formatter, "key {key} of {kind} {name}")
    }
}

/// The `opamp` part of `ConnectionSettings`, frozen.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// The name of the `ConnectionSettings`.
    pub name: String,
    /// The URL of the server.
    pub endpoint: String,
    /// In the order in which they are sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<FrozenHeader>,
    /// Which client certificate is used.
    pub certificate: FrozenCertificate,
    /// How the server is verified; absent: the agent keeps what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<FrozenTls>,
    /// Through which proxy the server is reached; absent: the agent keeps what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<FrozenProxy>,
    /// Seconds between two messages of the agent; 0: it sends none to say that it lives.
    pub heartbeat_seconds: u64,
}

/// A header.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrozenHeader {
    /// Its name.
    pub name: String,
    /// Where its value comes from.
    #[serde(flatten)]
    pub value: HeaderValue,
}

/// Where the value of a header comes from.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum HeaderValue {
    /// It stands in the `ConnectionSettings` itself.
    Literal(String),
    /// It is kept elsewhere.
    Reference(CredentialReference),
}

impl fmt::Debug for HeaderValue {
    /// People put tokens where they should not: not even a literal is shown.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(_) => formatter.write_str("Literal"),
            Self::Reference(reference) => formatter.debug_tuple("Reference").field(reference).finish(),
        }
    }
}

/// Which client certificate an agent uses.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FrozenCertificate {
    /// None.
    None,
    /// One of its own, made for it.
    Issued,
    /// The one in this Secret, which all members share.
    Secret(String),
}

/// How an agent verifies the server.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrozenTls {
    /// Where the CAs are that it trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorities: Option<CredentialReference>,
    /// Whether those of its system count.
    pub system_authorities: FrozenSystemAuthorities,
    /// The lowest version of TLS; absent: the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_version: Option<String>,
    /// The highest version of TLS; absent: the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_version: Option<String>,
    /// IANA names; empty: the agent's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cipher_suites: Vec<String>,
    /// Whether the server is verified at all.
    pub verification: FrozenVerification,
}

/// Whether the CAs of an agent's system count.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum FrozenSystemAuthorities {
    /// They do not.
    Ignored,
    /// They do.
    Trusted,
}

/// Whether an agent verifies the server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum FrozenVerification {
    /// It does.
    Required,
    /// It takes any server.
    Skipped,
}

/// The proxy of an agent.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrozenProxy {
    /// Where it is.
    pub url: String,
    /// Of the CONNECT request, in the order in which they are sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connect_headers: Vec<FrozenHeader>,
}

/// Something in settings that refers to a value kept elsewhere. Its references lead to values that belong together.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Use<'a> {
    /// The value of the header of this name.
    Header(&'a str, &'a CredentialReference),
    /// The CAs by which the server is verified.
    Authorities(&'a CredentialReference),
    /// The client certificate in the Secret of this name, with its key and, where a CA signed it, that CA.
    Certificate(&'a str),
}

impl Use<'_> {
    /// What must be there for it, the most telling first.
    #[must_use]
    pub fn references(&self) -> Vec<CredentialReference> {
        match self {
            Self::Header(_, reference) | Self::Authorities(reference) => vec![(*reference).clone()],
            Self::Certificate(secret) => [CERTIFICATE_KEY, PRIVATE_KEY_KEY, AUTHORITY_KEY]
                .map(|key| CredentialReference::secret(*secret, key))
                .into(),
        }
    }
}

impl Settings {
    /// Everything that refers to values kept elsewhere.
    pub fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        let connect_headers = self.proxy.iter().flat_map(|proxy| &proxy.connect_headers);
        let headers = self.headers.iter().chain(connect_headers).filter_map(|header| match &header.value {
            HeaderValue::Literal(_) => None,
            HeaderValue::Reference(reference) => Some(Use::Header(&header.name, reference)),
        });
        let certificate = match &self.certificate {
            FrozenCertificate::None | FrozenCertificate::Issued => None,
            FrozenCertificate::Secret(name) => Some(Use::Certificate(name)),
        };
        let authorities = self.tls.as_ref().and_then(|tls| tls.authorities.as_ref()).map(Use::Authorities);
        headers.chain(certificate).chain(authorities)
    }

    /// Everything that they refer to.
    pub fn references(&self) -> impl Iterator<Item = CredentialReference> {
        self.uses().flat_map(|it| it.references())
    }

    /// The first reference to a Secret.
    #[must_use]
    pub fn secret_reference(&self) -> Option<CredentialReference> {
        self.references().find(|reference| reference.kind == SourceKind::Secret)
    }
}

/// How a member is to connect, with what is known of the values at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Connection {
    /// What its revision says.
    pub settings: Arc<Settings>,
    /// The values that the settings refer to; `None`: none is known yet.
    pub credentials: Option<Arc<Credentials>>,
    /// Whether values from Secrets may be offered.
    pub secrets: SecretContent,
}

/// Settings with their values.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// They can be offered.
    Whole(OpampSettings),
    /// They can be offered with the agent's own certificate, and not before there is one.
    Personal(Personal),
}

/// Settings that are whole but for the certificate that was issued to the agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Personal(OpampSettings);

impl Personal {
    /// The settings of the agent that this certificate was issued to.
    #[must_use]
    pub fn with(self, certificate: Certificate) -> OpampSettings {
        OpampSettings { certificate: Some(certificate), ..self.0 }
    }
}

/// Why settings are not offered for now. The agent keeps what it has.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Withheld {
    /// A value is missing, or was never usable.
    #[error("ConnectionSettings {settings} need {reference}, which is missing or not usable")]
    Missing {
        /// The name of the `ConnectionSettings`.
        settings: String,
        /// What is missing.
        reference: CredentialReference,
    },
    /// A value comes from a Secret, and agents are served without TLS.
    #[error("ConnectionSettings {settings} refer to {reference}, and the operator serves agents without TLS")]
    SecretsNeedTls {
        /// The name of the `ConnectionSettings`.
        settings: String,
        /// What may not be sent.
        reference: CredentialReference,
    },
}

impl Connection {
    /// Everything that the agent is to be told. An agent that gets a certificate of its own no longer needs the token
    /// with which it enrolled: headers with an enrollment token are left out for it.
    pub fn values(&self) -> Result<Values, Withheld> {
        if self.secrets == SecretContent::Withheld
            && let Some(reference) = self.settings.secret_reference()
        {
            return Err(Withheld::SecretsNeedTls { settings: self.settings.name.clone(), reference });
        }
        let Settings { name: _, endpoint, headers, certificate, tls, proxy, heartbeat_seconds } = &*self.settings;
        let tokens = match certificate {
            FrozenCertificate::None | FrozenCertificate::Secret(_) => Tokens::Sent,
            FrozenCertificate::Issued => Tokens::LeftOut,
        };
        let proxy = proxy.as_ref().map(|proxy| self.proxy(proxy)).transpose()?;
        let settings = OpampSettings {
            endpoint: endpoint.clone(),
            headers: self.headers(headers, tokens)?,
            certificate: None,
            tls: tls.as_ref().map(|tls| self.tls(tls)).transpose()?,
            proxy,
            heartbeat_seconds: *heartbeat_seconds,
        };
        Ok(match certificate {
            FrozenCertificate::None => Values::Whole(settings),
            FrozenCertificate::Issued => Values::Personal(Personal(settings)),
            FrozenCertificate::Secret(secret) => Values::Whole(Personal(settings).with(self.certificate(secret)?)),
        })
    }

    fn headers(&self, headers: &[FrozenHeader], tokens: Tokens) -> Result<Vec<Header>, Withheld> {
        let mut found = Vec::new();
        for FrozenHeader { name, value } in headers {
            let value = match value {
                HeaderValue::Literal(value) => Confidential::new(value.as_str()),
                HeaderValue::Reference(reference) => {
                    // Before its value is asked for: a token that is no longer needed may have been deleted.
                    if tokens == Tokens::LeftOut && self.is_enrollment_token(reference) {
                        continue;
                    }
                    Confidential::new(self.text(reference)?)
                }
            };
            found.push(Header { name: name.clone(), value });
        }
        Ok(found)
    }

    fn certificate(&self, secret: &str) -> Result<Certificate, Withheld> {
        let reference = |key| CredentialReference::secret(secret, key);
        Ok(Certificate {
            certificate: self.text(&reference(CERTIFICATE_KEY))?.into(),
            private_key: Some(Confidential::new(self.text(&reference(PRIVATE_KEY_KEY))?)),
            authority: self.text(&reference(AUTHORITY_KEY)).ok().map(ToOwned::to_owned),
        })
    }

    fn tls(&self, tls: &FrozenTls) -> Result<Tls, Withheld> {
        let authorities = tls.authorities.as_ref().map(|reference| self.text(reference)).transpose()?;
        Ok(Tls {
            authorities: authorities.unwrap_or_default().into(),
            system_authorities: match tls.system_authorities {
                FrozenSystemAuthorities::Ignored => SystemAuthorities::Ignored,
                FrozenSystemAuthorities::Trusted => SystemAuthorities::Trusted,
            },
            verification: match tls.verification {
                FrozenVerification::Required => Verification::Required,
                FrozenVerification::Skipped => Verification::Skipped,
            },
            min_version: tls.min_version.clone().unwrap_or_default(),
            max_version: tls.max_version.clone().unwrap_or_default(),
            cipher_suites: tls.cipher_suites.clone(),
        })
    }

    fn proxy(&self, proxy: &FrozenProxy) -> Result<Proxy, Withheld> {
        let connect_headers = self.headers(&proxy.connect_headers, Tokens::Sent)?;
        Ok(Proxy { url: Confidential::new(proxy.url.as_str()), connect_headers })
    }

    fn is_enrollment_token(&self, reference: &CredentialReference) -> bool {
        self.credentials.as_ref().is_some_and(|credentials| credentials.is_enrollment_token(reference))
    }

    fn text(&self, reference: &CredentialReference) -> Result<&str, Withheld> {
        let value = self.credentials.as_ref().and_then(|credentials| credentials.get(reference));
        value
            .and_then(|value| std::str::from_utf8(value).ok())
            .ok_or_else(|| Withheld::Missing { settings: self.settings.name.clone(), reference: reference.clone() })
    }
}

/// What becomes of headers with an enrollment token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Tokens {
    Sent,
    LeftOut,
}

#[cfg(test)]
mod tests;
