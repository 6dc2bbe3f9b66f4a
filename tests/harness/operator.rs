//! The operator as a process: its own binary, on free ports.

use std::{
    fs::{self, File, OpenOptions},
    net::SocketAddr,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::{
    guardian, http,
    roles::Roles,
    system::{self, Signal},
    wait_for,
};

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(60);
/// How long a drain may take: 500 connections a second, and the status that is still to be written.
const DRAIN: Duration = Duration::from_secs(60);

/// What an operator is started with.
#[derive(Clone)]
pub struct Started {
    /// The operator's own rights.
    pub kubeconfig: PathBuf,
    /// Its own namespace.
    pub namespace: String,
    /// The namespace whose fleets take anyone.
    pub fleets: String,
    /// Whether it serves those namespaces alone.
    pub roles: Roles,
    /// The name of this replica.
    pub replica: String,
    /// How agents are served.
    pub protection: Protection,
    /// Where it logs to.
    pub log: PathBuf,
    /// Further flags.
    pub flags: Vec<String>,
}

/// How agents are served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Protection {
    /// Over plain text.
    Plaintext,
    /// Over TLS, with a certificate of the operator's own CA.
    Tls,
}

impl Protection {
    /// The last letter of a URL's scheme.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Plaintext => "",
            Self::Tls => "s",
        }
    }
}

/// An operator that runs. Dropped, it is killed.
pub struct Operator {
    /// Where agents connect.
    pub listen: SocketAddr,
    /// `/readyz` and `/metrics`.
    pub admin: SocketAddr,
    /// When it was found ready.
    pub ready_at: Instant,
    started: Started,
    child: Child,
}

impl Operator {
    /// Starts it and waits until it is ready.
    pub async fn start(started: Started) -> Self {
        Self::at(started, system::free_address(), system::free_address()).await
    }

    /// Starts it without waiting for anything.
    pub fn launch(started: Started) -> Self {
        Self::launch_at(started, system::free_address(), system::free_address())
    }

    fn launch_at(started: Started, listen: SocketAddr, admin: SocketAddr) -> Self {
        let child = command(&started, listen, admin).spawn().expect("the operator starts");
        guardian::watch_process(child.id().expect("it was just started"));
        Self { listen, admin, ready_at: Instant::now(), started, child }
    }

    async fn at(started: Started, listen: SocketAddr, admin: SocketAddr) -> Self {
        let mut operator = Self::launch_at(started, listen, admin);
        operator.wait_until_ready().await;
        operator.ready_at = Instant::now();
        operator
    }

