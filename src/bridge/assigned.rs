//! Which fleet takes one agent, what that gives it, and from when on that is shown.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{settings::Wanted, shown::Shown};
use crate::{
    agents::summary::RevisionSummary,
    catalog::{Assignment, Catalog, FleetEntry, Outcome, Subject, UnmatchedReason},
    opamp::offer::Offer,
    status::queue::Urgency,
};

/// How long a state that is about to change by itself is not shown: an agent that has not described itself yet, a fleet
/// whose first revision is being made, a replica that is behind the others.
pub(super) const SETTLING: Duration = Duration::from_secs(10);

/// So many states of fleets are remembered that an agent may still quote; more follow each other only in minutes.
const FORMERS_LIMIT: usize = 4;

/// The assignment of one agent.
#[derive(Debug)]
pub(super) struct Assigned {
    assignment: Assignment,
    /// The catalog's generation that it was made of; `None`: it is to be made anew.
    generation: Option<u64>,
    shown: Option<Shown>,
    /// Since when something is not shown because it is about to change.
    unsettled: Option<Instant>,
    /// The epoch that the catalog was given time to reach, and did not.
    given_up: i64,
    /// Fleets with Secrets as they were before they gave something else: an agent may still complain of that.
    formers: Vec<Arc<FleetEntry>>,
}

/// What a look at the assignment has brought.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    /// The status has to be written for it.
    pub(super) urgency: Option<Urgency>,
    /// This fleet has been seen in a later state elsewhere: it has to be read anew.
    pub(super) outdated: Option<Arc<FleetEntry>>,
}

impl Default for Assigned {
    fn default() -> Self {
        Self {
            assignment: Assignment::Unmatched(UnmatchedReason::DescriptionMissing),
            generation: None,
            shown: None,
            unsettled: None,
            given_up: 0,
            formers: Vec::new(),
        }
    }
}

impl Assigned {
    /// It must be made anew: the agent is another, or lives elsewhere.
    pub(super) fn anew(&mut self) {
        self.generation = None;
    }

    /// The agent has gone, and its status is another's. No fleet is kept in memory for it but for what it may quote when
    /// it returns.
    pub(super) fn forget(&mut self) {
        if let Assignment::Matched(fleet, _) = &self.assignment {
            self.keep_former(&Arc::clone(fleet));
        }
        *self = Self { given_up: self.given_up, formers: std::mem::take(&mut self.formers), ..Self::default() };
    }

    /// Looks up which fleet takes the agent, if that may have changed, and takes it over into what is shown once it has
    /// had its time to change by itself. `seen` is the revision that the agent was given last, as its object says. The
    /// snapshots of the catalog are never gone back in.
    pub(super) fn look(
        &mut self,
        catalog: &Catalog,
        subject: &Subject<'_>,
        seen: Option<&RevisionSummary>,
        now: Instant,
    ) -> News {
        if self.generation.is_some_and(|generation| generation >= catalog.generation()) {
            if self.unsettled.is_none() {
                return News::default();
            }
        } else {
            let next = catalog.assign(subject);
            if let Assignment::Matched(former, _) = &self.assignment
                && !matches!(&next, Assignment::Matched(next, _) if former.gives_as(next))
            {
                self.keep_former(&Arc::clone(former));
            }
            self.assignment = next;
            self.generation = Some(catalog.generation());
        }
        self.settle(seen, now)
    }

    fn keep_former(&mut self, former: &Arc<FleetEntry>) {
        if former.has_secrets() {
            self.formers.retain(|kept| !kept.gives_as(former));
            self.formers.truncate(FORMERS_LIMIT - 1);
            self.formers.insert(0, Arc::clone(former));
        }
    }

    /// Takes the assignment over into what is shown, at once or when it has had its time.
    fn settle(&mut self, seen: Option<&RevisionSummary>, now: Instant) -> News {
        let next = Shown::of(&self.assignment);
        let is_shown = self.shown.as_ref().is_some_and(|shown| shown.says_as(&next));
        let lag = seen.filter(|seen| self.is_behind(seen));
        if lag.is_some() || !is_shown && self.is_in_motion() {
            let outdated = self.fleet().filter(|_| lag.is_some() && self.unsettled.is_none()).cloned();
            let since = *self.unsettled.get_or_insert(now);
            if now.saturating_duration_since(since) < SETTLING {
                return News { urgency: None, outdated };
            }
        }
        if let Some(seen) = lag {
            self.given_up = seen.epoch;
        }
        self.unsettled = None;
        let urgency = (!is_shown).then(|| next.urgency_after(self.shown.as_ref()));
        // Also if both say the same: no former state of a fleet is kept in memory for it.
        self.shown = Some(next);
        News { urgency, outdated: None }
    }

