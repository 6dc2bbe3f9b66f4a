//! One agent's turn: read what has to be read, write what has changed.
//!
//! A turn is a loop of small steps over what is held of the object: adopt, create, read again, move, write. After each
//! the view is asked anew, so that what is written is the latest.

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use serde::Deserialize as _;
use tracing::{debug, warn};

use super::{
    budget::{Budget, Heard},
    complaints::Complaints,
    difference::difference,
    held::{Held, Ownership},
    labels::labels,
    metrics::Metrics,
    objects::{Failure, Objects, Stored},
    queue::Ended,
    render::{Owner, Stamp, render},
    room::{Occupied, Room},
    view::AgentView,
    writer::{AgentViews, locked, now},
};
use crate::{agents::index::AgentIndex, api::agent::AgentStatus, opamp::InstanceUid};

/// More steps than any lawful course takes: adopt, conflict, read, move, write, and some more conflicts.
const MOST_STEPS: usize = 12;

/// What all turns share.
pub(super) struct Desk {
    pub(super) objects: Objects,
    pub(super) index: AgentIndex,
    pub(super) views: Arc<dyn AgentViews>,
    pub(super) owner: Owner,
    pub(super) own_namespace: String,
    pub(super) metrics: Metrics,
    pub(super) complaints: Mutex<Complaints>,
}

/// What turns and the handle share.
pub(super) struct Limits {
    pub(super) budget: Arc<Mutex<Budget>>,
    pub(super) room: Mutex<Room>,
}

/// One agent's turn. It starts with one token already taken from the budget.
pub(super) struct Turn {
    desk: Arc<Desk>,
    limits: Arc<Limits>,
    uid: InstanceUid,
    name: String,
    held: Option<Held>,
    /// The highest epoch of an object that is gone.
    past_epoch: Option<i64>,
    /// Where the object turned out not to be, whatever the watch shows.
    absent_from: Option<String>,
    prepaid: bool,
    result: Ended,
}

enum Step {
    /// Look again.
    Next,
    /// There is nothing left to do.
    Done,
}

impl Turn {
    pub(super) fn new(desk: Arc<Desk>, limits: Arc<Limits>, uid: InstanceUid, held: Option<Held>) -> Self {
        Self {
            desk,
            limits,
            uid,
            name: uid.to_string(),
            held,
            past_epoch: None,
            absent_from: None,
            prepaid: true,
            result: Ended::Unchanged,
        }
    }

    /// Carries the turn out; what is held afterwards, and how it ended.
    pub(super) async fn run(mut self) -> (InstanceUid, Option<Held>, Ended) {
        let ended = self.steps().await;
        if self.prepaid {
            locked(&self.limits.budget).refund();
        }
        (self.uid, self.held, ended)
    }

    async fn steps(&mut self) -> Ended {
        for _ in 0..MOST_STEPS {
            match self.step().await {
                Ok(Step::Next) => {}
                Ok(Step::Done) => return self.result,
                Err(failure) => return self.fail(&failure),
            }
        }
        debug!(uid = %self.uid, "the object keeps changing; tried again later");
        Ended::Failed
    }

    async fn step(&mut self) -> Result<Step, Failure> {
        let Some(view) = self.desk.views.view(&self.uid) else {
            self.forget();
            return Ok(Step::Done);
        };
        let Some(held) = &self.held else { return self.adopt_or_create(&view).await };
        if held.is_doubtful() {
            return self.read_again().await;
        }
        if held.is_lost_for(view.session) {
            if !view.is_connected() {
                self.release(&view);
            }
            return Ok(Step::Done);
        }
        if *held.namespace != *view.namespace {
            return self.relocate(&view).await;
        }
        self.write(&view).await
    }

    /// The agent is new to this process. Its object, if there is one, knows more than the agent has told yet. Of two, as
    /// a move leaves them that ended in the middle, the one that was claimed last knows the most.
    async fn adopt_or_create(&mut self, view: &AgentView) -> Result<Step, Failure> {
        let absent_from = self.absent_from.as_deref();
        let shown = self
            .desk
            .index
            .get(&self.uid)
            .into_iter()
            .filter(|shown| Some(&*shown.namespace) != absent_from)
            // Anybody may write an object of this name into a namespace of their own: before a session has claimed it, it
            // says nothing of the agent.
            .filter(|shown| shown.epoch() > 0 || *shown.namespace == *view.namespace)
            .max_by_key(|shown| (shown.epoch(), *shown.namespace == *view.namespace));
        match shown {
            Some(shown) => self.adopt(&shown.namespace).await,
            None => self.create(view).await,
        }
    }

