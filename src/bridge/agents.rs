//! What the server asks of the sessions.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::request::Parts;

use super::{
    Bridge,
    admission::Verdict,
    channel_of,
    connections::Carried,
    entry::{Entry, Waiting},
    gate::Here,
    lock, now,
    scrub::scrub,
};
use crate::{
    catalog::Catalog,
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

/// Whether an agent keeps its place on the connection through which it has spoken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    Kept,
    Left,
}

/// What a message is answered.
struct Answer {
    send: Vec<Outbound>,
    violation: Option<Violation>,
    place: Place,
}

/// What has become of a message.
enum Taken {
    Answered(Answer),
    /// It was not let in.
    Stopped(Verdict),
    /// There is no room for a session.
    NoRoom,
}

impl Agents for Bridge {
    fn authenticate<'a>(
        &'a self,
        request: &'a Parts,
        peer: &'a Peer,
    ) -> BoxFuture<'a, Result<Arc<Principal>, Refusal>> {
        self.credentials.authenticate(&request.headers, peer, now())
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
        let carried = match connection.transport {
            Transport::WebSocket => self.connections.carry(connection, uid),
            Transport::Http => Carried::Newly,
        };
        if carried == Carried::TooMany {
            return Self::refuse(uid, "this connection speaks for too many agents already");
        }
        let taken = self.take(connection, inbound, carried, now);
        match &taken {
            Taken::Stopped(_) if carried == Carried::Already => {}
            Taken::Answered(Answer { place: Place::Kept, .. }) => {}
            Taken::Answered(Answer { place: Place::Left, .. }) | Taken::Stopped(_) | Taken::NoRoom => {
                self.connections.leave(connection.id, uid);
            }
        }
        match taken {
            Taken::Answered(Answer { send, violation, .. }) => {
                Exchange { send, speaker: Some(uid), violation, then: Then::Continue }
            }
            Taken::Stopped(verdict) => self.turn_away(connection, uid, carried, verdict, now),
            Taken::NoRoom => {
                self.metrics.sessions_refused.inc();
                Self::refuse(uid, "there is no room for another agent now")
            }
        }
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
    /// Takes one message into its session and answers it, if whoever sent it may speak for the agent.
    fn take(&self, connection: &Arc<Connection>, inbound: Inbound, carried: Carried, now: Now) -> Taken {
        let uid = inbound.uid;
        if self.sessions.with(uid, |_| ()).is_none() {
            // A session that nobody may have is not even begun.
            let here = Here { speaker: None, former: lock(&self.renamings).former(uid) };
            let verdict = self.judge(connection, uid, carried, here, now);
            if verdict != Verdict::Admitted {
                return Taken::Stopped(verdict);
            }
        }
        self.tell_adoption(uid);
        let taken = self.sessions.with_open(
            uid,
            || self.begin(uid),
            |entry| {
                entry.note_former(lock(&self.renamings).former(uid));
                // Under the lock, so that what the watch shows meanwhile finds whoever was let in.
                let verdict = self.judge(connection, uid, carried, entry.here(), now);
                if verdict != Verdict::Admitted {
                    return Taken::Stopped(verdict);
                }
                let _ = entry.keep_out(None);
                self.leave_older_socket(entry, connection, now);
                Taken::Answered(self.converse(entry, connection, inbound, now))
            },
        );
        if matches!(taken, Some(Taken::Answered(Answer { place: Place::Left, .. }))) {
            // Nothing is kept of an agent that may not even wait.
            self.sessions.drop_if(uid, |entry| entry.waiting() == Waiting::InVain && entry.object().is_none());
        }
        taken.unwrap_or(Taken::NoRoom)
    }

    /// Whoever may speak for the agent says something.
    fn converse(&self, entry: &mut Entry, connection: &Arc<Connection>, mut inbound: Inbound, now: Now) -> Answer {
        let (catalog, channel) = (self.catalog.load(), channel_of(connection));
        Self::want_text(entry, now);
        scrub(&mut inbound.message, &entry.quotable(&catalog), || self.keys_of(inbound.uid));
        let mut receipt = entry.session.receive(inbound, channel, now);
        // Before the offer is looked up: it depends on who speaks.
        self.note_presence(entry, Some(connection));
        if receipt.has_new_attributes() {
            entry.reassign();
        }
        if entry.has_spoken() {
            self.look(entry, &catalog, now);
        }
        let request = self.consider(entry, &mut receipt, now);
        let offer = if receipt.takes_offer() { entry.offer() } else { Offer::default() };
        let mut effects = entry.session.answer(receipt, &offer, now);
        let violation = effects.violation.take();
        if let Some(request) = request.filter(|_| effects.certificate_request.take().is_some()) {
            self.hand_on(entry, request, now);
        }
        let replies = self.carry_out(entry, effects, Some(connection), now);
        if entry.session.liveness().channel() == Some(channel) {
            let comes_back = entry.comes_back(&self.settings.owner);
            self.touch(entry, comes_back);
        }
        let involved = entry.session.involves(channel) && entry.waiting() != Waiting::InVain;
        let place = if involved { Place::Kept } else { Place::Left };
        let send = self.without_object(entry, now).map_or(replies, |refusal| vec![refusal]);
        Answer { send, violation, place }
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
