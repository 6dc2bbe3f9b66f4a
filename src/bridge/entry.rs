//! One agent at this replica: its session, who speaks for it, which fleet takes it, and what is shown of that.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use super::{keeping::Keeping, timers::Timer};
use crate::{
    agents::summary::AgentSummary,
    api::{agent::Transport as ShownTransport, agent_fleet::EffectiveConfigDetail},
    catalog::{Assignment, Catalog, FleetEntry, Outcome, Subject, UnmatchedReason},
    opamp::{
        InstanceUid,
        identity::Identity,
        now::Now,
        offer::Offer,
        record::FailedConfig,
        session::{Channel, ConnectionId, Ending, Liveness, Remembered, Session},
    },
    server::{Connection, Transport},
    status::{
        queue::Urgency,
        view::{
            AgentView, AssignmentView, ConnectionView, Departure, FleetView, GivenView, LivenessView, RevisionView,
            UnmatchedBecause,
        },
    },
};

/// How long a state that is about to change by itself is not shown: an agent that has not described itself yet, a
/// fleet whose first revision is being made.
const SETTLING: Duration = Duration::from_secs(10);
/// A suspicion is logged once in this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(3600);

/// One agent at this replica.
pub(super) struct Entry {
    pub(super) session: Session,
    pub(super) timer: Timer,
    pub(super) keeping: Keeping,
    state: State,
    /// Counts the stretches of presence; each is another claim on the agent's status.
    run: u64,
    /// The stretch that `peer` belongs to.
    stretch: Option<(Channel, Timestamp)>,
    peer: Option<Peer>,
    home: Option<Arc<str>>,
    assignment: Assignment,
    /// The fleet as it was before it gave something else: an agent may still complain of that.
    former: Option<Arc<FleetEntry>>,
    /// The catalog's generation that `assignment` was made of; `None`: it is to be made anew.
    assigned: Option<u64>,
    shown: Option<Shown>,
    settling: Option<Instant>,
    warned: Option<Instant>,
    reoffer: Reoffer,
    rivalry: Rivalry,
    /// When the session was made, for those that never speak.
    made: Instant,
}

/// Whether the entry is in use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Its status is this replica's to write.
    Owned,
    /// The agent has gone, and the leader has taken over its status.
    HandedOver,
    /// It was dropped.
    Retired,
}

/// Who speaks for the agent.
struct Peer {
    transport: ShownTransport,
    identity: Identity,
    remote: SocketAddr,
}

/// What is shown of the assignment, and where the object belongs.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Shown {
    /// The fleet's namespace; `None`: the object stays where it is.
    namespace: Option<Arc<str>>,
    view: AssignmentView,
    /// What the fleet wants to be kept of what the agent runs.
    effective_config: EffectiveConfigDetail,
}

/// How far a person's wish is that what failed be offered once more.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Reoffer {
    /// None is open; the last that was granted.
    #[default]
    None,
    /// It is being written down, so that it is granted at most once.
    Granting(Timestamp),
    /// It was written, and the offer sent.
    Granted(Timestamp),
}

/// Whether the claim of another replica is being disputed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Rivalry {
    /// It is not.
    #[default]
    None,
    /// The own socket was asked for a sign of life.
    AwaitsPong,
}

/// The session at another replica that has claimed the same agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Rival {
    /// It may have the agent: here it is not any more.
    None,
    /// It is the younger one, and the agent is its own if this socket is dead.
    Younger(ConnectionId),
    /// It is the older one, and alive: here is another agent under the same uid.
    Older,
}

impl Entry {
    pub(super) fn new(
        uid: InstanceUid,
        remembered: Option<Remembered>,
        home: Option<Arc<str>>,
        http_silence: Duration,
        now: Now,
    ) -> Self {
        Self {
            session: Session::new(uid, remembered).with_silence_limit(http_silence),
            timer: Timer::default(),
            keeping: Keeping::default(),
            state: State::Owned,
            run: 0,
            stretch: None,
            peer: None,
            home,
            assignment: Assignment::Unmatched(UnmatchedReason::DescriptionMissing),
            former: None,
            assigned: None,
            shown: None,
            settling: None,
            warned: None,
            reoffer: Reoffer::None,
            rivalry: Rivalry::None,
            made: now.instant,
        }
    }

    pub(super) fn is_retired(&self) -> bool {
        self.state == State::Retired
    }

