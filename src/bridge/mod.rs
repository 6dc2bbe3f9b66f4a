//! Ties sessions to sockets, catalog and status; runs in every replica.
//!
//! One [`Bridge`] holds the [`Session`](crate::opamp::session::Session) of every agent that speaks to this replica, each
//! behind a lock of its own that is held for the time of one message. It is asked by four sides:
//!
//! * the server, for each message and each socket that comes or goes ([`crate::server::Agents`]);
//! * the status writer, when an agent's turn to be written has come ([`crate::status::writer::AgentViews`]);
//! * the store of effective configurations, when a text is kept or wanted again ([`crate::effective_configs::Reporters`]);
//! * its own [`Bridge::run`], which follows the catalog, the index of Agents, and deadlines.
//!
//! The order of locks: a session's, then those of connections, timers, renamings, the room for pending agents, requests that
//! wait, shared offers, the writer's queue, the index of Agents, that of certificates, or the shard of the map that it stands in, each for a look-up only. Never a second session's.

mod admission;
mod agents;
mod assigned;
mod audit;
mod claim;
mod connections;
mod credentials;
mod entry;
mod gate;
mod keeping;
mod metrics;
mod pending;
mod quiet;
mod renamings;
mod run;
mod scrub;
mod sessions;
mod settings;
mod shown;
mod texts;
mod timers;
mod views;
mod wish;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Semaphore;

pub use credentials::Credentials;
pub use metrics::Metrics;
pub use settings::{Application, RequestDesk};

use self::{
    audit::{FleetName, Who},
    connections::Connections,
    entry::Entry,
    pending::PendingRoom,
    quiet::Quiet,
    renamings::Renamings,
    sessions::Sessions,
    settings::{Applications, SharedOffers},
    timers::Timers,
    wish::Demand,
};
use crate::{
    agents::index::AgentIndex,
    authentication::{
        self,
        audit::{Journal, Outcome},
    },
    catalog::{Catalog, CatalogHandle},
    credentials::{audit::Journal as CertificateJournal, certificates::Certificates, trust::Trust},
    effective_configs::Store,
    opamp::{
        InstanceUid,
        now::Now,
        session::{Changed, Channel, ConnectionId, Effects, Outbound, Suspicion},
    },
    server::{Connection, Transport, now},
    status::{queue::Urgency, render::Owner, writer::StatusWriter},
};

/// Agents on one connection; a gateway carries many, and a liar must not carry any number (AMB-15).
pub const MAX_AGENTS_PER_CONNECTION: usize = 1_000;

/// Certificate requests that are kept until somebody approves of their agents. Each has at most 16 KiB.
const MAX_KEPT_REQUESTS: usize = 1_000;

/// What a bridge is told at the start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the objects of agents live that no fleet takes.
    pub own_namespace: String,
    /// This replica, in this run of its life.
    pub owner: Owner,
    /// Agents that may wait for approval in one namespace; more are asked to come back later, and get no object.
    pub max_pending: usize,
    /// Sessions held at once, connected or lately gone; more agents are asked to come back later.
    pub max_sessions: usize,
    /// After so much silence an agent that polls over HTTP is gone.
    pub http_silence: Duration,
}

/// What a bridge works with.
pub struct Surroundings {
    /// Which fleet takes an agent, and what it gives.
    pub catalog: Arc<CatalogHandle>,
    /// What the API server says of each agent.
    pub index: AgentIndex,
    /// Where it is told whose status is to be written.
    pub writer: StatusWriter,
    /// Where the texts of effective configurations are kept.
    pub texts: Store,
    /// Which credentials count.
    pub credentials: Arc<dyn Credentials>,
    /// The certificates of agents.
    pub certificates: Certificates,
    /// Whose certificates count.
    pub trust: Trust,
    /// Where requests for certificates go.
    pub requests: Arc<dyn RequestDesk>,
}

/// The sessions of this replica, and what they need.
pub struct Bridge {
    settings: Settings,
    catalog: Arc<CatalogHandle>,
    index: AgentIndex,
    writer: StatusWriter,
    texts: Store,
    sessions: Sessions,
    connections: Connections,
    timers: Timers,
    renamings: Mutex<Renamings>,
    credentials: Arc<dyn Credentials>,
    certificates: Certificates,
    trust: Trust,
    requests: Arc<dyn RequestDesk>,
    applications: Applications,
    /// What is written down of requests that are refused here.
    refusals: CertificateJournal,
    shared_offers: SharedOffers,
    /// A place for each request that has to wait for a person's approval.
    kept_requests: Arc<Semaphore>,
    pending: Mutex<PendingRoom>,
    quiet: Mutex<Quiet<InstanceUid>>,
    /// Of what was said that the API server refuses, by namespace and reason.
    refused_writes: Mutex<Quiet<(String, String)>>,
    /// Of what is decided so often that not each is written down.
    journal: Journal,
    metrics: Metrics,
}

