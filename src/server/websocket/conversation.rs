//! The rules of one WebSocket, without its socket: bytes and time in, frames and a deadline out.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    super::{
        admission::Unreported,
        agents::{Exchange, Then},
        connection::{CloseReason, Connection, Transport},
        pacing::{TokenBucket, tokens},
        shared::Shared,
    },
    decoder::{Decoder, Event},
    encoder::Outgoing,
};
use crate::opamp::{
    frame::strip_header,
    now::Now,
    violation::{Answer, Offences, Violation},
};

/// Frames that may wait to be written before no more are read: a peer that does not read is not worked for.
const OUTGOING_FRAMES: usize = 64;

/// The longest header of an OpAMP message, which counts as no part of the message (WS-04).
const LONGEST_HEADER: usize = 10;

/// The payload of a ping that [`Connection::ping`] asked for: its answer repeats it, and so it is told from that of a ping
/// which only looks after the connection (RFC 6455 §5.5.3).
const PROOF: &[u8] = b"alive?";

/// What one peer said and is to be told. Whatever it lets in, it answers in order.
pub struct Conversation {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    decoder: Decoder,
    /// Received, and not looked at before the reason to pause is gone; at most one read.
    unread: Vec<u8>,
    outgoing: VecDeque<Outgoing>,
    bucket: TokenBucket,
    offences: Offences,
    /// The room that the unfinished message has, beyond what is free.
    room: Option<OwnedSemaphorePermit>,
    /// So many bytes more are needed before anything more is read.
    wanted_room: Option<usize>,
    /// No message is taken before.
    paused_until: Option<Instant>,
    /// When the unfinished frame or message began.
    begun: Option<Instant>,
    unreported: Option<(Unreported, Instant)>,
    heard: Instant,
    pinged: Option<Instant>,
    proof: Proof,
    closes_at: Option<Instant>,
    ending: Option<Ending>,
}

/// How a conversation ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ending {
    /// The server closes.
    Ours(CloseReason),
    /// The server closes in the midst of a frame that the peer does not read: no Close frame fits there.
    Cut(CloseReason),
    /// The peer sent a Close frame, with this code.
    Theirs(Option<u16>),
    /// The connection broke, or the peer ended it without a word.
    Lost,
}

/// Whether the agents wait for a sign of life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Proof {
    NotAsked,
    /// They do; its answer is for all who ask meanwhile.
    Asked,
}

/// Where a conversation was broken off.
pub struct Unheard {
    /// In the midst of a frame, perhaps.
    pub decoder: Decoder,
    /// Read, but not decoded.
    pub unread: Vec<u8>,
}

impl Conversation {
    /// A conversation that begins now, with a socket that has not reported yet.
    pub fn new(shared: Arc<Shared>, connection: Arc<Connection>, unreported: Unreported, now: Now) -> Self {
        let limits = &shared.limits;
        Self {
            decoder: Decoder::new(limits.message_bytes.saturating_add(LONGEST_HEADER)),
            unread: Vec::new(),
            outgoing: VecDeque::new(),
            bucket: TokenBucket::new(limits.messages_per_second, limits.message_burst, now.instant),
            offences: Offences::default(),
            room: None,
            wanted_room: None,
            paused_until: None,
            begun: None,
            unreported: Some((unreported, now.instant + limits.report_timeout)),
            heard: now.instant,
            pinged: None,
            proof: Proof::NotAsked,
            closes_at: None,
            ending: None,
            shared,
            connection,
        }
    }

    /// Takes what was read.
    pub fn hear(&mut self, bytes: &[u8], now: Now) {
        self.shared.metrics.received(Transport::WebSocket, bytes.len());
        self.heard = now.instant;
        self.pinged = None;
        let rest = self.digest(bytes, now);
        self.unread.extend_from_slice(rest);
    }

    /// Whether more is to be read.
    #[must_use]
    pub fn listens(&self) -> bool {
        self.unread.is_empty() && self.is_ready()
    }

    /// The next frame to be written.
    pub fn next_outgoing(&mut self) -> Option<Outgoing> {
        let next = self.outgoing.pop_front();
        if next.is_none() {
            // An idle connection keeps no buffer.
            self.outgoing = VecDeque::new();
        }
        next
    }

    /// Whether frames wait to be written.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Goes on with what was put off; to be called when frames were written.
    pub fn resume(&mut self, now: Now) {
        if self.unread.is_empty() || !self.is_ready() {
            return;
        }
        let unread = std::mem::take(&mut self.unread);
        self.unread = self.digest(&unread, now).to_vec();
    }

