//! cert-manager's own controllers of CA issuers, as a process on the cluster of a test: what it signs is what a cluster
//! with cert-manager would sign.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::{Value, json};

use super::{
    ControlPlane,
    control_plane::{exported, script},
    guardian,
    resources::Condition,
    wait_for,
};

/// How long an issuer may take to be found ready, which includes cert-manager's own start on a busy machine.
const READY: Duration = Duration::from_secs(60);

/// cert-manager on a cluster. Dropped, it is killed; its custom resource definitions stay, so a test of their absence
/// needs a control plane of its own.
pub struct CertManager {
    child: Child,
    log: PathBuf,
}

impl CertManager {
    /// Builds it if need be, which takes minutes the first time, makes its kinds known and starts it with the rights of
    /// a cluster administrator. It approves every request and signs for every Issuer of kind `ca`.
    ///
    /// Garbage collection learns of the kinds up to 40 s late.
    pub fn start(cluster: &ControlPlane, log: &Path) -> Self {
        let exports = script("certmanager.sh", &[]).expect("cert-manager is built");
        let exports = exported(&exports);
        cluster.kubectl(&["apply", "--server-side", "-f", &exports["CERT_MANAGER_CRDS"]], "");
        cluster.kubectl(
            &["wait", "--for=condition=Established", "--timeout=30s", "-f", &exports["CERT_MANAGER_CRDS"]],
            "",
        );
        let output = File::create(log).expect("its log can be written");
        let child = Command::new(&exports["CERT_MANAGER"])
            .arg("--kubeconfig")
            .arg(&cluster.kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .expect("cert-manager starts");
        guardian::watch_process(child.id());
        Self { child, log: log.to_owned() }
    }

    /// Makes a CA of this name and the Issuer of the same name that signs with it, and waits until it is ready. Returns
    /// the CA's certificate in PEM; the Secret has it under `ca.crt` too, as a fleet's `clientCAs` want it.
    pub async fn issuer(&mut self, cluster: &ControlPlane, namespace: &str, name: &str) -> String {
        let (certificate, key) = authority(name);
        let objects = [
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/tls",
                "stringData": {"tls.crt": certificate, "tls.key": key, "ca.crt": certificate},
            }),
            json!({
                "apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": name},
                "spec": {"ca": {"secretName": name}},
            }),
        ]
        .map(|object| object.to_string());
        cluster.kubectl(&["-n", namespace, "apply", "--server-side", "-f", "-"], &objects.join("\n---\n"));
        wait_for("the issuer is ready", READY, async || {
            self.still_runs();
            let printed = cluster.try_kubectl(&["-n", namespace, "get", "issuer", name, "-o", "json"], "")?;
            let issuer: Value = serde_json::from_str(&printed).map_err(|error| error.to_string())?;
            let ready = Condition::of(&issuer, "Ready");
            if ready.is("True", "KeyPairVerified") { Ok(()) } else { Err(format!("{ready:?}")) }
        })
        .await;
        certificate
    }

    /// Everything it logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn still_runs(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            panic!("cert-manager ended with {status}:\n{}", self.log());
        }
    }
}

impl Drop for CertManager {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

/// A root CA of this name: its certificate and its key, in PEM.
fn authority(name: &str) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters.distinguished_name.push(DnType::CommonName, name);
    let certificate = parameters.self_signed(&key).expect("a certificate");
    (certificate.pem(), key.serialize_pem())
}