impl Bridge {
    /// A bridge without any session.
    #[must_use]
    pub fn new(settings: Settings, surroundings: Surroundings, metrics: Metrics) -> Arc<Self> {
        let Surroundings { catalog, index, writer, texts, credentials, certificates, trust, requests } = surroundings;
        Arc::new(Self {
            sessions: Sessions::new(settings.max_sessions, metrics.sessions.clone()),
            renamings: Mutex::new(Renamings::new(settings.max_sessions)),
            pending: Mutex::new(PendingRoom::new(settings.max_pending)),
            quiet: Mutex::default(),
            refused_writes: Mutex::default(),
            journal: Journal::default(),
            credentials,
            certificates,
            trust,
            requests,
            applications: Applications::default(),
            refusals: CertificateJournal::default(),
            shared_offers: SharedOffers::default(),
            kept_requests: Arc::new(Semaphore::new(MAX_KEPT_REQUESTS)),
            settings,
            catalog,
            index,
            writer,
            texts,
            connections: Connections::default(),
            timers: Timers::default(),
            metrics,
        })
    }

    /// Begins with what the watch shows of the agent.
    fn begin(&self, uid: InstanceUid) -> Entry {
        Entry::new(uid, &self.index.get(&uid), &self.settings.owner, self.settings.http_silence)
    }

    /// Whoever gave this uid out need not do so again, and on its connection the former one is nobody's.
    fn tell_adoption(&self, uid: InstanceUid) {
        let former = lock(&self.renamings).adopt(uid);
        let Some(former) = former else { return };
        self.sessions.with(former, |entry| {
            if let Some(Channel::WebSocket(connection)) = entry.session.adopted(uid)
                && !entry.session.involves(Channel::WebSocket(connection))
            {
                self.connections.leave(connection, former);
            }
        });
    }

    /// Does what follows from a message, a deadline or a change of the offer. What is for the asking connection comes
    /// back, the rest is put where its connection finds it.
    fn carry_out(
        &self,
        entry: &mut Entry,
        effects: Effects,
        asking: Option<&Arc<Connection>>,
        now: Now,
    ) -> Vec<Outbound> {
        let Effects {
            send,
            ping,
            release,
            changed,
            effective_config,
            reidentified,
            // Considered where the message came in.
            certificate_request: _,
            // Counted where the message came in.
            violation: _,
            suspicion,
        } = effects;
        let uid = entry.session.uid();
        let here = asking.map(|connection| channel_of(connection));
        let mut replies = Vec::new();
        for (channel, outbound) in send {
            match channel {
                _ if here == Some(channel) => replies.push(outbound),
                Channel::WebSocket(connection) => self.connections.deliver(connection, outbound),
                // A poll that is not there cannot be answered; the next one is.
                Channel::Http => {}
            }
        }
        if let Some(connection) = ping {
            self.connections.ping(connection);
        }
        if let Some(connection) = release {
            self.connections.release(connection, uid);
        }
        self.tell_of_renamings(uid, &reidentified, asking, now);
        self.note_renamings(uid, reidentified, now);
        if let Some(suspicion) = suspicion {
            self.warn_of(entry, suspicion, now);
        }
        self.note_presence(entry, asking);
        if let Some(text) = effective_config {
            self.keep_text(entry, &text, now);
        }
        self.touch(entry, urgency(changed));
        entry.departed(now);
        self.timers.set(uid, entry.deadline(), &mut entry.timer);
        replies
    }

    /// Has the agent's status written, if it is this replica's to write.
    fn touch(&self, entry: &Entry, urgency: Option<Urgency>) {
        if let Some(urgency) = urgency
            && entry.claim.is_ours()
        {
            self.writer.touch(entry.session.uid(), urgency);
        }
    }

    /// Looks up which fleet takes an agent, if that may have changed, and has written what is new.
    fn look(&self, entry: &mut Entry, catalog: &Catalog, now: Now) {
        let news = entry.look(catalog, now);
        if let Some(fleet) = news.outdated {
            self.catalog.reread(&fleet.namespace, &fleet.name);
        }
        self.touch(entry, news.urgency);
        self.settle(entry, now);
        self.find_room(entry, now);
        self.note_decision(entry);
        self.timers.set(entry.session.uid(), entry.deadline(), &mut entry.timer);
    }

    /// The same without a message that is being answered: what the agent is to have by that is pushed.
    fn look_and_push(&self, entry: &mut Entry, now: Now) {
        let former = entry.gist();
        self.look(entry, &self.catalog.load(), now);
        if entry.gist() != former {
            self.wake(entry);
        }
    }

