//! The audit line about certificates: one for each decision on who gets one, of a shape that does not change.
//!
//! Lines have the target `opamp_operator::audit`, the level info and the message `certificate`. Every line has every field;
//! what does not apply is empty. No key and no request is in it.

use std::time::Instant;

use jiff::Timestamp;

use super::{
    roll::Issuer,
    serial::Serial,
    stored::{AgentCertificate, Holder},
};
use crate::{journal, opamp::InstanceUid};

/// What was decided.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// There is a certificate.
    Issued,
    /// There will be none for this request.
    Refused,
}

impl Outcome {
    /// The value of the field `outcome`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Refused => "refused",
        }
    }
}

/// A decision on who gets a certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Decision {
    /// What was decided.
    pub outcome: Outcome,
    /// Who was to sign, as `enrollment.certificates.issuer` calls it, if anybody was asked.
    pub issuer: Option<&'static str>,
    /// For whom.
    pub holder: Holder,
    /// The number of the certificate.
    pub serial: Option<Serial>,
    /// When it ends.
    pub not_after: Option<Timestamp>,
    /// Why there will be none, as the agent and its object are told.
    pub reason: String,
}

impl Decision {
    /// The decision that a Secret shows; none as long as somebody else is to sign.
    #[must_use]
    pub fn shown_by(certificate: &AgentCertificate, issuer: Option<&Issuer>) -> Option<Self> {
        let (issuer, holder) = (issuer.map(Issuer::label), certificate.holder());
        if let Some(refused) = &certificate.refused {
            return Some(Self { issuer, ..Self::refusal(holder, &refused.why) });
        }
        let held = &certificate.given.as_ref()?.certificate;
        let (serial, not_after) = (Some(held.serial.clone()), Some(held.not_after));
        Some(Self { outcome: Outcome::Issued, issuer, holder, serial, not_after, reason: String::new() })
    }

    /// A request is refused before anybody is asked.
    #[must_use]
    pub fn refusal(holder: Holder, why: &str) -> Self {
        let reason = why.to_owned();
        Self { outcome: Outcome::Refused, issuer: None, holder, serial: None, not_after: None, reason }
    }
}

/// Writes the line of a decision that stands for so many.
pub fn record(decision: &Decision, count: u64) {
    let Decision { outcome, issuer, holder, serial, not_after, reason } = decision;
    let Holder { agent, namespace, fleet } = holder;
    let (outcome, issuer) = (outcome.as_str(), issuer.unwrap_or_default());
    let serial = serial.as_ref().map(Serial::to_string).unwrap_or_default();
    let not_after = not_after.map(|not_after| not_after.to_string()).unwrap_or_default();
    tracing::info!(
        target: "opamp_operator::audit",
        outcome, issuer, namespace, fleet, uid = %agent, serial, not_after, reason, count, "certificate"
    );
}

/// Writes lines of requests that a replica refuses: one in ten seconds for each agent, with how many there were since the
/// last one, so that an agent which repeats itself fills no disk.
#[derive(Debug, Default)]
pub struct Journal(journal::Journal<InstanceUid, Decision>);

impl Journal {
    /// A request was refused.
    pub fn refused(&self, decision: &Decision, now: Instant) {
        if let Some(count) = self.0.take(decision.holder.agent, decision, now) {
            record(decision, count);
        }
    }

    /// Writes what was left out and would not be told otherwise. To be called every few seconds.
    pub fn sweep(&self, now: Instant) {
        for (decision, count) in self.0.left_over(now) {
            record(&decision, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        credentials::{
            key::PrivateKey,
            request::PublicKey,
            tests::{
                at, authority, issue,
                stored::{holder, patched, request},
                uid,
            },
        },
        journal::MOST,
    };

    #[test]
    fn what_a_secret_shows_is_told_once_it_is_decided() {
        let (key, pair) = PrivateKey::generate().unwrap();
        let issued = authority().issue_agent(
            &holder(1).name("c"),
            &PublicKey::of(&pair).unwrap(),
            Duration::from_secs(600),
            at(0),
        );
        let given = holder(1).issued(&key, &key.id().unwrap(), &issued.unwrap());
        let asked = holder(1).request(&request(1));
        let read = |secret: &_| AgentCertificate::read(secret).unwrap();
        let refused = read(&patched(&asked, &read(&asked).refuse("the agent is denied", at(5))));
        let outcome =
            |certificate: &AgentCertificate| Decision::shown_by(certificate, None).map(|it| (it.outcome, it.reason));
        assert_eq!(outcome(&read(&asked)), None);
        assert_eq!(outcome(&refused), Some((Outcome::Refused, "the agent is denied".into())));
        assert_eq!(outcome(&read(&given)), Some((Outcome::Issued, String::new())));
    }

    #[test]
    fn every_line_has_every_field() {
        // With two subscribers each place is asked of both, whichever thread comes there first.
        let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&lines);
        let subscriber =
            tracing_subscriber::fmt().json().without_time().with_writer(move || Written(Arc::clone(&written)));
        let issued = issue(&authority(), 0).unwrap();
        tracing::subscriber::with_default(subscriber.finish(), || {
            record(
                &Decision {
                    outcome: Outcome::Issued,
                    issuer: Some(Issuer::Internal.label()),
                    serial: Some(issued.serial.clone()),
                    not_after: Some(issued.not_after),
                    ..Decision::refusal(holder(1), "")
                },
                1,
            );
            record(&Decision::refusal(holder(2), "the certificate request is not signed with its own key"), 3);
        });
        let text = String::from_utf8(lines.lock().unwrap().clone()).unwrap();
        let expected = [
            json!({"message": "certificate", "outcome": "issued", "issuer": "Internal", "namespace": "telemetry",
                "fleet": "edge", "uid": uid(1).to_string(), "serial": issued.serial.to_string(),
                "not_after": issued.not_after.to_string(), "reason": "", "count": 1}),
            json!({"message": "certificate", "outcome": "refused", "issuer": "", "namespace": "telemetry",
                "fleet": "edge", "uid": uid(2).to_string(), "serial": "", "not_after": "",
                "reason": "the certificate request is not signed with its own key", "count": 3}),
        ];
        let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((&found["fields"], &found["target"]), (expected, &json!("opamp_operator::audit")));
            assert_eq!(found["level"], "INFO");
        }
        assert_eq!(found.len(), 2);
    }

    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_agent_that_repeats_itself_is_told_of_once_in_ten_seconds() {
        let (journal, start) = (Journal::default(), Instant::now());
        let decision = Decision::refusal(holder(1), "no");
        for (second, agent, expected) in [
            (0, 1, Some(1)),
            (1, 1, None),
            (1, 2, Some(1)),
            (9, 1, None),
            (10, 1, Some(3)),
            (11, 1, None),
            (21, 1, Some(2)),
        ] {
            let count = journal.0.take(uid(agent), &decision, start + Duration::from_secs(second));
            assert_eq!(count, expected, "agent {agent} after {second} s");
        }
        let many = (0..5_000)
            .filter_map(|_| journal.0.take(InstanceUid::generate(), &decision, start + Duration::from_secs(40)));
        assert_eq!(many.count(), MOST + 1);
    }
}