    /// How it ends, once that is clear. What is outgoing before that is still to be written.
    #[must_use]
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Ends it, unless it has ended already.
    pub fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    /// What the closing handshake needs of it.
    pub fn take_unheard(&mut self) -> Unheard {
        Unheard {
            decoder: std::mem::replace(&mut self.decoder, Decoder::new(0)),
            unread: std::mem::take(&mut self.unread),
        }
    }

    /// How many bytes of room are needed before anything more is read.
    #[must_use]
    pub fn wanted_room(&self) -> Option<usize> {
        self.wanted_room
    }

    /// Gives the room that was wanted.
    pub fn grant(&mut self, permit: OwnedSemaphorePermit, now: Now) {
        self.wanted_room = None;
        match &mut self.room {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        self.resume(now);
    }

    /// Carries out what [`Connection`] was asked for.
    pub fn marked(&mut self, now: Now) {
        if self.connection.take_ping() && self.proof == Proof::NotAsked {
            self.outgoing.push_back(Outgoing::Ping(Bytes::from_static(PROOF)));
            self.proof = Proof::Asked;
        }
        if self.connection.take_wake() {
            self.due(now);
        }
        if let Some(reason) = self.connection.close_reason() {
            self.end(Ending::Ours(reason));
        }
    }

    /// Says what is due unprompted.
    pub fn due(&mut self, now: Now) {
        let exchange = self.shared.agents.due(&self.connection, now);
        self.carry_out(exchange, now);
    }

    /// Has it closed at that time, because the operator stops.
    pub fn close_at(&mut self, turn: Instant) {
        self.closes_at = Some(turn);
    }

    /// When [`Self::expire`] must be called next.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let reported = self.unreported.as_ref().map(|(_, until)| *until);
        [self.paused_until, reported, self.ping_deadline(), self.stall_deadline(), self.closes_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Acts on every deadline that has passed.
    pub fn expire(&mut self, now: Now) {
        let passed = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now.instant);
        if passed(self.closes_at) {
            self.end(Ending::Ours(CloseReason::Draining));
        }
        if passed(self.unreported.as_ref().map(|(_, until)| *until)) {
            self.end(Ending::Ours(CloseReason::NeverReported));
        }
        if passed(self.stall_deadline()) {
            self.end(Ending::Ours(CloseReason::Stalled));
        }
        if passed(self.ping_deadline()) {
            if self.pinged.is_some() {
                self.end(Ending::Ours(CloseReason::Silent));
            } else {
                self.outgoing.push_back(Outgoing::Ping(Bytes::new()));
                self.pinged = Some(now.instant);
            }
        }
        if passed(self.paused_until) {
            self.paused_until = None;
            self.resume(now);
        }
    }

    /// Decodes until the bytes are used up or there is a reason to pause; returns what is left.
    fn digest<'a>(&mut self, mut bytes: &'a [u8], now: Now) -> &'a [u8] {
        while !bytes.is_empty() && self.is_ready() {
            match self.decoder.decode(&mut bytes) {
                Ok(Some(event)) => self.take(event, now),
                Ok(None) => {}
                Err(fault) => {
                    self.shared.metrics.violated(fault.rule());
                    tracing::debug!(remote = %self.connection.remote, %fault, "a WebSocket breaks the framing");
                    self.end(Ending::Ours(fault.close_reason()));
                }
            }
        }
        self.begun = if self.decoder.is_amid() { self.begun.or(Some(now.instant)) } else { None };
        bytes
    }

    fn take(&mut self, event: Event, now: Now) {
        match event {
            Event::Reserve(bytes) => self.wanted_room = Some(bytes),
            Event::Binary(message) => {
                self.room = None;
                self.pace(message.len(), now);
                self.receive(message, now);
            }
            Event::Text => {
                self.room = None;
                self.pace(0, now);
                self.refuse(&Violation::NotBinary, now);
            }
            Event::Ping(payload) => {
                self.pace(0, now);
                self.outgoing.push_back(Outgoing::Pong(payload));
            }
            Event::Pong(payload) => {
                self.pace(0, now);
                if self.proof == Proof::Asked && payload == PROOF {
                    self.proof = Proof::NotAsked;
                    let exchange = self.shared.agents.pong(&self.connection, now);
                    self.carry_out(exchange, now);
                }
            }
            Event::Close(code) => self.end(Ending::Theirs(code)),
        }
        if !self.decoder.is_amid() {
            self.begun = None;
        }
    }

    fn receive(&mut self, message: Bytes, now: Now) {
        self.shared.metrics.message_received(Transport::WebSocket);
        match strip_header(message) {
            Ok(payload) => {
                let exchange = self.shared.agents.receive(&self.connection, payload, now);
                self.carry_out(exchange, now);
            }
            Err(violation) => self.refuse(&violation, now),
        }
    }

    fn refuse(&mut self, violation: &Violation, now: Now) {
        let mut exchange = self.shared.agents.violated(&self.connection, violation, now);
        exchange.violation.get_or_insert_with(|| violation.clone());
        self.carry_out(exchange, now);
    }

    fn carry_out(&mut self, exchange: Exchange, now: Now) {
        let Exchange { send, speaker, violation, then } = exchange;
        self.outgoing.extend(send.into_iter().map(Outgoing::Message));
        if speaker.is_some() && violation.is_none() {
            self.unreported = None;
        }
        if let Some(violation) = violation {
            self.shared.metrics.violated(violation.rule());
            match self.offences.commit(now.instant) {
                Answer::BadRequest => {}
                Answer::Close => self.end(Ending::Ours(CloseReason::after(&violation))),
            }
        }
        match then {
            Then::Continue => {}
            Then::Close(reason) => self.end(Ending::Ours(reason)),
        }
    }

    fn pace(&mut self, bytes: usize, now: Now) {
        self.paused_until = self.bucket.take(tokens(bytes), now.instant);
    }

    fn is_ready(&self) -> bool {
        self.ending.is_none()
            && self.paused_until.is_none()
            && self.wanted_room.is_none()
            && self.outgoing.len() < OUTGOING_FRAMES
    }

    /// When the next ping is due, or its answer overdue. Who does not listen cannot complain of silence.
    fn ping_deadline(&self) -> Option<Instant> {
        self.listens().then(|| match self.pinged {
            Some(pinged) => pinged + self.shared.limits.pong_timeout,
            None => self.heard + self.shared.limits.ping_after,
        })
    }

    fn stall_deadline(&self) -> Option<Instant> {
        self.begun.map(|begun| begun + self.shared.limits.body_timeout)
    }
}

