//! Clients with the time limits and retries that suit their use.

use std::time::Duration;

use kube::{Client, Config, runtime::watcher};

/// How long the API server keeps a watch open. Short, because the age of a watch tells whether it still lives, and a
/// reopened watch costs one request.
const WATCH_SECONDS: u32 = 30;
/// What a silent server gets beyond the end of the watch. Below the watch's own time it would end quiet watches again
/// and again.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 3);
/// Covers the TLS handshake too; kube's default is 30 s.
const CONNECT: Duration = Duration::from_secs(3);

/// A client for requests that have their own retries: kube's wait up to 1,000 s, and hide a 429 that should slow us
/// down.
pub fn client_without_retry(config: &Config) -> Result<Client, kube::Error> {
    let mut config = config.clone();
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    Client::try_from(config)
}

/// What a client for watches only needs to notice a server that has fallen silent. Goes with [`watch_config`].
pub(super) fn configure_for_watches(config: &Config) -> Config {
    let mut config = config.clone();
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    config
}

/// How a watch is opened on a [`super::WatchClient`].
#[must_use]
pub fn watch_config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}
