//! Two thousand certificates are due in the same moment, half of them for keys of the agents, half for the operator's.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::task::JoinHandle;

use super::enrollment::{TOKEN, apply_fleet};
use crate::harness::{
    Kind, Operator, Reached, Scenario,
    swarm::{Swarm, agents},
    wait_for,
};

const HALF: usize = 1_000;
const PATIENCE: Duration = Duration::from_secs(300);
/// The promise: so long from when they are due until all are renewed and in use.
const LIMIT: Duration = Duration::from_secs(300);
/// The promise: no agent is without a session for longer.
const LONGEST_GAP: f64 = 15.0;
/// Budgets let bursts through; over so long the rate shows.
const WINDOW: Duration = Duration::from_secs(10);
/// How long a certificate counts. It can be due for renewal from half of that on; the other half is for other tests to
/// end, and for the renewals.
const DURATION: Duration = Duration::from_secs(14 * 60);
const TYPE: &str = "type=opamp.dev/agent-certificate";

/// When the Secrets of certificates were written.
struct SecretWrites {
    at: Arc<Mutex<Vec<Instant>>>,
    task: JoinHandle<()>,
}

impl SecretWrites {
    async fn from_now_on(scenario: &Scenario) -> Self {
        let secrets: Api<Secret> = Api::namespaced(scenario.client.clone(), &scenario.namespace);
        let now = secrets.list_metadata(&ListParams::default().fields(TYPE)).await.expect("a list");
        let mut version = now.metadata.resource_version.expect("a list has a version");
        let at = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&at);
        let task = tokio::spawn(async move {
            loop {
                // The server ends a watch after some minutes; the next one goes on where it ended.
                let events = secrets.watch_metadata(&WatchParams::default().fields(TYPE), &version).await;
                let mut events = events.expect("the API server watches").boxed();
                while let Some(event) = events.try_next().await.expect("no version is missed") {
                    let (WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)) =
                        event
                    else {
                        continue;
                    };
                    version = object.metadata.resource_version.unwrap_or(version);
                    noted.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                }
            }
        });
        Self { at, task }
    }

    fn so_far(&self) -> Vec<Instant> {
        assert!(!self.task.is_finished(), "the watch still runs");
        self.at.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for SecretWrites {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The most of these that fall into one window.
fn most_in_a_window(times: &[Instant]) -> usize {
    let within = |from: usize| times[from..].iter().take_while(|at| **at - times[from] < WINDOW).count();
    (0..times.len()).map(within).max().unwrap_or_default()
}

/// When certificates were issued, as the metric has it, looked at twice a second.
async fn watch_issues(operator: &Operator, issued: &Mutex<Vec<Instant>>) {
    let mut known = operator.metric("opamp_operator_certificates_total").await;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = operator.metric("opamp_operator_certificates_total").await;
        while known < now {
            issued.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            known += 1.0;
        }
    }
}

async fn certified(swarms: [&Swarm; 2]) {
    for swarm in swarms {
        swarm.all(Reached::certified(), PATIENCE).await;
    }
}

/// Waits until all agents connect with other certificates than these.
async fn renewed(swarms: [&Swarm; 2], before: &[String]) {
    wait_for("all are renewed", LIMIT, async || {
        let mut renewed = 0;
        for swarm in swarms {
            let certificates = swarm.summary().await.certificates;
            renewed += certificates.keys().filter(|serial| !before.contains(serial)).count();
        }
        if renewed == 2 * HALF { Ok(()) } else { Err(format!("{renewed} are renewed")) }
    })
    .await;
}

fn fleet(scenario: &Scenario, operator: &Operator, renew_before: &str) {
    let certificates = json!({"duration": format!("{}s", DURATION.as_secs()), "renewBefore": renew_before});
    apply_fleet(scenario, &operator.websocket(), "Automatic", &certificates);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_that_are_due_in_the_same_moment_are_renewed_in_time_and_within_the_budgets() {
    let mut scenario = Scenario::begin("renewals").await;
    let operator = scenario.tls_replica("replica-0", &[]).await;
    fleet(&scenario, &operator, "1m");
    let ca = scenario.ca().await;
    let bearer = format!("Bearer {TOKEN}");
    let many = || agents(HALF, "edge").trusting(&ca).header("Authorization", &bearer).with("-start-rate", "50");
    let own = many().seed("own").asking_for_certificates().start(&operator.websocket());
    let operators = many().seed("operators").taking_settings().start(&operator.websocket());
    let began = Instant::now();
    certified([&own, &operators]).await;
    println!("2,000 agents: all have certificates, and connect with them, after {:.0?}", began.elapsed());
    operator.settles(PATIENCE).await;
    // The last of them could be due so late. Until then this is a fleet at rest.
    scenario.rest(DURATION / 2).await;

    let mut before: Vec<String> = Vec::new();
    let mut gaps = Vec::new();
    for swarm in [&own, &operators] {
        let summary = swarm.summary().await;
        before.extend(summary.certificates.into_keys());
        gaps.push(summary.longest_gap);
    }
    assert_eq!(before.len(), 2 * HALF, "each has one of its own, and none was renewed yet");
    println!("longest time without a connection until then: {gaps:.1?} s");
    let writes = SecretWrites::from_now_on(&scenario).await;
    let issued = Mutex::default();
    let due = Instant::now();
    fleet(&scenario, &operator, "13m");
    let all: Vec<usize> = (0..HALF).collect();
    own.renew_certificates(&all).await;
    tokio::select! {
        () = renewed([&own, &operators], &before) => {}
        () = watch_issues(&operator, &issued) => unreachable!("it looks for ever"),
    }
    let took = due.elapsed();
    let (issued, writes) = (issued.into_inner().unwrap_or_else(PoisonError::into_inner), writes.so_far());
    let gaps = [own.summary().await.longest_gap, operators.summary().await.longest_gap];
    let [certificates, secrets] = [&issued, &writes].map(|times| most_in_a_window(times));
    println!(
        "2,000 renewals took {took:.0?}; longest time without a connection {gaps:.1?} s; in {WINDOW:?} at most {certificates} \
         certificates and {secrets} writes of Secrets"
    );
    assert!(took < LIMIT, "all are renewed in time");
    assert!(gaps.iter().all(|&gap| gap < LONGEST_GAP), "nobody is away for long: {gaps:?}");
    // A bucket of one second's worth may be full when a window begins; the metric is looked at twice a second, and the watch
    // may be late as much.
    assert!(certificates <= 20 * 11 + 10, "20 certificates a second");
    assert!(secrets <= 60 * 11 + 30, "60 writes a second");
    assert_eq!(scenario.list(Kind::Agent).await.len(), 2 * HALF, "nobody is lost");
}
