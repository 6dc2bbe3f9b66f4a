//! How often and how fast: bursts, spacing, refusals, outages, the end.

use std::time::{Duration, Instant};

use super::{
    api_server::{ApiServer, Fault},
    bench::{Bench, agent, pass},
};
use crate::{
    opamp::record::Health,
    status::{
        budget::BudgetLimits,
        writer::{WriterLimits, now},
    },
};

fn unwell(last_error: &str) -> Health {
    Health { last_error: last_error.into(), ..Health::default() }
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_changes_is_one_patch_with_the_last_of_them() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.server.requests();
    pass(Duration::from_secs(60)).await;
    for number in 0..10 {
        bench.change(agent(1), |view| view.record.health = Some(unwell(&number.to_string())));
        pass(Duration::from_millis(40)).await;
    }
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["PATCH telemetry status"]);
    assert_eq!(bench.status("telemetry", agent(1)).health.expect("health").last_error, "9");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_when_nothing_has_changed() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.server.requests();
    for _ in 0..20 {
        bench.change(agent(1), |_| {});
        bench.settled().await;
    }
    assert_eq!(bench.server.requests(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn one_agent_is_written_at_most_every_five_seconds() {
    let bench = Bench::empty();
    for number in 0..10 {
        bench.change(agent(1), |view| view.record.health = Some(unwell(&number.to_string())));
        pass(Duration::from_secs(1)).await;
    }
    bench.settled().await;
    let times = bench.server.times();
    let patches = &times[1..];
    assert_eq!(patches.len(), 3, "at 0.5, 5.5 and 10.5 seconds");
    assert!(patches.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(5)));
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured_and_nothing_is_lost() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    pass(Duration::from_secs(10)).await;
    bench.server.times();
    bench.server.fail_next(Fault::Refuse { code: 429, reason: "TooManyRequests", retry_after: 7 });
    bench.change(agent(1), |view| view.record.health = Some(unwell("x")));
    bench.settled().await;
    let times = bench.server.times();
    assert_eq!(times.len(), 2, "no look-up: a 429 has no effect");
    assert!(times[1] - times[0] >= Duration::from_secs(7));
    assert_eq!(bench.epoch("telemetry", agent(1)), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_tried_again_ever_more_seldom() {
    let bench = Bench::empty();
    for _ in 0..4 {
        bench.server.fail_next(Fault::Refuse { code: 403, reason: "Forbidden", retry_after: 0 });
    }
    bench.change(agent(1), |_| {});
    bench.settled().await;
    let times = bench.server.times();
    let gaps: Vec<u64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert_eq!(gaps[..4], [1, 2, 4, 8]);
    assert!(bench.server.object("telemetry", &agent(1).to_string()).is_some());
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_the_latest_is_written_at_once() {
    let bench = Bench::empty();
    for number in 0..50 {
        bench.change(agent(number), |_| {});
    }
    bench.settled().await;
    let end = now() + Duration::from_secs(60);
    bench.server.away_until(end);
    bench.server.requests();
    for round in 0..3 {
        for number in 0..50 {
            bench.change(agent(number), |view| view.record.health = Some(unwell(&round.to_string())));
        }
        pass(Duration::from_secs(15)).await;
    }
    let during = bench.server.requests().len();
    assert!(during < 100, "one request at a time finds out: {during}");
    bench.settled().await;
    assert!(now() < end + Duration::from_secs(4));
    for number in 0..50 {
        assert_eq!(bench.status("telemetry", agent(number)).health.expect("health").last_error, "2");
    }
}

#[tokio::test(start_paused = true)]
async fn many_agents_share_the_budget() {
    let budget = BudgetLimits { per_second: 10, burst: 20 };
    let bench = Bench::start(ApiServer::default(), WriterLimits { budget, ..WriterLimits::default() });
    let start = Instant::now();
    let began = now();
    for number in 0..40 {
        bench.change(agent(number), |_| {});
    }
    bench.settled().await;
    let took = now() - began;
    assert!((6..8).contains(&took.as_secs()), "80 writes, 20 at once and 10 a second: {took:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "the clock is moved by hand");
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_neither_for_more_changes_nor_for_the_spacing() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    let began = now();
    bench.change(agent(1), |view| view.record.health = Some(unwell("last words")));
    bench.change(agent(2), |_| {});
    assert_eq!(bench.writer.flush(began + Duration::from_secs(5)).await, 0);
    assert!(now() - began < Duration::from_millis(100));
    assert_eq!(bench.server.list().len(), 2);
    bench.server.away_until(now() + Duration::from_secs(60));
    bench.change(agent(3), |_| {});
    let deadline = now() + Duration::from_secs(5);
    assert_eq!(bench.writer.flush(deadline).await, 1, "at the deadline it gives up");
    assert!(now() >= deadline && now() < deadline + Duration::from_secs(1));
}
