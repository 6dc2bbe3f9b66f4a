//! What the server asks of the sessions.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::request::Parts;

use super::{Bridge, channel_of, connections::Carried, scrub::scrub};
use crate::{
    opamp::{
        InstanceUid,
        identity::Identity,
        inbound::{Inbound, decode},
        now::Now,
        session::{self, Channel, Outbound},
        violation::Violation,
    },
    server::{Agents, Connection, Exchange, Refusal, Then, Transport},
};

impl Agents for Bridge {
    fn authenticate(&self, _request: &Parts, _remote: SocketAddr) -> Result<Identity, Refusal> {
        let identity = Identity::Anonymous;
        if self.catalog.load().admits(&identity) {
            return Ok(identity);
        }
        Err(Refusal { challenge: "Bearer realm=\"opamp\"", message: "no fleet takes agents without a credential" })
    }

    fn receive(&self, connection: &Arc<Connection>, payload: Bytes, now: Now) -> Exchange {
        let inbound = match decode(payload) {
            Ok(inbound) => inbound,
            Err(violation) => match (&violation, self.connections.only_agent(connection.id)) {
                (Violation::EmptyMessage, Some(uid)) => Inbound::bare(uid),
                _ => return self.violated(connection, &violation, now),
            },
        };
        let uid = inbound.uid;
        if connection.transport == Transport::WebSocket && self.connections.carry(connection, uid) == Carried::TooMany {
            return Self::refuse(uid, "this connection speaks for too many agents already");
        }
        match self.take(connection, inbound, now) {
            Some(send) => Exchange { send, speaker: Some(uid), violation: None, then: Then::Continue },
            None => Self::refuse(uid, "there is no room for another agent now"),
        }
    }

    fn violated(&self, connection: &Arc<Connection>, violation: &Violation, _now: Now) -> Exchange {
        let speaker = self.connections.only_agent(connection.id);
        let reply = session::refuse(speaker, &session::Refusal::BadRequest(violation));
        Exchange { send: vec![reply], speaker: None, violation: Some(violation.clone()), then: Then::Continue }
    }

    fn due(&self, connection: &Arc<Connection>, now: Now) -> Exchange {
        let mut send = self.connections.collect(connection.id);
        for uid in self.connections.agents(connection.id) {
            send.extend(self.push(connection, uid, now));
        }
        self.metrics.pushes.inc_by(send.len() as u64);
        Exchange { send, ..Exchange::default() }
    }

    fn deadline(&self, _connection: &Arc<Connection>) -> Option<std::time::Instant> {
        None
    }

    fn pong(&self, connection: &Arc<Connection>, now: Now) -> Exchange {
        let mut send = Vec::new();
        for uid in self.connections.agents(connection.id) {
            let pushed = self.sessions.with(uid, |entry| {
                if let Some(urgency) = entry.is_alive() {
                    self.writer.touch(uid, urgency);
                }
                let effects = entry.session.pong(connection.id);
                self.carry_out(entry, effects, Some(connection), now)
            });
            send.extend(pushed.into_iter().flatten());
        }
        Exchange { send, ..Exchange::default() }
    }

    fn closed(&self, connection: &Arc<Connection>, now: Now) {
        for uid in self.connections.end(connection.id) {
            self.sessions.with(uid, |entry| {
                let effects = entry.session.closed(connection.id, now);
                self.carry_out(entry, effects, None, now)
            });
        }
    }
}

impl Bridge {
    /// Takes one message into its session and answers it. `None`: there is no room for a session.
    fn take(&self, connection: &Arc<Connection>, inbound: Inbound, now: Now) -> Option<Vec<Outbound>> {
        let uid = inbound.uid;
        self.tell_adoption(uid);
        let replies = self.sessions.with_open(
            uid,
            || self.begin(uid, now),
            |entry| {
                Self::want_text(entry, now);
                let mut inbound = inbound.clone();
                scrub(&mut inbound.message, entry.fleets_with_secrets());
                let receipt = entry.session.receive(inbound, channel_of(connection), now);
                if receipt.has_new_attributes() {
                    entry.reassign();
                }
                let offer = if receipt.takes_offer() {
                    if let Some(urgency) = entry.assign(&self.catalog.load(), Some(&connection.identity), now) {
                        self.writer.touch(uid, urgency);
                    }
                    entry.offer()
                } else {
                    Default::default()
                };
                let effects = entry.session.answer(receipt, &offer, now);
                self.carry_out(entry, effects, Some(connection), now)
            },
        );
        if replies.is_none() {
            self.metrics.sessions_refused.inc();
        }
        replies
    }

    /// What an agent is to be sent unprompted over this connection.
    fn push(&self, connection: &Arc<Connection>, uid: InstanceUid, now: Now) -> Vec<Outbound> {
        let pushed = self.sessions.with(uid, |entry| {
            if entry.session.liveness().channel() != Some(Channel::WebSocket(connection.id)) {
                return Vec::new();
            }
            if let Some(urgency) = entry.assign(&self.catalog.load(), Some(&connection.identity), now) {
                self.writer.touch(uid, urgency);
            }
            Self::want_text(entry, now);
            let offer = entry.offer();
            let effects = entry.session.push(&offer, now);
            self.carry_out(entry, effects, Some(connection), now)
        });
        pushed.unwrap_or_default()
    }

    fn refuse(uid: InstanceUid, reason: &str) -> Exchange {
        let refusal = session::Refusal::Unavailable { reason, retry_after: Some(super::retry_after()) };
        Exchange { send: vec![session::refuse(Some(uid), &refusal)], ..Exchange::default() }
    }
}
