//! Requests for certificates: checked at once, handed on, and answered when the index of certificates shows it.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesUnordered};

use super::{
    super::{Bridge, entry::Entry, lock, now, quiet::Turn},
    Application, KeptRequest, Ripe, Wanted,
    applications::Place,
};
use crate::{
    agents::summary::Acceptance,
    api::enrollment::CertificateIssuer,
    catalog::{FleetEntry, scrub::Scrubber},
    credentials::{
        audit::Decision,
        renewal::Validity,
        request::{CertificateRequest, RequestError},
        requests::{AskError, Asked},
        stored::Holder,
    },
    opamp::{InstanceUid, now::Now, offer::CertificateRequests, session::Receipt},
};

/// Requests that the API server is asked about at a time.
const AT_A_TIME: usize = 16;
const NO_ROOM: &str = "too many certificate requests wait; ask again later";

/// What is found of a request.
enum Finding {
    /// Nobody knows whether it is served, and the agent was not told so: it is acknowledged and ignored (AMB-32).
    Unknown,
    /// It is refused, because of this.
    Bad(String),
    /// It is good, and nobody can decide on it yet.
    Early,
    /// The agent was offered what it asks for.
    Answered,
    /// It is to be handed on.
    Good(CertificateRequest),
}

impl Bridge {
    /// Looks at what the agent asks for, before it is answered. What comes back is to be handed on once it is.
    pub(in crate::bridge) fn consider(
        &self,
        entry: &mut Entry,
        receipt: &mut Receipt,
        now: Now,
    ) -> Option<CertificateRequest> {
        let request = receipt.certificate_request()?.clone();
        match self.examine(entry, &request, now) {
            Finding::Unknown => None,
            Finding::Bad(why) => {
                self.note_refusal(entry, &why, now);
                receipt.refuse_certificate(&why);
                None
            }
            Finding::Early => {
                self.metrics.requests.inc();
                self.keep(entry, request);
                None
            }
            Finding::Answered => {
                self.metrics.requests.inc();
                receipt.grant_certificate();
                None
            }
            Finding::Good(checked) => {
                self.metrics.requests.inc();
                Some(checked)
            }
        }
    }

    fn examine(&self, entry: &Entry, request: &Bytes, now: Now) -> Finding {
        let wanted = entry.wanted();
        match wanted {
            Wanted::Unsettled if entry.is_stranger() => return Finding::Unknown,
            Wanted::Unsettled => {}
            Wanted::Nothing | Wanted::Settings { .. } => {
                if entry.terms().requests() == CertificateRequests::NotServed {
                    return Finding::Bad(Self::not_served(entry));
                }
            }
        }
        let checked = match self.check(entry, request) {
            Ok(checked) => checked,
            Err(fault) => return Finding::Bad(fault.to_string()),
        };
        match wanted {
            Wanted::Settings { fleet, .. } if entry.acceptance() == Acceptance::Admitted => {
                if self.is_offered(entry, fleet, &checked, now) { Finding::Answered } else { Finding::Good(checked) }
            }
            Wanted::Settings { .. } | Wanted::Unsettled | Wanted::Nothing => Finding::Early,
        }
    }

    fn check(&self, entry: &Entry, request: &Bytes) -> Result<CertificateRequest, RequestError> {
        let uid = entry.session.uid();
        let checked = CertificateRequest::check(request, uid, |other| !self.index.get(other).is_empty())?;
        let asks_others = |fleet: &&Arc<FleetEntry>| match fleet.enrollment.certificates.issuer {
            CertificateIssuer::Internal => false,
            CertificateIssuer::CertManager | CertificateIssuer::CertificateSigningRequest => true,
        };
        // Before there is a CA the name of the cluster is not known. The leader checks it again.
        if let (Some(fleet), Some(cluster)) = (entry.fleet().filter(asks_others), self.trust.snapshot().cluster()) {
            checked.check_names(&holder(uid, fleet).name(cluster))?;
        }
        Ok(checked)
    }

