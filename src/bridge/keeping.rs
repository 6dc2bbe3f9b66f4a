//! What has become of the text of the configuration that one agent runs, and when it is wanted again.
//!
//! The text itself is never held: it is handed on when the agent reports it, and asked for anew where that was in vain.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    api::{agent::NotStored, agent_fleet::EffectiveConfigDetail},
    catalog::FleetEntry,
    effective_configs::{Handed, News},
    kubernetes::ObjectKey,
    opamp::record::EffectiveConfigSummary,
    status::view::{EffectiveConfigView, TextView},
};

/// How soon an agent is asked again that has not reported its text anew: it may not be able to.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(900);
/// Texts of one agent that are redacted at once, and how soon another may follow. A good agent reports one when it comes
/// and one for each change; a bad one must not keep a processor busy.
const MOST_AT_ONCE: u32 = 5;
const ONE_MORE_AFTER: Duration = Duration::from_secs(10);

/// The text of one agent.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    handed: Option<Box<HandedIn>>,
    asked: Option<Instant>,
    /// Up to when the texts that were taken use up what may be taken.
    used_up_to: Option<Instant>,
}

/// A text that was handed in.
#[derive(Debug)]
struct HandedIn {
    fleet_uid: String,
    namespace: String,
    /// The hash of the configuration as reported.
    reported: [u8; 32],
    /// Where it is kept, or would be.
    secret: Option<Arc<str>>,
    fate: Fate,
}

/// What has become of a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    Waits,
    Kept,
    Not(NotStored),
}

impl Keeping {
    /// Whether a text that was reported just now is to be handed in; counts as handed in then.
    pub(super) fn takes(&mut self, fleet: &FleetEntry, reported: &EffectiveConfigSummary, now: Instant) -> bool {
        if let Some(handed) = self.of(fleet, reported) {
            match handed.fate {
                Fate::Kept | Fate::Waits | Fate::Not(NotStored::TooLarge | NotStored::NotText) => return false,
                Fate::Not(NotStored::TooMany | NotStored::Refused) => {}
            }
        }
        self.handed = None;
        let used = self.used_up_to.map_or(now, |used| used.max(now));
        if used.saturating_duration_since(now) > ONE_MORE_AFTER * (MOST_AT_ONCE - 1) {
            return false;
        }
        self.used_up_to = Some(used + ONE_MORE_AFTER);
        true
    }

    /// The text was handed in.
    pub(super) fn handed(&mut self, fleet: &FleetEntry, reported: &EffectiveConfigSummary, handed: Handed) {
        self.asked = None;
        let (secret, fate) = match handed {
            Handed::Kept(secret) => (Some(secret), Fate::Kept),
            Handed::Waits(secret) => (Some(secret), Fate::Waits),
            Handed::Not(reason) => (None, Fate::Not(reason)),
        };
        self.handed = Some(Box::new(HandedIn {
            fleet_uid: fleet.uid.clone(),
            namespace: fleet.namespace.clone(),
            reported: reported.hash,
            secret,
            fate,
        }));
    }

    /// A text has come to this. Whether it is the one that was handed in last.
    pub(super) fn concluded(&mut self, news: &News) -> bool {
        let latest = self.handed.as_mut().filter(|handed| handed.secret.as_ref() == Some(&news.secret));
        let Some(handed) = latest else { return false };
        handed.fate = news.not_stored.map_or(Fate::Kept, Fate::Not);
        true
    }

    /// It is to be handed in again, as soon as possible.
    pub(super) fn forget(&mut self) {
        self.handed = None;
        self.asked = None;
    }

    /// These Secrets are gone. Whether the text was in one of them.
    pub(super) fn lost(&mut self, secrets: &BTreeSet<ObjectKey>) -> bool {
        let is_lost = self.handed.as_ref().is_some_and(|handed| {
            let is_in = |secret: &Arc<str>| secrets.contains(&ObjectKey::new(&handed.namespace, &**secret));
            handed.fate == Fate::Kept && handed.secret.as_ref().is_some_and(is_in)
        });
        if is_lost {
            self.handed = None;
        }
        is_lost
    }

