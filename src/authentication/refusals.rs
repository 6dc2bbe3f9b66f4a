//! What follows from a refusal: what the peer is told, and what the log, the metrics and the fleet are.

use std::{net::SocketAddr, time::Instant};

use super::{
    Authenticator,
    audit::{Access, Outcome},
    failures::Source,
    fault::Fault,
    metrics::Method,
    notices::{About, Notice},
};
use crate::{
    api::enrollment::EnrollmentMethod,
    catalog::Catalog,
    opamp::{identity::Identity, now::Now},
    server::{Peer, Refusal},
};

/// What everybody is told whose credential does not count, whatever is wrong with it.
const NOT_ADMITTED: &str = "a valid credential is needed";
/// What somebody is told about whom the API server would have to be asked.
const UNAVAILABLE: &str = "the credential cannot be checked now, come back later";

/// Why somebody is not let in, and who it is as far as that is certain.
pub(super) struct Failure {
    pub fault: Fault,
    pub identity: Option<Identity>,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self { fault, identity: None }
    }
}

impl Authenticator {
    /// Refuses a request, and tells of it.
    pub(super) fn refuse(&self, method: Method, failure: Failure, peer: &Peer, now: Now) -> Refusal {
        let Failure { fault, identity } = failure;
        // Who has shown a certificate has the key of it: an agent whose own has ended guesses nothing, and its neighbours
        // behind the same address are not to suffer for it.
        if fault.may_be_a_guess() && method != Method::ClientCertificate {
            self.failures().note(Source::of(peer.address), now.instant);
        }
        let fleet = identity.as_ref().and_then(fleet_of);
        if let Some((namespace, fleet)) = fleet {
            // With many waiting already this one is told of in the log only.
            let about = About::Refused { method: method.name(), fault };
            let _ = self.notices.try_send(Notice { namespace, fleet, about });
        }
        self.write_down(method, Failure { fault, identity }, peer.address, now.instant);
        self.answer(fault)
    }

    /// A certificate was refused in the handshake of TLS. Whoever has shown it has not proved yet that it is its own.
    pub(super) fn refused_in_handshake(&self, fault: Fault, remote: SocketAddr) {
        self.write_down(Method::ClientCertificate, fault.into(), remote, super::clock());
    }

    fn write_down(&self, method: Method, Failure { fault, identity }: Failure, remote: SocketAddr, now: Instant) {
        self.metrics.refused(method, fault);
        let fleet = identity.as_ref().and_then(fleet_of);
        let (outcome, method, reason) = (Outcome::Refused, method.name(), fault.reason());
        self.journal().refused(&Access { outcome, method, identity, fleet, uid: None, remote, reason }, now);
    }

    fn answer(&self, fault: Fault) -> Refusal {
        match fault {
            Fault::TooManyFailures { retry_after } => Refusal::TooManyFailures { retry_after },
            Fault::Unavailable => Refusal::Unavailable { message: UNAVAILABLE },
            Fault::NoCredential
            | Fault::Malformed
            | Fault::UnknownToken
            | Fault::UnknownPassword
            | Fault::Ambiguous
            | Fault::Expired
            | Fault::WrongAudience
            | Fault::NotServiceAccount
            | Fault::ReviewRefused
            | Fault::UntrustedCertificate
            | Fault::RevokedCertificate
            | Fault::SupersededCertificate
            | Fault::NotAdmitted => {
                Refusal::Unauthorized { challenge: challenge(&self.catalog().load()), message: NOT_ADMITTED }
            }
        }
    }
}

/// The fleet that a credential is bound to.
fn fleet_of(identity: &Identity) -> Option<(String, String)> {
    match identity {
        Identity::EnrollmentToken { namespace, fleet } => Some((namespace.clone(), fleet.clone()?)),
        Identity::Basic { namespace, fleet, .. }
        | Identity::Certificate { namespace, fleet, .. }
        | Identity::ClientCa { namespace, fleet, .. } => Some((namespace.clone(), fleet.clone())),
        Identity::Anonymous | Identity::ServiceAccount { .. } => None,
    }
}

/// The ways in that a header can name; passwords only where a fleet takes them.
fn challenge(catalog: &Catalog) -> &'static str {
    let takes_passwords = catalog.fleets().any(|fleet| fleet.enrollment.methods().contains(&EnrollmentMethod::Basic));
    if takes_passwords {
        "Bearer realm=\"opamp\", Basic realm=\"opamp\", charset=\"UTF-8\""
    } else {
        "Bearer realm=\"opamp\""
    }
}
