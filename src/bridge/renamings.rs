//! Which new uids were given out, to whom: whoever speaks under the former one again is given the same again, and at its
//! first use whoever gave it out need not do so any more (AMB-13).

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::opamp::{
    InstanceUid,
    identity::Identity,
    session::{Channel, ConnectionId},
};

/// How long a new uid that was given out is remembered.
const GRACE: Duration = Duration::from_secs(600);

/// New uids, each with the uid under which its agent spoke before; no more than a limit, the latest win.
#[derive(Debug)]
pub(super) struct Renamings {
    formers: HashMap<InstanceUid, Former>,
    told: HashMap<Visitor, InstanceUid>,
    /// In the order in which they were given out; some may be in use already.
    given: VecDeque<(Instant, InstanceUid)>,
    limit: usize,
}

/// Under which uid an agent spoke before.
#[derive(Debug)]
struct Former {
    uid: InstanceUid,
    /// Who was told, if it may ask again.
    visitor: Option<Visitor>,
    usage: Usage,
}

/// Whether a new uid was used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Usage {
    Unused,
    Used,
}

/// Somebody who speaks under a uid that is another's.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Visitor {
    pub(super) uid: InstanceUid,
    pub(super) origin: Origin,
}

/// How it is known again.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) enum Origin {
    WebSocket(ConnectionId),
    /// Requests have nothing in common but who sends them, and from where.
    Http(Identity, IpAddr),
}

impl Renamings {
    pub(super) fn new(limit: usize) -> Self {
        Self { formers: HashMap::new(), told: HashMap::new(), given: VecDeque::new(), limit: limit.max(1) }
    }

    /// A new uid was given to whoever spoke under the former one, by the session of that.
    pub(super) fn note(&mut self, new_uid: InstanceUid, former: InstanceUid, channel: Channel, now: Instant) {
        let visitor = match channel {
            Channel::WebSocket(connection) => Some(Visitor { uid: former, origin: Origin::WebSocket(connection) }),
            // The session knows it again by its numbers.
            Channel::Http => None,
        };
        if let Some(visitor) = &visitor {
            self.told.insert(visitor.clone(), new_uid);
        }
        self.remember(new_uid, Former { uid: former, visitor, usage: Usage::Unused }, now);
    }

    /// The uid that a visitor was told to use, and does not use yet.
    pub(super) fn told(&self, visitor: &Visitor) -> Option<InstanceUid> {
        self.told.get(visitor).copied()
    }

    /// The uid that this visitor has to use, and whether it is told so for the first time.
    pub(super) fn tell(&mut self, visitor: &Visitor, now: Instant) -> (InstanceUid, Telling) {
        self.forget_old(now);
        if let Some(told) = self.told.get(visitor) {
            return (*told, Telling::Again);
        }
        let new_uid = InstanceUid::generate();
        self.told.insert(visitor.clone(), new_uid);
        let former = Former { uid: visitor.uid, visitor: Some(visitor.clone()), usage: Usage::Unused };
        self.remember(new_uid, former, now);
        (new_uid, Telling::First)
    }

    /// Under which uid the agent spoke that uses this one for the first time.
    pub(super) fn adopt(&mut self, new_uid: InstanceUid) -> Option<InstanceUid> {
        let former = self.formers.get_mut(&new_uid).filter(|former| former.usage == Usage::Unused)?;
        former.usage = Usage::Used;
        let (uid, visitor) = (former.uid, former.visitor.take());
        self.forget_told(visitor, new_uid);
        Some(uid)
    }

    /// Under which uid the agent spoke that was given this one.
    pub(super) fn former(&self, new_uid: InstanceUid) -> Option<InstanceUid> {
        self.formers.get(&new_uid).map(|former| former.uid)
    }

    fn remember(&mut self, new_uid: InstanceUid, former: Former, now: Instant) {
        self.forget_old(now);
        self.given.push_back((now, new_uid));
        self.formers.insert(new_uid, former);
        while self.given.len() > self.limit {
            self.forget_oldest();
        }
    }

