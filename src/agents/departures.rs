//! Agents whose objects were deleted while they were revoked. What they had been given is still to be taken back: somebody
//! may revoke an agent and delete its object before a leader has seen the one or the other.

use std::{collections::VecDeque, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::index::Change;
use crate::{api::agent::Access, opamp::InstanceUid};

/// How long it is remembered. A leader takes back within seconds; there may be none for a while.
const REMEMBERED: SignedDuration = SignedDuration::from_mins(10);
/// Most that are remembered; then the earliest is forgotten.
const MOST: usize = 10_000;

/// An agent that was revoked when its object vanished.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Departure {
    /// The namespace of the object.
    pub namespace: Arc<str>,
    /// The agent.
    pub uid: InstanceUid,
    /// When that was seen.
    pub at: Timestamp,
}

/// Those that are remembered, the earliest first.
#[derive(Debug, Default)]
pub(super) struct Departures(VecDeque<Departure>);

impl Departures {
    /// Follows changes of Agents.
    pub(super) fn follow(&mut self, changes: &[Change], now: Timestamp) {
        let gone = changes.iter().filter(|change| change.after.is_none()).filter_map(|change| change.before.as_ref());
        for agent in gone.filter(|agent| agent.access == Some(Access::Revoked)) {
            self.forget(now);
            if self.0.len() == MOST {
                self.0.pop_front();
            }
            self.0.push_back(Departure { namespace: Arc::clone(&agent.namespace), uid: agent.uid, at: now });
        }
    }

    /// All that are remembered at this moment.
    pub(super) fn remembered(&mut self, now: Timestamp) -> Vec<Departure> {
        self.forget(now);
        self.0.iter().cloned().collect()
    }

    fn forget(&mut self, now: Timestamp) {
        let is_old = |departure: &Departure| now.duration_since(departure.at) >= REMEMBERED;
        while self.0.front().is_some_and(is_old) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agents::summary::{AgentSummary, of_status},
        api::agent::AgentStatus,
    };

    fn agent(uid: InstanceUid, access: Option<Access>) -> Arc<AgentSummary> {
        let summary = of_status(uid, "telemetry", &AgentStatus::default()).expect("a summary");
        Arc::new(AgentSummary { access, ..summary })
    }

    #[test]
    fn only_who_was_revoked_is_remembered_and_not_for_ever() {
        let (now, uid) = (Timestamp::UNIX_EPOCH, InstanceUid::generate());
        let of = |access| Some(agent(uid, Some(access)));
        let change = |before, after| Change { uid, before, after };
        let mut departures = Departures::default();
        departures
            .follow(&[change(of(Access::Revoked), Some(agent(uid, None))), change(of(Access::Denied), None)], now);
        assert_eq!(departures.remembered(now), []);
        departures.follow(&[change(of(Access::Revoked), None)], now);
        let expected = Departure { namespace: "telemetry".into(), uid, at: now };
        for (seconds, expected) in [(0, vec![expected.clone()]), (599, vec![expected]), (600, vec![])] {
            assert_eq!(departures.remembered(now + SignedDuration::from_secs(seconds)), expected, "{seconds} s");
        }
    }

    #[test]
    fn there_is_room_for_so_many() {
        let (now, before) = (Timestamp::UNIX_EPOCH, Some(agent(InstanceUid::generate(), Some(Access::Revoked))));
        let mut departures = Departures::default();
        for _ in 0..=MOST {
            departures.follow(&[Change { uid: InstanceUid::generate(), before: before.clone(), after: None }], now);
        }
        assert_eq!(departures.remembered(now).len(), MOST);
    }
}