    /// Whether the agent is to be asked for its text, as far as it has reported one; counts as asked then.
    pub(super) fn asks(
        &mut self,
        fleet: Option<&FleetEntry>,
        reported: Option<&EffectiveConfigSummary>,
        now: Instant,
    ) -> bool {
        let Some((fleet, reported)) = fleet.filter(|fleet| keeps_texts(fleet)).zip(reported) else { return false };
        let was_asked = self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < ASKED_AGAIN_AFTER);
        if was_asked || self.of(fleet, reported).is_some() {
            return false;
        }
        self.asked = Some(now);
        true
    }

    /// Where the text is kept, or is going to be.
    #[cfg(test)]
    pub(super) fn secret(&self) -> Option<Arc<str>> {
        self.handed.as_ref()?.secret.clone()
    }

    /// What is shown of it.
    pub(super) fn view(
        &self,
        fleet: Option<&FleetEntry>,
        reported: Option<&EffectiveConfigSummary>,
    ) -> EffectiveConfigView {
        match fleet.map(|fleet| fleet.effective_config) {
            Some(EffectiveConfigDetail::None) => EffectiveConfigView::None,
            Some(EffectiveConfigDetail::Hash) | None => EffectiveConfigView::Hash,
            Some(EffectiveConfigDetail::Stored) => {
                let handed = fleet.zip(reported).and_then(|(fleet, reported)| self.of(fleet, reported));
                let text = handed.map(|handed| (handed.fate, &handed.secret));
                EffectiveConfigView::Stored(match text {
                    Some((Fate::Kept, Some(secret))) => TextView::Kept { secret: Arc::clone(secret) },
                    Some((Fate::Not(reason), _)) => TextView::Not(reason),
                    Some((Fate::Kept, None) | (Fate::Waits, _)) | None => TextView::Unknown,
                })
            }
        }
    }

    /// What was handed in, if it is this configuration of a member of this fleet.
    fn of(&self, fleet: &FleetEntry, reported: &EffectiveConfigSummary) -> Option<&HandedIn> {
        self.handed.as_deref().filter(|handed| handed.fleet_uid == fleet.uid && handed.reported == reported.hash)
    }
}

