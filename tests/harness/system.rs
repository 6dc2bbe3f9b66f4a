//! Processes: running them, ending them, looking at their memory.

use std::{
    fs,
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::{Command, Stdio},
};

/// Runs a program to its end and returns what it printed; what it complained of is the error.
pub fn run(mut command: Command, input: &str) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let mut pipe = child.stdin.take().expect("its input is a pipe");
    let input = input.to_owned();
    // Written beside reading: a program that prints much before it has read all would wait for ever otherwise.
    let writer = std::thread::spawn(move || pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let _ = writer.join(); // a program may end without reading its input
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// What is sent to a process.
#[derive(Clone, Copy, Debug)]
pub enum Signal {
    /// Ends it at once.
    Kill,
    /// Asks it to end.
    Terminate,
}

/// Sends a signal to a process.
pub fn signal(pid: u32, signal: Signal) {
    let name = match signal {
        Signal::Kill => "-KILL",
        Signal::Terminate => "-TERM",
    };
    let mut command = Command::new("kill");
    command.args([name, &pid.to_string()]);
    run(command, "").expect("the process takes a signal");
}

/// The resident memory of a process, in bytes.
pub fn resident_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
    kibibytes * 1024
}

/// The processor time that a process has used, in seconds.
pub fn processor_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    // The name in parentheses may hold spaces; fields 14 and 15 are user and system time in clock ticks of 1/100 s.
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name").1.split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().expect("a number") + fields[12].parse::<f64>().expect("a number");
    ticks / 100.0
}

/// A loopback address whose port is free now. The listener is closed at once: ports of the ephemeral range are handed
/// out in turn, so that nobody else gets this one in the moment until it is used.
pub fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr()).expect("a free port")
}

/// Lets this process open as many descriptors as it may.
pub fn raise_descriptor_limit() {
    rlimit::increase_nofile_limit(u64::MAX).expect("the soft limit may be raised to the hard one");
}
