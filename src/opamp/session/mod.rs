//! One agent's conversation as a state machine: no socket, no clock, no waiting.
//!
//! A [`Session`] is keyed by the agent's uid, not by a connection. It holds
//!
//! * the **record**: what the agent has reported, each part replaced whole by a newer one ([`AgentRecord`]);
//! * its **sequence**: the number and digest of the last message, over all connections and transports. From it follows
//!   whether the record is complete, and if not, that the agent is asked to report in full, once for each reason;
//! * its **presence**: the one channel through which the agent speaks, or how it went;
//! * its **visitors**: others that speak under the same uid, on trial until the older socket has proved to be dead or
//!   alive, or already told to take another uid;
//! * what was **offered** to it in this session, so that an offer is repeated neither too often nor too seldom.
//!
//! A message is taken by [`Session::receive`] and answered by [`Session::answer`]: between the two its owner looks up
//! the offer, which may depend on what the message has just said. Whatever is due without a message comes from
//! [`Session::push`], [`Session::expire`], [`Session::pong`] and [`Session::closed`]. Every `ServerToAgent`, reply or
//! push, is made in one function.
//!
//! An agent may ask for a certificate. The session hands the request on and knows nothing of certificates: its owner
//! refuses at once ([`Receipt::refuse_certificate`]), later ([`Session::refuse_certificate`]), or offers settings with one.
//!
//! A session must not know of sockets, tasks, Kubernetes, fleets or revisions, nor of who is allowed to speak: time and
//! offer are arguments, and admission has happened before. It keeps no protobuf message and no slice of one.

mod answer;
mod certificate_request;
mod channel;
mod connection_settings;
mod conversation;
mod duplicate;
mod effects;
mod failed;
mod inquiry;
mod liveness;
mod offering;
mod remote_config;
mod reply;
mod report;
mod sequence;
mod suspicion;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

pub use certificate_request::CERTIFICATE_REQUEST_LIMIT;
pub use channel::{Channel, ConnectionId};
pub use conversation::Receipt;
pub use effects::{Changed, Effects, Suspicion};
pub use liveness::{Ending, Liveness, SILENCE_LIMIT};
pub use reply::{Outbound, Refusal, refuse, rename, server_capabilities};

use self::{
    answer::{Answered, Greeting},
    certificate_request::LateRefusal,
    connection_settings::ConnectionSettingsOffers,
    conversation::Sight,
    duplicate::Visitors,
    inquiry::Inquiry,
    liveness::Presence,
    remote_config::RemoteConfigOffers,
    report::Parts,
    sequence::{Gaps, Sequence},
    suspicion::Watch,
};
use super::{
    InstanceUid,
    messages::AgentCapabilities as Bit,
    now::Now,
    offer::{ConnectionSettingsHash, Offer},
    record::{AgentRecord, Attributes, ComponentsSummary, FailedOffer},
};

/// The conversation with one agent.
#[derive(Debug)]
pub struct Session {
    uid: InstanceUid,
    record: AgentRecord,
    /// The parts that the agent itself has reported; others may be remembered from an earlier process.
    reported: Parts,
    sequence: Sequence,
    gaps: Gaps,
    full_state: Inquiry,
    components: Inquiry,
    remote_config: RemoteConfigOffers,
    connection_settings: ConnectionSettingsOffers,
    late_refusal: LateRefusal,
    presence: Presence,
    visitors: Visitors,
    greeting: Greeting,
    answered: Answered,
    sight: Sight,
    /// Only of an agent that speaks over HTTP.
    watch: Option<Box<Watch>>,
    silence_limit: Duration,
}

/// What `Agent.status` says of an agent that this process has not heard, or not in full. Each part counts until the
/// agent reports it.
#[derive(Clone, Debug, Default)]
pub struct Remembered {
    /// The configuration hash that it last reported: it spares the offer of what the agent has.
    pub last_reported: Option<Vec<u8>>,
    /// What is not offered again by itself.
    pub failed: Option<FailedOffer>,
    /// The hash of the connection settings that it last reported.
    pub connection_settings_reported: Option<Vec<u8>>,
    /// What [`Session::connection_settings_offered`] said of it: it spares an agent that reports no status the offer of
    /// what it has presumably taken.
    pub connection_settings_offered: Option<ConnectionSettingsHash>,
    /// Connection settings that are not offered again by themselves.
    pub failed_connection_settings: Option<FailedOffer>,
    /// Who it was.
    pub description: Option<Attributes>,
    /// The components whose count is known: the agent is not asked for them again (CMPN-04).
    pub available_components: Option<ComponentsSummary>,
}

