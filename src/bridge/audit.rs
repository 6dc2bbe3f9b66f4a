//! The audit lines about who may take part: one for each decision, of a shape that does not change. Nothing in one was
//! taken from what an agent says of itself, its uid aside.

use std::net::SocketAddr;

use crate::{
    opamp::{InstanceUid, identity::Identity},
    server::Connection,
};

/// How an access decision went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Decision {
    /// The agent takes part.
    Granted,
    /// It waits for a person's approval.
    Held,
    /// It does not.
    Refused,
    /// It has to use another uid.
    Renamed,
    /// It took part, and does not any more.
    Ended,
}

impl Decision {
    fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Held => "held",
            Self::Refused => "refused",
            Self::Renamed => "renamed",
            Self::Ended => "ended",
        }
    }
}

/// Whom a decision is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who<'a> {
    pub(super) uid: InstanceUid,
    pub(super) identity: &'a Identity,
    pub(super) remote: SocketAddr,
}

impl<'a> Who<'a> {
    /// The agent of this uid that speaks through this connection.
    pub(super) fn behind(connection: &'a Connection, uid: InstanceUid) -> Self {
        Self { uid, identity: &connection.principal.identity, remote: connection.remote }
    }
}

/// The fleet that takes the agent; empty if none does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FleetName<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// Writes a decision about an agent down, with one fixed word that says why.
pub(super) fn record(decision: Decision, who: Who<'_>, fleet: FleetName<'_>, reason: &'static str) {
    let FleetName { namespace, name } = fleet;
    let Who { uid, identity, remote } = who;
    tracing::info!(
        target: "opamp_operator::audit",
        outcome = decision.word(),
        method = identity.method(),
        %identity,
        namespace,
        fleet = name,
        %uid,
        %remote,
        reason,
        count = 1,
        "access"
    );
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use serde_json::{Value, json};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("unbroken").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_has_all_its_fields_whatever_is_known() {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || writer.clone());
        let uid = InstanceUid::from_name("01900000-0000-7000-8000-000000000001").expect("a uid");
        let identity = Identity::parse("token:telemetry/edge").expect("an identity");
        let who = Who { uid, identity: &identity, remote: ([10, 0, 0, 7], 40_000).into() };
        tracing::subscriber::with_default(subscriber.finish(), || {
            record(Decision::Held, who, FleetName { namespace: "telemetry", name: "edge" }, "PendingApproval");
            record(Decision::Refused, who, FleetName::default(), "Revoked");
        });
        let text = String::from_utf8(sink.0.lock().expect("unbroken").clone()).expect("text");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let fields = [
            "target",
            "message",
            "outcome",
            "method",
            "identity",
            "namespace",
            "fleet",
            "uid",
            "remote",
            "reason",
            "count",
        ];
        let shown = |line: &Value| fields.map(|field| line[field].clone());
        let uid = uid.to_string();
        assert_eq!(
            shown(&lines[0]),
            [
                "opamp_operator::audit".into(),
                "access".into(),
                "held".into(),
                "EnrollmentToken".into(),
                "token:telemetry/edge".into(),
                "telemetry".into(),
                "edge".into(),
                json!(uid),
                "10.0.0.7:40000".into(),
                "PendingApproval".into(),
                json!(1),
            ]
        );
        assert_eq!(shown(&lines[1])[5..7], [json!(""), json!("")]);
    }
}
