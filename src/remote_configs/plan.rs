//! From what is observed of a RemoteConfig to what is to be written: pure.

use jiff::Timestamp;

use crate::{
    api::{
        condition::merge,
        reasons::{RemoteConfigReason, StandingReason, standing_findings},
        remote_config::{ConfigFileStatus, RemoteConfig, RemoteConfigResourceStatus},
    },
    events::{Restatement, transition},
    revisions::Inspection,
    status::difference::written_difference,
};

/// The most fleets that a status names; the field has the same limit.
const MOST_FLEETS: usize = 64;

/// What was found out about the files, without their bodies: it is kept as long as the RemoteConfig stays as it is.
#[derive(Clone, Debug)]
pub struct Examined {
    reasons: Vec<(RemoteConfigReason, String)>,
    /// What the files are, if all of them are good.
    files: Option<Files>,
}

#[derive(Clone, Debug)]
struct Files {
    hash: Option<String>,
    size: Option<i64>,
    statuses: Vec<ConfigFileStatus>,
}

impl Examined {
    /// Every file was looked for.
    #[must_use]
    pub fn inspected(inspection: &Inspection) -> Self {
        let files = || Files {
            hash: inspection.hash().map(|hash| hash.short()),
            size: i64::try_from(inspection.bytes()).ok(),
            statuses: inspection.file_statuses(),
        };
        Self { reasons: inspection.reasons(), files: inspection.findings().is_empty().then(files) }
    }

    /// A file exists and could not be read, for this cause.
    #[must_use]
    pub fn unreadable(why: String) -> Self {
        Self { reasons: vec![(RemoteConfigReason::ReferenceNotFound, why)], files: None }
    }
}

/// Plans what brings a RemoteConfig's status to what is observed; `fleets` are those that name it, in order.
///
/// While a file is missing or at fault, what is told of the files is what was last good: it is what fleets offer still.
#[must_use]
pub fn plan(remote_config: &RemoteConfig, examined: &Examined, fleets: &[String], now: Timestamp) -> Restatement {
    if remote_config.metadata.deletion_timestamp.is_some() {
        return Restatement::default();
    }
    let former = remote_config
        .status
        .clone()
        .unwrap_or_else(|| RemoteConfigResourceStatus { observed_generation: -1, ..Default::default() });
    let mut status = former.clone();
    status.observed_generation = remote_config.metadata.generation.unwrap_or_default();
    status.fleets = fleets.iter().take(MOST_FLEETS).cloned().collect();
    if let Some(Files { hash, size, statuses }) = &examined.files {
        (status.hash, status.size, status.files) = (hash.clone(), *size, statuses.clone());
    }
    let findings = standing_findings(&examined.reasons);
    status.conditions = merge(&former.conditions, findings, Some(status.observed_generation), now);
    let words: Vec<_> = RemoteConfigReason::ALL.iter().map(|reason| reason.declaration().word).collect();
    Restatement {
        events: transition(&former.conditions, &status.conditions, &words).into_iter().collect(),
        status: written_difference(&former, &status),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::revisions::{Bodies, inspect};

    const NOON: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn remote_config(body: &str, status: &Value) -> RemoteConfig {
        serde_json::from_value(json!({
            "apiVersion": "opamp.dev/v1alpha1",
            "kind": "RemoteConfig",
            "metadata": {"name": "base", "namespace": "telemetry", "generation": 3},
            "spec": {"format": "OpenTelemetryCollector", "files": [{"name": "collector.yaml", "body": body}]},
            "status": status,
        }))
        .expect("a RemoteConfig")
    }

    fn examined(remote_config: &RemoteConfig) -> Examined {
        Examined::inspected(&inspect(&remote_config.spec, &Bodies::new()))
    }

    /// The status after a plan, and the reasons of its events. Nothing vanishes from a status that was good before, so
    /// that replacing field by field is enough.
    fn applied(remote_config: &RemoteConfig, examined: &Examined, fleets: &[&str]) -> (Value, Vec<&'static str>) {
        let fleets: Vec<String> = fleets.iter().map(|name| (*name).to_owned()).collect();
        let plan = plan(remote_config, examined, &fleets, NOON);
        let mut status = serde_json::to_value(&remote_config.status).expect("JSON");
        for (field, value) in plan.status.as_ref().and_then(Value::as_object).into_iter().flatten() {
            status[field] = value.clone();
        }
        let mut after = remote_config.clone();
        after.status = Some(serde_json::from_value(status.clone()).expect("a status"));
        let again = self::plan(&after, examined, &fleets, NOON + jiff::SignedDuration::from_secs(9));
        assert_eq!(again, Restatement::default(), "once is enough");
        (status, plan.events.iter().map(|event| event.reason).collect())
    }

    fn conditions(status: &Value) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = status["conditions"].as_array().expect("conditions");
        conditions.iter().map(|it| format!("{}={}", text(&it["type"]), text(&it["reason"]))).collect()
    }

    #[test]
    fn a_good_one_shows_its_files_and_its_fleets() {
        let good = remote_config("receivers: {otlp: }", &json!({"observedGeneration": -1}));
        let (status, events) = applied(&good, &examined(&good), &["core", "edge"]);
        assert_eq!(conditions(&status), ["Ready=Valid"]);
        assert_eq!((&status["observedGeneration"], &status["size"]), (&json!(3), &json!(19)));
        assert_eq!(status["fleets"], json!(["core", "edge"]));
        assert_eq!(status["files"][0]["name"], "collector.yaml");
        assert_eq!(status["hash"].as_str().map(str::len), Some(10));
        assert_eq!(events, [""; 0]);
    }

    #[test]
    fn a_broken_one_tells_the_place_and_what_was_last_good() {
        let good = remote_config("receivers: {otlp: }", &json!({"observedGeneration": -1}));
        let (status, _) = applied(&good, &examined(&good), &["edge"]);
        let broken = remote_config("receivers:\n  otlp: [", &status);
        let (after, events) = applied(&broken, &examined(&broken), &["edge"]);
        assert_eq!(conditions(&after), ["Ready=InvalidYaml", "Stalled=InvalidYaml"]);
        assert!(
            after["conditions"][0]["message"]
                .as_str()
                .is_some_and(|it| it.contains("collector.yaml") && it.contains("line"))
        );
        assert_eq!((&after["hash"], events), (&status["hash"], vec!["InvalidYaml"]));
        let mended = remote_config("receivers: {otlp: }", &after);
        assert_eq!(applied(&mended, &examined(&mended), &["edge"]).1, ["Recovered"]);
    }

    #[test]
    fn what_may_still_come_is_waited_for() {
        let unreadable = remote_config("", &json!({"observedGeneration": -1}));
        let why = Examined::unreadable("Secret token could not be read: 403 Forbidden".into());
        let (status, events) = applied(&unreadable, &why, &[]);
        assert_eq!(conditions(&status), ["Ready=ReferenceNotFound", "Reconciling=ReferenceNotFound"]);
        assert_eq!(events, ["ReferenceNotFound"]);
    }
}
