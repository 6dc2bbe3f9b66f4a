//! The writer: one task that owns what is held of every object, and starts a turn for whoever is due.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use kube::Client;
use tokio::{
    sync::{Notify, broadcast::error::RecvError, watch},
    time::{MissedTickBehavior, interval, sleep_until, timeout_at},
};

use super::{
    budget::{Budget, BudgetLimits},
    ledger::{Ledger, Look},
    metrics::Metrics,
    objects::Objects,
    queue::{self, Urgency, WriteQueue},
    render::Owner,
    room::{ObjectLimits, Room},
    turn::{Desk, Limits, Turn},
    view::AgentView,
};
use crate::{agents::index::AgentIndex, api::agent::AgentStatus, opamp::InstanceUid};

/// How often room is looked for, and counts are published.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// How often the pace of quiet agents is forgotten.
const SWEEP: Duration = Duration::from_secs(60);
/// When nothing else is due.
const LONG: Duration = Duration::from_secs(3_600);

/// Who knows the agents of this replica. Every method is called from the writer's task and must return at once.
pub trait AgentViews: Send + Sync + 'static {
    /// What is known of an agent now; `None`: this replica has nothing to say of it, and what is held is dropped. Whoever
    /// stops showing an agent for another cause than [`Self::released`] touches it, or a few kilobytes stay held.
    fn view(&self, uid: &InstanceUid) -> Option<AgentView>;

    /// An object that existed before this process met the agent, read once before the first write, and again if a session
    /// elsewhere has claimed it before that; see [`super::recall::recall`]. The view is asked for again afterwards: it may
    /// be gone if the object is that session's.
    fn remembered(&self, uid: &InstanceUid, namespace: &str, status: &AgentStatus);

    /// The API server has acknowledged this status, written for this session: its epoch is in `connection`, and a
    /// re-offer that it shows as granted may be sent.
    fn written(&self, uid: &InstanceUid, session: u64, status: &AgentStatus);

    /// A session elsewhere has claimed the agent over this one, with this status. Nothing more is written for this session,
    /// which need not be the latest that was shown. If it turns out to be alive and the older one (`by.connection.since`), the view gets a new session number and the
    /// agent is touched.
    fn superseded(&self, uid: &InstanceUid, session: u64, by: &AgentStatus);

    /// That this session is over is written, or was never worth an object: unless a newer session has begun, the agent
    /// may be forgotten. The leader answers for its object now.
    fn released(&self, uid: &InstanceUid, session: u64);
}

/// The limits of a writer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriterLimits {
    /// Writes per time.
    pub budget: BudgetLimits,
    /// Agents that are written at the same time: as many connections to the API server. The default is 16.
    pub in_flight: usize,
    /// Objects in all.
    pub objects: ObjectLimits,
}

impl Default for WriterLimits {
    fn default() -> Self {
        Self { budget: BudgetLimits::default(), in_flight: 16, objects: ObjectLimits::default() }
    }
}

/// Writes the status of the agents that this replica owns. A clone is another handle of the same writer.
#[derive(Clone)]
pub struct StatusWriter {
    shared: Arc<Shared>,
}

struct Shared {
    /// Locked for the time of a look-up only; it merges, so it is as long as there are agents.
    queue: Mutex<WriteQueue>,
    limits: Arc<Limits>,
    in_flight: usize,
    owner: Owner,
    own_namespace: String,
    metrics: Metrics,
    wake: Notify,
    settled: Notify,
    uncounted: watch::Sender<BTreeMap<String, usize>>,
}