    fn not_served(entry: &Entry) -> String {
        let fleet = entry.fleet().map(|fleet| fleet.name.as_str()).unwrap_or_default();
        format!("the fleet {fleet} gives out no certificates")
    }

    /// Whether the offer of the agent holds a certificate for this key that need not be renewed yet.
    fn is_offered(&self, entry: &Entry, fleet: &FleetEntry, request: &CertificateRequest, now: Now) -> bool {
        let uid = entry.session.uid();
        let found = self.issuance().offered(uid, fleet, now);
        entry.terms().offer().is_some()
            && found.is_some_and(|(certificate, given)| {
                let due = validity(fleet).renewal_time(&uid, &given);
                certificate.is_for(&request.key().id()) && !certificate.is_due() && now.wall < due
            })
    }

    /// Without room nothing is kept: once the agent is approved of, and silent, the operator makes a key for it.
    fn keep(&self, entry: &mut Entry, request: Bytes) {
        let terms = entry.terms_mut();
        terms.drop_kept();
        if let Ok(place) = Arc::clone(&self.kept_requests).try_acquire_owned() {
            terms.keep(KeptRequest { request, _place: place });
        }
    }

    /// Hands on a request that was answered with an acknowledgement.
    pub(in crate::bridge) fn hand_on(&self, entry: &mut Entry, request: CertificateRequest, now: Now) {
        let Some(fleet) = entry.fleet() else { return };
        let holder = holder(entry.session.uid(), fleet);
        let application = Application { holder, request, validity: validity(fleet), failures: 0 };
        if self.applications.submit(application, now.instant) == Place::NoRoom {
            self.refuse_request(entry, NO_ROOM, now);
        }
    }

    /// Decides on a request that had to wait, if it can be decided on now.
    pub(in crate::bridge) fn take_up(&self, entry: &mut Entry, now: Now) {
        if entry.is_stranger() {
            entry.terms_mut().drop_kept();
        }
        match entry.ripe_request() {
            Ripe::NotYet => {}
            Ripe::Never => self.refuse_request(entry, &Self::not_served(entry), now),
            Ripe::Now(request) => match self.check(entry, &request) {
                Ok(checked) => self.hand_on(entry, checked, now),
                Err(fault) => self.refuse_request(entry, &fault.to_string(), now),
            },
        }
    }

    fn refuse_request(&self, entry: &mut Entry, why: &str, now: Now) {
        self.note_refusal(entry, why, now);
        self.tell_refusal(entry, why, now);
    }

    fn note_refusal(&self, entry: &Entry, why: &str, now: Now) {
        self.metrics.requests_refused.inc();
        let agent = entry.session.uid();
        let nowhere = || Holder { agent, namespace: String::new(), fleet: String::new() };
        let holder = entry.fleet().map_or_else(nowhere, |fleet| holder(agent, fleet));
        self.refusals.refused(&Decision::refusal(holder, why), now.instant);
    }

    fn tell_refusal(&self, entry: &mut Entry, why: &str, now: Now) {
        let effects = entry.session.refuse_certificate(why);
        // Without an asking connection everything is delivered to where it belongs.
        let _ = self.carry_out(entry, effects, None, now);
    }

    /// What an agent may quote of the keys that the operator has made for it.
    pub(in crate::bridge) fn keys_of(&self, uid: InstanceUid) -> Scrubber {
        let certificates = self.certificates.of(&uid);
        let keys = certificates.iter().filter_map(|certificate| certificate.private_key.as_ref());
        Scrubber::of_texts(keys.map(|key| key.expose().as_bytes()))
    }

