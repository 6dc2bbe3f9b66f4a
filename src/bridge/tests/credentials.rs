//! Agents with credentials, and what is asked of them.

use std::{
    future,
    sync::{Arc, Mutex},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::HeaderMap;
use jiff::{Timestamp, ToSpan as _};
use serde_json::json;
use tokio::sync::watch;

use super::bench::{Replica, fleet, namespace_of};
use crate::{
    api::enrollment::{Approval, EnrollmentMethod},
    bridge::Credentials,
    catalog::FleetEntry,
    opamp::{
        InstanceUid,
        identity::{Audience, Digest, Identity, Principal, Proof},
        messages::{RetryInfo, ServerToAgent, server_error_response::Details},
        now::Now,
    },
    server::{Peer, Refusal},
};

pub(super) const TOKEN: &str = "token:telemetry/edge";

/// `edge` of `telemetry`, which takes agents with a credential.
pub(super) fn edge() -> FleetEntry {
    let mut fleet = fleet("telemetry", "edge").giving("first");
    fleet.enrollment.methods = Some(vec![
        EnrollmentMethod::ClientCertificate,
        EnrollmentMethod::EnrollmentToken,
        EnrollmentMethod::ServiceAccount,
    ]);
    fleet
}

/// The same where a person has to approve.
pub(super) fn manual() -> FleetEntry {
    let mut fleet = edge();
    fleet.enrollment.approval = Approval::Manual;
    fleet
}

pub(super) fn token() -> Principal {
    principal(TOKEN)
}

/// How long an agent is asked to stay away, in seconds, if it is.
pub(super) fn unavailable(reply: &ServerToAgent) -> Option<u64> {
    let error = reply.error_response.as_ref()?;
    assert_eq!(error.r#type, 2, "UNAVAILABLE");
    let Some(Details::RetryInfo(RetryInfo { retry_after_nanoseconds })) = error.details else {
        panic!("{error:?}");
    };
    Some(retry_after_nanoseconds / 1_000_000_000)
}

pub(super) fn decide(replica: &Replica, uid: InstanceUid, access: &str) {
    let namespace = namespace_of(&replica.server, uid);
    replica.server.modify(&namespace, &uid.to_string(), &json!({"spec": {"access": access}}));
    replica.show();
}

/// A year from now, on the clock that the bridge reads.
pub(super) fn next_year() -> Timestamp {
    Timestamp::now() + 8_760.hours()
}

pub(super) fn identity_of(replica: &Replica, uid: InstanceUid) -> String {
    replica.status(uid).connection.expect("a connection").identity
}

/// The credentials of a test: all count but those that were taken away.
#[derive(Default)]
pub(super) struct Vault {
    taken: Mutex<Vec<Identity>>,
    /// Who has enrolled anew.
    pub(super) returned: Mutex<Vec<InstanceUid>>,
    generation: watch::Sender<u64>,
}

impl Vault {
    /// From now on nothing counts that shows this identity, and nobody is told.
    pub(super) fn lose(&self, identity: &Identity) {
        self.taken.lock().expect("unbroken").push(identity.clone());
    }

    /// From now on nothing counts that shows this identity.
    pub(super) fn take_away(&self, identity: &Identity) {
        self.lose(identity);
        self.generation.send_modify(|generation| *generation += 1);
    }
}

impl Credentials for Vault {
    fn authenticate<'a>(
        &'a self,
        _headers: &'a HeaderMap,
        _peer: &'a Peer,
        _now: Now,
    ) -> BoxFuture<'a, Result<Arc<Principal>, Refusal>> {
        future::ready(Ok(Arc::new(Principal::anonymous()))).boxed()
    }

    fn is_valid(&self, principal: &Principal, now: Timestamp) -> bool {
        let is_over = principal.expires.is_some_and(|expires| expires <= now);
        !is_over && !self.taken.lock().expect("unbroken").contains(&principal.identity)
    }

    fn enrolled_anew(&self, _fleet: (&str, &str), uid: InstanceUid, _identity: &Identity) {
        self.returned.lock().expect("unbroken").push(uid);
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }
}

/// Whoever shows a credential of this identity.
pub(super) fn principal(identity: &str) -> Principal {
    let identity = Identity::parse(identity).expect("an identity");
    let proof = match identity {
        Identity::Anonymous => Proof::None,
        Identity::ServiceAccount { .. } => Proof::Reviewed,
        Identity::Certificate { .. } | Identity::ClientCa { .. } => {
            Proof::Certificate { issuer: [1; 32], serial: Box::new([0x0a]) }
        }
        Identity::EnrollmentToken { .. } | Identity::Basic { .. } => {
            Proof::Secret { namespace: "telemetry".into(), digest: Digest([7; 32]) }
        }
    };
    let is_account = matches!(identity, Identity::ServiceAccount { .. });
    let audiences = is_account.then_some(Audience::OwnNamespace).into_iter().collect();
    Principal { identity, audiences, proof, expires: None }
}

/// The holder of a certificate that the fleet `edge` of `telemetry` has issued to this agent.
pub(super) fn issued_to(uid: InstanceUid, serial: u8, not_after: Timestamp) -> Principal {
    Principal {
        proof: Proof::Certificate { issuer: [1; 32], serial: Box::new([serial]) },
        expires: Some(not_after),
        ..principal(&format!("certificate:telemetry/edge/{uid}"))
    }
}