    /// Does what a wish of a person asks for.
    fn fulfil(&self, entry: &mut Entry, demand: Demand) {
        match demand {
            // The writer has been told already.
            Demand::Nothing | Demand::Write => {}
            Demand::Offer => {
                entry.session.reoffer();
                self.wake(entry);
            }
        }
    }

    /// Writes down who has to use another uid: whoever wished for one, and those that turned out to be others.
    fn tell_of_renamings(
        &self,
        uid: InstanceUid,
        given: &[(Channel, InstanceUid)],
        asking: Option<&Arc<Connection>>,
        now: Now,
    ) {
        let access = |connection: &Connection, reason| {
            audit::access(Outcome::Renamed, Who::behind(connection, uid), FleetName::default(), reason)
        };
        for (channel, _) in given {
            if let Some(connection) = asking.filter(|connection| channel_of(connection) == *channel) {
                // An agent may wish for one after the other, as fast as it can.
                self.journal.refused(&access(connection, "Requested"), now.instant);
                continue;
            }
            let connection = match channel {
                Channel::WebSocket(connection) => self.connections.find(*connection),
                // Who it was that polled, and is not there now, nobody knows.
                Channel::Http => None,
            };
            if let Some(connection) = connection {
                authentication::audit::record(&access(&connection, "Duplicate"));
            }
        }
    }

    fn note_renamings(&self, uid: InstanceUid, reidentified: Vec<(Channel, InstanceUid)>, now: Now) {
        for (channel, new_uid) in reidentified {
            tracing::info!(%uid, %new_uid, ?channel, "another agent spoke under this uid and was given a new one");
            self.metrics.renamed.inc();
            lock(&self.renamings).note(new_uid, uid, channel, now.instant);
        }
    }

    fn warn_of(&self, entry: &mut Entry, suspicion: Suspicion, now: Now) {
        if entry.may_warn(now) {
            let uid = entry.session.uid();
            tracing::warn!(%uid, ?suspicion, "several agents seem to use this uid; give each its own");
        }
        self.metrics.suspicions.inc();
    }

    /// Has the agent's socket ask what is due to it; one that polls asks by itself.
    fn wake(&self, entry: &Entry) {
        if let Some(Channel::WebSocket(connection)) = entry.session.liveness().channel() {
            self.connections.wake(connection, entry.session.uid());
        }
    }

    /// Takes over where a stretch of presence has begun: through which connection, and who is behind it. Of an agent
    /// that went on over HTTP while nobody asked, that shows at its next poll.
    fn note_presence(&self, entry: &mut Entry, asking: Option<&Arc<Connection>>) {
        let Some((channel, _)) = entry.session.stretch() else { return };
        let asking = asking.filter(|connection| channel_of(connection) == channel);
        if let Some(stretch) = entry.claim.unclaimed(entry.session.stretch()) {
            let connection = match channel {
                Channel::WebSocket(connection) => asking.cloned().or_else(|| self.connections.find(connection)),
                Channel::Http => asking.cloned(),
            };
            entry.begin(stretch, connection.as_deref());
        } else if let Some(connection) = asking.filter(|connection| entry.is_met_by(connection)) {
            entry.meet(connection);
        } else {
            return;
        }
        self.touch(entry, Some(Urgency::Connection));
    }

    /// Asks the agent's socket for a sign of life, because a younger session elsewhere has claimed the agent.
    fn challenge(&self, uid: InstanceUid, connection: ConnectionId) {
        tracing::debug!(%uid, "another replica has claimed the agent; its socket is asked whether it is alive");
        self.connections.ping(connection);
    }
}

/// When an agent that finds no room is to come back: half a minute or more, spread over the agents (AMB-44).
fn retry_after() -> Duration {
    Duration::from_secs(30) + Duration::from_millis(rand::random_range(0..30_000))
}

/// The channel of a connection; all HTTP exchanges are one.
fn channel_of(connection: &Connection) -> Channel {
    match connection.transport {
        Transport::WebSocket => Channel::WebSocket(connection.id),
        Transport::Http => Channel::Http,
    }
}

fn urgency(changed: Changed) -> Option<Urgency> {
    match changed {
        Changed::Nothing => None,
        Changed::Details => Some(Urgency::Rest),
        Changed::Connection => Some(Urgency::Connection),
        Changed::Configuration => Some(Urgency::Configuration),
        Changed::FirstSight => Some(Urgency::FirstSight),
        Changed::Failure => Some(Urgency::Failure),
    }
}

/// A lock whose holder panicked is taken all the same: each message leaves a session whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
