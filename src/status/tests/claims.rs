//! Whose the status is: claims, conflicts, hand-over.

use std::time::Duration;

use serde_json::json;

use super::{
    api_server::{ApiServer, Fault},
    bench::{Bench, Told, agent, of_another_replica, pass},
};
use crate::{opamp::record::Health, status::writer::WriterLimits};

/// A writer that finds an object which another replica claimed last, with epoch 4.
fn after_another_replica() -> Bench {
    let server = ApiServer::default();
    server.put("telemetry", &agent(1).to_string(), &json!({"opamp.dev/fleet": "edge"}), &of_another_replica(4));
    Bench::start(server, WriterLimits::default())
}

#[tokio::test(start_paused = true)]
async fn an_object_that_exists_is_read_once_remembered_and_claimed_in_the_first_patch() {
    let bench = after_another_replica();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["GET telemetry", "PATCH telemetry status", "PATCH telemetry"]);
    assert_eq!(bench.epoch("telemetry", agent(1)), 5);
    let told = bench.told();
    let Told::Remembered(status) = &told[0] else { panic!("{told:?}") };
    assert_eq!(status.attributes.as_ref().expect("attributes").identifying["service.name"], "from-the-status");
    assert_eq!(told[1..], [Told::Written { session: 1, epoch: 5 }]);
    bench.change(agent(1), |view| view.record.health = Some(Health::default()));
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["PATCH telemetry status"]);
    assert_eq!(bench.epoch("telemetry", agent(1)), 5, "the same session");
}

#[tokio::test(start_paused = true)]
async fn each_session_claims_with_the_next_epoch() {
    let bench = Bench::empty();
    for session in 1..=3 {
        bench.change(agent(1), |view| view.session = session);
        bench.settled().await;
        assert_eq!(bench.epoch("telemetry", agent(1)), i64::try_from(session).expect("small"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_read_and_written_anew() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.server.requests();
    let wish = json!({"spec": {"reoffer": {"requestedAt": "2026-11-29T12:00:00Z"}}});
    bench.server.modify("telemetry", &agent(1).to_string(), &wish);
    bench.change(agent(1), |view| view.record.health = Some(Health::default()));
    bench.settled().await;
    assert_eq!(
        bench.server.requests(),
        ["PATCH telemetry status", "GET telemetry", "PATCH telemetry status"],
        "409, then again with what was read"
    );
    assert_eq!(bench.status("telemetry", agent(1)).observed_generation, 2);
    assert_eq!(bench.epoch("telemetry", agent(1)), 1);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_spec_that_the_watch_shows_is_observed() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    let wish = json!({"spec": {"reoffer": {"requestedAt": "2026-11-29T12:00:00Z"}}});
    bench.server.modify("telemetry", &agent(1).to_string(), &wish);
    bench.server.requests();
    bench.show();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["GET telemetry", "PATCH telemetry status"]);
    assert_eq!(bench.status("telemetry", agent(1)).observed_generation, 2);
}

#[tokio::test(start_paused = true)]
async fn whoever_meets_a_higher_epoch_stops_until_it_claims_anew() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.server.modify("telemetry", &agent(1).to_string(), &json!({"status": of_another_replica(2)}));
    bench.server.requests();
    bench.told();
    bench.change(agent(1), |view| view.record.health = Some(Health::default()));
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["PATCH telemetry status", "GET telemetry"]);
    assert_eq!(bench.told(), [Told::Superseded { session: 1, by: "opamp-operator-1".into() }]);
    bench.change(agent(1), |view| view.record.health = None);
    bench.settled().await;
    assert_eq!(bench.server.requests(), Vec::<String>::new(), "not a word more from this session");
    bench.change(agent(1), |view| view.session = 2);
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["PATCH telemetry status"]);
    assert_eq!(bench.epoch("telemetry", agent(1)), 3);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_is_looked_up_before_the_next() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.server.requests();
    bench.server.fail_next(Fault::Silence);
    bench.change(agent(1), |view| view.session = 2);
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["PATCH telemetry status", "GET telemetry"], "it had been written");
    assert_eq!(bench.epoch("telemetry", agent(1)), 2);
    bench.change(agent(1), |view| view.record.health = Some(Health::default()));
    bench.settled().await;
    assert_eq!(bench.epoch("telemetry", agent(1)), 2, "and the claim is known to be ours");
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_written_and_handed_over() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.server.requests();
    bench.told();
    bench.disconnect(agent(1));
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["PATCH telemetry status"]);
    assert_eq!(bench.told(), [Told::Written { session: 1, epoch: 1 }, Told::Released { session: 1 }]);
    bench.show();
    bench.change(agent(1), |view| view.session = 2);
    bench.settled().await;
    assert_eq!(
        bench.server.requests(),
        ["GET telemetry", "PATCH telemetry status"],
        "the leader may have written meanwhile"
    );
    assert_eq!(bench.epoch("telemetry", agent(1)), 2);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_was_never_seen_without_a_view_is_left_alone() {
    let bench = Bench::empty();
    bench.writer.touch(agent(1), crate::status::queue::Urgency::Failure);
    pass(Duration::from_secs(2)).await;
    bench.settled().await;
    assert_eq!(bench.server.requests(), Vec::<String>::new());
}