impl Drop for Conversation {
    /// However it ended, even by a panic: its agents are told.
    fn drop(&mut self) {
        self.shared.agents.closed(&self.connection, super::super::shared::now());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{
        super::super::{
            Limits,
            shared::now,
            tests::{Harness, client::frame, peer},
        },
        *,
    };
    use crate::opamp::identity::Principal;

    /// What a hostile peer can send, whole frames more often than noise so that it gets far.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let first = prop::sample::select(vec![0x02, 0x82, 0x00, 0x80, 0x81, 0x01, 0x89, 0x8a, 0x88]);
        prop_oneof![
            8 => (first, prop::sample::select(vec![0_u8, 0, 1, 0x80]), 0_usize..300)
                .prop_map(|(first, byte, length)| frame(first, &vec![byte; length])),
            1 => prop::collection::vec(any::<u8>(), 0..50),
        ]
    }

    proptest! {
        #[test]
        fn whatever_comes_memory_is_bounded_and_the_next_deadline_is_known(
            pieces in prop::collection::vec((bytes(), 0_u64..20_000), 0..60),
            reads in any::<bool>(),
        ) {
            let limits = Limits { message_bytes: 500, messages_per_second: 1, message_burst: 20, ..Limits::default() };
            let harness = Harness::new(limits);
            let connection =
                harness.shared.connection(Transport::WebSocket, Principal::anonymous().into(), &peer());
            let unreported = harness.shared.admission.unreported().unwrap();
            let mut time = now();
            let mut conversation = Conversation::new(Arc::clone(&harness.shared), connection, unreported, time);
            for (piece, milliseconds) in pieces {
                time.instant += Duration::from_millis(milliseconds);
                conversation.expire(time);
                if conversation.listens() {
                    conversation.hear(&piece, time);
                }
                if reads {
                    while conversation.next_outgoing().is_some() {}
                    conversation.resume(time);
                }
                prop_assert!(conversation.unread.len() <= piece.len().max(400));
                // One event more than the limit, a ping of our own, and what is due.
                prop_assert!(conversation.outgoing.len() <= OUTGOING_FRAMES + 60);
                prop_assert!(conversation.ending().is_some() || conversation.deadline().is_some());
            }
        }
    }
}