    pub(super) fn retire(&mut self) {
        self.state = State::Retired;
    }

    /// It is written that this stretch of presence is over: from now on the status is the leader's.
    pub(super) fn hand_over(&mut self, run: u64) {
        let is_away = !matches!(self.session.liveness(), Liveness::Connected { .. });
        if self.state == State::Owned && self.run == run && is_away {
            self.state = State::HandedOver;
        }
    }

    /// Whether nothing would be lost without the session. What it keeps of an agent that has gone spares a full report
    /// when it returns (STS-02).
    pub(super) fn may_be_dropped(&self, kept_for: Duration, now: Now) -> bool {
        if !self.session.is_deserted(now) {
            return false;
        }
        match self.session.liveness() {
            Liveness::Connected { .. } => false,
            Liveness::Unheard => now.instant.saturating_duration_since(self.made) > kept_for,
            Liveness::Disconnected { since, .. } => {
                let away = Duration::try_from(now.wall.duration_since(since)).unwrap_or_default();
                self.state == State::HandedOver && away >= kept_for
            }
        }
    }

    /// The channel of a stretch of presence that has begun since the last call.
    pub(super) fn began_elsewhere(&mut self) -> Option<Channel> {
        let Liveness::Connected { channel, since } = self.session.liveness() else { return None };
        if self.stretch == Some((channel, since)) {
            return None;
        }
        self.stretch = Some((channel, since));
        self.run += 1;
        self.state = State::Owned;
        Some(channel)
    }

    /// Who speaks in this stretch.
    pub(super) fn speaks_through(&mut self, connection: &Connection) {
        let transport = match connection.transport {
            Transport::WebSocket => ShownTransport::WebSocket,
            Transport::Http => ShownTransport::Http,
        };
        self.peer = Some(Peer { transport, identity: connection.identity.clone(), remote: connection.remote });
    }

    /// Another replica has claimed the status for a session that began at `since`. The older of two live sessions wins.
    pub(super) fn superseded(&mut self, run: u64, since: Timestamp) -> Rival {
        let (Some((channel, own)), Liveness::Connected { .. }) = (self.stretch, self.session.liveness()) else {
            return Rival::None;
        };
        match channel {
            _ if self.run != run => Rival::None,
            _ if since < own => Rival::Older,
            Channel::WebSocket(connection) => {
                self.rivalry = Rivalry::AwaitsPong;
                Rival::Younger(connection)
            }
            // An agent that polls was seen elsewhere later: it has moved there.
            Channel::Http => Rival::None,
        }
    }

    /// The socket has answered: if another replica had claimed the status, it is claimed again.
    pub(super) fn is_alive(&mut self) -> Option<Urgency> {
        match std::mem::take(&mut self.rivalry) {
            Rivalry::None => None,
            Rivalry::AwaitsPong => {
                self.run += 1;
                self.state = State::Owned;
                Some(Urgency::Connection)
            }
        }
    }

    /// Whether a suspicion may be logged again.
    pub(super) fn may_warn(&mut self, now: Now) -> bool {
        let due = self.warned.is_none_or(|warned| now.instant.saturating_duration_since(warned) >= WARNING_INTERVAL);
        if due {
            self.warned = Some(now.instant);
        }
        due
    }

    /// The assignment must be made anew.
    pub(super) fn reassign(&mut self) {
        self.assigned = None;
    }

    /// Looks up which fleet takes the agent and what it is given, if that may have changed. Says whether, and how
    /// urgently, its status is to be written for that.
    pub(super) fn assign(&mut self, catalog: &Catalog, identity: Option<&Identity>, now: Now) -> Option<Urgency> {
        if self.assigned != Some(catalog.generation()) {
            let identity = identity.or(self.peer.as_ref().map(|peer| &peer.identity)).unwrap_or(&Identity::Anonymous);
            let assignment = catalog.assign(&Subject {
                uid: self.session.uid(),
                identity,
                attributes: self.session.record().description.as_ref(),
                home: self.home.as_deref(),
            });
            self.keep_former(&assignment);
            self.assignment = assignment;
            self.assigned = Some(catalog.generation());
        }
        self.settle(now)
    }

