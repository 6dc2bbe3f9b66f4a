//! Agents on the clients of other languages, one a process.

use std::{process::Stdio, sync::OnceLock, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::guardian;

/// Which client.
#[derive(Clone, Copy, Debug)]
pub enum Language {
    /// OpenTelemetry Python's.
    Python,
    /// Elastic's for Node.js.
    Node,
}

impl Language {
    const fn variable(self) -> &'static str {
        match self {
            Self::Python => "OPAMP_TEST_PYTHON",
            Self::Node => "OPAMP_TEST_NODE",
        }
    }
}

/// An agent that runs, over HTTP.
pub struct RealClient {
    language: Language,
    events: Lines<BufReader<ChildStdout>>,
    input: Option<ChildStdin>,
    child: Child,
}

impl RealClient {
    /// Starts it with this `service.name`.
    pub fn start(language: Language, endpoint: &str, service: &str) -> Self {
        let command_line = provided(language.variable());
        let mut words = command_line.split(' ');
        let mut child = Command::new(words.next().expect("a program"))
            .args(words)
            .args([endpoint, &format!("service.name={service}"), "os.type=linux"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the client is installed (tests/e2e/clients.sh)");
        guardian::watch_process(child.id().expect("it was just started"));
        let output = child.stdout.take().expect("its output is a pipe");
        let input = child.stdin.take();
        Self { language, events: BufReader::new(output).lines(), input, child }
    }

    /// The next event of this name; others are passed over.
    pub async fn event(&mut self, name: &str, limit: Duration) -> Value {
        let mut passed = Vec::new();
        let found = timeout(limit, async {
            while let Some(line) = self.events.next_line().await.expect("its output is text") {
                let event: Value = serde_json::from_str(&line).expect("each line is JSON");
                if event["event"] == name {
                    return Some(event);
                }
                passed.push(line);
            }
            None
        })
        .await;
        // Nothing found: it ended; an error: time is up.
        let found = found.unwrap_or_default();
        found.unwrap_or_else(|| panic!("{:?} did not say {name} in {limit:?}; it said {passed:?}", self.language))
    }

    /// Has it say goodbye and end.
    pub async fn leave(mut self) {
        drop(self.input.take());
        let status = timeout(Duration::from_secs(20), self.child.wait()).await.expect("it ends in 20 s");
        assert!(status.expect("it was waited for").success(), "{:?} ends well", self.language);
    }
}

/// What `tests/e2e/clients.sh` says of a client: from the environment, or else from the script itself.
pub fn provided(variable: &str) -> String {
    static EXPORTS: OnceLock<String> = OnceLock::new();
    if let Ok(value) = std::env::var(variable) {
        return value;
    }
    let exports = EXPORTS.get_or_init(|| {
        let script = std::process::Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/clients.sh"));
        super::system::run(script, "").expect("the clients are built")
    });
    let line = exports.lines().find_map(|line| line.strip_prefix(&format!("export {variable}=")));
    line.unwrap_or_else(|| panic!("clients.sh says nothing of {variable}")).trim_matches('\'').to_owned()
}
