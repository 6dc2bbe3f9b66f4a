//! What moves sessions besides messages: a new catalog, a change of an object, a deadline.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::broadcast::error::RecvError,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{Bridge, claim::Holder, now, timers::Ring};
use crate::{agents::index::Change, opamp::InstanceUid};

/// Sessions that are looked at in a row before others get a turn.
const ROW: usize = 256;
/// How often sessions of agents that have gone are looked for.
const SWEEP: Duration = Duration::from_secs(30);
/// How long the session of an agent that has gone is kept: a return within it is no gap (STS-02).
const KEPT_FOR: Duration = Duration::from_secs(600);

impl Bridge {
    /// Follows the catalog, the index and the clock until told to stop.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        tokio::select! {
            () = self.follow_all(stop) => {}
            () = self.hand_on_requests() => {}
        }
    }

    async fn follow_all(&self, stop: CancellationToken) {
        let mut generation = self.catalog.generation();
        let mut changes = self.index.changes();
        let mut credentials = self.credentials.changed();
        let (mut certificates, mut trust) = (self.certificates.subscribe(), self.trust.changed());
        let mut sweep = interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = generation.changed() => self.refresh_all().await,
                Ok(()) = credentials.changed() => self.check_credentials().await,
                change = changes.recv() => match change {
                    Ok(change) => self.follow(&change),
                    Err(RecvError::Lagged(_)) => self.for_all(|uid| self.learn(uid)).await,
                    Err(RecvError::Closed) => return,
                },
                agent = certificates.recv() => match agent {
                    Ok(uid) => self.follow_certificates(uid),
                    Err(RecvError::Lagged(_)) => self.for_all(|uid| self.follow_certificates(uid)).await,
                    Err(RecvError::Closed) => return,
                },
                Ok(()) = trust.changed() => self.for_all(|uid| self.follow_certificates(uid)).await,
                due = self.timers.rung() => in_rows(due, |(deadline, uid): Ring| self.ring(uid, deadline)).await,
                _ = sweep.tick() => {
                    self.sweep().await;
                    // Some may have ended by themselves.
                    self.check_credentials().await;
                }
            }
        }
    }

    /// The catalog is another one. Sockets ask for their own offers; what is shown of each agent follows here, and
    /// agents that poll are given theirs with the next reply. Of those that have gone nothing is shown.
    async fn refresh_all(&self) {
        self.for_all(|uid| {
            self.sessions.with(uid, |entry| {
                if entry.has_spoken() && entry.claim.over_since().is_none() {
                    // Loaded for each: a snapshot that was swapped meanwhile is not worth the look.
                    let (catalog, now) = (self.catalog.load(), now());
                    self.look(entry, &catalog, now);
                    self.shut_out(entry, &catalog, now);
                }
            });
        })
        .await;
    }

    /// An object has changed: by a person, by the leader, by another replica or by this one.
    fn follow(&self, change: &Change) {
        if let Some(summary) = change.after.as_ref().or(change.before.as_ref()) {
            self.learn(summary.uid);
        }
    }

    /// Takes over what the watch shows of an agent now. If it has gone from here and speaks elsewhere, what its session
    /// knows is out of date.
    fn learn(&self, uid: InstanceUid) {
        let owner = &self.settings.owner;
        let may_go = self.sessions.with(uid, |entry| {
            let (urgency, demand) = entry.learn(&self.index.get(&uid), owner);
            self.touch(entry, urgency);
            self.keep_out(entry, now());
            self.fulfil(entry, demand);
            if let Some(holder) = entry.object().cloned().as_deref().and_then(|object| Holder::shown_by(object, owner))
            {
                let rival = entry.claim.found(holder, &owner.replica, entry.session.liveness(), now().instant);
                self.meet(entry, rival, holder);
            }
            if entry.has_spoken() && entry.claim.over_since().is_none() {
                self.look_and_push(entry, now());
            }
            entry.may_be_dropped(KEPT_FOR, owner, now())
        });
        if may_go == Some(true) {
            self.sessions.drop_if(uid, |entry| entry.may_be_dropped(KEPT_FOR, owner, now()));
        }
    }

    /// A deadline has passed.
    fn ring(&self, uid: InstanceUid, deadline: Instant) {
        self.sessions.with(uid, |entry| {
            if !entry.timer.rings(deadline) {
                return;
            }
            let now = now();
            let effects = entry.session.expire(now);
            // Without an asking connection everything is delivered to where it belongs.
            let _ = self.carry_out(entry, effects, None, now);
            if entry.has_spoken() && entry.claim.over_since().is_none() {
                self.look_and_push(entry, now);
            }
        });
    }

    /// Drops sessions of agents that have gone for good, sooner when room gets scarce.
    pub(super) async fn sweep(&self) {
        let kept_for = if self.sessions.are_scarce() { Duration::ZERO } else { KEPT_FOR };
        self.for_all(|uid| {
            self.sessions.drop_if(uid, |entry| entry.may_be_dropped(kept_for, &self.settings.owner, now()));
        })
        .await;
        self.journal.sweep(now().instant);
        self.refusals.sweep(now().instant);
        self.sweep_pending();
    }

    pub(super) async fn for_all(&self, work: impl FnMut(InstanceUid)) {
        in_rows(self.sessions.uids().collect(), work).await;
    }
}

/// Does something for each, with others getting a turn in between.
pub(super) async fn in_rows<T>(all: Vec<T>, mut work: impl FnMut(T)) {
    let mut left = all.into_iter();
    loop {
        for one in left.by_ref().take(ROW) {
            work(one);
        }
        if left.len() == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
}
