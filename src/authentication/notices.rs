//! Events about single agents, on the fleet that they concern: few, however many agents there are.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use tokio::sync::mpsc;

use super::fault::Fault;
use crate::{
    api::agent_fleet::AgentFleet,
    catalog::CatalogHandle,
    events::{Publisher, Severity, Transition},
    opamp::InstanceUid,
};

/// What may wait to be told.
pub(super) const NOTICES_WAITING: usize = 64;
/// One event of a kind for each fleet in this time: whoever shows an expired token a thousand times is told of once.
const INTERVAL: Duration = Duration::from_secs(300);

/// Something that concerns a fleet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Notice {
    pub namespace: String,
    pub fleet: String,
    pub about: About,
}

/// What has happened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum About {
    /// A credential that is bound to the fleet was refused.
    Refused { method: &'static str, fault: Fault },
    /// The certificate of this agent had ended, and it has enrolled with another credential.
    EnrolledAnew { uid: InstanceUid, method: &'static str },
}

impl About {
    /// The reason of the event.
    fn reason(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "CredentialRefused",
            Self::EnrolledAnew { .. } => "AgentEnrolledAnew",
        }
    }

    fn transition(&self) -> Transition {
        let (severity, note) = match self {
            Self::Refused { method, fault } => {
                (Severity::Warning, format!("An agent was refused ({method}): {fault}."))
            }
            Self::EnrolledAnew { uid, method } => (
                Severity::Normal,
                format!("The certificate of agent {uid} had ended; it has enrolled anew ({method})."),
            ),
        };
        Transition { severity, reason: self.reason(), note }
    }
}

/// When each fleet was told of last.
#[derive(Debug, Default)]
struct Told(HashMap<(String, String, &'static str), Instant>);

impl Told {
    /// Whether it is the fleet's turn. Only fleets that exist may be asked about.
    fn is_due(&mut self, notice: &Notice, now: Instant) -> bool {
        self.0.retain(|_, told| now < *told + INTERVAL);
        let fleet = (notice.namespace.clone(), notice.fleet.clone(), notice.about.reason());
        let is_due = !self.0.contains_key(&fleet);
        if is_due {
            self.0.insert(fleet, now);
        }
        is_due
    }
}

/// Tells of what comes until nothing can come any more.
pub(super) async fn publish(mut notices: mpsc::Receiver<Notice>, catalog: &CatalogHandle, publisher: &Publisher) {
    let mut told = Told::default();
    while let Some(notice) = notices.recv().await {
        let Some(fleet) = catalog.load().fleet(&notice.namespace, &notice.fleet).map(Arc::clone) else { continue };
        if !told.is_due(&notice, super::clock()) {
            continue;
        }
        let about = ObjectReference {
            api_version: Some(AgentFleet::api_version(&()).into_owned()),
            kind: Some(AgentFleet::kind(&()).into_owned()),
            namespace: Some(fleet.namespace.clone()),
            name: Some(fleet.name.clone()),
            uid: Some(fleet.uid.clone()),
            ..ObjectReference::default()
        };
        publisher.publish(&about, vec![notice.about.transition()]).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_is_told_of_each_kind_once_in_five_minutes() {
        let (mut told, start) = (Told::default(), Instant::now());
        for (second, fleet, expected) in
            [(0, "edge", true), (1, "edge", false), (2, "core", true), (299, "edge", false), (300, "edge", true)]
        {
            let about = About::Refused { method: "EnrollmentToken", fault: Fault::Expired };
            let notice = Notice { namespace: "telemetry".into(), fleet: fleet.into(), about };
            assert_eq!(told.is_due(&notice, start + Duration::from_secs(second)), expected, "{fleet} after {second} s");
        }
        let uid = InstanceUid::from_wire(&[7; 16]).unwrap();
        let about = About::EnrolledAnew { uid, method: "EnrollmentToken" };
        let notice = Notice { namespace: "telemetry".into(), fleet: "edge".into(), about };
        assert!(told.is_due(&notice, start + Duration::from_secs(301)), "of another kind");
        let note = "The certificate of agent 07070707-0707-0707-0707-070707070707 had ended; it has enrolled anew \
            (EnrollmentToken).";
        assert_eq!(notice.about.transition().note, note);
    }
}
