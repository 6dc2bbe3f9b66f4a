//! What the server asks of the sessions.

use std::{future, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::request::Parts;

use super::{Bridge, channel_of, connections::Carried, scrub::scrub};
use crate::{
    catalog::{Catalog, Claimant},
    opamp::{
        InstanceUid,
        identity::Principal,
        inbound::{Inbound, decode},
        now::Now,
        offer::Offer,
        session::{self, Channel, Outbound},
        violation::Violation,
    },
    server::{Agents, Connection, Exchange, Peer, Refusal, Then, Transport},
    status::queue::Urgency,
};

/// A message that its session has taken.
struct Taken {
    send: Vec<Outbound>,
    violation: Option<Violation>,
    place: Place,
}

/// Whether an agent keeps its place on the connection through which it has spoken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    Kept,
    Left,
}

impl Agents for Bridge {
    fn authenticate<'a>(
        &'a self,
        _request: &'a Parts,
        _peer: &'a Peer,
    ) -> BoxFuture<'a, Result<Arc<Principal>, Refusal>> {
        let principal = Principal::anonymous();
        let outcome = if self.catalog.load().admits(Claimant::recorded(&principal.identity)) {
            Ok(Arc::new(principal))
        } else {
            let challenge = "Bearer realm=\"opamp\"";
            Err(Refusal::Unauthorized { challenge, message: "no fleet takes agents without a credential" })
        };
        future::ready(outcome).boxed()
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
        let taken = self.take(connection, inbound, now);
        if taken.as_ref().is_none_or(|taken| taken.place == Place::Left) {
            self.connections.leave(connection.id, uid);
        }
        let Some(Taken { send, violation, .. }) = taken else {
            self.metrics.sessions_refused.inc();
            return Self::refuse(uid, "there is no room for another agent now");
        };
        Exchange { send, speaker: Some(uid), violation, then: Then::Continue }
    }

    fn violated(&self, connection: &Arc<Connection>, violation: &Violation, _now: Now) -> Exchange {
        let speaker = self.connections.only_agent(connection.id);
        let reply = session::refuse(speaker, &session::Refusal::BadRequest(violation));
        Exchange { send: vec![reply], speaker: None, violation: Some(violation.clone()), then: Then::Continue }
    }

    fn due(&self, connection: &Arc<Connection>, now: Now) -> Exchange {
        let catalog = self.catalog.load();
        let due = self.connections.take_due(connection.id, catalog.generation());
        let mut send = due.outbox;
        for uid in due.agents {
            send.extend(self.push(connection, uid, &catalog, now));
        }
        self.metrics.pushes.inc_by(send.len() as u64);
        Exchange { send, ..Exchange::default() }
    }

    fn pong(&self, connection: &Arc<Connection>, now: Now) -> Exchange {
        let mut send = Vec::new();
        for uid in self.connections.agents(connection.id) {
            let pushed = self.sessions.with(uid, |entry| {
                let is_its_own = entry.session.liveness().channel() == Some(Channel::WebSocket(connection.id));
                if is_its_own && entry.claim.is_alive() {
                    self.touch(entry, Some(Urgency::Connection));
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
    fn take(&self, connection: &Arc<Connection>, mut inbound: Inbound, now: Now) -> Option<Taken> {
        let (uid, channel) = (inbound.uid, channel_of(connection));
        self.tell_adoption(uid);
        let catalog = self.catalog.load();
        self.sessions.with_open(
            uid,
            || self.begin(uid),
            |entry| {
                Self::want_text(entry, now);
                scrub(&mut inbound.message, &entry.quotable(&catalog));
                let receipt = entry.session.receive(inbound, channel, now);
                // Before the offer is looked up: it depends on who speaks.
                self.note_presence(entry, Some(connection));
                if receipt.has_new_attributes() {
                    entry.reassign();
                }
                if entry.has_spoken() {
                    self.look(entry, &catalog, now);
                }
                let offer = if receipt.takes_offer() { entry.offer() } else { Offer::default() };
                let mut effects = entry.session.answer(receipt, &offer, now);
                let violation = effects.violation.take();
                let send = self.carry_out(entry, effects, Some(connection), now);
                if entry.session.liveness().channel() == Some(channel) {
                    let comes_back = entry.comes_back(&self.settings.owner);
                    self.touch(entry, comes_back);
                }
                let place = if entry.session.involves(channel) { Place::Kept } else { Place::Left };
                Taken { send, violation, place }
            },
        )
    }

    /// What an agent is to be sent unprompted over this connection.
    fn push(&self, connection: &Arc<Connection>, uid: InstanceUid, catalog: &Catalog, now: Now) -> Vec<Outbound> {
        let pushed = self.sessions.with(uid, |entry| {
            if entry.session.liveness().channel() != Some(Channel::WebSocket(connection.id)) {
                return Vec::new();
            }
            self.look(entry, catalog, now);
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
