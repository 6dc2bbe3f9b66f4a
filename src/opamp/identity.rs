//! Who speaks, as its credential says; an input of every session, never taken from what an agent says of itself.

use std::{collections::BTreeSet, fmt};

use jiff::Timestamp;

use super::InstanceUid;

/// An identity, compared whole. Its text form is what `Agent.status.connection.identity` shows.
///
/// It names neither the Secret nor the serial number of a credential: a credential that rotates leaves it as it is.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Identity {
    /// No credential was shown.
    Anonymous,
    /// Whoever has a token of this fleet, or of any fleet of the namespace.
    EnrollmentToken {
        /// The namespace of the token's Secret.
        namespace: String,
        /// The fleet that it is bound to; `None`: any of the namespace.
        fleet: Option<String>,
    },
    /// A user with a password.
    Basic {
        /// The namespace of the user's Secret.
        namespace: String,
        /// The fleet that it is bound to.
        fleet: String,
        /// The name of the user.
        user: String,
    },
    /// A ServiceAccount of the cluster.
    ServiceAccount {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The holder of a certificate that the operator issued.
    Certificate {
        /// The namespace of the fleet that it was issued for.
        namespace: String,
        /// That fleet.
        fleet: String,
        /// The agent that it was issued to.
        uid: InstanceUid,
    },
    /// The holder of a certificate of a CA that a fleet names.
    ClientCa {
        /// The namespace of the fleet.
        namespace: String,
        /// The fleet.
        fleet: String,
        /// SHA-256 of the certificate's `SubjectPublicKeyInfo`: a renewed certificate with the same key is the same holder.
        key: [u8; 32],
    },
}

impl Identity {
    /// Reads the text form; `None` if it is of no method that this version knows.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let identity = Self::read(text)?;
        (identity.to_string() == text).then_some(identity)
    }

    fn read(text: &str) -> Option<Self> {
        if text == "anonymous" {
            return Some(Self::Anonymous);
        }
        let (method, rest) = text.split_once(':')?;
        let (namespace, rest) = rest.split_once('/')?;
        let namespace = namespace.to_owned();
        Some(match method {
            "token" => Self::EnrollmentToken { namespace, fleet: (rest != "*").then(|| rest.to_owned()) },
            "serviceaccount" => Self::ServiceAccount { namespace, name: rest.to_owned() },
            "basic" => {
                let (fleet, user) = rest.split_once('/')?;
                Self::Basic { namespace, fleet: fleet.to_owned(), user: user.to_owned() }
            }
            "certificate" => {
                let (fleet, uid) = rest.split_once('/')?;
                Self::Certificate { namespace, fleet: fleet.to_owned(), uid: InstanceUid::from_name(uid)? }
            }
            "ca" => {
                let (fleet, key) = rest.split_once('/')?;
                Self::ClientCa { namespace, fleet: fleet.to_owned(), key: digest(key)? }
            }
            _ => return None,
        })
    }

    /// The name of the method in `enrollment.methods` and in `Agent.status.connection.method`.
    #[must_use]
    pub fn method(&self) -> &'static str {
        match self {
            Self::Anonymous => "Anonymous",
            Self::EnrollmentToken { .. } => "EnrollmentToken",
            Self::Basic { .. } => "Basic",
            Self::ServiceAccount { .. } => "ServiceAccount",
            Self::Certificate { .. } | Self::ClientCa { .. } => "ClientCertificate",
        }
    }

    /// The agent that this identity was issued to; `None` if it is bound to none.
    #[must_use]
    pub fn issued_to(&self) -> Option<InstanceUid> {
        match self {
            Self::Certificate { uid, .. } => Some(*uid),
            Self::Anonymous
            | Self::EnrollmentToken { .. }
            | Self::Basic { .. }
            | Self::ServiceAccount { .. }
            | Self::ClientCa { .. } => None,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => formatter.write_str("anonymous"),
            Self::EnrollmentToken { namespace, fleet } => {
                write!(formatter, "token:{namespace}/{}", fleet.as_deref().unwrap_or("*"))
            }
            Self::Basic { namespace, fleet, user } => write!(formatter, "basic:{namespace}/{fleet}/{user}"),
            Self::ServiceAccount { namespace, name } => write!(formatter, "serviceaccount:{namespace}/{name}"),
            Self::Certificate { namespace, fleet, uid } => write!(formatter, "certificate:{namespace}/{fleet}/{uid}"),
            Self::ClientCa { namespace, fleet, key } => {
                write!(formatter, "ca:{namespace}/{fleet}/")?;
                key.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
            }
        }
    }
}