impl Session {
    /// Begins with what is remembered of the agent; `None` if it was never seen.
    #[must_use]
    pub fn new(uid: InstanceUid, remembered: Option<Remembered>) -> Self {
        let mut session = Self {
            uid,
            record: AgentRecord::default(),
            reported: Parts::default(),
            sequence: Sequence::default(),
            gaps: Gaps::default(),
            full_state: Inquiry::default(),
            components: Inquiry::default(),
            remote_config: RemoteConfigOffers::default(),
            connection_settings: ConnectionSettingsOffers::default(),
            late_refusal: LateRefusal::default(),
            presence: Presence::Unheard,
            visitors: Visitors::default(),
            greeting: Greeting::Due,
            answered: Answered::default(),
            sight: if remembered.is_some() { Sight::Known } else { Sight::First },
            watch: None,
            silence_limit: SILENCE_LIMIT,
        };
        if let Some(remembered) = remembered {
            session.remember(remembered);
        }
        session
    }

    /// Sets how long an agent may be silent over HTTP (AMB-12).
    #[must_use]
    pub fn with_silence_limit(mut self, limit: Duration) -> Self {
        self.silence_limit = limit;
        self
    }

    /// Adds what was learnt of the agent later; its own reports are newer.
    pub fn remember(&mut self, remembered: Remembered) {
        let Remembered {
            last_reported,
            failed,
            connection_settings_reported,
            connection_settings_offered,
            failed_connection_settings,
            description,
            available_components,
        } = remembered;
        self.sight = Sight::Known;
        if !self.reported.contains(Parts::DESCRIPTION) && description.is_some() {
            self.record.description = description;
        }
        if self.record.available_components.is_none() {
            self.record.available_components = available_components;
        }
        self.remember_config(last_reported, failed);
        if let Some(hash) = connection_settings_offered {
            self.connection_settings.remember_arrival(hash);
        }
        self.remember_settings(connection_settings_reported, failed_connection_settings);
    }

    fn remember_config(&mut self, reported: Option<Vec<u8>>, remembered: Option<FailedOffer>) {
        let has_reported = self.reported.contains(Parts::REMOTE_CONFIG_STATUS);
        let word = self.record.remote_config.as_ref().filter(|_| has_reported);
        self.record.failed_config = failed::with_remembered(self.record.failed_config.take(), remembered, word);
        if let Some(hash) = reported.filter(|_| !has_reported) {
            self.remote_config.remember(hash);
        }
    }

    fn remember_settings(&mut self, reported: Option<Vec<u8>>, remembered: Option<FailedOffer>) {
        let has_reported = self.reported.contains(Parts::CONNECTION_SETTINGS_STATUS);
        let word = self.record.connection_settings.as_deref().filter(|_| has_reported);
        let own = self.record.failed_connection_settings.take().map(|own| *own);
        self.record.failed_connection_settings = failed::with_remembered(own, remembered, word).map(Box::new);
        if let Some(hash) = reported.filter(|_| !has_reported) {
            self.connection_settings.remember_report(hash);
        }
    }

    /// Who this is.
    #[must_use]
    pub fn uid(&self) -> InstanceUid {
        self.uid
    }

    /// What it has reported.
    #[must_use]
    pub fn record(&self) -> &AgentRecord {
        &self.record
    }

    /// Whether it is there.
    #[must_use]
    pub fn liveness(&self) -> Liveness {
        self.presence.liveness()
    }

    /// The present or last stretch of time in which it spoke through one channel: which, and since when. It may have
    /// begun and ended with one message.
    #[must_use]
    pub fn stretch(&self) -> Option<(Channel, jiff::Timestamp)> {
        self.presence.stretch()
    }

