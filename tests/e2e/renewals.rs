//! Two thousand certificates are due in the same moment, half of them for keys of the agents, half for the operator's.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
    core::PartialObjectMeta,
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

/// What is seen of the Secrets of certificates while they are watched.
#[derive(Clone, Default)]
struct Seen {
    /// When one was written.
    writes: Vec<Instant>,
    /// When a certificate came that was not there before.
    issues: Vec<Instant>,
}

/// Watches the Secrets of certificates.
struct SecretWrites {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

impl SecretWrites {
    async fn from_now_on(scenario: &Scenario) -> Self {
        let secrets: Api<Secret> = Api::namespaced(scenario.client.clone(), &scenario.namespace);
        let now = secrets.list_metadata(&ListParams::default().fields(TYPE)).await.expect("a list");
        let mut version = now.metadata.resource_version.expect("a list has a version");
        let mut serials: BTreeSet<String> = now.items.iter().filter_map(serial).collect();
        let seen = Arc::<Mutex<Seen>>::default();
        let noted = Arc::clone(&seen);
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
                    let is_new = serial(&object).is_some_and(|serial| serials.insert(serial));
                    version = object.metadata.resource_version.unwrap_or(version);
                    let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                    noted.writes.push(Instant::now());
                    noted.issues.extend(is_new.then(Instant::now));
                }
            }
        });
        Self { seen, task }
    }

    fn so_far(&self) -> Seen {
        assert!(!self.task.is_finished(), "the watch still runs");
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The number of the certificate in a Secret, if there is one.
fn serial(secret: &PartialObjectMeta<Secret>) -> Option<String> {
    secret.annotations().get("opamp.dev/serial").cloned()
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
    let mut operator = scenario.tls_replica("replica-0", &[]).await;
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
    scenario.aside(operator.runs_for(DURATION / 2)).await;

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
    let due = Instant::now();
    fleet(&scenario, &operator, "13m");
    let all: Vec<usize> = (0..HALF).collect();
    own.renew_certificates(&all).await;
    renewed([&own, &operators], &before).await;
    let (took, Seen { writes, issues }) = (due.elapsed(), writes.so_far());
    let gaps = [own.summary().await.longest_gap, operators.summary().await.longest_gap];
    let [certificates, secrets] = [&issues, &writes].map(|times| most_in_a_window(times));
    println!(
        "2,000 renewals took {took:.0?}; longest time without a connection {gaps:.1?} s; in {WINDOW:?} at most {certificates} \
         certificates and {secrets} writes of Secrets"
    );
    assert!(took < LIMIT, "all are renewed in time");
    assert!(gaps.iter().all(|&gap| gap < LONGEST_GAP), "nobody is away for long: {gaps:?}");
    assert!(issues.len() >= 2 * HALF, "each renewal was seen: {}", issues.len());
    // A bucket of one second's worth may be full when a window begins; the watch may be late by half a second.
    assert!(certificates <= 20 * 11 + 10, "20 certificates a second");
    assert!(secrets <= 60 * 11 + 30, "60 writes a second");
    assert_eq!(scenario.list(Kind::Agent).await.len(), 2 * HALF, "nobody is lost");
}
