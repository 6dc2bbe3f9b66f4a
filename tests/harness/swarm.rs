//! Many agents of opamp-go's client library in one process, driven over its standard input.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{Mutex as AsyncMutex, oneshot},
    time::timeout,
};

use super::guardian;

/// Those who wait for replies, by the number of their command.
type Waiting = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Value>>>>;

/// Agents that run. Dropped, they are killed without a goodbye.
pub struct Swarm {
    /// How many.
    pub count: usize,
    child: Child,
    input: AsyncMutex<ChildStdin>,
    waiting: Waiting,
    commands: AtomicU64,
}

/// A swarm in the making.
pub struct Agents {
    count: usize,
    arguments: Vec<String>,
}

/// What a test waits for; every part that is set must hold of an agent.
#[derive(Clone, Debug, Default)]
pub struct Reached {
    /// It connected at least so often.
    pub connections: usize,
    /// It was offered a configuration at least so often.
    pub offers: usize,
    /// It applied a configuration, and runs one that contains this text.
    pub running: Option<String>,
    /// It refused a configuration.
    pub failed: bool,
    /// It got at least so many error responses.
    pub errors: usize,
    /// It failed to connect at least so often.
    pub failures: usize,
    /// It was offered connection settings at least so often.
    pub settings: usize,
    /// It reconnected with offered connection settings at least so often.
    pub switched: usize,
    /// It connects with a certificate that was offered to it.
    pub certified: bool,
}

impl Reached {
    /// Connected.
    pub fn connected() -> Self {
        Self { connections: 1, ..Self::default() }
    }

    /// Runs a configuration with this text, and has said so.
    pub fn running(text: &str) -> Self {
        Self { running: Some(text.to_owned()), ..Self::default() }
    }

    /// Refused what it was last offered.
    pub fn failed() -> Self {
        Self { failed: true, ..Self::default() }
    }

    /// Connects with a certificate that was offered to it.
    pub fn certified() -> Self {
        Self { certified: true, ..Self::default() }
    }

    /// Reconnected with offered connection settings at least so often.
    pub fn switched(times: usize) -> Self {
        Self { switched: times, ..Self::default() }
    }

    /// Was answered with so many errors.
    pub fn refused(times: usize) -> Self {
        Self { errors: times, ..Self::default() }
    }

    fn to_json(&self) -> Value {
        let mut condition = json!({
            "connections": self.connections, "offers": self.offers, "errors": self.errors, "failures": self.failures,
            "settings": self.settings, "switched": self.switched,
        });
        if self.certified {
            condition["certificate"] = json!("*");
        }
        if let Some(text) = &self.running {
            condition["applied"] = json!("*");
            condition["running"] = json!(text);
        }
        if self.failed {
            condition["failed"] = json!("*");
        }
        condition
    }
}

/// What happened to the agents so far.
#[derive(Clone, Debug, Deserialize)]
pub struct Summary {
    /// Connections made, reconnections included; over HTTP each exchange counts.
    pub connections: usize,
    /// Attempts to connect that failed.
    pub connect_failures: usize,
    /// Error responses from the server.
    pub error_responses: usize,
    /// Configurations offered.
    pub offers: usize,
    /// Agents that were given another instance uid.
    pub new_uids: usize,
    /// Agents by the hash that they last applied.
    pub applied: BTreeMap<String, usize>,
    /// Agents by the hash that they last refused.
    pub failed: BTreeMap<String, usize>,
    /// Connection settings offered.
    pub settings: usize,
    /// Agents by the serial number of the certificate that they connect with.
    pub certificates: BTreeMap<String, usize>,
    /// The longest time in seconds that one of them was without a connection after its first.
    pub longest_gap: f64,
}

/// So many agents of this `service.name`, in the making.
pub fn agents(count: usize, service: &str) -> Agents {
    let agents = Agents { count, arguments: vec!["-count".into(), count.to_string(), "-seed".into(), service.into()] };
    agents.with("-identifying", &format!("service.name={service}")).with("-identifying", "service.version=0.140.0")
}

/// Who an agent is, and what it proves that with.
#[derive(Clone, Debug, Deserialize)]
pub struct AgentIdentity {
    /// Under which uid it speaks.
    pub uid: String,
    /// The uid that it was given last; empty: it has its own.
    pub new_uid: String,
    /// The serial number of its certificate in hex digits; empty: it has none.
    pub serial: String,
    /// Its certificate, in PEM.
    #[serde(default)]
    pub certificate: String,
    /// Its private key, in PEM.
    pub key: String,
    /// When its certificate ends, as RFC 3339 writes it.
    pub not_after: String,
    /// What it was last refused with.
    pub error: String,
    /// The headers that it connects with.
    pub headers: BTreeMap<String, String>,
}

impl Agents {
    /// With another option of the program.
    pub fn with(mut self, option: &str, value: &str) -> Self {
        self.arguments.extend([option.to_owned(), value.to_owned()]);
        self
    }

    /// With this header in every request.
    pub fn header(self, name: &str, value: &str) -> Self {
        self.with("-header", &format!("{name}: {value}"))
    }

    /// Knows servers by this CA.
    pub fn trusting(self, ca: &Path) -> Self {
        self.with("-ca", &ca.display().to_string())
    }

    /// Accepts connection settings, and reconnects with them.
    pub fn taking_settings(mut self) -> Self {
        self.arguments.push("-settings".to_owned());
        self
    }

    /// The same, and asks for a certificate as soon as it is connected.
    pub fn asking_for_certificates(mut self) -> Self {
        self.arguments.push("-csr".to_owned());
        self.taking_settings()
    }