    /// A person wants what failed at this agent to be offered once more; [`Self::push`] or the next reply does it.
    pub fn reoffer(&mut self) {
        if failed::is_the_last_word(self.record.failed_config.as_ref(), self.record.remote_config.as_ref()) {
            self.record.failed_config = None;
            self.remote_config.again();
        }
        let settings = self.record.connection_settings.as_deref();
        if failed::is_the_last_word(self.record.failed_connection_settings.as_deref(), settings) {
            self.record.failed_connection_settings = None;
            self.connection_settings.again();
        }
    }

    /// The connection settings that an agent has presumably taken which reports no status of them: they were offered to it
    /// and it spoke on through the same channel, at least to say goodbye. To be remembered for the next process and the
    /// other replicas; [`Changed`] tells when it is new. `None` for an agent that reports.
    #[must_use]
    pub fn connection_settings_offered(&self) -> Option<ConnectionSettingsHash> {
        let reports = self.record.capabilities.has(Bit::ReportsConnectionSettingsStatus);
        self.connection_settings.arrived().filter(|_| !reports)
    }

    /// Something is wanted that the agent has reported and that no record keeps: [`Self::push`] or the next reply asks it to
    /// report in full (S2A-10).
    pub fn want_full_report(&mut self) {
        self.full_state.open();
    }

    /// The new uid that was given to a visitor is in use: nobody has to be told again (AMB-13). Says where that was.
    pub fn adopted(&mut self, new_uid: InstanceUid) -> Option<Channel> {
        self.visitors.forget_uid(new_uid)
    }

    /// Whether the agent, or a visitor who still has to be told something, speaks through this channel.
    #[must_use]
    pub fn involves(&self, channel: Channel) -> bool {
        self.presence.channel() == Some(channel) || self.visitors.have(channel)
    }

    /// Whether nobody is there and nobody has to be told a new uid: once its record is written, the session may go.
    #[must_use]
    pub fn is_deserted(&self, now: Now) -> bool {
        self.presence.channel().is_none() && self.visitors.are_gone(now.instant)
    }

    /// Sends what the offer demands, and asks what is wanted, if no reply will bring it: for an agent on a WebSocket at
    /// once, for one that polls never, its next reply does (WS-06, HTTP-02, CFG-03).
    pub fn push(&mut self, offer: &Offer, now: Now) -> Effects {
        let mut effects = Effects::default();
        self.push_offer(offer, now, &mut effects);
        effects
    }

    /// When [`Self::expire`] is to be called unless something happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let ends = [self.visitors.verdict_at(), self.presence.silent_at(self.silence_limit)];
        ends.into_iter().flatten().min()
    }

    /// Acts on deadlines that have passed; called too early it does nothing.
    pub fn expire(&mut self, now: Now) -> Effects {
        let mut effects = Effects::default();
        if self.visitors.verdict_at().is_some_and(|at| at <= now.instant) {
            effects.release = self.presence.channel().and_then(duplicate::socket);
            self.leave(Ending::SocketClosed, now, &mut effects);
        }
        if self.presence.silent_at(self.silence_limit).is_some_and(|at| at <= now.instant) {
            self.leave(Ending::Silent, now, &mut effects);
        }
        effects
    }

    /// A socket has answered the ping that an effect asked for: it is alive, so whoever else speaks under its uid is
    /// another agent and gets a uid of its own (DUP-02, DUP-03, AMB-14).
    pub fn pong(&mut self, from: ConnectionId) -> Effects {
        let mut effects = Effects::default();
        if self.presence.channel() == Some(Channel::WebSocket(from)) {
            self.convict_visitors(&mut effects);
        }
        effects
    }

    /// The agent may not take part any more: it counts as gone, and so does whoever else speaks under its uid.
    pub fn dismiss(&mut self, now: Now) -> Effects {
        let mut effects = Effects::default();
        self.visitors = Visitors::default();
        if self.presence.channel().is_some() {
            self.leave(Ending::SocketClosed, now, &mut effects);
        }
        effects
    }

    /// A socket has ended, whoever closed it. The end of a TCP connection under HTTP means nothing (CONN-06).
    pub fn closed(&mut self, connection: ConnectionId, now: Now) -> Effects {
        let mut effects = Effects::default();
        let channel = Channel::WebSocket(connection);
        self.visitors.forget_channel(channel);
        if self.presence.channel() == Some(channel) {
            self.leave(Ending::SocketClosed, now, &mut effects);
        }
        effects
    }
}
