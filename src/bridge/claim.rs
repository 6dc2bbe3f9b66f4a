//! Whose an agent's status is, as far as this replica knows.
//!
//! An agent may speak to two replicas: its old socket is half open at one while it has connected to the other, or there
//! are two agents of one uid. Both replicas learn of each other from the epochs in `Agent.status.connection`. What
//! each does then follows from which session is the older one, on which both agree.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Instant,
};

use jiff::Timestamp;

use crate::{
    agents::summary::AgentSummary,
    api::{
        agent::{AgentStatus, Transport},
        condition::{ConditionType, Verdict, find},
    },
    opamp::session::{Channel, ConnectionId, Liveness},
    status::render::Owner,
};

/// This replica's claim on one agent's status.
#[derive(Debug, Default)]
pub(super) struct Claim {
    /// Counts the claims: each stretch of presence is another one, and so is each that was won back.
    number: u64,
    stretch: Option<Stretch>,
    standing: Standing,
    /// The last claim elsewhere over which this one may be made: it was met, and won from.
    met: Option<Mark>,
}

/// A time in which the agent spoke through one channel.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Stretch {
    pub(super) channel: Channel,
    pub(super) since: Timestamp,
}

/// What has become of the claim.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Standing {
    /// The status is this replica's to write.
    #[default]
    Ours,
    /// A younger session elsewhere has claimed it; the own socket was asked for a sign of life.
    Disputed { by: Mark },
    /// A session elsewhere has it.
    Theirs,
    /// The agent has gone, and nothing is left to be written of that.
    Over { at: Instant },
}

/// Tells one claim from another: made of its replica, that one's run, its epoch, which begins anew with an object that was
/// deleted, and the second in which its session began.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Mark(u64);

impl Mark {
    fn of(replica: &str, incarnation: &str, epoch: i64, since: Timestamp) -> Self {
        let mut hasher = DefaultHasher::new();
        (replica, incarnation, epoch, since.as_second()).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A session elsewhere that holds an agent's status.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder<'a> {
    pub(super) replica: &'a str,
    since: Timestamp,
    mark: Mark,
    /// Not every source tells.
    transport: Option<Transport>,
    presence: HolderPresence,
}

/// Whether the agent is connected there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum HolderPresence {
    Here,
    Gone,
}

/// The session elsewhere that has claimed the same agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Rival {
    /// There is none, or it may have the agent.
    None,
    /// It is over, and the claim has been won back.
    Gone,
    /// It is the younger one, and the agent is its own if this socket is dead.
    Younger(ConnectionId),
    /// It is the older one, and alive: here is another agent under the same uid.
    Older,
}

impl<'a> Holder<'a> {
    /// The session that wrote this status, unless it was this replica in this run.
    pub(super) fn of(status: &'a AgentStatus, owner: &Owner) -> Option<Self> {
        let connection = status
            .connection
            .as_ref()
            .filter(|connection| connection.replica != owner.replica || connection.incarnation != owner.incarnation)?;
        let is_connected = find(&status.conditions, ConditionType::Connected)
            .is_some_and(|condition| condition.status == Verdict::True.as_str());
        Some(Self {
            replica: &connection.replica,
            since: connection.since.0,
            mark: Mark::of(&connection.replica, &connection.incarnation, connection.epoch, connection.since.0),
            transport: Some(connection.transport),
            presence: if is_connected { HolderPresence::Here } else { HolderPresence::Gone },
        })
    }

    /// The session that the watch shows to hold the agent, unless it is this replica in this run.
    pub(super) fn shown_by(object: &'a AgentSummary, owner: &Owner) -> Option<Self> {
        let connection = object.connection.as_ref().filter(|connection| {
            *connection.replica != *owner.replica || *connection.incarnation != *owner.incarnation
        })?;
        Some(Self {
            replica: &connection.replica,
            since: connection.since,
            mark: Mark::of(&connection.replica, &connection.incarnation, connection.epoch, connection.since),
            transport: None,
            presence: if object.is_connected() { HolderPresence::Here } else { HolderPresence::Gone },
        })
    }

