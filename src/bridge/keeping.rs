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
    effective_configs::Handed,
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
    fate: Handed,
}

impl Keeping {
    /// Whether a text that was reported just now is to be handed in; counts as handed in then.
    pub(super) fn takes(&mut self, fleet: &FleetEntry, reported: &EffectiveConfigSummary, now: Instant) -> bool {
        if let Some(handed) = self.of(fleet, reported) {
            match handed.fate {
                Handed::Kept(_) | Handed::Waits | Handed::Not(NotStored::TooLarge | NotStored::NotText) => {
                    return false;
                }
                Handed::Not(NotStored::TooMany | NotStored::Refused) => {}
            }
        }
        self.handed = None;
        let used = self.used_up_to.map_or(now, |used| used.max(now));
        if used.saturating_duration_since(now) >= ONE_MORE_AFTER * MOST_AT_ONCE {
            return false;
        }
        self.used_up_to = Some(used + ONE_MORE_AFTER);
        true
    }

    /// The text was handed in.
    pub(super) fn handed(&mut self, fleet: &FleetEntry, reported: &EffectiveConfigSummary, fate: Handed) {
        self.asked = None;
        self.handed = Some(Box::new(HandedIn {
            fleet_uid: fleet.uid.clone(),
            namespace: fleet.namespace.clone(),
            reported: reported.hash,
            fate,
        }));
    }

    /// What was handed in last has come to this.
    pub(super) fn concluded(&mut self, fate: Handed) {
        if let Some(handed) = &mut self.handed {
            handed.fate = fate;
        }
    }

    /// It is to be handed in again, as soon as possible.
    pub(super) fn forget(&mut self) {
        self.handed = None;
        self.asked = None;
    }

    /// These Secrets are gone. Whether the text was in one of them.
    pub(super) fn lost(&mut self, secrets: &BTreeSet<ObjectKey>) -> bool {
        let is_lost = self.handed.as_ref().is_some_and(|handed| match &handed.fate {
            Handed::Kept(name) => secrets.contains(&ObjectKey::new(&handed.namespace, &**name)),
            Handed::Waits | Handed::Not(_) => false,
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
                EffectiveConfigView::Stored(match handed.map(|handed| &handed.fate) {
                    Some(Handed::Kept(secret)) => TextView::Kept { secret: Arc::clone(secret) },
                    Some(Handed::Not(reason)) => TextView::Not(*reason),
                    Some(Handed::Waits) | None => TextView::Unknown,
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
