//! What the writer holds of one Agent object: what the API server last acknowledged, and whose it is.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{objects::Stored, render::Owner};
use crate::{
    agents::summary::AgentSummary,
    api::agent::{AgentStatus, ConnectionStatus},
};

/// The prefix of the labels that are ours.
const OUR_LABELS: &str = "opamp.dev/";

/// An Agent object as last acknowledged. Status and labels are kept as compact JSON: a tree of values takes several
/// times as much memory, and ten thousand of these are held.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) namespace: Box<str>,
    pub(super) object_uid: Box<str>,
    pub(super) resource_version: Box<str>,
    pub(super) generation: i64,
    status: Box<[u8]>,
    labels: Box<[u8]>,
    /// The epoch that the object shows.
    epoch: i64,
    /// The highest epoch that was seen, also on an object that is gone.
    past_epoch: i64,
    claim: Claim,
    /// Whether it has to be read before it is written again.
    certainty: Certainty,
    /// The object in another namespace that this one replaces.
    pub(super) former: Option<Box<Former>>,
}

/// An object that has to go when the one that replaces it is written.
#[derive(Debug)]
pub(super) struct Former {
    pub(super) namespace: Box<str>,
    pub(super) object_uid: Box<str>,
    status: Box<[u8]>,
}

/// Whose the status is, as far as this process has asked for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Claim {
    /// It has not asked yet.
    None,
    /// It has asked, and does not know the answer.
    Asked { session: u64, epoch: i64 },
    /// It has it.
    Had { session: u64, epoch: i64 },
    /// A session elsewhere has claimed it over this one.
    Lost { session: u64 },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Certainty {
    Certain,
    Doubtful,
}

/// Whether a session may write.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ownership {
    /// Nothing speaks against it.
    Kept,
    /// A session elsewhere holds the status, over which this one has not claimed it; this is what it wrote.
    Forestalled(Box<AgentStatus>),
    /// A session elsewhere has claimed the status over this one; this is what it wrote.
    Superseded { session: u64, by: Box<AgentStatus> },
}

impl Held {
    /// An object that was read or created for the first time.
    pub(super) fn of(stored: Stored) -> Self {
        let mut held = Self {
            namespace: stored.namespace.as_str().into(),
            object_uid: "".into(),
            resource_version: "".into(),
            generation: 0,
            status: Box::default(),
            labels: Box::default(),
            epoch: 0,
            past_epoch: 0,
            claim: Claim::None,
            certainty: Certainty::Certain,
            former: None,
        };
        held.take(stored);
        held
    }

    /// An object that takes the place of another: its epochs go on.
    pub(super) fn after(stored: Stored, epoch: i64) -> Self {
        let mut held = Self::of(stored);
        held.past_epoch = held.past_epoch.max(epoch);
        held
    }

    /// An object that replaces one in another namespace.
    pub(super) fn replacing(stored: Stored, old: &Self) -> Self {
        let mut held = Self::after(stored, old.highest_epoch());
        held.former = Some(Box::new(Former {
            namespace: old.namespace.clone(),
            object_uid: old.object_uid.clone(),
            status: old.status.clone(),
        }));
        held
    }

    fn take(&mut self, stored: Stored) {
        self.object_uid = stored.object_uid.into();
        self.resource_version = stored.resource_version.into();
        self.generation = stored.generation;
        self.epoch = connection(&stored.status).map_or(0, |connection| connection.epoch);
        self.past_epoch = self.past_epoch.max(self.epoch);
        self.status = stored.status.to_string().into_bytes().into();
        let ours: BTreeMap<_, _> =
            stored.labels.into_iter().filter(|(label, _)| label.starts_with(OUR_LABELS)).collect();
        self.labels = json!(ours).to_string().into_bytes().into();
        self.certainty = Certainty::Certain;
    }