    /// Whether it began before the own stretch. The status tells whole seconds; within one, the name of the replica
    /// decides, so that both sides agree.
    fn is_older(self, own: Stretch, replica: &str) -> bool {
        (self.since.as_second(), self.replica) < (own.since.as_second(), replica)
    }
}

impl Claim {
    /// Which claim this is; another number is another epoch.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The present or last stretch of presence.
    pub(super) fn stretch(&self) -> Option<Stretch> {
        self.stretch
    }

    /// Whether this replica writes the status.
    pub(super) fn is_ours(&self) -> bool {
        self.standing == Standing::Ours
    }

    /// Whether a session elsewhere has the agent, and this one knows nothing that speaks against it.
    pub(super) fn is_theirs(&self) -> bool {
        self.standing == Standing::Theirs
    }

    /// Since when nothing is left to be written.
    pub(super) fn over_since(&self) -> Option<Instant> {
        match self.standing {
            Standing::Over { at } => Some(at),
            Standing::Ours | Standing::Disputed { .. } | Standing::Theirs => None,
        }
    }

    /// The stretch of presence that has begun and was not claimed yet.
    pub(super) fn unclaimed(&self, stretch: Option<(Channel, Timestamp)>) -> Option<Stretch> {
        let (channel, since) = stretch?;
        Some(Stretch { channel, since }).filter(|stretch| self.stretch != Some(*stretch))
    }

    /// A stretch of presence begins, and with it another claim.
    pub(super) fn begin(&mut self, stretch: Stretch) {
        self.stretch = Some(stretch);
        self.number += 1;
        self.standing = Standing::Ours;
    }

    /// The status is claimed anew for the same stretch. What held it meanwhile is no rival any more.
    pub(super) fn win_back(&mut self, from: Option<Holder<'_>>) {
        self.win(from.map(|holder| holder.mark));
    }

    fn win(&mut self, from: Option<Mark>) {
        self.number += 1;
        self.standing = Standing::Ours;
        self.met = from.or(self.met);
    }

    /// A session elsewhere has claimed the status over the claim of this number. The older of two live sessions keeps
    /// the agent; that of a socket has proved to be alive before it claims anything from a younger one.
    pub(super) fn superseded(
        &mut self,
        number: u64,
        by: Holder<'_>,
        replica: &str,
        liveness: Liveness,
        now: Instant,
    ) -> Rival {
        if number != self.number {
            return self.found(by, replica, liveness, now);
        }
        let Some(own) = self.stretch.filter(|_| self.is_ours()) else { return Rival::None };
        if liveness.channel().is_none() {
            self.standing = Standing::Over { at: now };
            return Rival::None;
        }
        if by.presence == HolderPresence::Gone {
            // It was over when it was written, or has been since.
            self.win(Some(by.mark));
            return Rival::Gone;
        }
        if by.is_older(own, replica) && by.transport == Some(Transport::WebSocket) {
            self.standing = Standing::Theirs;
            return Rival::Older;
        }
        self.dispute(own, by.mark)
    }

    /// The status was not claimed for this stretch yet, and turns out to be held by a session elsewhere. From an older
    /// one it may be claimed; over a younger one only if this one is alive, and not at all if it is over.
    pub(super) fn found(&mut self, holder: Holder<'_>, replica: &str, liveness: Liveness, now: Instant) -> Rival {
        let Some(own) = self.stretch.filter(|_| self.is_ours() && self.met != Some(holder.mark)) else {
            return Rival::None;
        };
        let is_older = holder.is_older(own, replica);
        if !is_older && liveness.channel().is_none() {
            self.standing = Standing::Over { at: now };
        } else if is_older || holder.presence == HolderPresence::Gone {
            self.met = Some(holder.mark);
        } else {
            return self.dispute(own, holder.mark);
        }
        Rival::None
    }

    fn dispute(&mut self, own: Stretch, by: Mark) -> Rival {
        match own.channel {
            Channel::WebSocket(connection) => {
                self.standing = Standing::Disputed { by };
                Rival::Younger(connection)
            }
            // An agent that polls was seen elsewhere later: it has moved there.
            Channel::Http => {
                self.standing = Standing::Theirs;
                Rival::None
            }
        }
    }