    async fn adopt(&mut self, namespace: &str) -> Result<Step, Failure> {
        match self.get(namespace).await {
            Ok(stored) => {
                self.recall(&stored);
                self.held = Some(Held::after(stored, self.past_epoch.unwrap_or(0)));
            }
            Err(Failure::NotFound) => self.absent_from = Some(namespace.into()),
            Err(failure) => return Err(failure),
        }
        Ok(Step::Next)
    }

    /// Tells whoever shows the agent what an object says that somebody else has written.
    fn recall(&self, stored: &Stored) {
        // A status of another version may not read as ours; the agent will tell everything itself.
        let status = AgentStatus::deserialize(&stored.status).unwrap_or_default();
        self.desk.views.remembered(&self.uid, &stored.namespace, &status);
    }

    async fn create(&mut self, view: &AgentView) -> Result<Step, Failure> {
        let was_deleted = self.past_epoch.is_some();
        if was_deleted && !view.is_connected() || !self.enter_room(view) {
            if !view.is_connected() {
                self.release(view);
            }
            return Ok(Step::Done);
        }
        match self.make(view).await {
            Ok(stored) => self.held = Some(Held::after(stored, self.past_epoch.unwrap_or(0))),
            Err(failure) => {
                locked(&self.limits.room).leave(self.uid);
                let Failure::AlreadyExists = failure else { return Err(failure) };
                self.absent_from = None;
                return self.adopt(&view.namespace).await;
            }
        }
        Ok(Step::Next)
    }

    fn enter_room(&self, view: &AgentView) -> bool {
        let occupied = self.desk.occupied();
        let fleet = view.fleet().map(|fleet| fleet.uid.as_str());
        locked(&self.limits.room).enter(self.uid, fleet, view.connection.since, occupied)
    }

    /// Something gave cause to doubt what is held.
    async fn read_again(&mut self) -> Result<Step, Failure> {
        let Some(held) = &self.held else { return Ok(Step::Next) };
        let namespace = held.namespace.clone();
        let result = self.get(&namespace).await;
        let Some(held) = &mut self.held else { return Ok(Step::Next) };
        match result {
            Ok(stored) => {
                match held.reread(stored, &self.desk.owner) {
                    Ownership::Kept => {}
                    Ownership::Forestalled(by) => self.desk.views.remembered(&self.uid, &namespace, &by),
                    Ownership::Superseded { session, by } => {
                        debug!(uid = %self.uid, "a session elsewhere has claimed the agent");
                        self.desk.metrics.superseded();
                        self.desk.views.superseded(&self.uid, session, &by);
                    }
                }
                Ok(Step::Next)
            }
            Err(Failure::NotFound) => {
                self.vanished();
                Ok(Step::Next)
            }
            Err(failure) => Err(failure),
        }
    }

    /// The object was deleted, by a person or by retention. Its epochs go on if it is made anew.
    fn vanished(&mut self) {
        if let Some(held) = self.held.take() {
            self.past_epoch = Some(held.highest_epoch());
            self.absent_from = Some(held.namespace.into());
        }
        locked(&self.limits.room).leave(self.uid);
    }

    /// The agent belongs into another namespace: made there, claimed there by the next step, and then deleted here.
    async fn relocate(&mut self, view: &AgentView) -> Result<Step, Failure> {
        let stored = match self.make(view).await {
            Err(Failure::AlreadyExists) => {
                let stored = self.get(&view.namespace).await?;
                self.recall(&stored);
                stored
            }
            other => other?,
        };
        if let Some(old) = &self.held {
            self.held = Some(Held::replacing(stored, old));
        }
        Ok(Step::Next)
    }

    async fn write(&mut self, view: &AgentView) -> Result<Step, Failure> {
        match self.write_status(view).await {
            Ok(()) => {}
            Err(failure) => return self.after_failed_write(failure),
        }
        match self.write_labels(view).await {
            Ok(()) => {}
            Err(failure) => return self.after_failed_write(failure),
        }
        self.delete_former().await;
        if !view.is_connected() {
            // From here on the leader answers for it, until the next claim.
            self.release(view);
        }
        Ok(Step::Done)
    }

    fn after_failed_write(&mut self, failure: Failure) -> Result<Step, Failure> {
        match failure {
            Failure::Conflict => self.doubt(),
            Failure::NotFound => self.vanished(),
            Failure::AlreadyExists
            | Failure::Throttled { .. }
            | Failure::Unreachable(_)
            | Failure::NoAnswer
            | Failure::Uncertain(_)
            | Failure::Refused(_) => return Err(failure),
        }
        Ok(Step::Next)
    }

