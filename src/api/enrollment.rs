//! Who may join a fleet, and with what.

use std::time::Duration;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration;

/// The type of Secrets that hold a token by which agents enrol.
pub const ENROLLMENT_TOKEN_TYPE: &str = "opamp.dev/enrollment-token";

/// Who may join a fleet.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Enrollment {
    /// Whether an agent that joins for the first time needs a person's approval.
    ///
    /// Possible values:
    /// - `Automatic`: its credential is enough.
    /// - `Manual`: it is held as pending, `Accepted=False, PendingApproval`, and
    ///   offered nothing until its `spec.access` is `Approved`.
    ///
    /// Default: `Automatic`.
    #[serde(default)]
    pub approval: Approval,
    /// The ways in. An agent that none of them admits does not join, whatever it
    /// reports of itself. An empty list admits nobody. At most 8.
    ///
    /// Possible values:
    /// - `ClientCertificate`: with a certificate that the operator issued to this
    ///   agent, or with one of a CA in clientCAs.
    /// - `EnrollmentToken`: with the token in a Secret of this namespace of type
    ///   `opamp.dev/enrollment-token`, whose label `opamp.dev/fleet` names this
    ///   fleet or is absent.
    /// - `ServiceAccount`: with the token of a ServiceAccount: of this namespace
    ///   with the audience `opamp.dev`, or of serviceAccounts with the audience
    ///   `opamp.dev/` and this namespace.
    /// - `Basic`: with the user and password in a Secret of this namespace of type
    ///   `kubernetes.io/basic-auth`, whose label `opamp.dev/fleet` names this
    ///   fleet.
    /// - `Anonymous`: without any credential, for whoever reaches the operator.
    ///   It works only in namespaces in which the operator permits it
    ///   (`--anonymous-namespaces`); elsewhere the fleet is `Stalled,
    ///   AnonymousNotAllowed`.
    ///
    /// Default: ClientCertificate, EnrollmentToken and ServiceAccount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<EnrollmentMethod>", length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub methods: Option<Vec<EnrollmentMethod>>,
    /// ServiceAccounts of any namespace that may join with a token for the audience
    /// `opamp.dev/` and the namespace of this fleet. Those of this namespace need
    /// not be named. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["namespace".into(), "name".into()]))]
    pub service_accounts: Vec<ServiceAccountReference>,
    /// CAs whose client certificates admit to this fleet. They are bound to no
    /// agent: names in them are not believed. At most 8.
    #[serde(default, rename = "clientCAs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub client_cas: Vec<ClientCa>,
    /// Identities that may speak for many agents of this fleet over one connection
    /// although they were issued to one agent. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["identity".into()]))]
    pub gateways: Vec<Gateway>,
    /// How certificates are made for members whose ConnectionSettings say
    /// `certificate: {source: Issued}`.
    #[serde(default)]
    pub certificates: Certificates,
}

impl Enrollment {
    /// The ways in; those of the default where none are listed.
    #[must_use]
    pub fn methods(&self) -> &[EnrollmentMethod] {
        const DEFAULT: &[EnrollmentMethod] =
            &[EnrollmentMethod::ClientCertificate, EnrollmentMethod::EnrollmentToken, EnrollmentMethod::ServiceAccount];
        self.methods.as_deref().unwrap_or(DEFAULT)
    }
}

/// Whether a person must approve.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Approval {
    /// The credential is enough.
    #[default]
    Automatic,
    /// Until a person approves, the agent is pending.
    Manual,
}

/// A way into a fleet.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum EnrollmentMethod {
    /// With a client certificate.
    ClientCertificate,
    /// With an enrollment token.
    EnrollmentToken,
    /// With the token of a ServiceAccount.
    ServiceAccount,
    /// With user and password.
    Basic,
    /// Without any credential.
    Anonymous,
}

/// A ServiceAccount of any namespace.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountReference {
    /// The namespace of the ServiceAccount, of 1 to 63 characters.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')")
        .message("namespace: must be a namespace's name of lower case letters, digits and '-'"))]
    pub namespace: String,
    /// The name of the ServiceAccount, of 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')")
        .message("name: must be an object's name of lower case letters, digits, '-' and '.'"))]
    pub name: String,
}

/// A CA whose certificates admit to a fleet.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientCa {
    /// A Secret of this namespace with the certificate of the CA, or several, in
    /// PEM under the key `ca.crt`. No private key is needed in it.
    pub secret_ref: SecretReference,
}

/// A Secret in the same namespace.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// The name of the Secret, of 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')")
        .message("name: must be an object's name of lower case letters, digits, '-' and '.'"))]
    pub name: String,
}

/// An identity that may speak for many agents.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gateway {
    /// The identity, as `status.connection.identity` of an Agent shows it, such as
    /// `serviceaccount:edge/gateway`, or `certificate:telemetry/edge/` and an
    /// `instance_uid`. Of 1 to 1024 characters.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("self.matches('^(token|basic|serviceaccount|certificate|ca):.+/.+$')")
        .message("identity: must be an identity as status.connection.identity shows it, such as serviceaccount:edge/gateway"))]
    pub identity: String,
}