/// Whether texts of members are kept. Not before the Secrets are known that may be in them.
pub(super) fn keeps_texts(fleet: &FleetEntry) -> bool {
    fleet.effective_config == EffectiveConfigDetail::Stored && fleet.knows_its_secrets()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{api::agent_fleet::AgentFleet, catalog::fleet::Offering, opamp::InstanceUid};

    fn fleet(detail: &str, uid: &str, offering: Offering) -> FleetEntry {
        let spec = json!({"selector": {}, "effectiveConfig": detail});
        let mut fleet = AgentFleet::new("edge", serde_json::from_value(spec).expect("a spec"));
        (fleet.metadata.namespace, fleet.metadata.uid) = (Some("telemetry".into()), Some(uid.into()));
        FleetEntry::new(&fleet, offering).expect("a fleet")
    }

    fn keeping_fleet() -> FleetEntry {
        fleet("Stored", "uid", Offering::NoRevision)
    }

    fn reported(hash: u8) -> EffectiveConfigSummary {
        EffectiveConfigSummary { hash: [hash; 32], size: 5 }
    }

    const SECRET: &str = "opamp-effective-1";

    fn kept() -> Handed {
        Handed::Kept(SECRET.into())
    }

    fn waits() -> Handed {
        Handed::Waits(SECRET.into())
    }

    fn news(secret: &str, not_stored: Option<NotStored>) -> News {
        News { agent: InstanceUid::generate(), secret: secret.into(), not_stored }
    }

    #[test]
    fn what_is_kept_is_shown_for_the_same_configuration_of_the_same_fleet_only() {
        let unknown = EffectiveConfigView::Stored(TextView::Unknown);
        let shown = EffectiveConfigView::Stored(TextView::Kept { secret: "opamp-effective-1".into() });
        let mut keeping = Keeping::default();
        let (fleet_here, config) = (keeping_fleet(), reported(1));
        assert_eq!(keeping.view(Some(&fleet_here), Some(&config)), unknown);
        assert!(keeping.takes(&fleet_here, &config, Instant::now()));
        keeping.handed(&fleet_here, &config, waits());
        assert_eq!(keeping.view(Some(&fleet_here), Some(&config)), unknown);
        assert!(!keeping.concluded(&news("opamp-effective-2", None)), "of a former text");
        assert_eq!(keeping.view(Some(&fleet_here), Some(&config)), unknown);
        assert!(keeping.concluded(&news(SECRET, None)));
        let other = fleet("Stored", "other", Offering::NoRevision);
        let (hash, none) = (fleet("Hash", "uid", Offering::NoRevision), fleet("None", "uid", Offering::NoRevision));
        for (case, fleet, reported, expected) in [
            ("the same", Some(&fleet_here), Some(config), shown),
            ("another configuration", Some(&fleet_here), Some(reported(2)), unknown.clone()),
            ("none reported to this process", Some(&fleet_here), None, unknown.clone()),
            ("another fleet", Some(&other), Some(reported(1)), unknown),
            ("its hash alone is wanted", Some(&hash), Some(reported(1)), EffectiveConfigView::Hash),
            ("nothing is wanted", Some(&none), Some(reported(1)), EffectiveConfigView::None),
            ("no fleet", None, Some(reported(1)), EffectiveConfigView::Hash),
        ] {
            assert_eq!(keeping.view(fleet, reported.as_ref()), expected, "{case}");
        }
        assert!(keeping.concluded(&news(SECRET, Some(NotStored::Refused))));
        let not = EffectiveConfigView::Stored(TextView::Not(NotStored::Refused));
        assert_eq!(keeping.view(Some(&fleet_here), Some(&reported(1))), not);
        assert!(keeping.concluded(&news(SECRET, None)), "a refusal may end");
    }

    #[test]
    fn the_same_text_is_handed_in_again_only_where_that_may_help() {
        let now = Instant::now();
        for (fate, expected) in [
            (kept(), false),
            (waits(), false),
            (Handed::Not(NotStored::TooLarge), false),
            (Handed::Not(NotStored::NotText), false),
            (Handed::Not(NotStored::TooMany), true),
            (Handed::Not(NotStored::Refused), true),
        ] {
            let mut keeping = Keeping::default();
            keeping.handed(&keeping_fleet(), &reported(1), fate.clone());
            assert_eq!(keeping.takes(&keeping_fleet(), &reported(1), now), expected, "{fate:?}");
            let mut keeping = Keeping::default();
            keeping.handed(&keeping_fleet(), &reported(1), fate);
            assert!(keeping.takes(&keeping_fleet(), &reported(2), now), "another text");
        }
    }

    #[test]
    fn an_agent_that_reports_one_text_after_the_other_is_slowed_down() {
        let start = Instant::now();
        let mut keeping = Keeping::default();
        let mut taken = Vec::new();
        for second in 0..40_u8 {
            let now = start + Duration::from_secs(second.into());
            if keeping.takes(&keeping_fleet(), &reported(second), now) {
                keeping.handed(&keeping_fleet(), &reported(second), kept());
                taken.push(second);
            }
        }
        assert_eq!(taken, [0, 1, 2, 3, 4, 10, 20, 30]);
        let later = start + Duration::from_secs(40);
        assert!(keeping.asks(Some(&keeping_fleet()), Some(&reported(39)), later), "the last of them is asked for");
    }

    #[test]
    fn an_agent_is_asked_once_where_its_text_is_wanted_and_not_known() {
        let start = Instant::now();
        let stored = keeping_fleet();
        let unread = fleet("Stored", "uid", Offering::NotLoaded);
        let hash = fleet("Hash", "uid", Offering::NoRevision);
        for (case, fleet, reported, expected) in [
            ("wanted", Some(&stored), Some(reported(1)), true),
            ("it has reported none", Some(&stored), None, false),
            ("its hash alone is wanted", Some(&hash), Some(reported(1)), false),
            ("the fleet's Secrets are not known", Some(&unread), Some(reported(1)), false),
            ("no fleet", None, Some(reported(1)), false),
        ] {
            let mut keeping = Keeping::default();
            assert_eq!(keeping.asks(fleet, reported.as_ref(), start), expected, "{case}");
            assert!(!keeping.asks(fleet, reported.as_ref(), start + Duration::from_secs(899)), "{case}, again");
            let again = keeping.asks(fleet, reported.as_ref(), start + Duration::from_secs(900));
            assert_eq!(again, expected, "{case}, patience is over");
        }
        let mut keeping = Keeping::default();
        keeping.handed(&stored, &reported(1), Handed::Not(NotStored::TooMany));
        assert!(!keeping.asks(Some(&stored), Some(&reported(1)), start), "it has handed it in");
        keeping.forget();
        assert!(keeping.asks(Some(&stored), Some(&reported(1)), start), "it is invited");
    }

    #[test]
    fn a_text_is_lost_with_its_secret() {
        let secret = |namespace: &str, name: &str| BTreeSet::from([ObjectKey::new(namespace, name)]);
        let mut keeping = Keeping::default();
        assert!(!keeping.lost(&secret("telemetry", "opamp-effective-1")));
        keeping.handed(&keeping_fleet(), &reported(1), kept());
        assert!(!keeping.lost(&secret("telemetry", "opamp-effective-2")));
        assert!(!keeping.lost(&secret("elsewhere", "opamp-effective-1")));
        assert!(keeping.lost(&secret("telemetry", "opamp-effective-1")));
        assert!(keeping.asks(Some(&keeping_fleet()), Some(&reported(1)), Instant::now()));
    }
}
