//! The rights that the operator runs with: those of `config/rbac`, and no others.

use serde_json::{Value, json};

use super::ControlPlane;

/// Names the variant under which the stories run.
const VARIABLE: &str = "OPAMP_TEST_ROLES";
/// The cluster-wide bindings that `config/rbac` has.
const BINDINGS: [&str; 3] = ["opamp-operator", "opamp-operator-token-review", "opamp-operator-cluster-signer"];

/// The two variants of the operator's roles.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Roles {
    /// It serves one namespace beside its own and reads no other.
    Namespaced,
    /// It serves all namespaces; so there is one in a cluster.
    ClusterWide,
}

impl Roles {
    /// What the environment asks for; `Namespaced` if it does not.
    pub fn asked_for() -> Self {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "namespaced") => Self::Namespaced,
            Ok("cluster-wide") => Self::ClusterWide,
            Ok(other) => panic!("{VARIABLE} is namespaced or cluster-wide, not {other:?}"),
        }
    }

    /// Where its manifest is, in `config/rbac`.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Namespaced => "namespaced.yaml",
            Self::ClusterWide => "cluster-wide.yaml",
        }
    }
}

/// Rights that an operator needs for issuers that are not its own.
#[derive(Clone, Copy, Debug)]
pub enum Right {
    /// To ask cert-manager.
    CertManager,
    /// To ask a signer of the cluster.
    ClusterSigner,
}

impl Right {
    /// Where its manifest is, in `config/rbac`.
    pub const fn file(self) -> &'static str {
        match self {
            Self::CertManager => "cert-manager.yaml",
            Self::ClusterSigner => "cluster-signer.yaml",
        }
    }
}

/// Applies a manifest of `config/rbac` for an operator that lives in one namespace and serves another.
pub fn apply(cluster: &ControlPlane, file: &str, system: &str, served: &str) {
    let path = format!("{}/config/rbac/{file}", env!("CARGO_MANIFEST_DIR"));
    let roles = std::fs::read_to_string(path).expect("the operator's roles are in the repository");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&roles).expect("they are YAML");
    let moved = documents.into_iter().map(|document| moved(document, system, served).to_string());
    let moved = moved.collect::<Vec<_>>().join("\n---\n");
    cluster.kubectl(&["apply", "--server-side", "-f", "-"], &moved);
}

/// Takes back what is not removed with its namespace.
pub fn revoke(cluster: &ControlPlane, system: &str) {
    let bindings = BINDINGS.map(|name| binding(name, system));
    let mut arguments = vec!["delete", "--ignore-not-found", "clusterrolebinding"];
    arguments.extend(bindings.iter().map(String::as_str));
    let _ = cluster.try_kubectl(&arguments, ""); // the cluster may be gone
}

/// The name of a cluster-wide binding for the operator of this namespace.
fn binding(name: &str, system: &str) -> String {
    format!("{name}-{system}")
}

/// The same object for an operator in another namespace; cluster-wide bindings get a name of their own.
fn moved(mut object: Value, system: &str, served: &str) -> Value {
    match object["kind"].as_str() {
        Some("Namespace") => object["metadata"]["name"] = json!(system),
        Some("ClusterRoleBinding") => {
            let name = object["metadata"]["name"].as_str().expect("a binding has a name");
            object["metadata"]["name"] = json!(binding(name, system));
        }
        Some("ClusterRole") => {}
        _ if object["metadata"]["namespace"] == "telemetry" => object["metadata"]["namespace"] = json!(served),
        _ => object["metadata"]["namespace"] = json!(system),
    }
    let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten() {
        subject["namespace"] = json!(system);
    }
    object
}
