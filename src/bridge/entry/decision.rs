//! What was decided about whoever speaks for an agent, as the audit lines tell it: each decision once.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Entry, Waiting};
use crate::{agents::summary::Acceptance, api::enrollment::Approval, authentication::audit::Outcome};

/// A decision that nobody has written down yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::bridge) struct Decision {
    pub(in crate::bridge) outcome: Outcome,
    pub(in crate::bridge) novelty: Novelty,
    /// How the fleet that takes the agent admits; `None`: none takes it.
    pub(in crate::bridge) approval: Option<Approval>,
}

/// What is new about a decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::bridge) enum Novelty {
    /// The agent has come, or somebody else speaks for it.
    Begins,
    /// A person has approved of it, or another fleet takes it.
    Changes,
}

/// The decision that was written down last; of most of it a digest, for there is one for each agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Noted {
    outcome: Outcome,
    /// Of the stretch of presence, and of whoever speaks in it.
    begun: u32,
    /// Of the fleet that took it last since then; zero: none did.
    fleet: u32,
}

impl Entry {
    /// What has been decided since this was asked last, if anything was. That no fleet takes the agent any more is no
    /// decision: it stays.
    pub(in crate::bridge) fn decision(&mut self) -> Option<Decision> {
        self.session.liveness().channel()?;
        let outcome = match (self.acceptance(), self.waiting) {
            (Acceptance::Denied | Acceptance::Revoked, _) | (_, Waiting::InVain) => return None,
            (Acceptance::Pending, Waiting::No | Waiting::Since(_)) => Outcome::Held,
            (Acceptance::Admitted, Waiting::No | Waiting::Since(_)) => Outcome::Granted,
        };
        let begun = digest(&(self.claim.stretch(), &self.principal()?.identity));
        let before = self.noted.filter(|noted| noted.begun == begun);
        let taken = self.fleet().map(|fleet| digest(&(&fleet.namespace, &fleet.name)));
        let fleet = taken.or_else(|| before.map(|noted| noted.fleet)).unwrap_or_default();
        let noted = Some(Noted { outcome, begun, fleet });
        let is_news = std::mem::replace(&mut self.noted, noted) != noted;
        is_news.then(|| Decision {
            outcome,
            novelty: if before.is_none() { Novelty::Begins } else { Novelty::Changes },
            approval: self.fleet().map(|fleet| fleet.enrollment.approval),
        })
    }
}

/// Half of it is enough: in four billion changes one is not told.
fn digest(of: &impl Hash) -> u32 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    (hasher.finish() >> 32) as u32
}
