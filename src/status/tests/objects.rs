//! Where objects are made, moved and made anew, and how many.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::{
    api_server::{ApiServer, Fault},
    bench::{Bench, Told, agent, of_another_replica, pass},
};
use crate::{
    opamp::record::FailedOffer,
    status::{
        room::ObjectLimits,
        view::{AssignmentView, UnmatchedBecause, tests::MORNING},
        writer::WriterLimits,
    },
};

#[tokio::test(start_paused = true)]
async fn a_new_agent_is_created_with_its_labels_and_then_claimed() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["POST telemetry", "PATCH telemetry status"]);
    let object = bench.server.object("telemetry", &agent(1).to_string()).expect("the object");
    assert_eq!(object["metadata"]["labels"]["opamp.dev/fleet"], "edge");
    assert_eq!(object["metadata"]["labels"]["opamp.dev/service-version"], "0.140.0");
    assert_eq!(object["spec"], json!({}));
    assert_eq!(bench.epoch("telemetry", agent(1)), 1);
    assert_eq!(bench.told(), [Told::Written { session: 1, epoch: 1 }]);
}

#[tokio::test(start_paused = true)]
async fn labels_that_change_have_a_patch_of_their_own() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.server.modify("telemetry", &agent(1).to_string(), &json!({"metadata": {"labels": {"team": "shop"}}}));
    bench.server.requests();
    bench.change(agent(1), |view| {
        let description = view.record.description.as_mut().expect("described");
        description.identifying.insert("service.version".into(), "0.141.0".into());
        description.non_identifying.remove("os.type");
    });
    bench.settled().await;
    assert_eq!(
        bench.server.requests(),
        ["PATCH telemetry status", "GET telemetry", "PATCH telemetry status", "PATCH telemetry"]
    );
    let labels =
        bench.server.object("telemetry", &agent(1).to_string()).expect("the object")["metadata"]["labels"].clone();
    let expected = json!({"opamp.dev/fleet": "edge", "opamp.dev/service-name": "otelcol",
        "opamp.dev/service-version": "0.141.0", "team": "shop"});
    assert_eq!(labels, expected);
    bench.change(agent(1), |_| {});
    bench.settled().await;
    assert_eq!(bench.server.requests(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn whoever_loses_the_race_to_create_adopts_what_is_there() {
    let bench = Bench::empty();
    bench.server.put("telemetry", &agent(1).to_string(), &json!({"opamp.dev/fleet": "edge"}), &of_another_replica(1));
    bench.change(agent(1), |view| view.record.description = None);
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["POST telemetry", "GET telemetry", "PATCH telemetry status"]);
    assert_eq!(bench.epoch("telemetry", agent(1)), 2);
}

#[tokio::test(start_paused = true)]
async fn an_object_deleted_by_a_person_is_made_anew_while_the_agent_is_connected() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.show();
    bench.change(agent(1), |view| view.session = 2);
    bench.settled().await;
    bench.server.requests();
    bench.server.delete("telemetry", &agent(1).to_string());
    bench.show();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["GET telemetry", "POST telemetry", "PATCH telemetry status"]);
    assert_eq!(bench.epoch("telemetry", agent(1)), 3, "epochs never go back");
}

