//! etcd, the API server and the controller manager that tests run on.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::{guardian, wait_for};

/// Names a cluster of the user's to test on instead of the local control plane.
const FOREIGN_CLUSTER: &str = "OPAMP_TEST_KUBECONFIG";

/// A cluster: a local one, or the user's.
pub struct ControlPlane {
    /// How clients reach it, as a cluster administrator.
    pub kubeconfig: PathBuf,
    /// The kubectl that goes with it.
    pub kubectl: PathBuf,
    /// The state of a local control plane; a cluster of the user's has none here.
    folder: Option<PathBuf>,
}

/// A process of the control plane that tests disturb.
#[derive(Clone, Copy, Debug)]
pub enum Component {
    /// `kube-apiserver`.
    ApiServer,
}

impl Component {
    const fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "kube-apiserver",
        }
    }
}

impl ControlPlane {
    /// The one that all tests of this binary share: the user's if `OPAMP_TEST_KUBECONFIG` is set, else a local one
    /// that is started at the first call and ends with the test run.
    pub fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<ControlPlane>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(|| {
            Arc::new(match std::env::var_os(FOREIGN_CLUSTER) {
                Some(kubeconfig) => Self::foreign(kubeconfig.into()),
                None => Self::start(),
            })
        }))
    }

    /// A local one for one test alone, whatever the environment says: for tests that stop the API server.
    pub fn private() -> Arc<Self> {
        Arc::new(Self::start())
    }

    fn foreign(kubeconfig: PathBuf) -> Self {
        let kubectl = script("build.sh", &["--where"]).map_or_else(
            |_| PathBuf::from("kubectl"),
            |programs| programs.lines().find(|path| path.ends_with("/kubectl")).unwrap_or("kubectl").into(),
        );
        let cluster = Self { kubeconfig, kubectl, folder: None };
        cluster.kubectl(&["apply", "--server-side", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/crds")], "");
        cluster
    }

    fn start() -> Self {
        script("build.sh", &[]).expect("the control plane's programs are built");
        let exports = script("up.sh", &[]).expect("the control plane starts");
        let exports = exported(&exports);
        let folder = PathBuf::from(&exports["CP_DIR"]);
        guardian::watch_control_plane(&folder);
        let (kubeconfig, kubectl) = (exports["KUBECONFIG"].clone().into(), exports["KUBECTL"].clone().into());
        Self { kubeconfig, kubectl, folder: Some(folder) }
    }

    /// A cluster administrator's client, for the runtime that calls.
    pub async fn client(&self) -> Client {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default(); // each test tries, the first succeeds
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        Client::try_from(config.expect("it names a cluster")).expect("a client")
    }

    /// Whether it is a local one: everything in it is this test run's.
    pub const fn is_local(&self) -> bool {
        self.folder.is_some()
    }

    /// Ends a process of a local control plane at once, as a crash would.
    pub fn stop(&self, component: Component) {
        self.control("stop", component);
    }

    /// Starts a process that was stopped, on the same port and data; does not wait until it is ready.
    pub fn resume(&self, component: Component) {
        self.control("start", component);
    }

    /// Waits until the API server answers again.
    pub async fn wait_until_ready(&self, limit: Duration) {
        let probe = || async { self.try_kubectl(&["get", "--raw", "/readyz"], "").map(drop) };
        wait_for("the API server is ready", limit, probe).await;
    }

    fn control(&self, verb: &str, component: Component) {
        let folder = self.folder.as_deref().expect("only a local control plane is disturbed");
        script("ctl.sh", &[&folder.display().to_string(), verb, component.name()]).expect("ctl.sh does as told");
    }

    /// Runs kubectl with this input and returns what it printed.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        self.try_kubectl(arguments, input).unwrap_or_else(|error| panic!("kubectl {}: {error}", arguments.join(" ")))
    }

    /// Runs kubectl; what it complained of is the error.
    pub fn try_kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        super::system::run(command, input)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = script("down.sh", &[&folder.display().to_string()]); // the guardian tries once more
        }
    }
}

/// Runs one of the scripts of `tests/controlplane` and returns what it printed; what it says of its progress is shown.
pub fn script(name: &str, arguments: &[&str]) -> Result<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join("tests/controlplane").join(name))
        .args(arguments)
        .env("CP_MANIFESTS", root.join("crds"))
        .env_remove("CP_DIR")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(printed) } else { Err(format!("{name}: {}", output.status)) }
}

/// The variables in lines such as `export NAME='value'`.
pub fn exported(lines: &str) -> BTreeMap<String, String> {
    lines
        .lines()
        .filter_map(|line| line.strip_prefix("export ")?.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.trim_matches('\'').to_owned()))
        .collect()
}
