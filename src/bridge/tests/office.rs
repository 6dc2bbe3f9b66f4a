//! Where requests for certificates go in tests, and who answers them.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use jiff::{Timestamp, ToSpan as _};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{ResourceExt as _, runtime::watcher::Event};
use rcgen::{CertificateParams, KeyPair};

use super::bench::Replica;
use crate::{
    bridge::{Application, RequestDesk},
    credentials::{
        authority::{Authority, Issued},
        certificates::Certificates,
        key::PrivateKey,
        name::AgentName,
        published::PublishedAuthorities,
        request::CertificateRequest,
        requests::{AskError, Asked},
        stored::Holder,
        trust::Trust,
    },
    opamp::InstanceUid,
};

/// Takes requests, and shows their Secrets to this replica as the real desk does.
pub(super) struct Office {
    certificates: Certificates,
    pub(super) trust: Trust,
    asked: Mutex<Vec<Application>>,
    faults: Mutex<Vec<AskError>>,
}

impl Office {
    pub(super) fn of(certificates: &Certificates) -> Self {
        Self {
            certificates: certificates.clone(),
            trust: Trust::new(),
            asked: Mutex::default(),
            faults: Mutex::default(),
        }
    }

    /// The next requests fail like this, the last first.
    pub(super) fn fail(&self, faults: Vec<AskError>) {
        *self.faults.lock().expect("unbroken") = faults;
    }

    /// How many requests were taken.
    pub(super) fn taken(&self) -> usize {
        self.asked.lock().expect("unbroken").len()
    }

    /// The last request that was taken.
    pub(super) fn last(&self) -> Application {
        self.asked.lock().expect("unbroken").last().expect("a request").clone()
    }
}

impl RequestDesk for Office {
    fn ask<'a>(&'a self, application: &'a Application, _now: Timestamp) -> BoxFuture<'a, Result<Asked, AskError>> {
        async move {
            if let Some(fault) = self.faults.lock().expect("unbroken").pop() {
                return Err(fault);
            }
            self.asked.lock().expect("unbroken").push(application.clone());
            self.certificates.take(&None, Event::Apply(application.holder.request(&application.request)));
            Ok(Asked::Waits)
        }
        .boxed()
    }
}

/// The leader's CA, which every replica trusts that it was shown to.
pub(super) struct Leader(Authority);

impl Leader {
    pub(super) fn new() -> Self {
        Self(Authority::generate("c", Timestamp::now() - 9.hours()).expect("a CA").0)
    }

    /// This replica sees the CA.
    pub(super) fn trusted_by(&self, replica: &Replica) {
        let bundle = vec![self.0.certificate().clone()];
        let issuers = [self.0.facts().key].into();
        let published = PublishedAuthorities { cluster: "c".into(), bundle, issuers };
        replica.requests.trust.take(&published.to_config_map("opamp-system"));
    }

    fn issue(&self, holder: &Holder, request: &CertificateRequest, from: Timestamp, hours: u64) -> Issued {
        let name = AgentName {
            cluster: "c".into(),
            namespace: holder.namespace.clone(),
            fleet: holder.fleet.clone(),
            uid: holder.agent,
        };
        let lifetime = Duration::from_secs(hours * 3_600);
        self.0.issue_agent(&name, request.key(), lifetime, from).expect("a certificate")
    }

    /// The Secret with the answer to a request.
    pub(super) fn answer(&self, holder: &Holder, request: &CertificateRequest) -> Secret {
        self.answer_from(holder, request, Timestamp::now(), 168)
    }

    /// The same, with a certificate that counts from then on for so many hours.
    pub(super) fn answer_from(
        &self,
        holder: &Holder,
        request: &CertificateRequest,
        from: Timestamp,
        hours: u64,
    ) -> Secret {
        let issued = self.issue(holder, request, from, hours);
        let mut secret = holder.request(request);
        let data = secret.data.as_mut().expect("a request");
        data.insert("tls.crt".into(), ByteString(issued.chain.into_bytes()));
        data.insert("ca.crt".into(), ByteString(issued.ca.into_bytes()));
        secret
    }

    /// The Secret that says why there will be none.
    pub(super) fn refuse(holder: &Holder, request: &CertificateRequest, why: &str) -> Secret {
        let mut secret = holder.request(request);
        let at = Timestamp::now().to_string();
        secret.annotations_mut().insert("opamp.dev/refused".into(), why.into());
        secret.annotations_mut().insert("opamp.dev/refused-at".into(), at);
        secret
    }

    /// The Secret of a key and certificate that the leader has made, and the key.
    pub(super) fn make(&self, holder: &Holder) -> (Secret, String) {
        let pair = KeyPair::generate().expect("a key");
        let request = CertificateRequest::check(csr(&pair, None).as_bytes(), holder.agent, |_| false).expect("good");
        let key = PrivateKey::from_pem(pair.serialize_pem());
        (
            holder.issued(&key, &request.key().id(), &self.issue(holder, &request, Timestamp::now(), 168)),
            pair.serialize_pem(),
        )
    }
}

/// A request as agents make it, with a uid if one is given.
pub(super) fn csr(pair: &KeyPair, uid: Option<InstanceUid>) -> String {
    let mut parameters = CertificateParams::default();
    if let Some(uid) = uid {
        parameters.distinguished_name.push(rcgen::DnType::CommonName, uid.to_string());
    }
    parameters.serialize_request(pair).expect("a request").pem().expect("PEM")
}

/// Whoever asks as a member of `edge` of `telemetry`.
pub(super) fn holder(agent: InstanceUid) -> Holder {
    Holder { agent, namespace: "telemetry".into(), fleet: "edge".into() }
}

impl Replica {
    /// The watch shows a Secret, whoever wrote it.
    pub(super) fn show_secret(&self, mut secret: Secret) {
        static VERSIONS: AtomicU64 = AtomicU64::new(1);
        secret.metadata.resource_version = Some(VERSIONS.fetch_add(1, Ordering::Relaxed).to_string());
        self.certificates.take(&None, Event::Apply(secret));
    }
}
