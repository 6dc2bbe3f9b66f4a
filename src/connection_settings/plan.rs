//! From what is observed of ConnectionSettings to what is to be written: pure.

use jiff::Timestamp;

use crate::{
    api::{
        condition::merge,
        connection_settings::{ConnectionSettings, ConnectionSettingsStatus},
        reasons::{ConnectionSettingsReason, StandingReason, standing_findings},
    },
    events::{Restatement, transition},
    revisions::{credentials::Judgement, settings::Incomplete},
    status::difference::written_difference,
};

/// The most fleets that a status names; the field has the same limit.
const MOST_FLEETS: usize = 64;

/// What was found out about the values that the settings refer to, without these.
#[derive(Clone, Debug)]
pub struct Examined {
    reasons: Vec<(ConnectionSettingsReason, String)>,
}

impl Examined {
    /// Every value was looked for.
    #[must_use]
    pub fn judged(judgement: Judgement) -> Self {
        if judgement.faults.is_empty() {
            return Self { reasons: vec![(ConnectionSettingsReason::Valid, String::new())] };
        }
        Self { reasons: judgement.faults }
    }

    /// The spec itself does not say enough.
    #[must_use]
    pub fn incomplete(incomplete: &Incomplete) -> Self {
        Self { reasons: vec![(ConnectionSettingsReason::InvalidReference, incomplete.to_string())] }
    }
}

/// Plans what brings the status of ConnectionSettings to what is observed; `fleets` are those that name them, in order.
#[must_use]
pub fn plan(settings: &ConnectionSettings, examined: &Examined, fleets: &[String], now: Timestamp) -> Restatement {
    if settings.metadata.deletion_timestamp.is_some() {
        return Restatement::default();
    }
    let former = settings
        .status
        .clone()
        .unwrap_or_else(|| ConnectionSettingsStatus { observed_generation: -1, ..Default::default() });
    let observed_generation = settings.metadata.generation.unwrap_or_default();
    let findings = standing_findings(&examined.reasons);
    let status = ConnectionSettingsStatus {
        observed_generation,
        fleets: fleets.iter().take(MOST_FLEETS).cloned().collect(),
        conditions: merge(&former.conditions, findings, Some(observed_generation), now),
    };
    let words: Vec<_> = ConnectionSettingsReason::ALL.iter().map(|reason| reason.declaration().word).collect();
    Restatement {
        events: transition(&former.conditions, &status.conditions, &words).into_iter().collect(),
        status: written_difference(&former, &status),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOON: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn settings(status: &Value) -> ConnectionSettings {
        serde_json::from_value(json!({
            "apiVersion": "opamp.dev/v1alpha1",
            "kind": "ConnectionSettings",
            "metadata": {"name": "edge", "namespace": "telemetry", "generation": 3},
            "spec": {"opamp": {"endpoint": "wss://a"}},
            "status": status,
        }))
        .expect("ConnectionSettings")
    }

    fn with_fault(reason: ConnectionSettingsReason) -> Examined {
        let faults = vec![(reason, "header Authorization: Secret edge-token does not exist".into())];
        Examined::judged(Judgement { faults, ..Judgement::default() })
    }

    /// The status after a plan, and the reasons of its events.
    fn applied(settings: &ConnectionSettings, examined: &Examined, fleets: &[&str]) -> (Value, Vec<&'static str>) {
        let fleets: Vec<String> = fleets.iter().map(|name| (*name).to_owned()).collect();
        let plan = plan(settings, examined, &fleets, NOON);
        let mut status = serde_json::to_value(&settings.status).expect("JSON");
        for (field, value) in plan.status.as_ref().and_then(Value::as_object).into_iter().flatten() {
            status[field] = value.clone();
        }
        let mut after = settings.clone();
        after.status = Some(serde_json::from_value(status.clone()).expect("a status"));
        let again = self::plan(&after, examined, &fleets, NOON + jiff::SignedDuration::from_secs(9));
        assert_eq!(again, Restatement::default(), "once is enough");
        (status, plan.events.iter().map(|event| event.reason).collect())
    }

    fn conditions(status: &Value) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = status["conditions"].as_array().expect("conditions");
        conditions
            .iter()
            .map(|it| format!("{}={} {}", text(&it["type"]), text(&it["status"]), text(&it["reason"])))
            .collect()
    }

    #[test]
    fn settings_without_a_fault_are_ready_and_show_their_fleets() {
        let new = settings(&json!({"observedGeneration": -1}));
        let (status, events) = applied(&new, &Examined::judged(Judgement::default()), &["core", "edge"]);
        assert_eq!(conditions(&status), ["Ready=True Valid"]);
        assert_eq!((&status["observedGeneration"], &status["fleets"]), (&json!(3), &json!(["core", "edge"])));
        assert_eq!(events, [""; 0]);
    }

    #[test]
    fn a_value_that_is_missing_or_not_usable_is_waited_for_and_told_of_once() {
        for (reason, word) in [
            (ConnectionSettingsReason::ReferenceNotFound, "ReferenceNotFound"),
            (ConnectionSettingsReason::InvalidReference, "InvalidReference"),
        ] {
            let (status, events) = applied(&settings(&json!({"observedGeneration": -1})), &with_fault(reason), &[]);
            assert_eq!(conditions(&status), [format!("Ready=False {word}"), format!("Reconciling=True {word}")]);
            assert_eq!(events, [word]);
            let mended = applied(&settings(&status), &Examined::judged(Judgement::default()), &[]);
            assert_eq!(mended.1, ["Recovered"]);
        }
    }

    #[test]
    fn settings_that_are_being_deleted_are_left_alone() {
        let mut gone = settings(&json!({"observedGeneration": -1}));
        gone.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(NOON));
        assert!(plan(&gone, &Examined::judged(Judgement::default()), &[], NOON).is_empty());
    }
}
