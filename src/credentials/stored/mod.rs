//! The Secret of one certificate of one agent: request and answer in one.
//!
//! A replica that got a request creates it, the leader writes the answer into it, any replica offers from it. It is named
//! after the agent and its key, so that the same request is the same Secret, however often it is sent.

mod values;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use self::values::Values;
use super::{
    authority::Issued,
    key::{KeyId, PrivateKey},
    name::{AgentName, is_plain},
    pem::{read_certificates, write_certificates},
    request::CertificateRequest,
    roll::Issuer,
    serial::Serial,
};
use crate::{api::FLEET_LABEL, kubernetes::ObjectKey, opamp::InstanceUid};

/// The type of these Secrets.
pub const AGENT_CERTIFICATE_TYPE: &str = "opamp.dev/agent-certificate";
/// Label with the `instance_uid` of the agent.
pub const AGENT_LABEL: &str = "opamp.dev/agent";
/// Annotation with the number of the certificate, for people; the certificate itself is what counts.
pub const SERIAL_ANNOTATION: &str = "opamp.dev/serial";
/// Annotation with the end of the certificate, for people.
pub const NOT_AFTER_ANNOTATION: &str = "opamp.dev/not-after";
/// Annotation with who has signed, as `enrollment.certificates.issuer` calls it.
pub const ISSUER_ANNOTATION: &str = "opamp.dev/issuer";
/// Annotation with the reason why the request is refused.
pub const REFUSED_ANNOTATION: &str = "opamp.dev/refused";
/// Annotation with the moment of that.
const REFUSED_AT_ANNOTATION: &str = "opamp.dev/refused-at";
/// Annotation with how often the agent has asked again after a refusal: an issuer that is not ours is asked anew then.
const ATTEMPT_ANNOTATION: &str = "opamp.dev/attempt";
/// Annotation with the number of the certificate that the agent wants renewed for the same key.
const RENEW_ANNOTATION: &str = "opamp.dev/renew";

const NAME_PREFIX: &str = "opamp-cert-";
const REQUEST_KEY: &str = "csr";
const PRIVATE_KEY: &str = "tls.key";
const CERTIFICATE_KEY: &str = "tls.crt";
const CA_KEY: &str = "ca.crt";
/// A certificate before this one, for the same key, and the CA that signed it: it counts until a later one is used.
const FORMER_KEY: &str = "former.crt";
const MANAGED_BY_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "opamp-operator");
/// Longest reason that is kept.
const LONGEST_REASON: usize = 1024;

/// Why a Secret of this type is none of ours. No variant holds content.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StoredError {
    /// It is some other Secret.
    #[error("its type is not {AGENT_CERTIFICATE_TYPE}")]
    Type,
    /// A label is missing, or names nothing.
    #[error("the label {0} is missing or cannot be read")]
    Label(&'static str),
    /// Its name is not that of this agent and key.
    #[error("its name does not follow from the agent and the key in it")]
    Name,
    /// There is neither a request nor a private key.
    #[error("it has neither a certificate request nor a private key")]
    Empty,
    /// A value is larger than any that the operator writes.
    #[error("{0} is too large")]
    TooLarge(&'static str),
    /// The private key cannot be used, or is another one.
    #[error("tls.key is no private key, or not the one that the name stands for")]
    Key,
    /// A certificate cannot be read, is another key's, or is a CA's.
    #[error("{0} is no certificate for this key")]
    Certificate(&'static str),
}

/// Who has made the key.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum KeyOrigin {
    /// The operator: the agent gets the key with the certificate.
    Operator,
    /// The agent: nobody else has it.
    Agent,
}

/// There will be no certificate, or no other one for the same key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refused {
    /// Why not, for people.
    pub why: String,
    /// Since when.
    pub at: Timestamp,
}

