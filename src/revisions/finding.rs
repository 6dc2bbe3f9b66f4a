//! What is wrong with inputs, and on which object it shows.

use crate::api::reasons::{FleetReason, RemoteConfigReason};

/// One thing that is wrong. Its message tells the place, and never content that came from a Secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Finding {
    /// It shows on the fleet.
    Fleet {
        /// The condition's reason; it says too whether the author must act.
        reason: FleetReason,
        /// What is wrong here.
        message: String,
    },
    /// It shows on a `RemoteConfig`.
    RemoteConfig {
        /// Its name.
        name: String,
        /// The condition's reason; it says too whether the author must act.
        reason: RemoteConfigReason,
        /// What is wrong here: the file, and the place in it.
        message: String,
    },
}

impl Finding {
    /// On the fleet.
    pub(super) fn fleet(reason: FleetReason, message: impl Into<String>) -> Self {
        Self::Fleet { reason, message: message.into() }
    }
}

/// What a fleet's conditions are made of, most important first: its own findings, and one for each `RemoteConfig` that
/// has some.
#[must_use]
pub fn fleet_reasons(findings: &[Finding]) -> Vec<(FleetReason, String)> {
    let mut reasons: Vec<(FleetReason, String)> = findings
        .iter()
        .filter_map(|finding| match finding {
            Finding::Fleet { reason, message } => Some((*reason, message.clone())),
            Finding::RemoteConfig { .. } => None,
        })
        .collect();
    let mut names: Vec<&str> = findings
        .iter()
        .filter_map(|finding| match finding {
            Finding::Fleet { .. } => None,
            Finding::RemoteConfig { name, .. } => Some(name.as_str()),
        })
        .collect();
    names.dedup();
    reasons.extend(names.into_iter().map(|name| {
        (FleetReason::RemoteConfigNotReady, format!("RemoteConfig {name} is not Ready; its conditions tell why"))
    }));
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_config_with_faults_shows_on_its_fleet_once() {
        use FleetReason::{FileNameClash, RemoteConfigNotReady};
        let fault = |name: &str| Finding::RemoteConfig {
            name: name.into(),
            reason: RemoteConfigReason::InvalidYaml,
            message: "file a: line 1".into(),
        };
        let clash = Finding::fleet(FleetReason::FileNameClash, "a");
        let reasons = fleet_reasons(&[fault("base"), fault("base"), fault("gpu"), clash]);
        let words: Vec<_> = reasons.iter().map(|(reason, _)| *reason).collect();
        assert_eq!(words, [FileNameClash, RemoteConfigNotReady, RemoteConfigNotReady]);
        assert!(reasons[1].1.contains("base") && reasons[2].1.contains("gpu"));
    }
}