    /// The certificates or requests of an agent have changed, whoever did it.
    pub(in crate::bridge) fn follow_certificates(&self, uid: InstanceUid) {
        self.sessions.with(uid, |entry| {
            // One that the operator has not signed itself counts as long as its Secret is there.
            self.check_credential(entry, now());
            if !entry.terms_mut().anew() || !entry.has_spoken() || entry.claim.over_since().is_some() {
                return;
            }
            let now = now();
            self.look_and_push(entry, now);
            if let Some(why) = entry.terms_mut().refusal(&self.certificates.of(&uid)) {
                // The leader has decided so, and noted it.
                self.metrics.requests_refused.inc();
                self.tell_refusal(entry, &why, now);
            }
        });
    }

    /// Hands on requests for ever.
    pub(in crate::bridge) async fn hand_on_requests(&self) {
        let mut asking = FuturesUnordered::new();
        loop {
            tokio::select! {
                application = self.applications.next(), if asking.len() < AT_A_TIME => {
                    let desk = Arc::clone(&self.requests);
                    asking.push(async move {
                        let asked = desk.ask(&application, now().wall).await;
                        (application, asked)
                    });
                }
                Some((application, asked)) = asking.next() => self.asked(application, asked),
            }
        }
    }

    fn asked(&self, application: Application, asked: Result<Asked, AskError>) {
        let (uid, key) = (application.holder.agent, application.request.key().id());
        match asked {
            Ok(Asked::Waits) => {
                self.sessions.with(uid, |entry| entry.terms_mut().await_answer(&application.holder.namespace, key));
                self.follow_certificates(uid);
            }
            Ok(Asked::Answered(_)) => self.follow_certificates(uid),
            Ok(Asked::Refused(why)) => {
                self.metrics.requests_refused.inc();
                self.sessions.with(uid, |entry| self.tell_refusal(entry, &why, now()));
            }
            Err(error @ (AskError::Occupied { .. } | AskError::Crowd)) => {
                tracing::warn!(%uid, %error, "the certificate request of an agent is refused");
                self.sessions.with(uid, |entry| self.refuse_request(entry, &error.to_string(), now()));
            }
            Err(ref error @ AskError::Refused(ref reason)) => {
                self.warn_of_refused_writes(&application.holder.namespace, reason);
                self.sessions.with(uid, |entry| self.refuse_request(entry, &error.to_string(), now()));
            }
            Err(error @ (AskError::Write(_) | AskError::Contended)) => self.try_again(application, &error),
        }
    }

    /// Tells people, once an hour of each namespace and reason: all agents there fare alike, and may ask again and again.
    fn warn_of_refused_writes(&self, namespace: &str, reason: &str) {
        let subject = (namespace.to_owned(), reason.to_owned());
        if lock(&self.refused_writes).turn(subject, now().instant) == Turn::Speak {
            tracing::warn!(
                namespace,
                reason,
                "the API server refuses to store certificate requests: look at the quotas and policies of the namespace, \
                 and at the operator's rights there"
            );
        }
    }

    /// An agent that has gone will ask again.
    fn try_again(&self, application: Application, error: &AskError) {
        let uid = application.holder.agent;
        let is_there = self.sessions.with(uid, |entry| entry.session.liveness().channel().is_some());
        // The same is to be said of thousands at once, and again and again: once of each is enough.
        if application.failures == 0 {
            tracing::warn!(%uid, %error, "the certificate request of an agent was not stored, it is tried again");
        }
        if is_there == Some(true) {
            let failures = application.failures.saturating_add(1);
            let _ = self.applications.submit(Application { failures, ..application }, now().instant);
        }
    }
}

/// Whose certificate it will be.
fn holder(agent: InstanceUid, fleet: &FleetEntry) -> Holder {
    Holder { agent, namespace: fleet.namespace.clone(), fleet: fleet.name.clone() }
}

/// How long certificates of a fleet count.
fn validity(fleet: &FleetEntry) -> Validity {
    let certificates = &fleet.enrollment.certificates;
    Validity { duration: certificates.duration(), renew_before: certificates.renew_before() }
}