    /// Whether it is about to change by itself.
    fn is_in_motion(&self) -> bool {
        match &self.assignment {
            Assignment::Unmatched(UnmatchedReason::DescriptionMissing) | Assignment::Matched(_, Outcome::NotLoaded) => {
                true
            }
            Assignment::Matched(_, Outcome::NoRevision) => self.shown.is_some(),
            Assignment::Unmatched(UnmatchedReason::NoFleetSelects | UnmatchedReason::NotAdmitted)
            | Assignment::Matched(
                _,
                Outcome::Given { .. } | Outcome::TemplateFailed { .. } | Outcome::Withheld { .. },
            ) => false,
        }
    }

    /// Whether another replica has given the agent something of this fleet that this one does not know yet.
    pub(super) fn is_behind(&self, seen: &RevisionSummary) -> bool {
        let Assignment::Matched(fleet, outcome) = &self.assignment else { return false };
        match outcome {
            Outcome::Given { epoch, .. } | Outcome::TemplateFailed { epoch, .. } | Outcome::Withheld { epoch, .. } => {
                *fleet.uid == *seen.fleet_uid && *epoch < seen.epoch && self.given_up < seen.epoch
            }
            Outcome::NoRevision | Outcome::NotLoaded => false,
        }
    }

    /// What the agent is to have now. Nothing while it may be older than what it has.
    pub(super) fn offer(&self, seen: Option<&RevisionSummary>) -> Offer {
        match &self.assignment {
            Assignment::Matched(_, Outcome::Given { offer, .. }) if !seen.is_some_and(|seen| self.is_behind(seen)) => {
                offer.clone()
            }
            Assignment::Matched(..) | Assignment::Unmatched(_) => Offer::default(),
        }
    }

    /// What its fleet says of how it is to connect, also where the revision gives it nothing else.
    pub(super) fn wanted(&self, seen: Option<&RevisionSummary>) -> Wanted<'_> {
        let Assignment::Matched(fleet, outcome) = &self.assignment else { return Wanted::Unsettled };
        if seen.is_some_and(|seen| self.is_behind(seen)) {
            return Wanted::Unsettled;
        }
        match outcome {
            Outcome::NoRevision | Outcome::NotLoaded => Wanted::Unsettled,
            Outcome::Given { connection, .. }
            | Outcome::TemplateFailed { connection, .. }
            | Outcome::Withheld { connection, .. } => match connection {
                Some(connection) => Wanted::Settings { fleet, connection },
                None => Wanted::Nothing,
            },
        }
    }

    /// The fleet that takes the agent.
    pub(super) fn fleet(&self) -> Option<&Arc<FleetEntry>> {
        match &self.assignment {
            Assignment::Matched(fleet, _) => Some(fleet),
            Assignment::Unmatched(_) => None,
        }
    }

    /// Whether no fleet admits whoever speaks for the agent.
    pub(super) fn is_not_admitted(&self) -> bool {
        matches!(self.assignment, Assignment::Unmatched(UnmatchedReason::NotAdmitted)) && self.generation.is_some()
    }

    /// What is shown; `None`: nothing can be said yet.
    pub(super) fn shown(&self) -> Option<&Shown> {
        self.shown.as_ref()
    }

    /// When it is to be looked at again unless something happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.unsettled.and_then(|since| since.checked_add(SETTLING))
    }

    /// The fleets whose Secrets the agent may quote: its own as it is and as it was. As long as it is not known to which
    /// it belongs it may be any, because it may have been a member before this process began.
    pub(super) fn quotable<'a>(&'a self, catalog: &'a Catalog) -> Vec<&'a FleetEntry> {
        let own = self.fleet();
        let others = catalog.fleets().filter(|_| own.is_none());
        let all = own.into_iter().chain(&self.formers).chain(others);
        all.map(AsRef::as_ref).filter(|fleet| fleet.has_secrets()).collect()
    }

    /// The agent runs what it is given now, and no longer quotes what it had before.
    pub(super) fn forget_formers(&mut self) {
        self.formers = Vec::new();
    }

    /// Whether it may quote what it was given before.
    pub(super) fn has_formers(&self) -> bool {
        !self.formers.is_empty()
    }
}