    fn forget_old(&mut self, now: Instant) {
        while self.given.front().is_some_and(|(given, _)| now.saturating_duration_since(*given) >= GRACE) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, oldest)) = self.given.pop_front() else { return };
        let visitor = self.formers.remove(&oldest).and_then(|former| former.visitor);
        self.forget_told(visitor, oldest);
    }

    /// Unless it was told another one since.
    fn forget_told(&mut self, visitor: Option<Visitor>, new_uid: InstanceUid) {
        if let Some(visitor) = visitor.filter(|visitor| self.told.get(visitor) == Some(&new_uid)) {
            self.told.remove(&visitor);
        }
    }
}

/// Whether somebody is told its new uid for the first time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Telling {
    First,
    Again,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: u8) -> InstanceUid {
        InstanceUid::from_wire(&[number; 16]).expect("16 bytes")
    }

    #[test]
    fn a_new_uid_is_known_once_and_for_ten_minutes() {
        // AMB-13
        let start = Instant::now();
        let mut renamings = Renamings::new(10);
        renamings.note(uid(1), uid(100), Channel::Http, start);
        renamings.note(uid(2), uid(100), Channel::Http, start + Duration::from_secs(1));
        assert_eq!(renamings.adopt(uid(1)), Some(uid(100)));
        assert_eq!(renamings.adopt(uid(1)), None, "it is in use");
        assert_eq!(renamings.former(uid(1)), Some(uid(100)), "it is known all the same (CSR-11)");
        renamings.note(uid(3), uid(100), Channel::Http, start + GRACE);
        assert_eq!(renamings.former(uid(1)), None);
        assert_eq!(renamings.adopt(uid(2)), Some(uid(100)), "a second is left");
        renamings.note(uid(4), uid(100), Channel::Http, start + GRACE + GRACE);
        assert_eq!(renamings.adopt(uid(3)), None);
    }

    #[test]
    fn however_many_are_given_out_only_so_many_are_remembered() {
        let now = Instant::now();
        let mut renamings = Renamings::new(3);
        for number in 0..200 {
            renamings.note(uid(number), uid(250), Channel::Http, now);
            let visitor = Visitor { uid: uid(number), origin: Origin::WebSocket(ConnectionId::new(1)) };
            let _ = renamings.tell(&visitor, now);
            assert!(renamings.given.len() <= 3 && renamings.formers.len() <= 3 && renamings.told.len() <= 3);
        }
        assert_eq!(renamings.adopt(uid(197)), None);
        assert_eq!(renamings.adopt(uid(199)), Some(uid(250)));
    }

    #[test]
    fn whoever_asks_again_is_told_the_same_until_it_uses_it() {
        // AMB-13
        let start = Instant::now();
        let mut renamings = Renamings::new(10);
        let socket = |number| Visitor { uid: uid(100), origin: Origin::WebSocket(ConnectionId::new(number)) };
        let poll = |host| {
            let origin = Origin::Http(Identity::Anonymous, [10, 0, 0, host].into());
            Visitor { uid: uid(100), origin }
        };
        let (first, telling) = renamings.tell(&socket(1), start);
        assert_eq!(telling, Telling::First);
        assert_eq!(renamings.tell(&socket(1), start), (first, Telling::Again));
        let others = [socket(2), poll(1), poll(2)].map(|visitor| renamings.tell(&visitor, start));
        assert!(others.iter().all(|(uid, telling)| *uid != first && *telling == Telling::First));
        assert_eq!(renamings.tell(&poll(2), start), (others[2].0, Telling::Again));
        assert_eq!(renamings.adopt(first), Some(uid(100)));
        assert_ne!(renamings.tell(&socket(1), start).0, first, "it is another's now");
        assert_eq!(renamings.tell(&poll(2), start + GRACE).1, Telling::First);
        renamings.note(uid(9), uid(100), Channel::WebSocket(ConnectionId::new(3)), start + GRACE);
        assert_eq!(renamings.told(&socket(3)), Some(uid(9)), "whoever has told it");
        assert_eq!(renamings.tell(&socket(3), start + GRACE), (uid(9), Telling::Again));
    }
}