/// A certificate with what its holder needs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Given {
    /// The certificate, and those that lead towards the root, in PEM.
    pub chain: Arc<str>,
    /// The CA, and those above it, in PEM; empty if the issuer gave none.
    pub ca: Arc<str>,
    /// Who has signed it.
    pub signer: Signer,
    /// What identifies it.
    pub certificate: Held,
    /// The one before it that may be in use, until this one is seen in use.
    pub former: Option<Held>,
}

/// Who has signed a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Signer {
    /// The operator's CA: it counts while that is trusted.
    Operator,
    /// Somebody else: it is known by being the one in the Secret.
    Other,
}

impl Signer {
    fn read(annotation: Option<&String>) -> Self {
        // Who has signed is written together with the certificate; without it a CA must be trusted.
        let others = [Issuer::CertificateSigningRequest.label(), "CertManager"];
        if annotation.is_some_and(|label| others.contains(&label.as_str())) { Self::Other } else { Self::Operator }
    }
}

/// What identifies a certificate that somebody holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Held {
    /// SHA-256 of the whole certificate.
    pub digest: [u8; 32],
    /// The key of its issuer; where that is not known, a digest of the issuer's name in its stead.
    pub issuer: KeyId,
    /// Its number.
    pub serial: Serial,
    /// It counts from then.
    pub not_before: Timestamp,
    /// It counts until then.
    pub not_after: Timestamp,
}

/// One of these Secrets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AgentCertificate {
    /// Where it is.
    pub key: ObjectKey,
    /// The Secret's uid and resourceVersion, for changes and its deletion.
    pub object_uid: String,
    /// See `object_uid`.
    pub version: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// The agent.
    pub agent: InstanceUid,
    /// The fleet, of the same namespace.
    pub fleet: String,
    /// Who has made the key.
    pub origin: KeyOrigin,
    /// The request, as long as an answer is due.
    pub request: Option<Box<[u8]>>,
    /// The key, if the operator has made it.
    pub private_key: Option<PrivateKey>,
    /// The certificate, if there is one.
    pub given: Option<Arc<Given>>,
    /// Why there will be none, or no other one.
    pub refused: Option<Refused>,
    /// The number of the certificate that is to be renewed for the same key.
    pub renew: Option<Serial>,
    /// How often the agent has asked again after a refusal since the last certificate.
    pub attempt: u32,
}

/// The name of the Secret of this agent and key.
#[must_use]
pub fn secret_name(agent: &InstanceUid, key: &KeyId) -> String {
    format!("{NAME_PREFIX}{agent}-{}", key.short())
}

impl AgentCertificate {
    /// Reads a Secret, whoever wrote it.
    pub fn read(secret: &Secret) -> Result<Self, StoredError> {
        if secret.type_.as_deref() != Some(AGENT_CERTIFICATE_TYPE) {
            return Err(StoredError::Type);
        }
        let agent = secret.labels().get(AGENT_LABEL).and_then(|name| InstanceUid::from_name(name));
        let agent = agent.ok_or(StoredError::Label(AGENT_LABEL))?;
        let fleet = secret.labels().get(FLEET_LABEL).filter(|name| is_plain(name));
        let values = Values { secret, agent };
        let (request, private_key) = (values.request()?, values.private_key()?);
        let origin = if private_key.is_some() { KeyOrigin::Operator } else { KeyOrigin::Agent };
        if request.is_none() && private_key.is_none() {
            return Err(StoredError::Empty);
        }
        let renew = secret.annotations().get(RENEW_ANNOTATION).and_then(|text| Serial::parse(text));
        let mut read = Self {
            key: ObjectKey::of(secret),
            object_uid: secret.uid().unwrap_or_default(),
            version: secret.resource_version().unwrap_or_default(),
            created_at: secret.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            agent,
            fleet: fleet.ok_or(StoredError::Label(FLEET_LABEL))?.clone(),
            origin,
            request: None,
            private_key,
            given: values.given()?.map(Arc::new),
            refused: values.refused(),
            renew,
            attempt: secret
                .annotations()
                .get(ATTEMPT_ANNOTATION)
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
        };
        // Ten thousand answered requests would be ten megabytes in each replica.
        read.request = request.filter(|_| read.is_due()).map(Into::into);
        Ok(read)
    }

