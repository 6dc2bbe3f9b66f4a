//! Others that speak under the agent's uid: newcomers on trial and those that were told another uid.

use std::time::{Duration, Instant};

use super::{
    channel::{Channel, ConnectionId},
    sequence::Numbered,
};
use crate::opamp::InstanceUid;

/// How long the older socket may take to answer a ping (AMB-14).
const TRIAL: Duration = Duration::from_secs(3);
/// How long a new uid is given again to whoever still speaks under the old one (AMB-13).
const GRACE: Duration = Duration::from_secs(600);
/// So many are remembered; a forgotten one comes on trial anew.
const VISITORS_LIMIT: usize = 16;

/// Somebody who is not, or not yet, the agent of this session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visitor {
    pub(super) channel: Channel,
    /// Its newest message that has a number.
    pub(super) last: Option<Numbered>,
    heard: Instant,
    pub(super) standing: Standing,
}

/// What becomes of a visitor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Standing {
    /// The agent itself if the older socket is dead, decided by the pong or at this time.
    OnTrial { until: Instant },
    /// Another agent: this is its uid from now on.
    Renamed { to: InstanceUid },
}

/// All visitors of one uid, few at any time.
#[derive(Clone, Debug, Default)]
pub(super) struct Visitors(Vec<Visitor>);

impl Visitors {
    /// Recognises a visitor and notes that it was heard.
    ///
    /// A WebSocket is one visitor. Over HTTP all of them share a channel, so one that was renamed is known by a
    /// message that repeats or follows its last; a bare poll, which has no number, could be anybody's.
    pub(super) fn greet(&mut self, from: Channel, message: Option<Numbered>, now: Instant) -> Option<Standing> {
        self.0.retain(|visitor| !visitor.is_forgotten(now));
        let visitor = self.0.iter_mut().find(|visitor| visitor.channel == from && visitor.may_have_sent(message))?;
        visitor.heard = now;
        visitor.last = message.or(visitor.last);
        Some(visitor.standing)
    }

    /// Takes a newcomer on trial, to be decided by a pong of the older socket.
    pub(super) fn put_on_trial(&mut self, from: Channel, message: Option<Numbered>, now: Instant) {
        self.add(Visitor {
            channel: from,
            last: message,
            heard: now,
            standing: Standing::OnTrial { until: now + TRIAL },
        });
    }

    /// Takes somebody as another agent at once and gives it a uid.
    pub(super) fn rename(&mut self, from: Channel, message: Option<Numbered>, now: Instant) -> InstanceUid {
        let to = InstanceUid::generate();
        self.add(Visitor { channel: from, last: message, heard: now, standing: Standing::Renamed { to } });
        to
    }

    fn add(&mut self, visitor: Visitor) {
        if self.0.len() == VISITORS_LIMIT {
            self.0.remove(0);
        }
        self.0.push(visitor);
    }

    /// All on trial are other agents; each gets a uid.
    pub(super) fn convict(&mut self) -> Vec<(Channel, InstanceUid)> {
        let mut convicted = Vec::new();
        for visitor in self.0.iter_mut().filter(|visitor| visitor.is_on_trial()) {
            let to = InstanceUid::generate();
            visitor.standing = Standing::Renamed { to };
            convicted.push((visitor.channel, to));
        }
        convicted
    }

    /// The newest on trial is the agent itself, a WebSocket before HTTP. The others stay on trial against it.
    pub(super) fn acquit(&mut self, now: Instant) -> Option<Visitor> {
        let newest = |is_wanted: fn(&Visitor) -> bool| {
            let candidates =
                self.0.iter().enumerate().filter(|(_, visitor)| visitor.is_on_trial() && is_wanted(visitor));
            candidates.max_by_key(|(index, visitor)| (visitor.heard, *index)).map(|(index, _)| index)
        };
        let index = newest(|visitor| visitor.channel != Channel::Http).or_else(|| newest(|_| true))?;
        let acquitted = self.0.remove(index);
        for visitor in &mut self.0 {
            if let Standing::OnTrial { until } = &mut visitor.standing {
                *until = now + TRIAL;
            }
        }
        Some(acquitted)
    }

    /// Whether somebody is still on trial.
    pub(super) fn on_trial(&self) -> bool {
        self.0.iter().any(Visitor::is_on_trial)
    }

    /// Whether none was heard for so long that it would not be recognised.
    pub(super) fn are_gone(&self, now: Instant) -> bool {
        self.0.iter().all(|visitor| visitor.is_forgotten(now))
    }

    /// When the older socket counts as dead.
    pub(super) fn verdict_at(&self) -> Option<Instant> {
        let ends = self.0.iter().filter_map(|visitor| match visitor.standing {
            Standing::OnTrial { until } => Some(until),
            Standing::Renamed { .. } => None,
        });
        ends.min()
    }

    /// Whoever spoke through this channel has left.
    pub(super) fn forget_channel(&mut self, channel: Channel) {
        self.0.retain(|visitor| visitor.channel != channel);
    }

    /// The agent itself may come over HTTP from now on, where only the numbers tell it from those that were renamed.
    pub(super) fn forget_polling(&mut self) {
        self.0.retain(|visitor| visitor.channel != Channel::Http || visitor.is_on_trial());
    }

    /// The uid is in use: nobody has to be told again.
    pub(super) fn forget_uid(&mut self, uid: InstanceUid) -> Option<Channel> {
        let place = self.0.iter().position(|visitor| visitor.standing == Standing::Renamed { to: uid })?;
        Some(self.0.remove(place).channel)
    }

    /// Whether any of them speaks through this channel.
    pub(super) fn have(&self, channel: Channel) -> bool {
        self.0.iter().any(|visitor| visitor.channel == channel)
    }
}

impl Visitor {
    fn is_on_trial(&self) -> bool {
        matches!(self.standing, Standing::OnTrial { .. })
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) >= GRACE
    }

    fn may_have_sent(&self, message: Option<Numbered>) -> bool {
        match (self.channel, self.standing, self.last, message) {
            (Channel::WebSocket(_), _, _, _) | (Channel::Http, Standing::OnTrial { .. }, _, _) => true,
            (Channel::Http, Standing::Renamed { .. }, Some(last), Some(next)) => next == last || next.follows(last),
            (Channel::Http, Standing::Renamed { .. }, last, next) => last.is_none() && next.is_none(),
        }
    }
}

/// The socket behind a channel, where there is one to be pinged or released.
pub(super) fn socket(channel: Channel) -> Option<ConnectionId> {
    match channel {
        Channel::WebSocket(connection) => Some(connection),
        Channel::Http => None,
    }
}
