//! The command line: run, crds, version.

mod command_line;
mod run;

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use self::command_line::{Command, CommandLine, LogFormat, RunArguments};

/// The exit code of a wrong command line.
const WRONG_USE: u8 = 2;

/// kube logs each failed request, some with the text of the API server, which may quote an object. Whoever made the
/// request logs what it means. A directive of `--log-level` for one of these wins.
const QUIET: &str = "kube_client::client=off,kube_runtime::watcher=off";

fn main() -> ExitCode {
    let outcome = match CommandLine::parse().command {
        Command::Run(arguments) => run(*arguments),
        Command::Crds => print(&opamp_operator::api::crds::yaml()),
        Command::Version => print(concat!("opamp-operator ", env!("CARGO_PKG_VERSION"), "\n")),
    };
    outcome.unwrap_or_else(|error| {
        // Nothing is left to be done if not even this can be said.
        let _ = writeln!(std::io::stderr(), "opamp-operator: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: RunArguments) -> anyhow::Result<ExitCode> {
    if let Some(contradiction) = arguments.contradiction() {
        return wrong_use(contradiction);
    }
    let Ok(filter) = format!("{QUIET},{}", arguments.log_level).parse::<EnvFilter>() else {
        return wrong_use("--log-level takes a level or a filter, such as info or info,opamp_operator::server=debug");
    };
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    // A second provider in the same process would make the choice of one ambiguous.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().context("cannot start")?;
    let outcome = runtime.block_on(run::run(arguments));
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

fn wrong_use(text: &str) -> anyhow::Result<ExitCode> {
    writeln!(std::io::stderr(), "opamp-operator: {text}").context("cannot write to standard error")?;
    Ok(ExitCode::from(WRONG_USE))
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