/// Reads 64 hexadecimal digits.
fn digest(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

/// Whom the token of a ServiceAccount is meant for.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Audience {
    /// `opamp.dev`: fleets of the account's own namespace.
    OwnNamespace,
    /// `opamp.dev/<namespace>`: fleets there that name the account.
    Namespace(String),
}

/// What a credential that was checked says of its holder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Principal {
    /// Who it is.
    pub identity: Identity,
    /// Of the token of a ServiceAccount only: whom it is meant for.
    pub audiences: BTreeSet<Audience>,
    /// By what it was checked; when that goes, whoever was admitted by it goes too.
    pub proof: Proof,
    /// The credential counts until then.
    pub expires: Option<Timestamp>,
}

/// What a principal was admitted by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Proof {
    /// Nothing: whoever comes is welcome.
    None,
    /// A token or password with this SHA-256 in a Secret of this namespace.
    Secret {
        /// The namespace of the Secret.
        namespace: String,
        /// Of what was shown. It is a secret itself where that can be guessed.
        digest: Digest,
    },
    /// A certificate.
    Certificate {
        /// SHA-256 of the `SubjectPublicKeyInfo` of the CA that signed it.
        issuer: [u8; 32],
        /// Its serial number, as in the certificate, without leading zeros.
        serial: Box<[u8]>,
    },
    /// The API server's own word.
    Reviewed,
}

/// SHA-256 of a secret; not shown, for a short secret can be guessed from it.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Digest(…)")
    }
}

impl Principal {
    /// Whoever shows no credential.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { identity: Identity::Anonymous, audiences: BTreeSet::new(), proof: Proof::None, expires: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_back_from_its_text() {
        let uid = "0190a5c4-7e2f-7cc0-8000-000000000001";
        let key = "5e".repeat(32);
        for (text, method) in [
            ("anonymous", "Anonymous"),
            ("token:telemetry/edge", "EnrollmentToken"),
            ("token:telemetry/*", "EnrollmentToken"),
            ("basic:telemetry/edge/gateway", "Basic"),
            ("basic:telemetry/edge/a/b:c", "Basic"),
            ("serviceaccount:shop/collector", "ServiceAccount"),
            (&format!("certificate:telemetry/edge/{uid}"), "ClientCertificate"),
            (&format!("ca:telemetry/edge/{key}"), "ClientCertificate"),
        ] {
            let identity = Identity::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((identity.to_string().as_str(), identity.method()), (text, method));
        }
    }

    #[test]
    fn text_of_another_shape_is_no_identity() {
        for text in [
            "",
            "Anonymous",
            "token:telemetry",
            "basic:telemetry/edge",
            "certificate:telemetry/edge/7",
            "certificate:telemetry/edge/0190A5C4-7E2F-7CC0-8000-000000000001",
            "ca:telemetry/edge/5e",
            &format!("ca:telemetry/edge/{}", "+e".repeat(32)),
            &format!("ca:telemetry/edge/{}", "é".repeat(32)),
            "future:telemetry/edge",
        ] {
            assert_eq!(Identity::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_an_issued_certificate_is_bound_to_an_agent() {
        let uid = InstanceUid::from_wire(&[7; 16]).unwrap();
        let issued = Identity::Certificate { namespace: "telemetry".into(), fleet: "edge".into(), uid };
        assert_eq!(issued.issued_to(), Some(uid));
        assert_eq!(Identity::EnrollmentToken { namespace: "telemetry".into(), fleet: None }.issued_to(), None);
    }

    #[test]
    fn what_a_credential_was_checked_by_is_not_shown() {
        let proof = Proof::Secret { namespace: "telemetry".into(), digest: Digest([7; 32]) };
        assert_eq!(format!("{proof:?}"), "Secret { namespace: \"telemetry\", digest: Digest(…) }");
    }
}