    async fn write_status(&mut self, view: &AgentView) -> Result<(), Failure> {
        let Some(held) = &mut self.held else { return Ok(()) };
        let epoch = held.epoch_for(view.session);
        let stamp = Stamp { owner: &self.desk.owner, epoch, generation: held.generation, now: Timestamp::now() };
        let status = render(view, &held.previous(), stamp);
        let wanted = serde_json::to_value(&status).map_err(|error| {
            Failure::Refused(format!("the status cannot be written as JSON: {:?}", error.classify()))
        })?;
        let Some(patch) = difference(&held.acknowledged(), &wanted) else { return Ok(()) };
        held.asked(view.session);
        let (namespace, version) = (held.namespace.clone(), held.resource_version.clone());
        self.spend().await;
        let result = self.desk.objects.patch_status(&namespace, &self.name, &version, &patch).await;
        let stored = self.heard(result)?;
        if let Some(held) = &mut self.held {
            held.written(stored, view.session);
        }
        self.result = Ended::Written;
        self.desk.views.written(&self.uid, view.session, &status);
        Ok(())
    }

    async fn write_labels(&mut self, view: &AgentView) -> Result<(), Failure> {
        let wanted = labels(view);
        let Some(held) = &self.held else { return Ok(()) };
        let patch = held.label_patch(&wanted);
        if patch.is_empty() {
            return Ok(());
        }
        let (namespace, version) = (held.namespace.clone(), held.resource_version.clone());
        self.spend().await;
        let result = self.desk.objects.patch_labels(&namespace, &self.name, &version, &patch).await;
        let version = self.heard(result)?;
        if let Some(held) = &mut self.held {
            held.labelled(&version, &patch);
        }
        self.result = Ended::Written;
        Ok(())
    }

    /// Of two objects of one agent the leader deletes the one of the lower epoch, so a failure here is not tried again.
    async fn delete_former(&mut self) {
        let Some(former) = self.held.as_mut().and_then(|held| held.former.take()) else { return };
        self.spend().await;
        let result = self.desk.objects.delete(&former.namespace, &self.name, &former.object_uid).await;
        if let Err(failure) = self.heard(result) {
            debug!(uid = %self.uid, namespace = &*former.namespace, %failure, "the former object is left to the leader");
        }
    }

    async fn get(&self, namespace: &str) -> Result<Stored, Failure> {
        let result = self.desk.objects.get(namespace, &self.name).await;
        self.heard(result)
    }

    async fn make(&mut self, view: &AgentView) -> Result<Stored, Failure> {
        self.spend().await;
        let result = self.desk.objects.create(&view.namespace, &self.name, &labels(view)).await;
        let stored = self.heard(result)?;
        self.result = Ended::Written;
        Ok(stored)
    }

    fn release(&mut self, view: &AgentView) {
        self.forget();
        self.desk.views.released(&self.uid, view.session);
    }

    fn forget(&mut self) {
        self.held = None;
        locked(&self.limits.room).leave(self.uid);
    }

    fn doubt(&mut self) {
        if let Some(held) = &mut self.held {
            held.doubt();
        }
    }

    /// Waits for a token.
    async fn spend(&mut self) {
        if std::mem::take(&mut self.prepaid) {
            return;
        }
        loop {
            let taken = locked(&self.limits.budget).take(now());
            match taken {
                Ok(()) => return,
                Err(again) => tokio::time::sleep_until(again.into()).await,
            }
        }
    }

    /// The budget follows what every answer says about the server.
    fn heard<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        let heard = match &result {
            Err(Failure::Unreachable(_) | Failure::NoAnswer) => Heard::Nothing,
            Err(Failure::Throttled { retry_after }) => Heard::TooMany { retry_after: *retry_after },
            Ok(_)
            | Err(
                Failure::Conflict
                | Failure::AlreadyExists
                | Failure::NotFound
                | Failure::Uncertain(_)
                | Failure::Refused(_),
            ) => Heard::Answer,
        };
        locked(&self.limits.budget).heard(heard, now());
        result
    }

    fn fail(&mut self, failure: &Failure) -> Ended {
        match failure {
            Failure::Throttled { .. } => Ended::Postponed,
            Failure::Unreachable(_) => {
                self.doubt();
                Ended::Postponed
            }
            Failure::NoAnswer | Failure::Uncertain(_) => {
                self.doubt();
                debug!(uid = %self.uid, %failure, "an Agent is read and written again");
                Ended::Failed
            }
            Failure::Refused(_) | Failure::Conflict | Failure::AlreadyExists | Failure::NotFound => {
                if let Some(left_out) = locked(&self.desk.complaints).another(now()) {
                    warn!(uid = %self.uid, %failure, left_out, "an Agent could not be written, and is tried again");
                }
                Ended::Failed
            }
        }
    }
}

impl Desk {
    /// How many objects there are, as the watch shows.
    pub(super) fn occupied(&self) -> Occupied {
        Occupied { agents: self.index.total(), unmatched: self.index.counts(&self.own_namespace).never_matched }
    }
}
