//! One Lease that this process holds or would like to hold: the rule of [`super::decide`] carried out.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ObjectMeta, PostParams, Preconditions},
};
use tokio::time::timeout;

use super::{
    DURATION, Holder,
    decide::{Decision, Sighting, Tenure, decide},
};
use crate::kubernetes::describe;

/// The longest that one request may take: three fit into [`super::RENEWAL_DEADLINE`].
const REQUEST: Duration = Duration::from_millis(2_500);

/// Why the API server was of no help with a Lease.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It refused, or could not be reached.
    #[error("{}", describe(.0))]
    Refused(kube::Error),
    /// It did not answer in time; whether it wrote is not known.
    #[error("no answer within {} ms", REQUEST.as_millis())]
    Silent,
}

/// How it stands with the Lease after a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// It is ours.
    Held,
    /// It is somebody else's, at least until then.
    Others {
        /// When it would be expired.
        until: Instant,
    },
}

/// What a Lease carries beside its holder.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Dress {
    /// Labels, so that Leases of one use can be watched together.
    pub labels: BTreeMap<String, String>,
    /// Annotations, replaced with each renewal.
    pub annotations: BTreeMap<String, String>,
}

/// A Lease, what was seen of it, and who we are.
pub struct Hold {
    api: Api<Lease>,
    name: String,
    me: Holder,
    tenure: Tenure,
    /// As last read or written; `None` when a read is due.
    known: Option<Lease>,
    sighting: Option<Sighting>,
}

impl Hold {
    /// Asks for the Lease of this name; nothing is written until [`Self::step`].
    #[must_use]
    pub fn new(api: Api<Lease>, name: String, me: Holder) -> Self {
        Self { api, name, me, tenure: Tenure::Never, known: None, sighting: None }
    }

    /// Renews the Lease, takes it, or finds that it is somebody else's.
    pub async fn step(&mut self, dress: &Dress, now: Instant) -> Result<Standing, Error> {
        let outcome = self.attempt(dress, now).await;
        if outcome.is_err() {
            // What is not seen cannot be told to stand still: an outage makes everybody's time start anew.
            self.known = None;
            self.sighting = None;
        }
        outcome
    }

    async fn attempt(&mut self, dress: &Dress, now: Instant) -> Result<Standing, Error> {
        // A lost race shows the winner at the next read; more than two in one step means a crowd, which can wait.
        for _ in 0..2 {
            if !self.read(now).await? {
                if self.create(dress, now).await? {
                    return Ok(Standing::Held);
                }
                continue;
            }
            let Some(sighting) = &self.sighting else { continue };
            match decide(&self.me, self.tenure, sighting, now) {
                Decision::Wait { until } => {
                    self.known = None;
                    return Ok(Standing::Others { until });
                }
                Decision::Renew | Decision::Take => {
                    if self.replace(dress, now).await? {
                        return Ok(Standing::Held);
                    }
                }
            }
        }
        Ok(Standing::Others { until: now })
    }

    /// Whether the Lease exists. It is asked for only if what is known of it may be outdated.
    async fn read(&mut self, now: Instant) -> Result<bool, Error> {
        if self.known.is_none() {
            self.known = within(self.api.get_opt(&self.name)).await?;
        }
        let Some(lease) = &self.known else {
            self.sighting = None;
            return Ok(false);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let duration = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = duration.map_or(DURATION, Duration::from_secs);
        let version = lease.resource_version().unwrap_or_default();
        let seen = Sighting::first(version, spec.holder_identity, duration, now);
        self.sighting = Some(match self.sighting.take() {
            Some(former) => former.again(seen),
            None => seen,
        });
        Ok(true)
    }

    async fn create(&mut self, dress: &Dress, now: Instant) -> Result<bool, Error> {
        let lease = self.lease(None, dress);
        let answer = within(self.api.create(&PostParams::default(), &lease)).await;
        self.written(answer, now)
    }

    async fn replace(&mut self, dress: &Dress, now: Instant) -> Result<bool, Error> {
        let lease = self.lease(self.known.as_ref(), dress);
        let answer = within(self.api.replace(&self.name, &PostParams::default(), &lease)).await;
        self.written(answer, now)
    }

    /// Whether a write was ours; `false`: somebody was faster, and what is known is outdated.
    fn written(&mut self, answer: Result<Lease, Error>, now: Instant) -> Result<bool, Error> {
        self.known = None;
        match answer {
            Ok(lease) => {
                let version = lease.resource_version().unwrap_or_default();
                self.sighting = Some(Sighting::first(version, Some(self.me.to_string()), DURATION, now));
                self.known = Some(lease);
                self.tenure = Tenure::Once;
                Ok(true)
            }
            Err(Error::Refused(kube::Error::Api(status)))
                if status.is_conflict() || status.is_already_exists() || status.is_not_found() =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The Lease with us as its holder.
    fn lease(&self, former: Option<&Lease>, dress: &Dress) -> Lease {
        let now = MicroTime(Timestamp::now());
        let former_spec = former.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let me = self.me.to_string();
        let ours = former_spec.holder_identity.as_deref() == Some(me.as_str());
        let transitions = former_spec.lease_transitions.unwrap_or_default();
        Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(dress.labels.clone()),
                annotations: Some(dress.annotations.clone()),
                resource_version: former.and_then(ResourceExt::resource_version),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(me),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                acquire_time: former_spec.acquire_time.filter(|_| ours).or_else(|| Some(now.clone())),
                renew_time: Some(now),
                lease_transitions: Some(if ours { transitions } else { transitions.saturating_add(1) }),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Gives the Lease up, so that the next holder need not wait. Does nothing if it is not ours.
    pub async fn release(&mut self) -> Result<(), Error> {
        let Some(mut lease) = self.known.take() else { return Ok(()) };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
        }
        match within(self.api.replace(&self.name, &PostParams::default(), &lease)).await {
            Ok(_) => Ok(()),
            Err(error) => absent_is_fine(error),
        }
    }

    /// Deletes the Lease, if it is still as we wrote it.
    pub async fn delete(&mut self) -> Result<(), Error> {
        let Some(lease) = self.known.take() else { return Ok(()) };
        let preconditions = Preconditions { resource_version: lease.resource_version(), uid: lease.uid() };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match within(self.api.delete(&self.name, &parameters)).await {
            Ok(_) => Ok(()),
            Err(error) => absent_is_fine(error),
        }
    }
}

/// Tells of an outage once when it begins and once when it ends, not at each attempt.
#[derive(Debug, Default)]
pub(super) struct Failing {
    attempts: u32,
}

impl Failing {
    /// An attempt failed.
    pub(super) fn again(&mut self, lease: &str, error: &Error) {
        if self.attempts == 0 {
            tracing::warn!(lease, %error, "a Lease could not be renewed, and is tried again");
        }
        self.attempts = self.attempts.saturating_add(1);
    }

    /// An attempt succeeded.
    pub(super) fn ended(&mut self, lease: &str) {
        let attempts = std::mem::take(&mut self.attempts);
        if attempts > 0 {
            tracing::info!(lease, attempts, "the Lease can be written again");
        }
    }
}

/// Somebody else's Lease, or none, needs no giving up.
fn absent_is_fine(error: Error) -> Result<(), Error> {
    match error {
        Error::Refused(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(()),
        error @ (Error::Refused(_) | Error::Silent) => Err(error),
    }
}

async fn within<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match timeout(REQUEST, request).await {
        Ok(answer) => answer.map_err(Error::Refused),
        Err(_) => Err(Error::Silent),
    }
}