    /// It was read again. Tells whether a session elsewhere has claimed the status over ours.
    pub(super) fn reread(&mut self, stored: Stored, owner: &Owner) -> Ownership {
        let shows = connection(&stored.status);
        let status = AgentStatus::deserialize(&stored.status).unwrap_or_default();
        let by = |other| Box::new(AgentStatus { connection: Some(other), ..status });
        self.take(stored);
        let other = shows
            .filter(|connection| connection.replica != owner.replica || connection.incarnation != owner.incarnation);
        match (self.claim, other) {
            (Claim::Asked { session, epoch }, None) if self.epoch == epoch => {
                self.claim = Claim::Had { session, epoch };
                Ownership::Kept
            }
            // Whoever has seen a claim claims with a higher epoch.
            (Claim::Had { session, epoch }, Some(other)) if self.epoch > epoch => {
                self.claim = Claim::Lost { session };
                Ownership::Superseded { session, by: by(other) }
            }
            (Claim::Had { epoch, .. }, None) if self.epoch >= epoch => Ownership::Kept,
            (Claim::Lost { .. }, _) => Ownership::Kept,
            // It is still to be claimed, or was made anew or restored from the past, and has to be claimed again.
            (Claim::Asked { .. } | Claim::None | Claim::Had { .. }, other) => {
                self.claim = Claim::None;
                other.map_or(Ownership::Kept, |other| Ownership::Forestalled(by(other)))
            }
        }
    }

    /// The status was written for this session.
    pub(super) fn written(&mut self, stored: Stored, session: u64) {
        self.take(stored);
        self.claim = Claim::Had { session, epoch: self.epoch };
    }

    /// The labels were written.
    pub(super) fn labelled(&mut self, resource_version: &str, patch: &BTreeMap<&str, Option<&str>>) {
        let mut labels = self.labels();
        for (label, value) in patch {
            match value {
                Some(value) => labels.insert((*label).into(), (*value).into()),
                None => labels.remove(*label),
            };
        }
        self.labels = json!(labels).to_string().into_bytes().into();
        self.resource_version = resource_version.into();
    }

    /// The epoch with which this session writes: its own, or the next if it has not claimed the status yet.
    pub(super) fn epoch_for(&self, session: u64) -> i64 {
        match self.claim {
            Claim::Had { session: had, epoch } if had == session => epoch,
            Claim::Had { .. } | Claim::Asked { .. } | Claim::Lost { .. } | Claim::None => self.past_epoch + 1,
        }
    }

    /// To be called before a status patch is sent: its outcome may stay unknown.
    pub(super) fn asked(&mut self, session: u64) {
        let epoch = self.epoch_for(session);
        if self.claim != (Claim::Had { session, epoch }) {
            self.claim = Claim::Asked { session, epoch };
        }
    }

    /// Whether the session has lost the status to one elsewhere.
    pub(super) fn is_lost_for(&self, session: u64) -> bool {
        self.claim == Claim::Lost { session }
    }

    /// The highest epoch that was seen or asked for.
    pub(super) fn highest_epoch(&self) -> i64 {
        match self.claim {
            Claim::Asked { epoch, .. } => self.past_epoch.max(epoch),
            Claim::Had { .. } | Claim::Lost { .. } | Claim::None => self.past_epoch,
        }
    }

    /// It has to be read before it is written again.
    pub(super) fn doubt(&mut self) {
        self.certainty = Certainty::Doubtful;
    }

    /// Whether it has to be read first.
    pub(super) fn is_doubtful(&self) -> bool {
        self.certainty == Certainty::Doubtful
    }

    /// Whether what the watch shows is what is held, or an earlier state of it. Versions of one object are numbers that
    /// grow (Kubernetes 1.35 promises it).
    pub(super) fn agrees_with(&self, shown: Option<&AgentSummary>) -> bool {
        let version = |text: &str| text.parse::<u64>().ok();
        shown.is_some_and(|shown| {
            *shown.object_uid == *self.object_uid && version(&shown.resource_version) <= version(&self.resource_version)
        })
    }

    /// The status as the API server returned it.
    pub(super) fn acknowledged(&self) -> Value {
        serde_json::from_slice(&self.status).unwrap_or_else(|_| json!({}))
    }

    /// What the next status is made of: this one, or after a move the one that it replaces.
    pub(super) fn previous(&self) -> AgentStatus {
        let status = match &self.former {
            Some(former) if self.epoch == 0 => &former.status,
            Some(_) | None => &self.status,
        };
        serde_json::from_slice(status).unwrap_or_default()
    }

    /// What of our labels has to change, as a merge patch.
    pub(super) fn label_patch<'a>(
        &self,
        wanted: &'a BTreeMap<&'static str, Option<String>>,
    ) -> BTreeMap<&'a str, Option<&'a str>> {
        let labels = self.labels();
        wanted
            .iter()
            .filter(|(label, value)| labels.get(**label) != value.as_ref())
            .map(|(label, value)| (*label, value.as_deref()))
            .collect()
    }

    fn labels(&self) -> BTreeMap<String, String> {
        serde_json::from_slice(&self.labels).unwrap_or_default()
    }
}

