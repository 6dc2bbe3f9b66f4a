//! Who may approve, deny and revoke: the policy and the operator's roles of the repository on a real API server.

use std::time::Duration;

use crate::harness::{ControlPlane, wait_for};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const OPERATOR: &str = "--as=system:serviceaccount:opamp-system:opamp-operator";
const EDITOR: &str = "--as=editor";
const APPROVER: &str = "--as=approver";

/// People who may write Agents, with and without the verb `approve`.
const PEOPLE: &str = r"
{apiVersion: v1, kind: Namespace, metadata: {name: telemetry}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: agent-editor}
rules: [{apiGroups: [opamp.dev], resources: [agents, agents/status], verbs: [get, list, watch, create, update, patch, delete]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: agent-approver}
rules: [{apiGroups: [opamp.dev], resources: [agents], verbs: [get, create, update, patch, delete, approve]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: agent-editor}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: agent-editor}
subjects: [{kind: User, name: editor, apiGroup: rbac.authorization.k8s.io}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: agent-approver}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: agent-approver}
subjects: [{kind: User, name: approver, apiGroup: rbac.authorization.k8s.io}]
";

fn agent(number: usize, access: Option<&str>) -> String {
    let spec = access.map_or_else(|| "{}".to_owned(), |access| format!("{{access: {access}}}"));
    format!(
        "{{apiVersion: opamp.dev/v1alpha1, kind: Agent, metadata: {{name: {}, namespace: telemetry}}, spec: {spec}}}",
        name(number)
    )
}

fn name(number: usize) -> String {
    format!("0190f2a4-7c1e-7b3d-9f6a-{number:012}")
}

struct Cluster(std::sync::Arc<ControlPlane>);

impl Cluster {
    async fn with_roles(roles: &str) -> Self {
        let cluster = ControlPlane::private();
        cluster.kubectl(&["apply", "-f", "-"], PEOPLE);
        cluster.kubectl(&["apply", "-f", &format!("{ROOT}/config/rbac/{roles}")], "");
        cluster.kubectl(&["apply", "-f", &format!("{ROOT}/config/policy")], "");
        let cluster = Self(cluster);
        wait_for("the policy holds", Duration::from_secs(30), async || {
            let tried = cluster.create(EDITOR, 0, Some("Approved"), &["--dry-run=server"]);
            if tried.is_err_and(|refusal| refusal.contains("approve")) { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        cluster
    }

    fn create(&self, who: &str, number: usize, access: Option<&str>, more: &[&str]) -> Result<String, String> {
        self.0.try_kubectl(&[&["create", "-f", "-", who][..], more].concat(), &agent(number, access))
    }

    fn patch(&self, who: &str, number: usize, change: &str) -> Result<String, String> {
        let name = name(number);
        self.0.try_kubectl(&["-n", "telemetry", "patch", "agent", &name, "--type=merge", "-p", change, who], "")
    }

    fn delete(&self, who: &str, number: usize) -> Result<String, String> {
        self.0.try_kubectl(&["-n", "telemetry", "delete", "agent", &name(number), who], "")
    }
}

/// What only holders of `approve` may do is refused in words that name the verb.
fn assert_refused(what: &str, tried: Result<String, String>) {
    let refusal = tried.expect_err(what);
    assert!(refusal.contains("holders of the verb approve on agents.opamp.dev"), "{what}: {refusal}");
}

#[tokio::test]
async fn only_holders_of_approve_change_access_and_the_operator_is_none() {
    for roles in ["cluster-wide.yaml", "namespaced.yaml"] {
        let cluster = Cluster::with_roles(roles).await;
        for (first, who) in [(10, OPERATOR), (20, EDITOR)] {
            let case = |what: &str| format!("{what}, {who}, {roles}");
            assert_refused(&case("create approved"), cluster.create(who, first, Some("Approved"), &[]));
            cluster.create(who, first, None, &[]).unwrap_or_else(|error| panic!("{}: {error}", case("create")));
            assert_refused(&case("approve"), cluster.patch(who, first, r#"{"spec": {"access": "Approved"}}"#));
            let labels =
                r#"{"metadata": {"labels": {"opamp.dev/fleet": "edge"}, "finalizers": ["opamp.dev/revocation"]}}"#;
            cluster.patch(who, first, labels).unwrap_or_else(|error| panic!("{}: {error}", case("label")));

            let revoke = r#"{"spec": {"access": "Revoked"}}"#;
            cluster.patch(APPROVER, first, revoke).expect("an approver may revoke");
            assert_refused(&case("restore"), cluster.patch(who, first, r#"{"spec": {"access": "Approved"}}"#));
            assert_refused(&case("forget"), cluster.patch(who, first, r#"{"spec": {"access": null}}"#));
            assert_refused(&case("delete a revoked agent"), cluster.delete(who, first));
            cluster
                .patch(who, first, r#"{"metadata": {"finalizers": []}}"#)
                .unwrap_or_else(|error| panic!("{}: {error}", case("release")));
            cluster.delete(APPROVER, first).expect("an approver may delete");
            cluster.create(who, first + 1, None, &[]).expect("as before");
            cluster.delete(who, first + 1).unwrap_or_else(|error| panic!("{}: {error}", case("delete")));
        }
    }
}

#[tokio::test]
async fn a_namespace_with_a_denied_agent_can_be_deleted() {
    let cluster = Cluster::with_roles("cluster-wide.yaml").await;
    cluster.create(APPROVER, 1, Some("Denied"), &[]).expect("an approver may deny");
    cluster.0.kubectl(&["delete", "namespace", "telemetry", "--timeout=60s"], "");
}