    /// Whether the leader owes an answer: there is none yet, or another certificate is wanted for the same key.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let wants = self.given.as_ref().is_none_or(|given| self.renew.as_ref() == Some(&given.certificate.serial));
        wants && self.refused.is_none()
    }

    /// All certificates that it stands for, the newest first.
    pub fn held(&self) -> impl Iterator<Item = &Held> {
        self.given.iter().flat_map(|given| std::iter::once(&given.certificate).chain(&given.former))
    }

    /// Whose it is.
    #[must_use]
    pub fn holder(&self) -> Holder {
        Holder { agent: self.agent, namespace: self.key.namespace.clone(), fleet: self.fleet.clone() }
    }

    /// The certificate, if it counts now: in its time, and its CA is trusted where that is ours.
    pub fn counting(&self, is_trusted: impl Fn(&KeyId) -> bool, now: Timestamp) -> Option<&Arc<Given>> {
        self.given.as_ref().filter(|given| {
            let held = &given.certificate;
            let is_believed = given.signer == Signer::Other || is_trusted(&held.issuer);
            is_believed && held.not_before <= now && now < held.not_after
        })
    }

    /// Which of several certificates of one agent is the one that it is to use: the greatest. Its own key goes first, for it
    /// has asked for that; then what was made last, for an agent that asks with another key may have lost the former.
    #[must_use]
    pub fn rank(&self) -> Option<(KeyOrigin, Timestamp, Timestamp, &str)> {
        let Held { not_before, not_after, .. } = self.given.as_ref()?.certificate;
        Some((self.origin, not_before, not_after, &self.key.name))
    }

    /// Whether the key is the one that this Secret stands for.
    #[must_use]
    pub fn is_for(&self, key: &KeyId) -> bool {
        self.key.name == secret_name(&self.agent, key)
    }
}

/// Whose certificate it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holder {
    /// The agent.
    pub agent: InstanceUid,
    /// The namespace of its fleet.
    pub namespace: String,
    /// Its fleet.
    pub fleet: String,
}

impl Holder {
    /// What its certificate calls it.
    #[must_use]
    pub fn name(&self, cluster: &str) -> AgentName {
        let Self { agent, namespace, fleet } = self.clone();
        AgentName { cluster: cluster.to_owned(), namespace, fleet, uid: agent }
    }

    /// The Secret with which a replica hands on the request of an agent.
    #[must_use]
    pub fn request(&self, request: &CertificateRequest) -> Secret {
        self.secret(&request.key().id(), [(REQUEST_KEY, request.pem())], [])
    }

    /// The Secret of a certificate whose key the operator has made, and which is signed at once.
    #[must_use]
    pub fn issued(&self, key: &PrivateKey, id: &KeyId, issued: &Issued) -> Secret {
        let values = [
            (PRIVATE_KEY, key.expose().as_bytes()),
            (CERTIFICATE_KEY, issued.chain.as_bytes()),
            (CA_KEY, issued.ca.as_bytes()),
        ];
        let annotations = [
            (SERIAL_ANNOTATION, issued.serial.to_string()),
            (NOT_AFTER_ANNOTATION, issued.not_after.to_string()),
            (ISSUER_ANNOTATION, Issuer::Internal.label().to_owned()),
        ];
        self.secret(id, values, annotations)
    }

    /// The Secret of a key that the operator has made, and that somebody else is to certify.
    #[must_use]
    pub fn prepared(&self, key: &PrivateKey, request: &CertificateRequest) -> Secret {
        let values = [(PRIVATE_KEY, key.expose().as_bytes()), (REQUEST_KEY, request.pem())];
        self.secret(&request.key().id(), values, [])
    }