    /// Refuses all connection settings.
    pub fn refusing_settings(mut self) -> Self {
        self.arguments.push("-refuse-settings".to_owned());
        self.taking_settings()
    }

    /// Connects with this certificate and key at first.
    pub fn presenting(self, certificate: &Path, key: &Path) -> Self {
        self.with("-certificate", &certificate.display().to_string()).with("-key", &key.display().to_string())
    }

    /// Without the capability to take remote configuration.
    pub fn without_configuration(mut self) -> Self {
        self.arguments.push("-no-config".to_owned());
        self
    }

    /// With this attribute; `a|b` alternates from agent to agent.
    pub fn attribute(self, key: &str, value: &str) -> Self {
        self.with("-non-identifying", &format!("{key}={value}"))
    }

    /// Uids from another seed: two swarms of one `service.name` need it.
    pub fn seed(self, seed: &str) -> Self {
        self.with("-seed", seed)
    }

    /// Starts them against an endpoint; they connect on their own.
    pub fn start(self, endpoint: &str) -> Swarm {
        let mut child = Command::new(program())
            .args(["-endpoint", endpoint])
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the agents' program is built (tests/e2e/clients.sh)");
        guardian::watch_process(child.id().expect("it was just started"));
        let input = child.stdin.take().expect("its input is a pipe");
        let output = child.stdout.take().expect("its output is a pipe");
        let waiting = Waiting::default();
        tokio::spawn(deliver(output, Arc::clone(&waiting)));
        Swarm { count: self.count, child, input: AsyncMutex::new(input), waiting, commands: AtomicU64::new(0) }
    }
}

impl Swarm {
    /// Waits until all of them are there.
    pub async fn all(&self, reached: Reached, limit: Duration) {
        self.at_least(self.count, reached, limit).await;
    }

    /// Waits until so many are there.
    pub async fn at_least(&self, count: usize, reached: Reached, limit: Duration) {
        let command = json!({
            "do": "wait", "for": reached.to_json(), "count": count, "timeout": format!("{}ms", limit.as_millis()),
        });
        let reply = self.ask(command, limit + Duration::from_secs(10)).await;
        let seen = &reply["error"];
        assert_eq!(reply["ok"], true, "agents that {reached:?}: {seen}; all in all: {:?}", self.summary().await);
    }

    /// What happened so far.
    pub async fn summary(&self) -> Summary {
        let reply = self.order(json!({"do": "status"})).await;
        serde_json::from_value(reply).expect("the program keeps to its format")
    }

    /// The hashes that the agents last applied.
    pub async fn applied_hashes(&self) -> Vec<String> {
        self.summary().await.applied.into_keys().collect()
    }

    /// The uids of all agents, in the order of their numbers.
    pub async fn uids(&self) -> Vec<String> {
        let reply = self.order(json!({"do": "uids"})).await;
        serde_json::from_value(reply["uids"].clone()).expect("the program keeps to its format")
    }

    /// What one agent runs.
    pub async fn running(&self, agent: usize) -> String {
        super::resources::text(&self.order(json!({"do": "running", "agents": [agent]})).await["text"])
    }

    /// Has these agents report themselves well.
    pub async fn recover(&self, agents: &[usize]) {
        self.order(json!({"do": "health", "agents": agents, "healthy": true})).await;
    }

    /// Has these agents report a fault.
    pub async fn fall_ill(&self, agents: &[usize], error: &str) {
        self.order(json!({"do": "health", "agents": agents, "healthy": false, "error": error})).await;
    }

    /// Has these agents say goodbye.
    pub async fn leave(&self, agents: &[usize]) {
        self.order(json!({"do": "stop", "agents": agents})).await;
    }

    /// Has these agents come back after they left.
    pub async fn come_back(&self, agents: &[usize]) {
        self.order(json!({"do": "start", "agents": agents})).await;
    }

    /// Has these agents ask for a certificate, for the same key as before.
    pub async fn ask_for_certificates(&self, agents: &[usize]) {
        self.order(json!({"do": "request", "agents": agents})).await;
    }

    /// Has these agents ask again and again until they connect with another certificate.
    pub async fn renew_certificates(&self, agents: &[usize]) {
        self.order(json!({"do": "renew", "agents": agents})).await;
    }

    /// Who an agent is by now, as a thief would want to know it.
    pub async fn identity(&self, agent: usize) -> AgentIdentity {
        let reply = self.order(json!({"do": "identity", "agents": [agent]})).await;
        serde_json::from_value(reply).expect("the program keeps to its format")
    }

    async fn order(&self, command: Value) -> Value {
        let reply = self.ask(command, Duration::from_secs(60)).await;
        assert_eq!(reply["ok"], true, "{reply}");
        reply
    }

    async fn ask(&self, mut command: Value, limit: Duration) -> Value {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        command["id"] = json!(number);
        let (sender, reply) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, sender);
        self.input.lock().await.write_all(format!("{command}\n").as_bytes()).await.expect("the agents' program runs");
        let reply = timeout(limit, reply).await.unwrap_or_else(|_| panic!("no reply in {limit:?} to {command}"));
        reply.expect("the agents' program goes on running")
    }

    /// The process that runs them.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("the agents run")
    }
}

/// Hands each reply to who asked. Ends with the program; then all who wait learn it.
async fn deliver(output: ChildStdout, waiting: Waiting) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(reply) = serde_json::from_str::<Value>(&line) else { continue };
        let Some(number) = reply["id"].as_u64() else { continue };
        let asker = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        if let Some(asker) = asker {
            let _ = asker.send(reply); // who asked may have given up
        }
    }
    waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

fn program() -> PathBuf {
    super::real_clients::provided("OPAMP_TEST_AGENTS").into()
}
