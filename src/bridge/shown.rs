//! What is shown of an assignment, and how urgent a change of that is.

use std::sync::Arc;

use crate::{
    catalog::{Assignment, ConfigHash, FleetEntry, Outcome, RevisionHash, UnmatchedReason},
    status::{
        queue::Urgency,
        view::{AssignmentView, FleetView, GivenView, RevisionView, UnmatchedBecause},
    },
};

/// What is shown of an assignment. Ten thousand of these are held, so it shares what it can.
#[derive(Clone, Debug)]
pub(super) enum Shown {
    /// No fleet takes the agent.
    Unmatched(UnmatchedBecause),
    /// This one does.
    Member { fleet: Arc<FleetEntry>, given: Given },
}

/// What a fleet gives its member.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Given {
    Nothing,
    Offer { revision: RevisionHash, epoch: i64, remote_config: Option<ConfigHash> },
    TemplateFailed { revision: RevisionHash, epoch: i64, message: Box<str> },
}

impl Shown {
    pub(super) fn of(assignment: &Assignment) -> Self {
        match assignment {
            Assignment::Unmatched(UnmatchedReason::DescriptionMissing) => {
                Self::Unmatched(UnmatchedBecause::DescriptionMissing)
            }
            Assignment::Unmatched(UnmatchedReason::NoFleetSelects | UnmatchedReason::NotAdmitted) => {
                Self::Unmatched(UnmatchedBecause::NoFleetSelects)
            }
            Assignment::Matched(fleet, outcome) => Self::Member { fleet: Arc::clone(fleet), given: Given::of(outcome) },
        }
    }

    /// The namespace of the fleet, where the object belongs.
    pub(super) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Unmatched(_) => None,
            Self::Member { fleet, .. } => Some(&fleet.namespace),
        }
    }

    /// Whether a status would say the same of both.
    pub(super) fn says_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unmatched(one), Self::Unmatched(other)) => one == other,
            (Self::Member { fleet: one, given }, Self::Member { fleet: other, given: others }) => {
                given == others && (Arc::ptr_eq(one, other) || is_same_fleet(one, other))
            }
            (Self::Unmatched(_), Self::Member { .. }) | (Self::Member { .. }, Self::Unmatched(_)) => false,
        }
    }

    /// How urgent it is to show this after that. A change of the revision alone is the least urgent: the agent gets
    /// nothing new by it.
    pub(super) fn urgency_after(&self, former: Option<&Self>) -> Urgency {
        match self {
            Self::Member { given: Given::TemplateFailed { .. }, .. } => Urgency::Failure,
            Self::Member { given: Given::Nothing | Given::Offer { .. }, .. } | Self::Unmatched(_) => {
                let stays = former.and_then(Self::namespace) == self.namespace();
                let gives_as_before = former.and_then(Self::offer) == self.offer();
                if stays && gives_as_before { Urgency::Rest } else { Urgency::Configuration }
            }
        }
    }

    /// What the agent is to have, if that is known; it may be nothing.
    fn offer(&self) -> Option<&Option<ConfigHash>> {
        match self {
            Self::Member { given: Given::Offer { remote_config, .. }, .. } => Some(remote_config),
            Self::Member { given: Given::Nothing | Given::TemplateFailed { .. }, .. } | Self::Unmatched(_) => None,
        }
    }

    /// As long as nothing is offered.
    pub(super) fn view_without_offer(&self) -> AssignmentView {
        match self {
            Self::Unmatched(_) => self.view(),
            Self::Member { fleet, .. } => Self::Member { fleet: Arc::clone(fleet), given: Given::Nothing }.view(),
        }
    }

    pub(super) fn view(&self) -> AssignmentView {
        match self {
            Self::Unmatched(because) => AssignmentView::Unmatched(*because),
            Self::Member { fleet, given } => AssignmentView::Matched(FleetView {
                name: fleet.name.clone(),
                uid: fleet.uid.clone(),
                given: given.view(),
            }),
        }
    }
}

impl Given {
    fn of(outcome: &Outcome) -> Self {
        match outcome {
            // What is withheld is the fleet's fault, and its conditions tell it.
            Outcome::NoRevision | Outcome::NotLoaded | Outcome::Withheld { .. } => Self::Nothing,
            Outcome::Given { revision, epoch, offer, connection: _ } => Self::Offer {
                revision: *revision,
                epoch: *epoch,
                remote_config: offer.remote_config.as_ref().map(|config| config.hash),
            },
            Outcome::TemplateFailed { revision, epoch, message, connection: _ } => {
                Self::TemplateFailed { revision: *revision, epoch: *epoch, message: message.as_str().into() }
            }
        }
    }

    fn view(&self) -> GivenView {
        let revision = |hash: &RevisionHash, epoch: &i64| RevisionView { hash: hash.short(), epoch: *epoch };
        match self {
            Self::Nothing => GivenView::NoRevision,
            Self::Offer { revision: hash, epoch, remote_config } => {
                GivenView::Offer { revision: revision(hash, epoch), remote_config: *remote_config }
            }
            Self::TemplateFailed { revision: hash, epoch, message } => {
                GivenView::TemplateFailed { revision: revision(hash, epoch), message: message.to_string() }
            }
        }
    }
}

fn is_same_fleet(one: &FleetEntry, other: &FleetEntry) -> bool {
    (&one.uid, &one.name, &one.namespace) == (&other.uid, &other.name, &other.namespace)
        // It decides what is told of what the agent runs.
        && one.effective_config == other.effective_config
}
