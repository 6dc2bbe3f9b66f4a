//! What the leader must know of agents and fleets to give out certificates, as plain values.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{renewal::Validity, serial::Serial, stored::Holder};
use crate::{kubernetes::ObjectKey, opamp::InstanceUid};

pub use crate::api::agent::REVOCATION_FINALIZER;

/// All Agent objects, and the fleets that give out certificates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Roll {
    /// Every Agent object, by its place.
    pub members: BTreeMap<ObjectKey, Member>,
    /// The fleets whose connection settings say `certificate: {source: Issued}`.
    pub fleets: BTreeMap<ObjectKey, IssuePolicy>,
    /// When the objects of agents vanished that were revoked then: what these had been given until then is taken back.
    pub departed: BTreeMap<ObjectKey, Timestamp>,
    /// An agent that is revoked in this namespace is revoked in all.
    pub operator_namespace: String,
}

/// How a fleet gives out certificates.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IssuePolicy {
    /// Who signs.
    pub issuer: Issuer,
    /// How long certificates count.
    pub validity: Validity,
}

/// Who signs the certificates of a fleet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Issuer {
    /// The CA of the operator.
    Internal,
    /// A signer of the cluster, by `certificates.k8s.io`.
    CertificateSigningRequest,
    /// An issuer of cert-manager.
    CertManager {
        /// Its name.
        name: String,
        /// `Issuer`, `ClusterIssuer`, or a kind of others.
        kind: String,
        /// The API group of that kind.
        group: String,
    },
}

impl Issuer {
    /// Its name in `enrollment.certificates.issuer`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Internal => "Internal",
            Self::CertificateSigningRequest => "CertificateSigningRequest",
            Self::CertManager { .. } => "CertManager",
        }
    }
}

/// An Agent object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Member {
    /// The agent.
    pub agent: InstanceUid,
    /// The fleet that has it now, of the same namespace.
    pub fleet: Option<String>,
    /// Whether it may have a certificate.
    pub standing: Standing,
    /// Who is to make its key.
    pub key_wish: KeyWish,
    /// The number of the certificate that it was last seen to use.
    pub in_use: Option<Serial>,
    /// When that ends.
    pub in_use_until: Option<Timestamp>,
    /// Whether the object has the finalizer.
    pub finalizer: Finalizer,
}

/// Whether an agent may have a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// It may.
    Admitted,
    /// Somebody is still to approve it.
    Waiting,
    /// It may not.
    Denied,
    /// It may not, and those that it has do not count any more.
    Revoked,
}

/// Who makes an agent's key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyWish {
    /// The agent itself: it sends requests.
    Own,
    /// The operator: the agent takes offers, and has sent no request for a while.
    Operators,
}

/// Whether an Agent object is held until its certificates are in the published list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Finalizer {
    /// It is.
    Present,
    /// It is not.
    Absent,
    /// It is not, and it is too late: the object is being deleted.
    TooLate,
}

impl Roll {
    /// The place of an agent's object.
    #[must_use]
    pub fn place(namespace: &str, agent: &InstanceUid) -> ObjectKey {
        ObjectKey::new(namespace, agent.to_string())
    }

    /// The Agent object to which a certificate belongs.
    #[must_use]
    pub fn member(&self, namespace: &str, agent: &InstanceUid) -> Option<&Member> {
        self.members.get(&Self::place(namespace, agent))
    }

    /// How a fleet gives out certificates; `None` if it does not.
    #[must_use]
    pub fn policy(&self, namespace: &str, fleet: &str) -> Option<&IssuePolicy> {
        self.fleets.get(&ObjectKey::new(namespace, fleet))
    }

    /// Whether the agent is revoked in this namespace, or in that of the operator.
    #[must_use]
    pub fn is_revoked(&self, namespace: &str, agent: &InstanceUid) -> bool {
        [namespace, &self.operator_namespace]
            .iter()
            .any(|namespace| self.member(namespace, agent).is_some_and(|member| member.standing == Standing::Revoked))
    }

    /// When the agent's object vanished from this namespace, or that of the operator, and it was revoked.
    #[must_use]
    pub fn departed(&self, namespace: &str, agent: &InstanceUid) -> Option<Timestamp> {
        let departed = |namespace: &&str| self.departed.get(&Self::place(namespace, agent)).copied();
        [namespace, &self.operator_namespace].iter().filter_map(departed).max()
    }

    /// Whether an agent of this uid is known anywhere.
    #[must_use]
    pub fn is_known(&self, agent: &InstanceUid) -> bool {
        self.members.values().any(|member| member.agent == *agent)
    }
}

impl Member {
    /// Whose certificates are made for it: `None` while it is in no fleet.
    #[must_use]
    pub fn holder(&self, namespace: &str) -> Option<Holder> {
        let fleet = self.fleet.clone()?;
        Some(Holder { agent: self.agent, namespace: namespace.to_owned(), fleet })
    }
}