    /// The socket has answered. Says whether the status has to be claimed back, which is then done.
    pub(super) fn is_alive(&mut self) -> bool {
        let Standing::Disputed { by } = self.standing else { return false };
        self.win(Some(by));
        true
    }

    /// It is written that the stretch of this claim is over, or was never worth an object.
    pub(super) fn released(&mut self, number: u64, liveness: Liveness, now: Instant) {
        if self.number == number && self.is_ours() && liveness.channel().is_none() {
            self.standing = Standing::Over { at: now };
        }
    }

    /// The status is another's, and nothing is written of this session.
    pub(super) fn give_up(&mut self, now: Instant) {
        self.standing = Standing::Over { at: now };
    }

    /// The agent has gone. If the status is not this replica's, nothing is left to be done.
    pub(super) fn departed(&mut self, now: Instant) {
        match self.standing {
            Standing::Disputed { .. } | Standing::Theirs => self.standing = Standing::Over { at: now },
            Standing::Ours | Standing::Over { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::{api::agent::ConnectionStatus, opamp::session::Ending};

    const SOCKET: Channel = Channel::WebSocket(ConnectionId::new(7));

    fn at(seconds: i64, nanoseconds: i32) -> Timestamp {
        Timestamp::constant(1_800_000_000 + seconds, nanoseconds)
    }

    fn by(transport: Transport, replica: &str, since: Timestamp) -> ConnectionStatus {
        ConnectionStatus {
            transport,
            replica: replica.into(),
            incarnation: "other".into(),
            epoch: 2,
            // The status has whole seconds only.
            since: Time(Timestamp::constant(since.as_second(), 0)),
            method: "Anonymous".into(),
            identity: "anonymous".into(),
            remote_address: "10.0.0.9:1".into(),
        }
    }

    fn socket_elsewhere(since: Timestamp) -> ConnectionStatus {
        by(Transport::WebSocket, "z", since)
    }

    fn live(connection: &ConnectionStatus) -> Holder<'_> {
        Holder {
            replica: &connection.replica,
            since: connection.since.0,
            mark: Mark::of(&connection.replica, &connection.incarnation, connection.epoch, connection.since.0),
            transport: Some(connection.transport),
            presence: HolderPresence::Here,
        }
    }

    fn claimed(channel: Channel, since: Timestamp) -> (Claim, Liveness) {
        let mut claim = Claim::default();
        claim.begin(claim.unclaimed(Some((channel, since))).expect("a new stretch"));
        assert_eq!(claim.unclaimed(Some((channel, since))), None);
        (claim, Liveness::Connected { channel, since })
    }

    #[test]
    fn the_older_of_two_live_sessions_keeps_the_agent_and_both_know_which_that_is() {
        // DUP-02, AMB-14
        const POLLS: Channel = Channel::Http;
        let younger = Rival::Younger(ConnectionId::new(7));
        for (case, own, (transport, replica, theirs), expected) in [
            ("they came later", SOCKET, (Transport::WebSocket, "b", at(11, 0)), younger),
            ("they came first", SOCKET, (Transport::WebSocket, "b", at(9, 0)), Rival::Older),
            ("the same second, a name behind", SOCKET, (Transport::WebSocket, "z", at(10, 0)), younger),
            ("the same second, a name before", SOCKET, (Transport::WebSocket, "a", at(10, 900)), Rival::Older),
            ("who polls cannot prove to be older", SOCKET, (Transport::Http, "a", at(9, 0)), younger),
            ("who polls has moved to a socket", POLLS, (Transport::WebSocket, "z", at(11, 0)), Rival::None),
            ("who polls has moved to other polls", POLLS, (Transport::Http, "z", at(11, 0)), Rival::None),
            ("polls take turns at two replicas", POLLS, (Transport::Http, "z", at(9, 0)), Rival::None),
            ("who polls under the uid of a socket", POLLS, (Transport::WebSocket, "z", at(9, 0)), Rival::Older),
        ] {
            let (mut claim, liveness) = claimed(own, at(10, 500));
            let by = by(transport, replica, theirs);
            assert_eq!(claim.superseded(1, live(&by), "m", liveness, Instant::now()), expected, "{case}");
            assert!(!claim.is_ours(), "{case}: not a word more");
        }
    }

    #[test]
    fn a_claim_is_disputed_until_the_socket_answers_or_ends() {
        let now = Instant::now();
        let (mut claim, liveness) = claimed(SOCKET, at(10, 0));
        assert!(!claim.is_alive(), "nothing is disputed");
        let _ = claim.superseded(1, live(&socket_elsewhere(at(11, 0))), "m", liveness, now);
        assert!(claim.is_alive());
        assert_eq!((claim.number(), claim.is_ours()), (2, true), "claimed back, with the next epoch");
        assert!(!claim.is_alive(), "once");
        let _ = claim.found(live(&socket_elsewhere(at(11, 0))), "m", liveness, now);
        assert!(claim.is_ours(), "what was won is not disputed a second time");
        let _ = claim.superseded(1, live(&socket_elsewhere(at(11, 0))), "m", liveness, now);
        assert!(claim.is_ours(), "that was about an earlier claim");
        let _ = claim.superseded(2, live(&socket_elsewhere(at(11, 0))), "m", liveness, now);
        claim.departed(now);
        assert_eq!(claim.over_since(), Some(now), "the other has it, and writes");
    }

    #[test]
    fn a_claim_by_a_session_that_is_over_is_no_rival() {
        let now = Instant::now();
        let older = socket_elsewhere(at(9, 0));
        let over = Holder { presence: HolderPresence::Gone, ..live(&older) };
        let (mut claim, liveness) = claimed(SOCKET, at(10, 0));
        assert_eq!(claim.superseded(1, over, "m", liveness, now), Rival::Gone);
        assert_eq!((claim.number(), claim.is_ours()), (2, true), "won back");
        let younger = socket_elsewhere(at(11, 0));
        let over = Holder { presence: HolderPresence::Gone, ..live(&younger) };
        assert_eq!(claim.found(over, "m", liveness, now), Rival::None);
        assert!(claim.is_ours());
    }

    #[test]
    fn only_what_was_written_of_this_very_stretch_ends_it() {
        let now = Instant::now();
        let (mut claim, here) = claimed(SOCKET, at(10, 0));
        let gone = Liveness::Disconnected { since: at(20, 0), how: Ending::SocketClosed };
        claim.departed(now);
        assert!(claim.is_ours(), "that it has gone is still to be written");
        claim.released(1, here, now);
        claim.released(0, gone, now);
        assert!(claim.is_ours(), "it has come back, or that was an earlier one");
        claim.released(1, gone, now);
        assert_eq!(claim.over_since(), Some(now));
        claim.begin(Stretch { channel: SOCKET, since: at(30, 0) });
        assert_eq!((claim.number(), claim.is_ours()), (2, true));
    }

    #[test]
    fn nothing_is_taken_from_a_later_session_without_a_sign_of_life() {
        let now = Instant::now();
        let gone = Liveness::Disconnected { since: at(20, 0), how: Ending::SocketClosed };
        let younger = Rival::Younger(ConnectionId::new(7));
        for (case, own, holder, is_here, expected) in [
            ("a live socket finds a later session", SOCKET, at(15, 0), true, (younger, false, false)),
            ("a live socket finds an earlier session", SOCKET, at(5, 0), true, (Rival::None, true, false)),
            ("polls find a later session", Channel::Http, at(15, 0), true, (Rival::None, false, false)),
            ("a stretch that is over finds a later session", SOCKET, at(15, 0), false, (Rival::None, false, true)),
            ("a stretch that is over finds an earlier session", SOCKET, at(5, 0), false, (Rival::None, true, false)),
        ] {
            let (mut claim, here) = claimed(own, at(10, 0));
            let rival = claim.found(live(&socket_elsewhere(holder)), "m", if is_here { here } else { gone }, now);
            assert_eq!((rival, claim.is_ours(), claim.over_since().is_some()), expected, "{case}");
        }
    }
}
