//! Requests for certificates on their way to the API server: the latest of each agent, within a bound, again and again
//! until the API server has it.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::{sync::Notify, time::sleep_until};

use super::super::lock;
use crate::{
    credentials::{
        renewal::Validity,
        request::CertificateRequest,
        requests::{AskError, Asked, Requests},
        stored::Holder,
    },
    opamp::InstanceUid,
    server::now,
};

/// Bytes of all requests that wait. Ten thousand agents that start at once ask with 10 MB.
const ROOM: usize = 32 << 20;
/// The first wait after a failure; doubled each time.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST_PATIENCE: Duration = Duration::from_secs(60);

/// Where requests go that were found good.
pub trait RequestDesk: Send + Sync + 'static {
    /// Hands on a request; see [`Requests::ask`].
    fn ask<'a>(&'a self, application: &'a Application, now: Timestamp) -> BoxFuture<'a, Result<Asked, AskError>>;
}

impl RequestDesk for Requests {
    fn ask<'a>(&'a self, application: &'a Application, now: Timestamp) -> BoxFuture<'a, Result<Asked, AskError>> {
        Box::pin(self.ask(&application.holder, &application.request, application.validity, now))
    }
}

/// A request of an agent that may have a certificate.
#[derive(Clone, Debug)]
pub struct Application {
    /// Whose certificate it will be.
    pub holder: Holder,
    /// What it has sent.
    pub request: CertificateRequest,
    /// How long it will count.
    pub validity: Validity,
    /// How often the API server did not take it.
    pub failures: u32,
}

/// Whether a request found room.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::bridge) enum Place {
    Found,
    NoRoom,
}

/// Those that wait.
#[derive(Default)]
pub(in crate::bridge) struct Applications {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Default)]
struct Waiting {
    of_agents: HashMap<InstanceUid, (Instant, Application)>,
    bytes: usize,
    /// The number of the last request that each fleet was served, by namespace and name.
    turns: HashMap<String, HashMap<String, u64>>,
    last_turn: u64,
}

impl Waiting {
    fn take(&mut self, agent: InstanceUid) -> Option<Application> {
        let (_, application) = self.of_agents.remove(&agent)?;
        self.bytes -= application.request.pem().len();
        Some(application)
    }

    /// Of those that are due the longest waiting of the fleet that was served longest ago: the API server is asked slowly, and
    /// a fleet whose agents come in a crowd, or ask again and again, must not have all of that.
    fn take_next(&mut self, now: Instant) -> Option<Application> {
        let due = self.of_agents.iter().filter(|(_, (due, _))| *due <= now);
        let next = due.min_by_key(|(agent, (due, application))| (self.turn(&application.holder), *due, **agent));
        let application = next.map(|(agent, _)| *agent).and_then(|agent| self.take(agent))?;
        self.last_turn += 1;
        let Holder { namespace, fleet, .. } = application.holder.clone();
        self.turns.entry(namespace).or_default().insert(fleet, self.last_turn);
        if self.of_agents.is_empty() {
            self.turns.clear();
        }
        Some(application)
    }

    fn turn(&self, holder: &Holder) -> u64 {
        self.turns.get(&holder.namespace).and_then(|fleets| fleets.get(&holder.fleet)).copied().unwrap_or_default()
    }
}

impl Applications {
    /// The latest request of an agent takes the place of a former one. After failures it waits.
    pub(in crate::bridge) fn submit(&self, application: Application, now: Instant) -> Place {
        let patience = match application.failures {
            0 => Duration::ZERO,
            failures => PATIENCE.saturating_mul(2_u32.saturating_pow(failures - 1)).min(LONGEST_PATIENCE),
        };
        let mut waiting = lock(&self.waiting);
        let agent = application.holder.agent;
        // One that failed does not take the place of a newer one.
        if application.failures > 0 && waiting.of_agents.contains_key(&agent) {
            return Place::Found;
        }
        waiting.take(agent);
        let bytes = waiting.bytes + application.request.pem().len();
        if bytes > ROOM {
            return Place::NoRoom;
        }
        waiting.bytes = bytes;
        waiting.of_agents.insert(agent, (now + patience, application));
        drop(waiting);
        self.changed.notify_one();
        Place::Found
    }

