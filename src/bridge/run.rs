//! What moves sessions besides messages: a new catalog, a change of an object, a deadline.

use std::{sync::Arc, time::Duration};

use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::Bridge;
use crate::{
    agents::index::Change,
    opamp::{InstanceUid, now::Now},
    status::queue::Urgency,
};

/// Sessions that are looked at in a row before others get a turn.
const ROW: usize = 256;
/// How often sessions of agents that have gone are looked for.
const SWEEP: Duration = Duration::from_secs(30);
/// How long the session of an agent that has gone is kept: a return within it is no gap (STS-02).
const KEPT_FOR: Duration = Duration::from_secs(600);

impl Bridge {
    /// Follows the catalog, the index and the clock until told to stop.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut generation = self.catalog.generation();
        let mut changes = self.index.changes();
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = generation.changed() => self.refresh_all().await,
                change = changes.recv() => match change {
                    Ok(change) => self.follow(&change),
                    Err(RecvError::Lagged(_)) => self.follow_all().await,
                    Err(RecvError::Closed) => return,
                },
                due = self.timers.rung() => due.into_iter().for_each(|uid| self.ring(uid)),
                _ = sweep.tick() => self.sweep().await,
            }
        }
    }

    /// The catalog is another one. Sockets ask for their own offers; what is shown of each agent follows here, and
    /// agents that poll are given theirs with the next reply.
    async fn refresh_all(&self) {
        let catalog = self.catalog.load();
        let uids: Vec<_> = self.sessions.uids().collect();
        for row in uids.chunks(ROW) {
            let now = Now::read();
            for uid in row {
                self.sessions.with(*uid, |entry| {
                    if let Some(urgency) = entry.assign(&catalog, None, now) {
                        self.writer.touch(*uid, urgency);
                    }
                    self.timers.set(*uid, entry.deadline(), &mut entry.timer);
                });
            }
            tokio::task::yield_now().await;
        }
    }

    /// An object has changed: by a person, by the leader, or by this replica.
    fn follow(&self, change: &Change) {
        let Some(summary) = change.after.as_ref().or(change.before.as_ref()) else { return };
        let uid = summary.uid;
        self.learn(uid);
        if self.is_others_doing(change) && self.sessions.with(uid, |_| ()).is_some() {
            self.writer.touch(uid, Urgency::Rest);
        }
    }

    /// Whether the writer has to look at the object anew: it was deleted, its spec has changed, or another replica has
    /// claimed it. What this replica has written itself comes back, too, and is no reason.
    fn is_others_doing(&self, change: &Change) -> bool {
        let Some(after) = &change.after else { return true };
        let is_respecified = change.before.as_ref().is_some_and(|before| before.generation != after.generation);
        let is_claimed = after.connection.as_ref().is_some_and(|connection| {
            *connection.replica != *self.settings.replica || *connection.incarnation != *self.settings.incarnation
        });
        is_respecified || is_claimed
    }

    async fn follow_all(&self) {
        let uids: Vec<_> = self.sessions.uids().collect();
        for row in uids.chunks(ROW) {
            row.iter().for_each(|uid| self.learn(*uid));
            tokio::task::yield_now().await;
        }
    }

    fn learn(&self, uid: InstanceUid) {
        let objects = self.index.get(&uid);
        let object = objects.iter().max_by_key(|object| object.epoch());
        self.sessions.with(uid, |entry| {
            entry.learn(object.map(AsRef::as_ref));
            let granted = object.and_then(|object| entry.grant_reoffer(object));
            let assigned = entry.assign(&self.catalog.load(), None, Now::read());
            if let Some(urgency) = granted.into_iter().chain(assigned).min() {
                self.writer.touch(uid, urgency);
            }
        });
    }

    /// A deadline has passed.
    fn ring(&self, uid: InstanceUid) {
        let now = Now::read();
        self.sessions.with(uid, |entry| {
            entry.timer.rung();
            let effects = entry.session.expire(now);
            if let Some(urgency) = entry.assign(&self.catalog.load(), None, now) {
                self.writer.touch(uid, urgency);
            }
            // Without an asking connection everything is delivered to where it belongs.
            let _ = self.carry_out(entry, effects, None, now);
        });
    }

    /// Drops sessions of agents that have gone for good, sooner when room gets scarce.
    async fn sweep(&self) {
        let scarce = self.sessions.len() > self.settings.max_sessions / 10 * 9;
        let kept_for = if scarce { Duration::ZERO } else { KEPT_FOR };
        let uids: Vec<_> = self.sessions.uids().collect();
        for row in uids.chunks(ROW) {
            let now = Now::read();
            row.iter().for_each(|uid| self.sessions.drop_if(*uid, |entry| entry.may_be_dropped(kept_for, now)));
            tokio::task::yield_now().await;
        }
        self.metrics.sessions.set(i64::try_from(self.sessions.len()).unwrap_or(i64::MAX));
    }
}