#[tokio::test(start_paused = true)]
async fn an_object_deleted_right_after_its_first_write_is_made_anew_without_a_further_cause() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.show();
    pass(Duration::from_secs(10)).await;
    assert_eq!(bench.server.requests(), ["POST telemetry", "PATCH telemetry status"], "its own writes are no news");
    bench.server.delete("telemetry", &agent(1).to_string());
    bench.show();
    pass(Duration::from_secs(10)).await;
    assert_eq!(bench.server.requests(), ["GET telemetry", "POST telemetry", "PATCH telemetry status"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_person_changes_of_a_status_or_of_our_labels_is_put_right() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    let name = agent(1).to_string();
    let before = bench.server.object("telemetry", &name).expect("the object");
    bench.server.modify("telemetry", &name, &json!({"status": {"fleet": "nonsense", "capabilities": null}}));
    bench.server.modify(
        "telemetry",
        &name,
        &json!({"metadata": {"labels": {"opamp.dev/fleet": null, "team": "shop"}}}),
    );
    bench.server.requests();
    bench.show();
    pass(Duration::from_secs(10)).await;
    assert_eq!(bench.server.requests(), ["GET telemetry", "PATCH telemetry status", "PATCH telemetry"]);
    let after = bench.server.object("telemetry", &name).expect("the object");
    assert_eq!(after["status"], before["status"]);
    assert_eq!(after["metadata"]["labels"]["opamp.dev/fleet"], "edge");
    assert_eq!(after["metadata"]["labels"]["team"], "shop", "other people's labels are theirs");
}

#[tokio::test(start_paused = true)]
async fn a_change_during_a_turn_is_met_after_it() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.show();
    bench.server.requests();
    bench.server.fail_next(Fault::Silence);
    bench.change(agent(1), |view| view.record.custom_capabilities.push("io.example".into()));
    pass(Duration::from_secs(6)).await;
    assert_eq!(bench.server.requests(), ["PATCH telemetry status"], "it is under way");
    bench.server.delete("telemetry", &agent(1).to_string());
    bench.show();
    pass(Duration::from_secs(20)).await;
    assert_eq!(bench.server.requests(), ["GET telemetry", "POST telemetry", "PATCH telemetry status"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_the_watch_has_not_shown_is_met_by_the_patch() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.server.requests();
    bench.server.delete("telemetry", &agent(1).to_string());
    bench.change(agent(1), |view| view.record.custom_capabilities.push("io.example".into()));
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["PATCH telemetry status", "POST telemetry", "PATCH telemetry status"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_deleted_after_its_agent_left_stays_deleted() {
    let bench = Bench::empty();
    bench.change(agent(1), |_| {});
    bench.settled().await;
    bench.server.requests();
    bench.told();
    bench.server.delete("telemetry", &agent(1).to_string());
    bench.disconnect(agent(1));
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["PATCH telemetry status"]);
    assert_eq!(bench.told(), [Told::Released { session: 1 }]);
    assert!(bench.server.list().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_move_creates_claims_and_only_then_deletes() {
    let bench = Bench::empty();
    bench.change(agent(1), |view| {
        view.assignment = AssignmentView::Unmatched(UnmatchedBecause::NoFleetSelects);
        view.namespace = "opamp-system".into();
        view.record.failed_config = Some(FailedOffer { hash: vec![7; 32], error: "bad".into(), at: MORNING });
    });
    bench.settled().await;
    bench.show();
    bench.server.requests();
    bench.change(agent(1), |view| {
        view.assignment = crate::status::view::tests::view().assignment;
        view.namespace = "telemetry".into();
        view.record.failed_config = None;
    });
    bench.settled().await;
    assert_eq!(bench.server.requests(), ["POST telemetry", "PATCH telemetry status", "DELETE opamp-system"]);
    assert_eq!(bench.epoch("telemetry", agent(1)), 2, "one more than the old one's");
    let failed = bench.status("telemetry", agent(1)).remote_config.and_then(|config| config.failed);
    assert_eq!(failed.map(|failed| failed.error).as_deref(), Some("bad"), "what was known moves along");
    assert_eq!(bench.server.list().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_operator_moves_what_it_finds_elsewhere() {
    let server = ApiServer::default();
    server.put("opamp-system", &agent(1).to_string(), &json!({}), &of_another_replica(6));
    let bench = Bench::start(server, WriterLimits::default());
    bench.change(agent(1), |_| {});
    bench.settled().await;
    assert_eq!(
        bench.server.requests(),
        ["GET opamp-system", "POST telemetry", "PATCH telemetry status", "DELETE opamp-system"]
    );
    assert_eq!(bench.epoch("telemetry", agent(1)), 7);
}

#[tokio::test(start_paused = true)]
async fn a_move_that_ended_before_the_claim_is_completed_by_the_next_process() {
    let server = ApiServer::default();
    server.put("opamp-system", &agent(1).to_string(), &json!({}), &of_another_replica(6));
    server.put("telemetry", &agent(1).to_string(), &json!({"opamp.dev/fleet": "edge"}), &json!({}));
    let bench = Bench::start(server, WriterLimits::default());
    bench.change(agent(1), |view| view.record.description = None);
    bench.settled().await;
    assert_eq!(
        bench.server.requests(),
        ["GET opamp-system", "POST telemetry", "GET telemetry", "PATCH telemetry status", "DELETE opamp-system"]
    );
    assert_eq!(bench.epoch("telemetry", agent(1)), 7, "the leader deletes the object of the lower epoch");
    let attributes = bench.status("telemetry", agent(1)).attributes.expect("attributes");
    assert_eq!(attributes.identifying["service.name"], "from-the-status");
}

#[tokio::test(start_paused = true)]
async fn agents_beyond_the_cap_are_counted_and_get_their_object_when_there_is_room() {
    let objects = ObjectLimits { agents: 1, unmatched: 1 };
    let bench = Bench::start(ApiServer::default(), WriterLimits { objects, ..WriterLimits::default() });
    let uncounted = bench.writer.uncounted();
    for number in 1..=3 {
        bench.change(agent(number), |view| {
            view.connection.since = MORNING + jiff::SignedDuration::from_secs(-i64::from(number));
        });
        bench.settled().await;
    }
    bench.show();
    pass(Duration::from_secs(2)).await;
    assert_eq!(bench.server.requests(), ["POST telemetry", "PATCH telemetry status"]);
    assert_eq!(*uncounted.borrow(), BTreeMap::from([("fleet-uid".to_owned(), 2)]));
    bench.server.delete("telemetry", &agent(1).to_string());
    bench.show();
    pass(Duration::from_secs(4)).await;
    assert!(bench.server.object("telemetry", &agent(3).to_string()).is_some(), "the oldest session comes first");
    assert_eq!(*uncounted.borrow(), BTreeMap::from([("fleet-uid".to_owned(), 2)]));
    bench.disconnect(agent(2));
    bench.disconnect(agent(1));
    bench.settled().await;
    pass(Duration::from_secs(2)).await;
    assert_eq!(*uncounted.borrow(), BTreeMap::new());
    assert_eq!(bench.server.list().len(), 1);
}