    fn secret<const D: usize, const A: usize>(
        &self,
        key: &KeyId,
        data: [(&str, &[u8]); D],
        annotations: [(&str, String); A],
    ) -> Secret {
        let (label, ours) = MANAGED_BY_LABEL;
        let labels =
            [(AGENT_LABEL, self.agent.to_string()), (FLEET_LABEL, self.fleet.clone()), (label, ours.to_owned())];
        let owned = |(key, value): (&str, String)| (key.to_owned(), value);
        Secret {
            metadata: ObjectMeta {
                name: Some(secret_name(&self.agent, key)),
                namespace: Some(self.namespace.clone()),
                labels: Some(labels.into_iter().map(owned).collect()),
                annotations: Some(annotations.into_iter().map(owned).collect()),
                ..ObjectMeta::default()
            },
            type_: Some(AGENT_CERTIFICATE_TYPE.into()),
            data: Some(data.into_iter().map(|(key, value)| (key.into(), ByteString(value.to_vec()))).collect()),
            ..Secret::default()
        }
    }
}

impl AgentCertificate {
    /// The merge patch that writes the certificate. One for the same key that was there before stays beside it. If there are
    /// two, the later was never seen in use, or it would be [settled](Self::settle): the agent may know of the other alone.
    #[must_use]
    pub fn answer_with(&self, issued: &Issued, signer: &Issuer) -> Value {
        let mut data = json!({
            CERTIFICATE_KEY: STANDARD.encode(&issued.chain),
            CA_KEY: STANDARD.encode(&issued.ca),
        });
        if let Some(given) = self.given.as_ref().filter(|given| given.former.is_none()) {
            data[FORMER_KEY] = STANDARD.encode(former(given)).into();
        }
        let annotations = json!({
            SERIAL_ANNOTATION: issued.serial.to_string(),
            NOT_AFTER_ANNOTATION: issued.not_after.to_string(),
            ISSUER_ANNOTATION: signer.label(),
            REFUSED_ANNOTATION: null,
            REFUSED_AT_ANNOTATION: null,
            ATTEMPT_ANNOTATION: null,
            RENEW_ANNOTATION: null,
        });
        self.patch(&annotations, &data)
    }

    /// The merge patch that says why there will be no certificate, or no other one for the same key.
    #[must_use]
    pub fn refuse(&self, why: &str, now: Timestamp) -> Value {
        let why: String = why.chars().take(LONGEST_REASON).collect();
        let annotations =
            json!({REFUSED_ANNOTATION: why, REFUSED_AT_ANNOTATION: now.to_string(), RENEW_ANNOTATION: null});
        self.patch(&annotations, &json!({}))
    }

    /// The merge patch by which a replica asks for another certificate for the same key, of this fleet; or, after a
    /// refusal, once more.
    #[must_use]
    pub fn ask_again(&self, fleet: &str) -> Value {
        let renew = self.given.as_ref().map(|given| given.certificate.serial.to_string());
        let mut annotations = json!({REFUSED_ANNOTATION: null, REFUSED_AT_ANNOTATION: null, RENEW_ANNOTATION: renew});
        if self.refused.is_some() {
            annotations[ATTEMPT_ANNOTATION] = self.attempt.saturating_add(1).to_string().into();
        }
        let mut patch = self.patch(&annotations, &json!({}));
        patch["metadata"]["labels"] = json!({FLEET_LABEL: fleet});
        patch
    }

    /// The merge patch that drops the former certificate, once this one was seen in use.
    #[must_use]
    pub fn settle(&self) -> Value {
        self.patch(&json!({}), &json!({FORMER_KEY: null}))
    }

    fn patch(&self, annotations: &Value, data: &Value) -> Value {
        json!({"metadata": {"resourceVersion": self.version, "annotations": annotations}, "data": data})
    }
}

/// A certificate and the CA that signed it, as they are kept until the next one is seen in use.
fn former(given: &Given) -> String {
    let first = |pem: &str| read_certificates(pem.as_bytes()).ok().and_then(|all| all.into_iter().next());
    write_certificates([first(&given.chain), first(&given.ca)].iter().flatten())
}