    /// The next one, when its time has come.
    pub(in crate::bridge) async fn next(&self) -> Application {
        loop {
            let due = {
                let mut waiting = lock(&self.waiting);
                if let Some(application) = waiting.take_next(now().instant) {
                    return application;
                }
                waiting.of_agents.values().map(|(due, _)| *due).min()
            };
            match due {
                Some(due) => tokio::select! {
                    () = sleep_until(due.into()) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn application(agent: InstanceUid, failures: u32) -> Application {
        let pair = KeyPair::generate().expect("a key");
        let pem = CertificateParams::default().serialize_request(&pair).expect("a request").pem().expect("PEM");
        Application {
            holder: Holder { agent, namespace: "telemetry".into(), fleet: "edge".into() },
            request: CertificateRequest::check(pem.as_bytes(), agent, |_| false).expect("good"),
            validity: Validity::default(),
            failures,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_latest_request_of_an_agent_counts_and_a_failed_one_never_takes_its_place() {
        let (applications, agent) = (Applications::default(), InstanceUid::generate());
        let (first, latest, failed) = (application(agent, 0), application(agent, 0), application(agent, 1));
        for application in [&first, &latest, &failed] {
            assert_eq!(applications.submit(application.clone(), now().instant), Place::Found);
        }
        assert_eq!(applications.next().await.request, latest.request);
        let waiting = lock(&applications.waiting);
        assert_eq!((waiting.of_agents.len(), waiting.bytes), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn each_failure_doubles_the_wait_up_to_a_minute() {
        for (failures, seconds) in [(0, 0), (1, 1), (2, 2), (3, 4), (7, 60), (40, 60), (u32::MAX, 60)] {
            let (applications, before) = (Applications::default(), now().instant);
            let _ = applications.submit(application(InstanceUid::generate(), failures), before);
            applications.next().await;
            // The runtime's clock moves in milliseconds.
            assert_eq!((now().instant - before).as_secs(), seconds, "{failures} failures");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_comes_later_and_is_due_sooner_goes_first() {
        let applications = std::sync::Arc::new(Applications::default());
        let (slow, quick) = (application(InstanceUid::generate(), 9), application(InstanceUid::generate(), 0));
        let _ = applications.submit(slow, now().instant);
        let next = tokio::spawn({
            let applications = std::sync::Arc::clone(&applications);
            async move { applications.next().await.holder.agent }
        });
        tokio::task::yield_now().await;
        let _ = applications.submit(quick.clone(), now().instant);
        assert_eq!(next.await.expect("an agent"), quick.holder.agent);
    }

    #[tokio::test(start_paused = true)]
    async fn each_fleet_has_its_turn() {
        let (applications, begin) = (Applications::default(), now().instant);
        for fleet in ["edge", "edge", "edge", "core", "core"] {
            let mut application = application(InstanceUid::generate(), 0);
            application.holder.fleet = fleet.into();
            let _ = applications.submit(application, begin);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let mut served = Vec::new();
        for _ in 0..5 {
            served.push(applications.next().await.holder.fleet);
        }
        assert_eq!(served[..2].iter().filter(|fleet| **fleet == "core").count(), 1, "{served:?}");
        assert_eq!(served[2..4].iter().filter(|fleet| **fleet == "core").count(), 1, "{served:?}");
        assert_eq!(lock(&applications.waiting).turns.len(), 0, "nothing is kept of those that are served");
    }

    #[test]
    fn there_is_room_for_so_many_bytes() {
        let applications = Applications::default();
        let application = application(InstanceUid::generate(), 0);
        lock(&applications.waiting).bytes = ROOM - application.request.pem().len() + 1;
        assert_eq!(applications.submit(application.clone(), now().instant), Place::NoRoom);
        lock(&applications.waiting).bytes -= 1;
        assert_eq!(applications.submit(application, now().instant), Place::Found);
    }
}
