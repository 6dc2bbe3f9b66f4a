//! Conditions of all kinds: `metav1.Condition`, made from findings and kept stable in time.
//!
//! What can be found, and what each finding means, is declared in [`super::reasons`]. A condition is built from such
//! a reason, so that its type, its status and its reason cannot contradict each other.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{Schema, SchemaGenerator, json_schema};

/// The most characters that a message may have: the limit of `metav1.Condition`.
pub const MESSAGE_LIMIT: usize = 32_768;

/// True, False or not known.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Verdict {
    /// It is so.
    True,
    /// It is not so.
    False,
    /// It cannot be told.
    Unknown,
}

impl Verdict {
    /// The value of `status` in a condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The types of conditions that the operator writes.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum ConditionType {
    /// All is as its author asked for; on every kind.
    Ready,
    /// The operator is at work, or waits for what may still come; present only while True.
    Reconciling,
    /// The author must act, nothing moves by itself; present only while True.
    Stalled,
    /// A fleet takes the agent.
    Matched,
    /// The agent may take part.
    Accepted,
    /// The agent has a live session, or polls in time.
    Connected,
    /// The agent reports to be well.
    Healthy,
    /// The agent runs what its fleet gives it.
    ConfigApplied,
    /// The agent has the certificate that its connection settings ask for; only where they ask for one.
    CertificateIssued,
}

impl ConditionType {
    /// The value of `type` in a condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::Matched => "Matched",
            Self::Accepted => "Accepted",
            Self::Connected => "Connected",
            Self::Healthy => "Healthy",
            Self::ConfigApplied => "ConfigApplied",
            Self::CertificateIssued => "CertificateIssued",
        }
    }
}

/// What a condition is to say; [`merge`] turns it into a `metav1.Condition`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// Which condition it is about.
    pub condition: ConditionType,
    /// Whether it holds.
    pub verdict: Verdict,
    /// One word that [`super::reasons`] declares.
    pub reason: &'static str,
    /// What it means here and what to do; short where all is well.
    pub message: String,
}

/// The new list of conditions: each finding with the time at which its verdict last changed. Conditions without a
/// finding are gone, which is how `Reconciling` and `Stalled` are present only while True.
#[must_use]
pub fn merge(
    old: &[Condition],
    findings: Vec<Finding>,
    observed_generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    findings
        .into_iter()
        .map(|finding| {
            let type_ = finding.condition.as_str();
            let status = finding.verdict.as_str();
            let since = old
                .iter()
                .find(|condition| condition.type_ == type_ && condition.status == status)
                .map_or_else(|| Time(now), |condition| condition.last_transition_time.clone());
            Condition {
                type_: type_.into(),
                status: status.into(),
                reason: finding.reason.into(),
                message: bounded(finding.message),
                observed_generation,
                last_transition_time: since,
            }
        })
        .collect()
}

/// The condition of a type, if the list has it.
#[must_use]
pub fn find(conditions: &[Condition], condition: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|candidate| candidate.type_ == condition.as_str())
}

/// The schema of a list of conditions: that of the generated type has neither limits nor texts for their reader.
pub(super) fn list_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "description": "What the condition is about, such as `Ready`.",
                    "type": "string", "minLength": 1, "maxLength": 64,
                },
                "status": {
                    "description": "Whether it holds: `True`, `False`, or `Unknown` where it cannot be told.",
                    "type": "string", "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "description": "The `metadata.generation` that the condition speaks of.",
                    "type": "integer", "format": "int64", "minimum": 0,
                },
                "lastTransitionTime": {
                    "description": "When `status` last changed.",
                    "type": "string", "format": "date-time",
                },
                "reason": {
                    "description": "One word that says why; the reference lists all of them with what to do.",
                    "type": "string", "minLength": 1, "maxLength": 128,
                },
                "message": {
                    "description": "What it means here and what to do, for people to read.",
                    "type": "string", "maxLength": MESSAGE_LIMIT,
                },
            },
        },
    })
}

/// One message too long would make the API server refuse the whole status.
fn bounded(message: String) -> String {
    const MARK: char = '…';
    if message.chars().nth(MESSAGE_LIMIT).is_none() {
        return message;
    }
    message.chars().take(MESSAGE_LIMIT - 1).chain([MARK]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MORNING: Timestamp = Timestamp::constant(1_800_000_000, 0);
    const EVENING: Timestamp = Timestamp::constant(1_800_040_000, 0);

    fn connected(verdict: Verdict, message: &str) -> Finding {
        Finding { condition: ConditionType::Connected, verdict, reason: "ConnectionClosed", message: message.into() }
    }

    #[test]
    fn the_transition_time_moves_with_the_verdict_alone() {
        let before = merge(&[], vec![connected(Verdict::True, "since breakfast")], Some(1), MORNING);
        for (verdict, expected) in [(Verdict::True, MORNING), (Verdict::False, EVENING), (Verdict::Unknown, EVENING)] {
            let after = merge(&before, vec![connected(verdict, "another message")], Some(2), EVENING);
            assert_eq!(after[0].last_transition_time, Time(expected), "{verdict:?}");
            assert_eq!(after[0].message, "another message");
            assert_eq!(after[0].observed_generation, Some(2));
        }
    }

    #[test]
    fn a_condition_without_a_finding_is_gone() {
        let stalled = Finding { condition: ConditionType::Stalled, ..connected(Verdict::True, "") };
        let before = merge(&[], vec![connected(Verdict::True, ""), stalled], None, MORNING);
        assert!(find(&before, ConditionType::Stalled).is_some());
        let after = merge(&before, vec![connected(Verdict::True, "")], None, EVENING);
        assert_eq!(after.len(), 1);
        assert!(find(&after, ConditionType::Stalled).is_none());
    }

    #[test]
    fn a_message_over_the_limit_of_metav1_condition_is_cut_with_a_mark() {
        for (length, expected_end) in [(MESSAGE_LIMIT, 'ä'), (MESSAGE_LIMIT + 1, '…')] {
            let conditions = merge(&[], vec![connected(Verdict::False, &"ä".repeat(length))], None, MORNING);
            assert_eq!(conditions[0].message.chars().count(), MESSAGE_LIMIT);
            assert_eq!(conditions[0].message.chars().last(), Some(expected_end));
        }
    }
}
