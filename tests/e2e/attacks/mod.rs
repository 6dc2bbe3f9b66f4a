//! Who tries to come in without being welcome, to the operator's own binary over TLS. Each row of a table is an attack
//! with what becomes of it; afterwards an honest agent is served as before.

mod anonymous;
mod certificates;
mod guessing;
mod headers;
mod requests;
mod revocation;
mod uids;
mod wire;

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use opamp_operator::opamp::messages::{
    AgentToServer, CertificateRequest, ConnectionSettingsRequest, OpAmpConnectionSettingsRequest, ServerToAgent,
};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use super::enrollment::{TOKEN, apply_fleet, enrollment_token};
use crate::harness::{
    Kind, Operator, Scenario,
    caller::{BOTH, Caller, Outcome},
    forge::{self, Identity},
    scripted::{Socket, full_report, heartbeat, new_uid, uid_text},
    wait_for,
};

const SOON: Duration = Duration::from_secs(20);
/// From when the API server acknowledged that somebody is to be out.
const OUT_WITHIN: Duration = Duration::from_secs(5);
/// `AcceptsOpAMPConnectionSettings`.
const TAKES_SETTINGS: u64 = 0x100;
/// The token of the fleet `other`.
const OTHER_TOKEN: &str = "another-token-that-nobody-guesses-98765";

/// An operator over TLS with two fleets: `edge` takes certificates and its own token, `other` its own token only.
struct World {
    scenario: Scenario,
    operator: Operator,
    ca: PathBuf,
}

impl World {
    async fn begin(name: &str) -> Self {
        let scenario = Scenario::begin(name).await;
        let operator = scenario.tls_replica("replica-0", &[]).await;
        let ca = scenario.ca().await;
        apply_fleet(&scenario, &operator.websocket(), "Automatic", &json!({"duration": "1h", "renewBefore": "20m"}));
        scenario.apply(&[
            enrollment_token("other-token", OTHER_TOKEN, Some("other")),
            json!({
                "apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleet", "metadata": {"name": "other"},
                "spec": {
                    "selector": {"matchAttributes": {"service.name": "other"}},
                    "enrollment": {"methods": ["EnrollmentToken"]},
                },
            }),
        ]);
        scenario.condition((Kind::Fleet, "edge"), ("Ready", "True", "Completed"), SOON).await;
        let world = Self { scenario, operator, ca };
        world.served("the world has begun").await;
        world
    }

    /// Somebody new, from an address of his own.
    fn caller(&self) -> Caller {
        Caller::new(self.operator.listen, &self.ca)
    }

    /// An honest agent is served.
    async fn served(&self, case: &str) {
        wait_for(&format!("an honest agent is served: {case}"), SOON, async || {
            let member = self.caller().bearer(TOKEN);
            let mut words = Vec::new();
            for transport in BOTH {
                words.push(member.says(&full_report(&new_uid(), "edge"), transport).await.word());
            }
            if words == ["served", "served"] { Ok(()) } else { Err(words.join(", ")) }
        })
        .await;
    }

    /// The name that a certificate of this fleet's agent has.
    fn name(&self, namespace: &str, fleet: &str, uid: &Bytes) -> String {
        let cluster = forge::cluster_name(&self.scenario);
        format!("opamp://{cluster}/{namespace}/{fleet}/{}", uid_text(uid))
    }

    /// An agent of the fleet `edge` that has got its certificate by right, and has used it once.
    async fn enrolled(&self) -> (Bytes, Identity) {
        let (uid, key) = (new_uid(), KeyPair::generate().expect("a key"));
        let request = CertificateParams::default().serialize_request(&key).and_then(|it| it.pem()).expect("a request");
        let mut socket = self.caller().bearer(TOKEN).websocket().await.expect("a member of the fleet");
        let mut answer = socket.exchange(&asking(&uid, request.as_bytes())).await;
        let chain = loop {
            if let Some(chain) = certificate_in(&answer) {
                break chain;
            }
            answer = socket.answer().await;
        };
        let identity = Identity { chain, key: key.serialize_pem() };
        let mut socket = self.caller().presenting(&identity).websocket().await.expect("it was issued to the agent");
        socket.exchange(&report(&uid)).await;
        wait_for("the certificate is in use", SOON, async || {
            let status = self.agent(&uid).await["status"]["certificate"].clone();
            if status["inUseSince"].is_string() { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        (uid, identity)
    }

    async fn agent(&self, uid: &Bytes) -> Value {
        self.scenario.get(Kind::Agent, &uid_text(uid)).await.unwrap_or_default()
    }

    /// The version of an agent's object once nothing more is to be written.
    async fn settled(&self, uid: &Bytes) -> String {
        wait_for("the agent's object is written", SOON, async || {
            let status = self.agent(uid).await["status"].clone();
            if status["connection"].is_object() { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        self.operator.settles(SOON).await;
        self.agent(uid).await["metadata"]["resourceVersion"].as_str().expect("it has an object").to_owned()
    }
}

/// A first report of a member of `edge` that takes connection settings.
fn report(uid: &Bytes) -> AgentToServer {
    let report = full_report(uid, "edge");
    AgentToServer { capabilities: report.capabilities | TAKES_SETTINGS, ..report }
}

/// The same, with a request for a certificate.
fn asking(uid: &Bytes, request: &[u8]) -> AgentToServer {
    let certificate_request = Some(CertificateRequest { csr: Bytes::copy_from_slice(request) });
    let opamp = Some(OpAmpConnectionSettingsRequest { certificate_request });
    AgentToServer { connection_settings_request: Some(ConnectionSettingsRequest { opamp }), ..report(uid) }
}

/// The certificate that a message offers.
fn certificate_in(message: &ServerToAgent) -> Option<String> {
    let certificate = message.connection_settings.as_ref()?.opamp.as_ref()?.certificate.as_ref()?;
    Some(String::from_utf8(certificate.cert.to_vec()).expect("PEM is text"))
}

/// Keeps a socket alive, as an agent does: it reads, and answers pings.
fn keep_alive(mut socket: Socket, uid: Bytes) -> tokio::task::JoinHandle<bool> {
    tokio::spawn(async move {
        let is_silent = socket.stays_silent_for(SOON).await;
        is_silent && matches!(socket.exchange(&heartbeat(&uid, 2)).await, answer if answer.error_response.is_none())
    })
}

/// Says what an attacker has to say by both transports, and checks what becomes of it.
async fn try_both(case: &str, caller: &Caller, message: &AgentToServer, expected: &str) {
    for transport in BOTH {
        let outcome = caller.says(message, transport).await;
        assert_eq!(outcome.word(), expected, "{case}, {transport:?}: {}", told(&outcome));
        println!("{case}, {transport:?}: {expected}");
    }
}

fn told(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Cut(error) => error.clone(),
        Outcome::Status(status) => status.to_string(),
        Outcome::Answered(answer) => format!("{answer:?}").chars().take(400).collect(),
    }
}