    fn keep_former(&mut self, next: &Assignment) {
        let gives_as_before = match (&self.assignment, next) {
            (Assignment::Matched(former, _), Assignment::Matched(next, _)) => former.gives_as(next),
            (Assignment::Unmatched(_), _) => true,
            (Assignment::Matched(..), Assignment::Unmatched(_)) => false,
        };
        if !gives_as_before {
            self.former = self.fleet().cloned();
        }
    }

    /// The fleets whose Secrets the agent may quote.
    pub(super) fn fleets_with_secrets(&self) -> impl Iterator<Item = &FleetEntry> + Clone {
        self.fleet().into_iter().chain(&self.former).map(AsRef::as_ref).filter(|fleet| fleet.has_secrets())
    }

    /// What the agent is to have now.
    pub(super) fn offer(&self) -> Offer {
        match &self.assignment {
            Assignment::Matched(_, Outcome::Given { offer, .. }) => offer.clone(),
            Assignment::Matched(..) | Assignment::Unmatched(_) => Offer::default(),
        }
    }

    /// The fleet that takes the agent.
    pub(super) fn fleet(&self) -> Option<&Arc<FleetEntry>> {
        match &self.assignment {
            Assignment::Matched(fleet, _) => Some(fleet),
            Assignment::Unmatched(_) => None,
        }
    }

    /// When the agent is to be looked at again unless something happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let settled = self.settling.and_then(|since| since.checked_add(SETTLING));
        [self.session.deadline(), settled].into_iter().flatten().min()
    }

    /// Takes the assignment over into what is shown, at once or when it has had its time to change by itself.
    fn settle(&mut self, now: Now) -> Option<Urgency> {
        let next = Shown::of(&self.assignment);
        if self.shown.as_ref() == Some(&next) {
            self.settling = None;
            return None;
        }
        if self.is_unsettled() {
            let since = *self.settling.get_or_insert(now.instant);
            if now.instant.saturating_duration_since(since) < SETTLING {
                return None;
            }
        }
        self.settling = None;
        let former = self.shown.replace(next);
        Some(urgency_of_change(former.as_ref(), self.shown.as_ref()))
    }

    fn is_unsettled(&self) -> bool {
        match &self.assignment {
            Assignment::Unmatched(UnmatchedReason::DescriptionMissing) => true,
            Assignment::Unmatched(UnmatchedReason::NoFleetSelects | UnmatchedReason::NotAdmitted) => false,
            Assignment::Matched(_, Outcome::NotLoaded) => true,
            Assignment::Matched(_, Outcome::NoRevision) => self.shown.is_some(),
            Assignment::Matched(
                _,
                Outcome::Given { .. } | Outcome::TemplateFailed { .. } | Outcome::Withheld { .. },
            ) => false,
        }
    }

    /// What the API server says of the agent's object.
    pub(super) fn learn(&mut self, object: Option<&AgentSummary>) {
        let home = object.map(|object| Arc::clone(&object.namespace));
        if self.home != home {
            self.home = home;
            self.reassign();
        }
    }

    /// A wish that was made and not granted yet is granted now; it must be written before it is acted on, so that a
    /// replica that dies in between does not grant it twice.
    pub(super) fn grant_reoffer(&mut self, object: &AgentSummary) -> Option<Urgency> {
        let requested = object.reoffer_requested?;
        let is_written = object.reoffer_granted.is_some_and(|granted| granted >= requested);
        let is_known = match self.reoffer {
            Reoffer::None => false,
            Reoffer::Granting(known) | Reoffer::Granted(known) => known >= requested,
        };
        if is_written || is_known {
            return None;
        }
        self.reoffer = Reoffer::Granting(requested);
        Some(Urgency::Configuration)
    }

    /// What the written status says of a wish. Whether the offer is to be made now.
    pub(super) fn reoffer_is_written(&mut self, granted: Option<Timestamp>) -> bool {
        match self.reoffer {
            Reoffer::Granting(requested) if granted.is_some_and(|granted| granted >= requested) => {
                self.reoffer = Reoffer::Granted(requested);
                self.session.reoffer();
                true
            }
            Reoffer::None | Reoffer::Granting(_) | Reoffer::Granted(_) => false,
        }
    }

    /// What is to be written; `None`: nothing can be said of the agent yet.
    pub(super) fn view(&self, own_namespace: &str) -> Option<AgentView> {
        let (shown, peer) = (self.shown.as_ref()?, self.peer.as_ref()?);
        let (_, since) = self.stretch?;
        let liveness = match self.session.liveness() {
            Liveness::Unheard => return None,
            Liveness::Connected { .. } => LivenessView::Connected,
            Liveness::Disconnected { since, how } => LivenessView::Disconnected { since, how: departure(how) },
        };
        let namespace = shown.namespace.as_deref().or(self.home.as_deref()).unwrap_or(own_namespace);
        Some(AgentView {
            namespace: namespace.into(),
            session: self.run,
            record: self.session.record().clone(),
            assignment: shown.view.clone(),
            connection: ConnectionView {
                transport: peer.transport,
                identity: peer.identity.clone(),
                remote_address: peer.remote,
                since,
                liveness,
            },
            effective_config: self
                .keeping
                .view(self.fleet().map(AsRef::as_ref), self.session.record().effective_config.as_ref()),
            reoffer_granted: match self.reoffer {
                Reoffer::None => None,
                Reoffer::Granting(requested) | Reoffer::Granted(requested) => Some(requested),
            },
        })
    }
}