fn connection(status: &Value) -> Option<ConnectionStatus> {
    ConnectionStatus::deserialize(status.get("connection")?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner { replica: "opamp-operator-0".into(), incarnation: "second".into() }
    }

    /// The object as claimed by this run of this replica with this epoch.
    fn stored(replica: &str, incarnation: &str, epoch: i64) -> Stored {
        Stored {
            namespace: "telemetry".into(),
            object_uid: "object".into(),
            resource_version: "7".into(),
            generation: 1,
            labels: BTreeMap::from([("opamp.dev/fleet".into(), "edge".into()), ("team".into(), "shop".into())]),
            status: json!({"connection": {"transport": "HTTP", "replica": replica, "incarnation": incarnation,
                "epoch": epoch, "since": "2026-11-29T12:00:00Z", "method": "Anonymous", "identity": "anonymous",
                "remoteAddress": "10.0.0.9:1"}}),
        }
    }

    #[test]
    fn epochs_are_compared_when_an_object_is_read_again() {
        let asked = |held: &mut Held| held.asked(1);
        let had = |held: &mut Held| {
            held.asked(1);
            held.written(stored("opamp-operator-0", "second", 5), 1);
        };
        let nothing = |_: &mut Held| {};
        let word = |ownership: &Ownership| match ownership {
            Ownership::Kept => "kept",
            Ownership::Forestalled(_) => "forestalled",
            Ownership::Superseded { .. } => "superseded",
        };
        for (case, before, (replica, incarnation, epoch), expected_epoch, expected) in [
            ("unclaimed, unchanged", &nothing as &dyn Fn(&mut Held), ("opamp-operator-1", "x", 4), 5, "forestalled"),
            ("unclaimed, claimed elsewhere", &nothing, ("opamp-operator-1", "x", 5), 6, "forestalled"),
            ("asked, and it was written", &asked, ("opamp-operator-0", "second", 5), 5, "kept"),
            ("asked, and it was not written", &asked, ("opamp-operator-1", "x", 4), 5, "forestalled"),
            ("asked, and another was faster", &asked, ("opamp-operator-1", "x", 5), 6, "forestalled"),
            ("had, and kept", &had, ("opamp-operator-0", "second", 5), 5, "kept"),
            ("had, and claimed elsewhere", &had, ("opamp-operator-1", "x", 6), 7, "superseded"),
            ("had, and claimed by its next run", &had, ("opamp-operator-0", "third", 6), 7, "superseded"),
            ("had, and made anew by another", &had, ("opamp-operator-1", "x", 1), 6, "forestalled"),
            ("had, and made anew by another as often", &had, ("opamp-operator-1", "x", 5), 6, "forestalled"),
        ] {
            let mut held = Held::of(stored("opamp-operator-1", "x", 4));
            before(&mut held);
            let ownership = held.reread(stored(replica, incarnation, epoch), &owner());
            assert_eq!((held.epoch_for(1), word(&ownership)), (expected_epoch, expected), "{case}");
            assert_eq!(held.is_lost_for(1), expected == "superseded", "{case}");
        }
    }

    #[test]
    fn a_claim_that_was_refused_does_not_use_up_an_epoch() {
        let mut held = Held::of(stored("opamp-operator-1", "x", 4));
        for _ in 0..3 {
            assert_eq!(held.epoch_for(1), 5);
            held.asked(1);
        }
    }

    #[test]
    fn only_our_labels_are_compared() {
        let held = Held::of(stored("opamp-operator-1", "x", 4));
        let wanted = |value: Option<&str>| BTreeMap::from([("opamp.dev/fleet", value.map(ToOwned::to_owned))]);
        assert!(held.label_patch(&wanted(Some("edge"))).is_empty());
        assert_eq!(held.label_patch(&wanted(None)), BTreeMap::from([("opamp.dev/fleet", None)]));
        assert!(held.label_patch(&BTreeMap::new()).is_empty());
    }

    /// Ten thousand of these stay below 40 MB.
    #[test]
    fn what_is_held_is_little_more_than_the_text_of_the_status() {
        assert!(size_of::<Held>() <= 200, "{} bytes", size_of::<Held>());
    }
}