    async fn wait_until_ready(&mut self) {
        let admin = self.admin;
        let began = Instant::now();
        let ended = timeout(START, async {
            tokio::select! {
                status = self.child.wait() => Some(status),
                () = wait_for("the operator is ready", START, || async move {
                    match http::get(admin, "/readyz").await {
                        Ok(response) if response.status == 200 => Ok(()),
                        Ok(response) => Err(format!("status {}", response.status)),
                        Err(error) => Err(error.to_string()),
                    }
                }) => None,
            }
        })
        .await;
        if let Ok(Some(status)) = ended {
            panic!("the operator ended with {status:?} after {:?}:\n{}", began.elapsed(), self.log_tail());
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("the operator runs")
    }

    /// Where WebSocket agents connect.
    pub fn websocket(&self) -> String {
        format!("ws{}://{}/v1/opamp", self.started.protection.suffix(), self.listen)
    }

    /// Where HTTP agents connect.
    pub fn http(&self) -> String {
        format!("http{}://{}/v1/opamp", self.started.protection.suffix(), self.listen)
    }

    /// Ends it as a power cut would, and starts it again on the same ports.
    pub async fn kill_and_restart(mut self) -> Self {
        self.kill().await;
        self.revive().await
    }

    /// Waits until it has ended, whoever ended it.
    pub async fn ended(&mut self) {
        self.child.wait().await.expect("it ends");
    }

    /// Ends it as a power cut would.
    pub async fn kill(&mut self) {
        system::signal(self.pid(), Signal::Kill);
        self.child.wait().await.expect("it ends");
    }

    /// Starts it again on the same ports after it has ended.
    pub async fn revive(self) -> Self {
        Self::at(self.started.clone(), self.listen, self.admin).await
    }

    /// The same without waiting for anything: it may be ended again before it is ready.
    pub fn relaunch(self) -> Self {
        Self::launch_at(self.started.clone(), self.listen, self.admin)
    }

    /// Asks it to end, and returns how it ended.
    pub async fn terminate(&mut self) -> ExitStatus {
        system::signal(self.pid(), Signal::Terminate);
        let ended = timeout(DRAIN, self.child.wait()).await.unwrap_or_else(|_| panic!("it does not end in {DRAIN:?}"));
        ended.expect("it was waited for")
    }

    /// Asks it to end and starts it again on the same ports.
    pub async fn restart(mut self) -> Self {
        assert!(self.terminate().await.success(), "the operator drains and ends with 0");
        self.revive().await
    }

    /// Watches it for a while: it must not end.
    pub async fn runs_for(&mut self, time: Duration) {
        if let Ok(status) = timeout(time, self.child.wait()).await {
            panic!("the operator ended with {status:?}:\n{}", self.log_tail());
        }
    }

    /// Whether `/readyz` says yes.
    pub async fn is_ready(&self) -> bool {
        http::get(self.admin, "/readyz").await.is_ok_and(|response| response.status == 200)
    }

    /// Everything under `/metrics`.
    pub async fn metrics(&self) -> String {
        let response = http::get(self.admin, "/metrics").await.expect("the operator shows metrics");
        String::from_utf8_lossy(&response.body).into_owned()
    }

    /// The sum of a metric over all its labels; 0 if it is not there.
    pub async fn metric(&self, name: &str) -> f64 {
        sum(&self.metrics().await, name)
    }

    /// Waits until everything that is known is written and the write budget is full again.
    pub async fn settles(&self, limit: Duration) {
        let burst = 2_000.0; // the default of --write-burst
        wait_for("all is written and the write budget is full", limit, async || {
            let metrics = self.metrics().await;
            let level = sum(&metrics, "opamp_operator_agent_write_budget");
            let open = sum(&metrics, "opamp_operator_agent_writes_waiting")
                + sum(&metrics, "opamp_operator_agent_writes_in_flight");
            if open == 0.0 && level >= burst { Ok(()) } else { Err(format!("{open} open writes, budget {level}")) }
        })
        .await;
    }

    /// Its resident memory in bytes.
    pub fn memory(&self) -> u64 {
        system::resident_memory(self.pid())
    }

    /// Everything it logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.started.log).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the operator's last lines:\n{}", self.log_tail());
        }
    }
}

/// The binary under test: `OPAMP_OPERATOR_BIN`, else what cargo built for this test.
pub fn binary() -> PathBuf {
    std::env::var_os("OPAMP_OPERATOR_BIN").map_or_else(|| env!("CARGO_BIN_EXE_opamp-operator").into(), PathBuf::from)
}

fn command(started: &Started, listen: SocketAddr, admin: SocketAddr) -> Command {
    let log = OpenOptions::new().create(true).append(true).open(&started.log).expect("a log file");
    let mut command = Command::new(binary());
    let namespaces = match started.roles {
        // Other tests' fleets on a shared cluster are none of its business.
        Roles::Namespaced => vec![format!("--namespaces={},{}", started.namespace, started.fleets)],
        Roles::ClusterWide => Vec::new(),
    };
    command
        .args(["run", "--replica-name", &started.replica, "--log-format", "Json"])
        .args(match started.protection {
            Protection::Plaintext => &["--plaintext"][..],
            Protection::Tls => &[],
        })
        .args(["--listen", &listen.to_string(), "--admin-listen", &admin.to_string()])
        .args(["--namespace", &started.namespace, "--anonymous-namespaces", &started.fleets])
        .args(namespaces)
        .args(&started.flags)
        .env("KUBECONFIG", &started.kubeconfig)
        .stdin(Stdio::null())
        .stdout(File::try_clone(&log).expect("a second handle"))
        .stderr(log)
        .kill_on_drop(true);
    command
}

/// The sum of a metric over all its labels.
fn sum(metrics: &str, name: &str) -> f64 {
    metrics
        .lines()
        .filter_map(|line| line.strip_prefix(name))
        .filter(|rest| rest.starts_with([' ', '{']))
        .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}
