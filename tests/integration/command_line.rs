//! What can be asked of the binary without a cluster.

use std::process::{Command, Output};

use crate::harness::operator::binary;

fn ask(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).env_remove("KUBECONFIG").output().expect("the operator starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn flags_that_contradict_each_other_end_with_2_and_say_so() {
    for (arguments, named) in [
        (&["run", "--plaintext", "--tls-secret", "opamp-system/tls"][..], "--tls-secret"),
        (&["run", "--proxy-protocol"], "--trusted-proxies"),
        (&["run", "--trusted-proxies", "10.0.0.0/8"], "--proxy-protocol"),
    ] {
        let output = ask(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(named), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_wrong_value_ends_with_2_and_a_sentence() {
    for arguments in [
        &["run", "--plaintext", "--listen", "nowhere"][..],
        &["run", "--plaintext", "--max-connections", "none"],
        &["run", "--plaintext", "--log-format", "Prose"],
        &["dance"],
    ] {
        let output = ask(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains(arguments[arguments.len() - 1]), "{arguments:?}: it names the value: {said}");
    }
}

#[test]
fn a_cluster_that_cannot_be_reached_ends_with_1() {
    let kubeconfig = std::env::temp_dir().join(format!("opamp-no-cluster-{}", std::process::id()));
    let output = Command::new(binary())
        .args(["run", "--plaintext", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .env("KUBECONFIG", &kubeconfig)
        .output()
        .expect("the operator starts");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}

#[test]
fn crds_prints_what_is_checked_in() {
    let output = ask(&["crds"]);
    assert!(output.status.success());
    let printed = text(&output.stdout);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/crds");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).expect("crds/ is there") {
        let path = entry.expect("a file").path();
        let definition = std::fs::read_to_string(&path).expect("it is text");
        let definition = definition.trim_start_matches("---\n").trim();
        assert!(printed.contains(definition), "{} is printed as it stands", path.display());
        files += 1;
    }
    assert_eq!(printed.matches("kind: CustomResourceDefinition").count(), files);
}

#[test]
fn version_and_help_read_well() {
    let version = ask(&["version"]);
    assert!(text(&version.stdout).contains(env!("CARGO_PKG_VERSION")));
    let help = text(&ask(&["run", "--help"]).stdout);
    for flag in
        ["--listen", "--tls-secret", "--plaintext", "--admin-listen", "--namespace", "--replica-name", "--log-format"]
    {
        assert!(help.contains(flag), "{flag} is explained");
    }
    assert!(help.contains("OPAMP_OPERATOR_LISTEN"), "each flag names its environment variable");
    let longest = help.lines().map(str::len).max().unwrap_or_default();
    assert!(longest <= 140, "lines fit a terminal: {longest}");
}
