//! The audit line: one for each decision about access, of a shape that does not change.
//!
//! Lines have the target `opamp_operator::audit`, the level info and the message `access`. Every line has every field;
//! what does not apply is empty. Nothing in it was taken from what an agent says of itself, its uid aside.

use std::{net::SocketAddr, time::Instant};

use super::failures::Source;
use crate::{
    journal,
    opamp::{InstanceUid, identity::Identity},
};

/// What was decided.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// The agent was let in.
    Granted,
    /// It was not.
    Refused,
    /// It was in, and is no longer.
    Ended,
    /// It was given another `instance_uid`.
    Renamed,
    /// It waits for a person's approval.
    Held,
}

impl Outcome {
    /// The value of the field `outcome`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Refused => "refused",
            Self::Ended => "ended",
            Self::Renamed => "renamed",
            Self::Held => "held",
        }
    }
}

/// A decision about access.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Access {
    /// What was decided.
    pub outcome: Outcome,
    /// By what the agent wanted in: a word of `enrollment.methods`, or `Unknown`.
    pub method: &'static str,
    /// Who it is, as far as that was found out.
    pub identity: Option<Identity>,
    /// The namespace and the name of the fleet that it concerns.
    pub fleet: Option<(String, String)>,
    /// The agent that it concerns.
    pub uid: Option<InstanceUid>,
    /// Where it comes from.
    pub remote: SocketAddr,
    /// Why, as one fixed word.
    pub reason: &'static str,
}

/// Writes the line of a decision.
pub fn record(access: &Access) {
    write(access, 1);
}

fn write(access: &Access, count: u64) {
    let Access { outcome, method, identity, fleet, uid, remote, reason } = access;
    let (namespace, fleet) = fleet.as_ref().map_or(("", ""), |(namespace, fleet)| (namespace, fleet));
    let identity = identity.as_ref().map(Identity::to_string).unwrap_or_default();
    let uid = uid.map(|uid| uid.to_string()).unwrap_or_default();
    let outcome = outcome.as_str();
    tracing::info!(target: "opamp_operator::audit", outcome, method, identity, namespace, fleet, uid, %remote, reason, count, "access");
}

/// Writes lines of what peers may bring about as fast as they can, such as refusals: one in ten seconds for each address
/// and reason, with how many it stands for, so that guessing fills no disk and drowns nothing.
#[derive(Debug, Default)]
pub struct Journal(journal::Journal<(Source, &'static str), Access>);

impl Journal {
    /// Somebody was refused, or has brought about something else again.
    pub fn refused(&self, access: &Access, now: Instant) {
        if let Some(count) = self.take(access, now) {
            write(access, count);
        }
    }

    /// Writes what was left out and would not be told otherwise. To be called every few seconds.
    pub fn sweep(&self, now: Instant) {
        for (access, count) in self.0.left_over(now) {
            write(&access, count);
        }
    }

    fn take(&self, access: &Access, now: Instant) -> Option<u64> {
        self.0.take((Source::of(access.remote), access.reason), access, now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::{
        authentication::tests::Lines,
        journal::{INTERVAL, MOST},
    };

    fn refusal(address: [u8; 4], reason: &'static str) -> Access {
        Access {
            outcome: Outcome::Refused,
            method: "EnrollmentToken",
            identity: None,
            fleet: None,
            uid: None,
            remote: (address, 4711).into(),
            reason,
        }
    }

    #[test]
    fn every_line_has_every_field() {
        let (lines, _listening) = Lines::listen();
        record(&refusal([192, 0, 2, 1], "UnknownToken"));
        record(&Access {
            outcome: Outcome::Granted,
            identity: Identity::parse("token:telemetry/*"),
            fleet: Some(("telemetry".into(), "edge".into())),
            uid: InstanceUid::from_name("0190a5c4-7e2f-7cc0-8000-000000000001"),
            ..refusal([192, 0, 2, 1], "Joined")
        });
        let expected = [
            json!({"message": "access", "outcome": "refused", "method": "EnrollmentToken", "identity": "",
                "namespace": "", "fleet": "", "uid": "", "remote": "192.0.2.1:4711", "reason": "UnknownToken", "count": 1}),
            json!({"message": "access", "outcome": "granted", "method": "EnrollmentToken",
                "identity": "token:telemetry/*", "namespace": "telemetry", "fleet": "edge",
                "uid": "0190a5c4-7e2f-7cc0-8000-000000000001", "remote": "192.0.2.1:4711", "reason": "Joined", "count": 1}),
        ];
        let found = lines.all();
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((&found["fields"], &found["target"]), (expected, &json!("opamp_operator::audit")));
            assert_eq!(found["level"], "INFO");
        }
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_kind_of_refusal_is_told_once_in_ten_seconds_with_its_number() {
        let (journal, start) = (Journal::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        let (guess, other) = (refusal([192, 0, 2, 1], "UnknownToken"), refusal([192, 0, 2, 2], "UnknownToken"));
        for (second, access, expected) in [
            (0, &guess, Some(1)),
            (1, &guess, None),
            (2, &other, Some(1)),
            (3, &refusal([192, 0, 2, 1], "Expired"), Some(1)),
            (9, &guess, None),
            (10, &guess, Some(3)),
            (11, &guess, None),
        ] {
            assert_eq!(journal.take(access, at(second)), expected, "after {second} s");
        }
        assert_eq!(journal.0.left_over(at(19)), [], "the line of this address is not yet due");
        assert_eq!(journal.0.left_over(at(20)), [(guess, 1)]);
        assert!(journal.0.is_empty());
    }

    #[test]
    fn refusals_of_countless_addresses_share_a_line() {
        let (journal, now) = (Journal::default(), Instant::now());
        let lines = (0..5_000_u32)
            .filter_map(|number| journal.take(&refusal((0x0a00_0000 + number).to_be_bytes(), "UnknownToken"), now));
        assert_eq!(lines.count(), MOST + 1);
        let left_over: u64 = journal.0.left_over(now + INTERVAL).into_iter().map(|(_, count)| count).sum();
        assert_eq!(left_over, 5_000 - 1_001);
    }
}