/// How certificates of members are made.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.issuer) && self.issuer == 'CertManager') == has(self.issuerRef)")
        .message("issuerRef: must be set with the issuer CertManager, and with no other"),
    validation = Rule::new("(has(self.duration) && !self.duration.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$')) || (has(self.renewBefore) && !self.renewBefore.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$')) || duration(has(self.renewBefore) ? self.renewBefore : '56h') < duration(has(self.duration) ? self.duration : '168h')")
        .message("renewBefore: must be shorter than duration; it is 56h unless set")
)]
pub struct Certificates {
    /// Who signs.
    ///
    /// Possible values:
    /// - `Internal`: the operator, with the CA in its Secret `opamp-ca`.
    /// - `CertificateSigningRequest`: a signer of the cluster that serves
    ///   `opamp.dev/agent`, once somebody who may has approved the request.
    /// - `CertManager`: cert-manager, by a CertificateRequest in this namespace to
    ///   the issuer of issuerRef.
    ///
    /// Default: `Internal`.
    #[serde(default)]
    pub issuer: CertificateIssuer,
    /// The issuer of cert-manager; with `issuer: CertManager` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_ref: Option<IssuerReference>,
    /// How long a certificate counts, as hours, minutes and seconds; at least
    /// `1m`.
    /// Default: `168h`.
    #[serde(default = "default_duration")]
    #[schemars(length(min = 2, max = 32))]
    #[x_kube(
        validation = Rule::new("self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$')")
            .message("duration: must be hours, minutes and seconds such as 168h or 1h30m"),
        validation = Rule::new("!self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') || duration(self) >= duration('1m')")
            .message("duration: must be at least 1m, so that there is time to renew")
    )]
    pub duration: String,
    /// How long before its end a certificate is renewed; the moment differs from
    /// agent to agent, so that not all come at once. At least `10s`, and shorter
    /// than duration.
    /// Default: `56h`.
    #[serde(default = "default_renew_before")]
    #[schemars(length(min = 2, max = 32))]
    #[x_kube(
        validation = Rule::new("self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$')")
            .message("renewBefore: must be hours, minutes and seconds such as 56h or 1h30m"),
        validation = Rule::new("!self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$') || duration(self) >= duration('10s')")
            .message("renewBefore: must be at least 10s")
    )]
    pub renew_before: String,
}

impl Default for Certificates {
    fn default() -> Self {
        Self {
            issuer: CertificateIssuer::default(),
            issuer_ref: None,
            duration: default_duration(),
            renew_before: default_renew_before(),
        }
    }
}

impl Certificates {
    /// How long a certificate counts.
    #[must_use]
    pub fn duration(&self) -> Duration {
        duration::parse(&self.duration).unwrap_or(Duration::from_secs(168 * 3600))
    }

    /// How long before its end a certificate is renewed: always before its end, and some time after its beginning.
    #[must_use]
    pub fn renew_before(&self) -> Duration {
        let asked = duration::parse(&self.renew_before).unwrap_or(Duration::from_secs(56 * 3600));
        asked.min(self.duration().mul_f64(0.9))
    }
}

fn default_duration() -> String {
    "168h".into()
}

fn default_renew_before() -> String {
    "56h".into()
}

/// Who signs certificates of members.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum CertificateIssuer {
    /// The operator's own CA.
    #[default]
    Internal,
    /// A signer of `certificates.k8s.io`.
    CertificateSigningRequest,
    /// An issuer of cert-manager.
    CertManager,
}

/// An issuer of cert-manager.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuerReference {
    /// The name of the issuer, of 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The kind of the issuer, such as `Issuer` or `ClusterIssuer`, of 1 to 63
    /// characters.
    /// Default: `Issuer`.
    #[serde(default = "default_issuer_kind")]
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// The API group of the issuer, of 1 to 253 characters.
    /// Default: `cert-manager.io`.
    #[serde(default = "default_issuer_group")]
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
}

fn default_issuer_kind() -> String {
    "Issuer".into()
}

fn default_issuer_group() -> String {
    "cert-manager.io".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_joins_without_a_credential_unless_it_is_asked_for() {
        use EnrollmentMethod::{Anonymous, ClientCertificate, EnrollmentToken, ServiceAccount};
        for (text, expected) in [
            ("{}", &[ClientCertificate, EnrollmentToken, ServiceAccount][..]),
            (r#"{"methods": []}"#, &[]),
            (r#"{"methods": ["Anonymous"]}"#, &[Anonymous]),
        ] {
            let enrollment: Enrollment = serde_json::from_str(text).unwrap();
            assert_eq!(enrollment.methods(), expected, "{text}");
        }
    }

    #[test]
    fn a_certificate_is_renewed_before_its_end() {
        for (duration, renew_before, expected) in [("168h", "56h", 56 * 3600), ("1m", "40s", 40), ("1m", "2m", 54)] {
            let certificates = Certificates {
                duration: duration.into(),
                renew_before: renew_before.into(),
                ..Certificates::default()
            };
            assert_eq!(certificates.renew_before(), Duration::from_secs(expected), "{duration}, {renew_before}");
        }
    }
}