/// What failed at the agent, as its object says.
pub(super) fn failed_of(object: &AgentSummary) -> Option<FailedConfig> {
    let hash = object.failed.as_ref()?.to_vec();
    Some(FailedConfig { hash, error: String::new(), at: Timestamp::UNIX_EPOCH })
}

fn departure(how: Ending) -> Departure {
    match how {
        Ending::Goodbye | Ending::Reidentified => Departure::Goodbye,
        Ending::SocketClosed => Departure::ConnectionClosed,
        Ending::Silent => Departure::Silent,
    }
}

impl Shown {
    fn of(assignment: &Assignment) -> Self {
        match assignment {
            Assignment::Unmatched(reason) => {
                let because = match reason {
                    UnmatchedReason::DescriptionMissing => UnmatchedBecause::DescriptionMissing,
                    UnmatchedReason::NoFleetSelects | UnmatchedReason::NotAdmitted => UnmatchedBecause::NoFleetSelects,
                };
                let view = AssignmentView::Unmatched(because);
                Self { namespace: None, view, effective_config: EffectiveConfigDetail::default() }
            }
            Assignment::Matched(fleet, outcome) => Self {
                namespace: Some(fleet.namespace.as_str().into()),
                view: AssignmentView::Matched(FleetView {
                    name: fleet.name.clone(),
                    uid: fleet.uid.clone(),
                    given: given(outcome),
                }),
                effective_config: fleet.effective_config,
            },
        }
    }

    fn offered(&self) -> Option<&GivenView> {
        match &self.view {
            AssignmentView::Matched(fleet) => Some(&fleet.given),
            AssignmentView::Unmatched(_) => None,
        }
    }
}

fn given(outcome: &Outcome) -> GivenView {
    let revision =
        |hash: &crate::catalog::RevisionHash, epoch: &i64| RevisionView { hash: hash.short(), epoch: *epoch };
    match outcome {
        // What is withheld is the fleet's fault, and its conditions tell it.
        Outcome::NoRevision | Outcome::NotLoaded | Outcome::Withheld { .. } => GivenView::NoRevision,
        Outcome::Given { revision: hash, epoch, offer } => GivenView::Offer {
            revision: revision(hash, epoch),
            remote_config: offer.remote_config.as_ref().map(|config| config.hash),
        },
        Outcome::TemplateFailed { revision: hash, epoch, message } => {
            GivenView::TemplateFailed { revision: revision(hash, epoch), message: message.clone() }
        }
    }
}

/// A change of the revision alone is the least urgent: the agent gets nothing new by it.
fn urgency_of_change(former: Option<&Shown>, next: Option<&Shown>) -> Urgency {
    let content = |shown: Option<&Shown>| match shown.and_then(Shown::offered) {
        Some(GivenView::Offer { remote_config, .. }) => Some(*remote_config),
        Some(GivenView::NoRevision | GivenView::TemplateFailed { .. }) | None => None,
    };
    let failed = matches!(next.and_then(Shown::offered), Some(GivenView::TemplateFailed { .. }));
    let namespace = |shown: Option<&Shown>| shown.and_then(|shown| shown.namespace.clone());
    if failed {
        Urgency::Failure
    } else if content(former) == content(next) && namespace(former) == namespace(next) {
        Urgency::Rest
    } else {
        Urgency::Configuration
    }
}