impl StatusWriter {
    /// A writer that takes changes, and writes as soon as it runs.
    #[must_use]
    pub fn new(owner: Owner, own_namespace: &str, limits: WriterLimits, metrics: Metrics) -> Self {
        Self {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                limits: Arc::new(Limits {
                    budget: Arc::new(Mutex::new(Budget::new(limits.budget, now()))),
                    room: Mutex::new(Room::new(limits.objects)),
                }),
                in_flight: limits.in_flight,
                owner,
                own_namespace: own_namespace.into(),
                metrics,
                wake: Notify::new(),
                settled: Notify::new(),
                uncounted: watch::Sender::new(BTreeMap::new()),
            }),
        }
    }

    /// Something about an agent has changed: its view is asked for when its turn comes. Never blocks, never loses.
    pub fn touch(&self, uid: InstanceUid, urgency: Urgency) {
        locked(&self.shared.queue).touch(uid, urgency, now());
        self.shared.wake.notify_one();
    }

    /// The connected agents that have no object because there are as many as permitted, by the uid of their fleet: what
    /// the replica's Lease carries in `opamp.dev/uncounted`.
    #[must_use]
    pub fn uncounted(&self) -> watch::Receiver<BTreeMap<String, usize>> {
        self.shared.uncounted.subscribe()
    }

    /// What this replica may write. The controllers spend from it too while this replica leads.
    #[must_use]
    pub fn budget(&self) -> Arc<Mutex<Budget>> {
        Arc::clone(&self.shared.limits.budget)
    }

    /// Before the end of the process: whoever waits is written as fast as the budget permits, without waiting for more
    /// changes. Returns when nobody waits any more, or at the deadline with how many still do.
    pub async fn flush(&self, deadline: Instant) -> usize {
        locked(&self.shared.queue).hasten(now());
        self.shared.wake.notify_one();
        loop {
            let settled = self.shared.settled.notified();
            let left = self.left();
            if left == 0 || timeout_at(deadline.into(), settled).await.is_err() {
                return left;
            }
        }
    }

    /// How many agents wait or are being written.
    #[must_use]
    pub fn left(&self) -> usize {
        let queue = locked(&self.shared.queue);
        queue.waiting() + queue.in_flight()
    }

    /// Writes until the future is dropped; to be run once. The client is one without retries of its own. Nothing is
    /// written before the index is complete: it tells which objects exist.
    pub async fn run(self, client: Client, index: AgentIndex, views: Arc<dyn AgentViews>) {
        index.synced().await;
        let shared = &*self.shared;
        let desk = Arc::new(shared.desk(client, index, views));
        let mut ledger = Ledger::default();
        let mut changes = desk.index.changes();
        let mut turns = FuturesUnordered::new();
        let mut housekeeping = interval(HOUSEKEEPING);
        let mut sweep = interval(SWEEP);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next = loop {
                match shared.next(turns.len()) {
                    queue::Turn::Now(uid) => {
                        let turn = Turn::new(Arc::clone(&desk), Arc::clone(&shared.limits), uid, ledger.hand_out(uid));
                        turns.push(turn.run());
                    }
                    queue::Turn::At(at) => break at,
                    queue::Turn::Idle => break now() + LONG,
                }
            };
            tokio::select! {
                Some((uid, kept, ended)) = turns.next(), if !turns.is_empty() => {
                    locked(&shared.queue).finish(uid, ended, now());
                    shared.look_at(uid, ledger.take_back(uid, kept, &desk.index));
                    shared.settled.notify_waiters();
                }
                change = changes.recv() => match change {
                    Ok(change) => {
                        shared.look_at(change.uid, ledger.follow(change.uid, &desk.index));
                    }
                    Err(RecvError::Lagged(_)) => {
                        for uid in ledger.follow_all(&desk.index) {
                            shared.look_at(uid, Look::Needed);
                        }
                    }
                    // The index lives as long as the desk.
                    Err(RecvError::Closed) => {}
                },
                () = shared.wake.notified() => {}
                () = sleep_until(next.into()) => {}
                _ = housekeeping.tick() => shared.keep_house(&desk),
                _ = sweep.tick() => locked(&shared.queue).sweep(now()),
            }
        }
    }
}

impl Shared {
    fn desk(&self, client: Client, index: AgentIndex, views: Arc<dyn AgentViews>) -> Desk {
        Desk {
            objects: Objects::new(client, self.metrics.clone()),
            index,
            views,
            owner: self.owner.clone(),
            own_namespace: self.own_namespace.clone(),
            metrics: self.metrics.clone(),
            complaints: Mutex::default(),
        }
    }

    /// Whose turn it is, if a token and a place in flight are free.
    fn next(&self, in_flight: usize) -> queue::Turn {
        let now = now();
        let mut queue = locked(&self.queue);
        let mut budget = locked(&self.limits.budget);
        let places = if budget.is_probing() { 1 } else { self.in_flight };
        if in_flight >= places || queue.waiting() == 0 {
            return queue::Turn::Idle;
        }
        if let Err(again) = budget.take(now) {
            return queue::Turn::At(again);
        }
        let turn = queue.pop(now);
        if !matches!(turn, queue::Turn::Now(_)) {
            budget.refund();
        }
        turn
    }

    fn look_at(&self, uid: InstanceUid, look: Look) {
        match look {
            Look::Needless => {}
            Look::Needed => locked(&self.queue).touch(uid, Urgency::Rest, now()),
        }
    }

    fn keep_house(&self, desk: &Desk) {
        let (invited, waiting, uncounted) = {
            let mut room = locked(&self.limits.room);
            room.entered(|uid| !desk.index.get(uid).is_empty());
            (room.next(desk.occupied()), room.waiting(), room.uncounted())
        };
        let mut queue = locked(&self.queue);
        for uid in invited {
            queue.touch(uid, Urgency::FirstSight, now());
        }
        self.uncounted.send_if_modified(|published| {
            let differs = *published != uncounted;
            *published = uncounted;
            differs
        });
        self.metrics.show_queue(queue.waiting(), queue.in_flight());
        self.metrics.show_without_object(waiting);
        self.metrics.show_budget(locked(&self.limits.budget).level(now()));
    }
}

/// The clock of the runtime, which tests move by hand.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// No holder of these locks can leave half a change behind, so a panic elsewhere is no reason to stop.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
