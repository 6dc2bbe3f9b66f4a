//! Agents whose objects were deleted before what revokes them was done.
//!
//! A finalizer holds the object of a revoked agent until its certificates are in the list, but it takes a moment to be
//! there. Whoever revokes an agent and deletes its object in one breath is faster; then this is all that is left of what
//! they said.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::index::Change;
use crate::{api::agent::Access, opamp::InstanceUid};

/// A leader that works needs a second, one that is yet to be found half a minute. Until then whatever Secrets are left of
/// the agent are kept as well.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Agents that were revoked when their objects vanished, by namespace, and since when that is known.
#[derive(Debug, Default)]
pub(super) struct Vanished(BTreeMap<(Arc<str>, InstanceUid), Instant>);

impl Vanished {
    /// Follows a change of an Agent object. Only people delete what is revoked, so that there are never many.
    pub(super) fn note(&mut self, change: &Change, now: Instant) {
        self.0.retain(|_, since| is_remembered(*since, now));
        if let Change { uid, before: Some(before), after: None } = change
            && before.access == Some(Access::Revoked)
        {
            self.0.insert((Arc::clone(&before.namespace), *uid), now);
        }
    }

    /// All of them.
    pub(super) fn all(&self, now: Instant) -> Vec<(Arc<str>, InstanceUid)> {
        self.0.iter().filter(|(_, since)| is_remembered(**since, now)).map(|(key, _)| key.clone()).collect()
    }
}

fn is_remembered(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < REMEMBERED
}

#[cfg(test)]
mod tests {
    use super::{
        super::summary::{AgentSummary, of_status},
        *,
    };

    fn summary(access: Option<Access>) -> Arc<AgentSummary> {
        let uid = InstanceUid::from_name("01900000-0000-7000-8000-000000000001").expect("a uid");
        let found = of_status(uid, "telemetry", &crate::api::agent::AgentStatus::default()).expect("a summary");
        Arc::new(AgentSummary { access, ..found })
    }

    #[test]
    fn only_who_was_revoked_is_remembered_and_only_for_a_while() {
        let start = Instant::now();
        let revoked = || Some(summary(Some(Access::Revoked)));
        for (case, before, after, seconds, expected) in [
            ("revoked and deleted", revoked(), None, 0, 1),
            ("ten minutes later", revoked(), None, 600, 0),
            ("revoked and still there", revoked(), revoked(), 0, 0),
            ("denied and deleted", Some(summary(Some(Access::Denied))), None, 0, 0),
            ("deleted", Some(summary(None)), None, 0, 0),
            ("new", None, revoked(), 0, 0),
        ] {
            let mut vanished = Vanished::default();
            let uid = summary(None).uid;
            vanished.note(&Change { uid, before, after }, start);
            assert_eq!(vanished.all(start + Duration::from_secs(seconds)).len(), expected, "{case}");
        }
    }
}
