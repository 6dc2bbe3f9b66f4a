//! Makes sure that nothing outlives a test run.
//!
//! A test binary has no last word: statics are not dropped, and Ctrl-C or `kill -9` run no code at all. So a small
//! process holds the other end of a pipe, and when the pipe breaks it ends whatever was announced to it.

use std::{
    io::Write,
    path::Path,
    process::{ChildStdin, Command, Stdio},
    sync::{Mutex, OnceLock},
};

static GUARDIAN: OnceLock<Mutex<ChildStdin>> = OnceLock::new();

/// Has this process killed when the test run ends.
pub fn watch_process(pid: u32) {
    announce(&format!("process {pid}"));
}

/// Has this control plane stopped when the test run ends.
pub fn watch_control_plane(folder: &Path) {
    announce(&format!("controlplane {}", folder.display()));
}

fn announce(line: &str) {
    let guardian = GUARDIAN.get_or_init(|| {
        // A session of its own: Ctrl-C in the terminal must not reach it.
        #[expect(clippy::zombie_processes, reason = "it outlives this process, that is what it is for")]
        let child = Command::new("setsid")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/harness/guardian.sh"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("setsid starts");
        Mutex::new(child.stdin.expect("its input is a pipe"))
    });
    let mut guardian = guardian.lock().unwrap();
    writeln!(guardian, "{line}").expect("the guardian listens");
}
