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
//! The order of locks: a shard of a map is held for a look-up only; while an agent is locked, connections may be, but
//! never a second agent.

mod agents;
mod connections;
mod entry;
mod keeping;
mod metrics;
mod run;
mod scrub;
mod sessions;
mod texts;
mod timers;
mod views;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

pub use metrics::Metrics;

use self::{connections::Connections, entry::Entry, sessions::Sessions, timers::Timers};
use crate::{
    agents::index::AgentIndex,
    catalog::CatalogHandle,
    effective_configs::Store,
    opamp::{
        InstanceUid,
        now::Now,
        session::{Changed, Channel, Effects, Outbound, Remembered, Suspicion},
    },
    server::{Connection, Transport},
    status::{queue::Urgency, writer::StatusWriter},
};

/// Agents on one connection; a gateway carries many, and a liar must not carry any number (AMB-15).
pub const MAX_AGENTS_PER_CONNECTION: usize = 1_000;

/// How long a new uid that was given out is remembered, so that its first use can be told to whom it was given (AMB-13).
const RENAMING_GRACE: Duration = Duration::from_secs(600);

/// What a bridge is told at the start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the objects of agents live that no fleet takes.
    pub own_namespace: String,
    /// The name of this replica.
    pub replica: String,
    /// This run of it.
    pub incarnation: String,
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
    /// Where what is to be written is told.
    pub writer: StatusWriter,
    /// Where the texts of effective configurations are kept.
    pub texts: Store,
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
    /// New uids that were given out: to whom, and when.
    renamed: Mutex<HashMap<InstanceUid, (InstanceUid, Instant)>>,
    metrics: Metrics,
}

impl Bridge {
    /// A bridge without any session.
    #[must_use]
    pub fn new(settings: Settings, surroundings: Surroundings, metrics: Metrics) -> Arc<Self> {
        let Surroundings { catalog, index, writer, texts } = surroundings;
        Arc::new(Self {
            sessions: Sessions::new(settings.max_sessions),
            settings,
            catalog,
            index,
            writer,
            texts,
            connections: Connections::default(),
            timers: Timers::default(),
            renamed: Mutex::default(),
            metrics,
        })
    }

    /// Begins with what the API server says of the agent.
    fn begin(&self, uid: InstanceUid, now: Now) -> Entry {
        let objects = self.index.get(&uid);
        let object = objects.iter().max_by_key(|object| object.epoch());
        let remembered = object.map(|object| Remembered {
            last_reported: object.last_reported.as_ref().zip(object.state).map(|(hash, state)| (hash.to_vec(), state)),
            failed: entry::failed_of(object),
            ..Remembered::default()
        });
        let home = object.map(|object| Arc::clone(&object.namespace));
        Entry::new(uid, remembered, home, self.settings.http_silence, now)
    }

    /// Whoever gave this uid out need not do so again.
    fn tell_adoption(&self, uid: InstanceUid) {
        let former = {
            let mut renamed = lock(&self.renamed);
            if renamed.is_empty() { None } else { renamed.remove(&uid) }
        };
        if let Some((former, _)) = former {
            self.sessions.with(former, |entry| entry.session.adopted(uid));
        }
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
        let Effects { send, ping, release, changed, effective_config, reidentified, suspicion } = effects;
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
        self.note_renamings(uid, reidentified, now);
        if let Some(suspicion) = suspicion {
            self.warn_of(entry, suspicion, now);
        }
        self.note_presence(entry, asking);
        if let Some(text) = effective_config {
            self.keep_text(entry, &text, now);
        }
        if let Some(urgency) = urgency(changed) {
            self.writer.touch(uid, urgency);
        }
        self.timers.set(uid, entry.deadline(), &mut entry.timer);
        replies
    }

    fn note_renamings(&self, uid: InstanceUid, reidentified: Vec<(Channel, InstanceUid)>, now: Now) {
        if reidentified.is_empty() {
            return;
        }
        let mut renamed = lock(&self.renamed);
        renamed.retain(|_, (_, given)| now.instant.saturating_duration_since(*given) < RENAMING_GRACE);
        for (channel, new_uid) in reidentified {
            tracing::info!(%uid, %new_uid, ?channel, "another agent spoke under this uid and was given a new one");
            self.metrics.renamed.inc();
            if renamed.len() < self.settings.max_sessions {
                renamed.insert(new_uid, (uid, now.instant));
            }
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
            self.connections.wake(connection);
        }
    }

    /// Takes over where a stretch of presence has begun: through which connection, and who is behind it.
    fn note_presence(&self, entry: &mut Entry, asking: Option<&Arc<Connection>>) {
        let Some(channel) = entry.began_elsewhere() else { return };
        let peer = match (asking, channel) {
            (Some(connection), channel) if channel_of(connection) == channel => Some(Arc::clone(connection)),
            (_, Channel::WebSocket(connection)) => self.connections.find(connection),
            (_, Channel::Http) => None,
        };
        if let Some(peer) = peer {
            entry.speaks_through(&peer);
        }
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
