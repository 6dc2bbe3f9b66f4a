//! The store at work against an API server in memory.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    super::{
        Handed, Metrics, News, Reporters, Store,
        store::{locked, now},
    },
    PREFIX, agent,
    api_server::ApiServer,
    draft, fleet, text,
};
use crate::{
    api::agent::NotStored,
    kubernetes::{ObjectKey, Scope},
    opamp::InstanceUid,
    status::budget::{Budget, BudgetLimits},
};

/// Notes what it is told.
#[derive(Default)]
struct Told {
    concluded: Mutex<Vec<News>>,
}

impl Reporters for Told {
    fn concluded(&self, news: News) {
        locked(&self.concluded).push(news);
    }

    fn vanished(&self, _: &BTreeSet<ObjectKey>) {}

    fn invited(&self, _: InstanceUid) {}
}

struct Bench {
    server: ApiServer,
    store: Store,
    told: Arc<Told>,
}

impl Bench {
    fn start(server: ApiServer, limits: BudgetLimits) -> Self {
        let budget = Arc::new(Mutex::new(Budget::new(limits, now())));
        let store = Store::new(Scope::All, budget, Metrics::default());
        let told = Arc::new(Told::default());
        let reporters = Arc::clone(&told) as Arc<dyn Reporters>;
        tokio::spawn(store.clone().run(server.client(), server.client().into(), reporters));
        Self { server, store, told }
    }

    fn with(server: ApiServer) -> Self {
        Self::start(server, BudgetLimits::default())
    }

    fn put(&self, number: usize, by: usize) -> Handed {
        let text = text(&[("", &format!("number: {number}\n"))]);
        self.store.put(agent(by), &text, &fleet(), &std::iter::empty())
    }

    /// Waits until so many agents were told something.
    async fn told(&self, agents: usize) -> Vec<News> {
        while locked(&self.told.concluded).len() < agents {
            pass().await;
        }
        std::mem::take(&mut locked(&self.told.concluded))
    }

    /// Waits until the store knows what there is.
    async fn listed(&self) {
        while self.store.kept().is_none() {
            pass().await;
        }
    }

    /// What was asked, but for the first list.
    fn writes(&self) -> Vec<String> {
        self.server.requests().into_iter().filter(|request| request != "GET /api/v1/secrets").collect()
    }
}

/// Lets the runtime's clock run on; nothing is really waited for.
async fn pass() {
    sleep(Duration::from_millis(10)).await;
}

fn name(number: usize) -> Arc<str> {
    draft(number).key().name.as_str().into()
}

fn news(by: usize, number: usize, not_stored: Option<NotStored>) -> News {
    News { agent: agent(by), secret: name(number), not_stored }
}

fn path(number: usize) -> String {
    format!("/api/v1/namespaces/telemetry/secrets/{}", name(number))
}

const CREATE: &str = "POST /api/v1/namespaces/telemetry/secrets";

#[tokio::test(start_paused = true)]
async fn a_text_is_written_once_for_all_agents_that_run_it() {
    let bench = Bench::with(ApiServer::default());
    for by in 0..500 {
        assert_eq!(bench.put(1, by), Handed::Waits(name(1)));
    }
    let told = bench.told(500).await;
    assert!(told.iter().all(|news| *news.secret == *name(1) && news.not_stored.is_none()));
    assert_eq!(bench.writes(), [CREATE]);
    assert_eq!(bench.put(1, 501), Handed::Kept(name(1)));
    let secrets = bench.server.secrets();
    assert_eq!(secrets.len(), 1);
    assert!(secrets[0]["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(PREFIX)));
}

#[tokio::test(start_paused = true)]
async fn what_another_replica_has_written_is_as_good() {
    let server = ApiServer::default();
    server.put(&serde_json::to_value(draft(1).secret()).expect("JSON"));
    let bench = Bench::with(server);
    bench.put(1, 1);
    assert_eq!(bench.told(1).await, [news(1, 1, None)]);
    assert_eq!(bench.writes(), [""; 0], "the list has shown it");
    // Written by another after the list, and not shown yet.
    bench.server.put(&serde_json::to_value(draft(2).secret()).expect("JSON"));
    bench.put(2, 2);
    assert_eq!(bench.told(1).await, [news(2, 2, None)]);
    assert_eq!(bench.writes(), [CREATE.to_owned(), format!("GET {}", path(2))]);
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_holds_something_else_is_not_pointed_to() {
    let bench = Bench::with(ApiServer::default());
    bench.listed().await;
    let mut other = serde_json::to_value(draft(1).secret()).expect("JSON");
    other["data"] = serde_json::json!({"config": "b3RoZXI="});
    bench.server.put(&other);
    bench.put(1, 1);
    assert_eq!(bench.told(1).await, [news(1, 1, Some(NotStored::Refused))]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_has_too_much_to_do_gets_it_later() {
    let bench = Bench::with(ApiServer::default());
    bench.server.refuse(&[(429, "TooManyRequests"), (503, "ServiceUnavailable"), (504, "Timeout")]);
    bench.put(1, 1);
    assert_eq!(bench.told(1).await, [news(1, 1, None)]);
    assert_eq!(bench.writes(), [CREATE; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_and_mended_by_itself() {
    let bench = Bench::with(ApiServer::default());
    bench.server.refuse(&[(403, "Forbidden")]);
    bench.put(1, 1);
    let told = bench.told(2).await;
    assert_eq!(told, [news(1, 1, Some(NotStored::Refused)), news(1, 1, None)]);
}

#[tokio::test(start_paused = true)]
async fn writes_are_paid_from_the_budget() {
    let bench = Bench::start(ApiServer::default(), BudgetLimits { per_second: 10, burst: 20 });
    let start = Instant::now();
    for number in 0..60 {
        bench.put(number, number);
    }
    bench.told(60).await;
    let took = start.elapsed().as_secs_f64();
    assert!((4.0..6.0).contains(&took), "20 at once and 10 a second: {took}");
}
