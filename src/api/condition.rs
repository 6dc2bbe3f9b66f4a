//! Conditions of all kinds: `metav1.Condition`, with their types and reasons declared in one place.

use jiff::Timestamp;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, apimachinery::pkg::apis::meta::v1::Time};

/// True, False or not known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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

/// What a condition is to say; [`merge`] turns it into a `metav1.Condition`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// The condition's type: `Ready`, `Connected`.
    pub kind: &'static str,
    /// Whether it holds.
    pub verdict: Verdict,
    /// One UpperCamelCase word of a fixed list.
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
            let status = finding.verdict.as_str();
            let since = old
                .iter()
                .find(|condition| condition.type_ == finding.kind && condition.status == status)
                .map_or_else(|| Time(now), |condition| condition.last_transition_time.clone());
            Condition {
                type_: finding.kind.into(),
                status: status.into(),
                reason: finding.reason.into(),
                message: finding.message,
                observed_generation,
                last_transition_time: since,
            }
        })
        .collect()
}
