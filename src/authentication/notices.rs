//! Events about refusals, on the fleet that the credential is bound to.

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
};

/// Refusals that may wait to be told.
pub(super) const NOTICES_WAITING: usize = 64;
/// One event a fleet in this time: whoever shows an expired token a thousand times is told of once.
const INTERVAL: Duration = Duration::from_secs(300);
/// The reason of the event.
const REASON: &str = "CredentialRefused";

/// A refusal that concerns a fleet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Notice {
    pub namespace: String,
    pub fleet: String,
    pub method: &'static str,
    pub fault: Fault,
}

/// When each fleet was told of last.
#[derive(Debug, Default)]
struct Told(HashMap<(String, String), Instant>);

impl Told {
    /// Whether it is the fleet's turn. Only fleets that exist may be asked about.
    fn is_due(&mut self, notice: &Notice, now: Instant) -> bool {
        self.0.retain(|_, told| now < *told + INTERVAL);
        let fleet = (notice.namespace.clone(), notice.fleet.clone());
        let is_due = !self.0.contains_key(&fleet);
        if is_due {
            self.0.insert(fleet, now);
        }
        is_due
    }
}

/// Tells of refusals until nobody can refuse any more.
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
        let note = format!("An agent was refused ({}): {}.", notice.method, notice.fault);
        publisher.publish(&about, vec![Transition { severity: Severity::Warning, reason: REASON, note }]).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_is_told_of_once_in_five_minutes() {
        let (mut told, start) = (Told::default(), Instant::now());
        for (second, fleet, expected) in
            [(0, "edge", true), (1, "edge", false), (2, "core", true), (299, "edge", false), (300, "edge", true)]
        {
            let notice = Notice {
                namespace: "telemetry".into(),
                fleet: fleet.into(),
                method: "EnrollmentToken",
                fault: Fault::Expired,
            };
            assert_eq!(told.is_due(&notice, start + Duration::from_secs(second)), expected, "{fleet} after {second} s");
        }
    }
}
