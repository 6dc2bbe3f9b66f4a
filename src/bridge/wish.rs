//! A person's wish that what failed at an agent be offered once more: granted at most once.

use jiff::Timestamp;

use crate::agents::summary::AgentSummary;

/// How far the last wish is. It is written down before it is acted on, so that a replica that dies in between does not
/// grant it twice.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Wish {
    /// There was none.
    #[default]
    None,
    /// It is being written down.
    Granting(Timestamp),
    /// It was written down, and acted on by whoever wrote it.
    Granted(Timestamp),
}

/// What has to be done about it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Demand {
    Nothing,
    /// The status has to be written.
    Write,
    /// What failed has to be offered.
    Offer,
}

/// Who wrote what an object says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Author {
    ThisReplica,
    Another,
}

impl Wish {
    /// The wish that a status shows as granted.
    pub(super) fn granted(self) -> Option<Timestamp> {
        match self {
            Self::None => None,
            Self::Granting(at) | Self::Granted(at) => Some(at),
        }
    }

    /// What the watch shows. It may come before the answer to the write that it shows.
    pub(super) fn observe(&mut self, object: &AgentSummary, author: Author) -> Demand {
        let granted = object.reoffer_granted.map(whole_seconds);
        let mut demand = Demand::Nothing;
        if let Some(granted) = granted.filter(|granted| self.granted().is_none_or(|known| known <= *granted)) {
            if matches!(self, Self::Granting(_)) && author == Author::ThisReplica {
                demand = Demand::Offer;
            }
            *self = Self::Granted(granted);
        }
        let requested = object.reoffer_requested.map(whole_seconds);
        if let Some(requested) = requested.filter(|requested| self.granted().is_none_or(|known| known < *requested)) {
            *self = Self::Granting(requested);
            demand = Demand::Write;
        }
        demand
    }

    /// What a status says that was written for this replica.
    pub(super) fn written(&mut self, granted: Option<Timestamp>) -> Demand {
        match *self {
            Self::Granting(requested) if granted.is_some_and(|granted| whole_seconds(granted) >= requested) => {
                *self = Self::Granted(requested);
                Demand::Offer
            }
            Self::None | Self::Granting(_) | Self::Granted(_) => Demand::Nothing,
        }
    }
}

/// A status has no fractions of seconds: a wish that has one would never count as granted.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
