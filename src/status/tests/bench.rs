//! A writer at work between a server in memory and views that tests set.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};

use super::api_server::ApiServer;
use crate::{
    agents::index::AgentIndex,
    api::agent::AgentStatus,
    opamp::InstanceUid,
    status::{
        metrics::Metrics,
        queue::Urgency,
        render::Owner,
        view::{self, AgentView, Departure, LivenessView, tests::MORNING},
        writer::{AgentViews, StatusWriter, WriterLimits, locked},
    },
};

/// What the writer told.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Told {
    Remembered(Box<AgentStatus>),
    Written { session: u64, epoch: i64 },
    Superseded { session: u64, by: String },
    Released { session: u64 },
}

#[derive(Default)]
struct Views {
    views: Mutex<HashMap<InstanceUid, AgentView>>,
    told: Mutex<Vec<Told>>,
}

impl AgentViews for Views {
    fn view(&self, uid: &InstanceUid) -> Option<AgentView> {
        locked(&self.views).get(uid).cloned()
    }

    fn remembered(&self, _: &InstanceUid, _: &str, status: &AgentStatus) {
        locked(&self.told).push(Told::Remembered(Box::new(status.clone())));
    }

    fn written(&self, _: &InstanceUid, session: u64, status: &AgentStatus) {
        let epoch = status.connection.as_ref().map_or(0, |connection| connection.epoch);
        locked(&self.told).push(Told::Written { session, epoch });
    }

    fn superseded(&self, _: &InstanceUid, session: u64, by: &AgentStatus) {
        let by = by.connection.as_ref().map(|connection| connection.replica.clone()).unwrap_or_default();
        locked(&self.told).push(Told::Superseded { session, by });
    }

    fn released(&self, uid: &InstanceUid, session: u64) {
        let mut views = locked(&self.views);
        if views.get(uid).is_some_and(|view| view.session == session && !view.is_connected()) {
            views.remove(uid);
        }
        locked(&self.told).push(Told::Released { session });
    }
}

pub(super) struct Bench {
    pub(super) server: ApiServer,
    pub(super) index: AgentIndex,
    pub(super) writer: StatusWriter,
    views: Arc<Views>,
}

impl Bench {
    /// Replica `opamp-operator-0` in its first run, with what the server has at its start.
    pub(super) fn start(server: ApiServer, limits: WriterLimits) -> Self {
        let index = AgentIndex::holding(server.list());
        let owner = Owner { replica: "opamp-operator-0".into(), incarnation: "first".into() };
        let writer = StatusWriter::new(owner, "opamp-system", limits, Metrics::default());
        let views = Arc::new(Views::default());
        tokio::spawn(writer.clone().run(server.client(), index.clone(), Arc::clone(&views) as Arc<dyn AgentViews>));
        Self { server, index, writer, views }
    }

    pub(super) fn empty() -> Self {
        Self::start(ApiServer::default(), WriterLimits::default())
    }

    pub(super) fn change(&self, uid: InstanceUid, change: impl FnOnce(&mut AgentView)) {
        change(locked(&self.views.views).entry(uid).or_insert_with(view::tests::view));
        self.writer.touch(uid, Urgency::Rest);
    }

    pub(super) fn disconnect(&self, uid: InstanceUid) {
        self.change(uid, |view| {
            view.connection.liveness = LivenessView::Disconnected { since: MORNING, how: Departure::ConnectionClosed };
        });
    }

    /// Waits until nobody waits to be written.
    pub(super) async fn settled(&self) {
        while self.writer.left() > 0 {
            pass(Duration::from_millis(50)).await;
        }
    }

    /// The watch shows what the server has.
    pub(super) fn show(&self) {
        self.index.relist(self.server.list());
    }

    pub(super) fn told(&self) -> Vec<Told> {
        std::mem::take(&mut locked(&self.views.told))
    }

    pub(super) fn status(&self, namespace: &str, uid: InstanceUid) -> AgentStatus {
        let object = self.server.object(namespace, &uid.to_string()).expect("the object");
        serde_json::from_value(object["status"].clone()).expect("a status")
    }

    pub(super) fn epoch(&self, namespace: &str, uid: InstanceUid) -> i64 {
        self.status(namespace, uid).connection.expect("a connection").epoch
    }
}

/// Lets the runtime's clock run on; nothing is really waited for.
pub(super) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

pub(super) fn agent(number: u8) -> InstanceUid {
    InstanceUid::from_wire(&[number; 16]).expect("16 bytes")
}

/// A status that another replica has written.
pub(super) fn of_another_replica(epoch: i64) -> Value {
    json!({
        "observedGeneration": 1,
        "connection": {"transport": "HTTP", "replica": "opamp-operator-1", "incarnation": "other", "epoch": epoch,
            "since": "2026-11-29T12:00:00Z", "method": "Anonymous", "identity": "anonymous", "remoteAddress": "10.0.0.9:1"},
        "attributes": {"identifying": {"service.name": "from-the-status"}},
        "capabilities": ["ReportsStatus"],
    })
}
