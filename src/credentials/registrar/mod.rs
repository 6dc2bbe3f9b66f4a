//! The leader's part: keeps the CA, answers requests, renews, takes back. It reads and writes; what it decides is decided
//! by [`super::generations`], [`super::server_certificate`] and [`super::plan`].

mod authority;
mod members;
mod observed;
mod steps;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::Client;
use tokio::{
    sync::watch,
    time::{sleep, sleep_until},
};

use self::observed::{Observed, watch as watch_objects};
use super::{
    certificates::Certificates,
    external::cert_manager::Presence,
    generations::Generations,
    metrics::Metrics,
    orphans::Orphans,
    profile::ServerName,
    published::PublishedRevocations,
    roll::Roll,
    trust::Trust,
    writes::{Writes, clock},
};
use crate::{
    kubernetes::{ObjectKey, WatchClient},
    status::budget::BudgetLimits,
};

/// Several changes that come together are one plan. Short, for one of them may be a revocation.
const TOGETHER: Duration = Duration::from_millis(100);
/// How soon a round is tried again that the API server did not take: there may be a revocation in it.
const SOON: Duration = Duration::from_secs(1);
/// How soon something about one agent is tried again that was in vain.
const AGAIN: Duration = Duration::from_secs(5);
/// How soon it is looked again whether somebody else has signed: an approval is to act within seconds.
const LOOK: Duration = Duration::from_secs(2);
/// So much later for each request that waits, so that many are no burden.
const LOOK_LATER: Duration = Duration::from_millis(100);
/// The longest pause between two looks.
const LONGEST_LOOK: Duration = Duration::from_secs(40);
/// How often it is looked whether cert-manager is there, if a fleet needs it.
const LOOK_FOR_CERT_MANAGER: Duration = Duration::from_secs(5);
/// When nothing else is due: certificates of CAs expire meanwhile.
const ROUND: Duration = Duration::from_secs(600);

/// What people have set.
#[derive(Clone, Debug)]
pub struct RegistrarSettings {
    /// The operator's own namespace.
    pub namespace: String,
    /// `--cluster-name`, if it is given.
    pub cluster: Option<String>,
    /// The names in the server's certificate; `None` if people give one (`--tls-secret`), so that none is made.
    pub server_names: Option<Vec<ServerName>>,
}

/// What people must mend before certificates are given out, in words for a condition.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Findings {
    /// What is wrong with the CA; concerns every fleet.
    pub authority: Option<String>,
    /// What is wrong with the issuer of a fleet.
    pub fleets: BTreeMap<ObjectKey, String>,
}

/// Gives out certificates. One at a time, in the replica that has the lead.
pub struct Registrar {
    client: Client,
    certificates: Certificates,
    /// What this replica has seen, for when somebody deletes what tells of it.
    trust: Trust,
    settings: RegistrarSettings,
    metrics: Metrics,
    findings: watch::Sender<Findings>,
    writes: Writes,
    issuing: Writes,
    observed: Observed,
    settled: Option<Generations>,
    /// What was published last, for when somebody deletes it.
    revocations: Option<PublishedRevocations>,
    /// How many revoked certificates the list had no room for.
    without_room: usize,
    /// Which certificates belong to nobody.
    orphans: Orphans,
    /// What was tried in vain, by Secret or Agent.
    resting: HashMap<ObjectKey, Rest>,
    /// What fleets wait for that people must mend.
    waits: BTreeMap<ObjectKey, String>,
    /// Whether cert-manager is there, and when to look again; `None`: no fleet needs it, or nobody has looked.
    cert_manager: Option<(Presence, Instant)>,
}

/// How often something was tried in vain, and when it may be tried again.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    times: u32,
    until: Option<Instant>,
}

/// What a round has come to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Round {
    /// There is more to do.
    More,
    /// Nothing is due until then, unless something changes.
    Until(Instant),
}

impl Registrar {
    /// Writes over `client`, which is one without retries of its own. `certificates` and `trust` are what this replica keeps
    /// up anyway.
    #[must_use]
    pub fn new(
        client: Client,
        certificates: Certificates,
        trust: Trust,
        settings: RegistrarSettings,
        metrics: Metrics,
    ) -> Self {
        Self {
            client,
            certificates,
            trust,
            settings,
            metrics,
            findings: watch::Sender::default(),
            // 20 certificates a second, each at most three writes with that of the replica that got the request.
            writes: Writes::new(BudgetLimits { per_second: 60, burst: 60 }),
            issuing: Writes::new(BudgetLimits { per_second: 20, burst: 20 }),
            observed: Observed::default(),
            settled: None,
            revocations: None,
            without_room: 0,
            orphans: Orphans::default(),
            resting: HashMap::new(),
            waits: BTreeMap::new(),
            cert_manager: None,
        }
    }

    /// What people must mend, now and later.
    #[must_use]
    pub fn findings(&self) -> watch::Receiver<Findings> {
        self.findings.subscribe()
    }

    /// Works until the future is dropped. `roll` is `None` until all agents and fleets are known.
    pub async fn run(mut self, watches: WatchClient, mut roll: watch::Receiver<Option<Arc<Roll>>>) {
        let mut events = watch_objects(&watches, &self.settings.namespace);
        let mut certificates = self.certificates.changed();
        loop {
            let known = roll.borrow_and_update().clone();
            certificates.mark_unchanged();
            let until = match self.round(known.as_deref(), Timestamp::now()).await {
                Round::More => clock() + TOGETHER,
                Round::Until(at) => at,
            };
            tokio::select! {
                Some(seen) = events.next() => {
                    self.observed.take(seen);
                    self.settled = None;
                }
                Ok(()) = roll.changed() => {}
                Ok(()) = certificates.changed() => {}
                () = sleep_until(until.into()) => {}
            }
            sleep(TOGETHER).await;
            while let Some(Some(seen)) = futures::FutureExt::now_or_never(events.next()) {
                self.observed.take(seen);
                self.settled = None;
            }
        }
    }

    async fn round(&mut self, roll: Option<&Roll>, now: Timestamp) -> Round {
        if let Err(trouble) = self.keep_authority(now).await {
            return self.trouble(trouble);
        }
        self.findings.send_if_modified(|findings| findings.authority.take().is_some());
        let (Some(roll), true) = (roll, self.certificates.is_synced()) else {
            return Round::Until(clock() + ROUND);
        };
        match self.serve(roll, now).await {
            Ok(round) => round,
            Err(trouble) => self.trouble(trouble),
        }
    }

    fn trouble(&mut self, trouble: Trouble) -> Round {
        match trouble {
            // A watch shows what has changed.
            Trouble::NotListed => Round::Until(clock() + ROUND),
            Trouble::Outdated => Round::Until(clock() + SOON),
            Trouble::Write(why) => {
                tracing::warn!(why, "certificates could not be looked after; they are looked after again");
                Round::Until(clock() + SOON)
            }
            Trouble::ForPeople(why) => {
                let is_news = self.findings.send_if_modified(|findings| {
                    let is_news = findings.authority.as_ref() != Some(&why);
                    findings.authority = Some(why.clone());
                    is_news
                });
                if is_news {
                    tracing::error!(why, "no certificates are given out");
                }
                Round::Until(clock() + ROUND)
            }
        }
    }
}

/// Why a round came to nothing.
#[derive(Debug)]
enum Trouble {
    /// What is stored is not known yet.
    NotListed,
    /// Somebody else has written meanwhile; the watch will show it.
    Outdated,
    /// The API server did not take it.
    Write(String),
    /// People must mend it.
    ForPeople(String),
}
