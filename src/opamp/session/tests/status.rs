//! Reports and what is asked of the agent: A2S, S2A, STS, CMP, CMPN, CUS, RTY.

use super::*;
use crate::opamp::record::{OfferState, UnhealthyComponent};

fn flags_after(stage: &mut Stage, channel: Channel, says: impl IntoIterator<Item = Say>) -> Vec<u64> {
    says.into_iter().map(|say| stage.hears(channel, say).flags).collect()
}

#[test]
fn regular_numbers_never_ask_for_anything() {
    // CMP-04, CMP-02: the parts may be left out
    for begin in [0, 1, 57] {
        let mut stage = Stage::new();
        assert_eq!(stage.hears(HTTP, full(begin)).flags, 0, "AMB-01, CMP-11: a full first report from {begin}");
        let record = stage.session.record().clone();
        let flags = flags_after(&mut stage, HTTP, (begin + 1..begin + 100).map(|n| say(n).capable(CAPABLE)));
        assert_eq!(flags, [0; 99]);
        assert_eq!(*stage.session.record(), record, "CMP-01: each part is retained");
    }
}

#[test]
fn a_gap_asks_for_full_state_once() {
    // CMP-05, CMP-06, CMP-09, AMB-03
    for (case, numbers, flags) in [
        ("forward", [2, 5, 6, 7], [0, 1, 0, 0]),
        ("back to the beginning", [2, 0, 1, 2], [0, 1, 0, 0]),
        ("the same number, another content", [2, 2, 3, 4], [0, 1, 0, 0]),
        ("two gaps", [2, 5, 9, 10], [0, 1, 1, 0]),
    ] {
        let mut stage = Stage::known(socket(1));
        let says = numbers.iter().enumerate().map(|(index, number)| say(*number).custom(&[&index.to_string()]));
        assert_eq!(flags_after(&mut stage, socket(1), says), flags, "{case}");
    }
}

#[test]
fn what_is_wanted_anew_is_asked_for_at_once_or_with_the_next_reply() {
    // S2A-10
    let mut stage = Stage::known(socket(1));
    assert_eq!(stage.pushes(), [], "nothing is wanted");
    stage.session.want_full_report();
    let pushed: Vec<_> = stage.pushes().iter().map(|(channel, message)| (*channel, message.flags)).collect();
    assert_eq!(pushed, [(socket(1), FULL_STATE)]);
    stage.session.want_full_report();
    assert_eq!(stage.pushes(), [], "it was asked for");
    let mut stage = Stage::known(HTTP);
    stage.session.want_full_report();
    assert_eq!(stage.pushes(), [], "an agent that polls is not reached");
    assert_eq!(flags_after(&mut stage, HTTP, [say(3), say(4)]), [FULL_STATE, 0]);
}

#[test]
fn what_the_gap_message_says_counts() {
    // CMP-09
    let mut stage = Stage::known(HTTP);
    assert_eq!(stage.hears(HTTP, say(5).health("disk full")).flags, FULL_STATE);
    assert_eq!(stage.session.record().health.as_ref().unwrap().last_error, "disk full");
    assert_eq!(stage.hears(HTTP, say(6)).flags, 0);
}

#[test]
fn a_gap_asks_also_if_the_message_looks_complete_and_a_full_report_ends_it() {
    // AMB-01, CMP-06
    let mut stage = Stage::known(HTTP);
    assert_eq!(stage.hears(HTTP, full(57)).flags, FULL_STATE);
    assert_eq!(stage.hears(HTTP, full(58)).flags, 0);
    stage.later(3600);
    assert_eq!(stage.hears(HTTP, say(59)).flags, 0, "it is not asked again");
}

#[test]
fn agents_that_count_wrongly_do_not_report_in_full_without_end() {
    // STS-07: one that counts by two, and two over HTTP under one uid
    for (case, channel, number) in [
        ("by two", socket(1), (|index| 2 * index) as fn(u64) -> u64),
        ("two counters", HTTP, |index| index / 2 + 1_000 * (index % 2)),
    ] {
        let mut stage = Stage::known(channel);
        let flags = flags_after(&mut stage, channel, (5..1_000).map(|index| full(number(index))));
        assert_eq!(flags.iter().sum::<u64>(), 10, "{case}");
        stage.later(60);
        let flags = flags_after(&mut stage, channel, (2_000..2_003).map(|index| full(number(index))));
        assert_eq!(flags[2], FULL_STATE, "{case}: but again, once there was some peace");
    }
}

#[test]
fn the_largest_number_is_followed_by_zero() {
    // AMB-04
    let mut stage = Stage::new();
    let says = [full(u64::MAX), say(0).capable(CAPABLE), say(1).capable(CAPABLE)];
    assert_eq!(flags_after(&mut stage, HTTP, says), [0, 0, 0]);
}

#[test]
fn a_first_message_that_is_evidently_partial_asks_for_full_state() {
    // CMP-07, CMP-11, AMB-01
    let (status, health) = (Bit::ReportsStatus as u64, Bit::ReportsHealth as u64);
    for (case, first, flags) in [
        ("uid and capabilities only", say(40).capable(status), FULL_STATE),
        ("a bare poll", say(0), FULL_STATE),
        ("described, nothing promised", say(0).capable(status).named("a"), 0),
        ("health promised and missing", say(0).capable(status | health).named("a"), FULL_STATE),
        ("health promised and there", say(0).capable(status | health).named("a").health(""), 0),
        ("effective configuration missing", say(0).capable(5).named("a"), FULL_STATE),
        ("status of the configuration missing", say(0).capable(0x1001).named("a"), FULL_STATE),
        ("package statuses, which are not accepted here", say(0).capable(0x11).named("a"), 0),
        ("everything", full(0), 0),
    ] {
        let mut stage = Stage::new();
        assert_eq!(stage.hears(HTTP, first).flags, flags, "{case}");
    }
}

#[test]
fn what_is_remembered_does_not_make_up_for_a_report() {
    // CMP-07: the state was lost with the former process
    let description =
        Some(Attributes { identifying: [("host.name".into(), "a".into())].into(), ..Attributes::default() });
    let remembered = Remembered { description, ..Remembered::default() };
    let mut stage = Stage::with(Session::new(uid(), Some(remembered)));
    assert_eq!(stage.session.record().description.as_ref().unwrap().get("host.name"), Some("a"));
    assert_eq!(stage.hears(socket(1), say(6).capable(CAPABLE)).flags, FULL_STATE);
    assert_eq!(stage.hears(socket(1), full(7)).flags, 0);
    assert_eq!(stage.session.record().description.as_ref().unwrap().get("host.name"), Some("edge-1"));
}

#[test]
fn an_agent_that_cannot_report_in_full_is_not_asked_all_the_time() {
    // STS-07, HTTP-03: polls of an agent that never describes itself, every 30 s for an hour
    let mut stage = Stage::new();
    let mut asked = 0;
    for _ in 0..120 {
        asked += stage.hears(HTTP, say(0)).flags;
        stage.later(30);
    }
    assert_eq!(asked, 7, "at once, then after 2, 4, 8, 15, 15 and 15 minutes");
}

#[test]
fn a_bare_poll_is_a_sign_of_life_and_nothing_else() {
    // HTTP-03, AMB-02
    let mut stage = Stage::known(HTTP);
    let record = stage.session.record().clone();
    for _ in 0..10 {
        assert!(is_acknowledgement(&stage.hears(HTTP, say(0))));
        assert_eq!(stage.effects.changed, Changed::Nothing);
    }
    assert_eq!(*stage.session.record(), record);
    assert_eq!(stage.hears(HTTP, say(2)).flags, 0, "the baseline is where it was");
}

#[test]
fn a_question_that_went_down_with_its_socket_is_asked_anew() {
    // CMP-05, STS-02
    let mut stage = Stage::known(socket(1));
    assert_eq!(stage.hears(socket(1), say(9)).flags, FULL_STATE);
    let _ = stage.closes(1);
    assert_eq!(stage.hears(socket(2), say(10).capable(CAPABLE)).flags, FULL_STATE);
    assert_eq!(stage.hears(socket(2), full(11)).flags, 0);
    let _ = stage.closes(2);
    assert_eq!(stage.hears(socket(3), say(12).capable(CAPABLE)).flags, 0, "it has come");
}

#[test]
fn a_reconnect_that_leaves_everything_out_is_regular() {
    // STS-02, CMP-08
    for (former, next) in [(socket(1), socket(2)), (socket(1), HTTP), (HTTP, socket(2))] {
        let mut stage = Stage::known(former);
        let record = stage.session.record().clone();
        let _ = stage.closes(1);
        assert_eq!(stage.hears(next, say(2).capable(CAPABLE)).flags, 0, "{former:?} to {next:?}");
        assert_eq!(*stage.session.record(), record);
    }
}

#[test]
fn every_copy_is_answered_in_kind_and_has_no_effect() {
    // RTY-02, RTY-03, AMB-03
    let mut stage = Stage::known(HTTP);
    stage.offer = offering("a");
    let gap = say(7).health("disk full").status("", RemoteConfigStatuses::Unset);
    let original = stage.hears(HTTP, gap.clone());
    assert_eq!((original.flags, content_of(&original).as_deref()), (FULL_STATE, Some("a")));
    for _ in 0..3 {
        assert_eq!(stage.hears(HTTP, gap.clone()), original);
        assert_eq!(stage.effects.changed, Changed::Nothing);
    }
    let plain = stage.hears(HTTP, full(8).status("a", RemoteConfigStatuses::Applied));
    assert!(is_acknowledgement(&plain));
    assert_eq!(stage.hears(HTTP, full(8).status("a", RemoteConfigStatuses::Applied)), plain, "no flag for a copy");
}

#[test]
fn a_copy_is_offered_again_what_its_lost_reply_offered() {
    // RTY-02: also where the status was left out and the next offer would not be due
    let mut stage = Stage::known(HTTP);
    stage.offer = offering("a");
    assert_eq!(content_of(&stage.hears(HTTP, say(2))).as_deref(), Some("a"));
    assert_eq!(content_of(&stage.hears(HTTP, say(2))).as_deref(), Some("a"));
    assert_eq!(content_of(&stage.hears(HTTP, say(3))), None, "AMB-24: not within 30 s");
}

#[test]
fn each_part_is_replaced_whole_and_alone() {
    // STS-04, CMP-03
    let mut stage = Stage::known(HTTP);
    let before = stage.session.record().clone();
    let _ = stage.hears(HTTP, say(2).health("x"));
    let _ = stage.hears(HTTP, say(3).health(""));
    assert_eq!(*stage.session.record(), before, "last_error is gone again");
    let _ = stage.hears(HTTP, say(4).named("edge-2"));
    let after = stage.session.record();
    assert_ne!(after.description, before.description);
    assert_eq!((&after.health, &after.effective_config), (&before.health, &before.effective_config));
}

#[test]
fn a_changed_capability_counts_at_once_and_zero_means_left_out() {
    // A2S-04, A2S-05, AMB-08, INT-05
    let mut stage = Stage::known(socket(1));
    for (number, said, kept) in [(2, 0, CAPABLE), (3, u64::MAX, u64::MAX), (4, 0, u64::MAX), (5, 2, 2)] {
        let reply = stage.hears(socket(1), say(number).capable(said));
        assert_eq!(stage.session.record().capabilities.bits(), kept, "{said:#x}");
        assert_eq!(reply.capabilities != 0, said != 0, "AMB-05: said anew after a change");
    }
}

#[test]
fn the_server_says_what_it_is_able_to_do_first_on_each_socket_and_always_over_http() {
    // S2A-07, AMB-05
    let mut stage = Stage::new();
    assert_eq!(stage.hears(socket(1), full(1)).capabilities, CAN);
    assert_eq!(stage.hears(socket(1), say(2)).capabilities, 0);
    let _ = stage.closes(1);
    assert_eq!(stage.hears(socket(2), say(3)).capabilities, CAN, "a new connection");
    assert_eq!(stage.hears(socket(2), say(9)).capabilities, 0, "this asks for full state");
    assert_eq!(stage.hears(socket(2), full(10)).capabilities, CAN, "after a full report");
    let _ = stage.closes(2);
    assert_eq!([11, 12, 13].map(|number| stage.hears(HTTP, say(number)).capabilities), [CAN; 3]);
}

#[test]
fn a_steady_heartbeat_gets_a_bare_acknowledgement_and_changes_nothing() {
    // S2A-01, WS-07, HB-06
    let mut stage = Stage::known(socket(1));
    for number in 2..50 {
        let reply = stage.hears(socket(1), say(number).capable(CAPABLE));
        assert_eq!(reply.encoded_len(), 18, "0A 10 and the uid");
        assert_eq!(stage.effects.changed, Changed::Nothing);
        stage.later(30);
    }
    assert_eq!(stage.session.deadline(), None, "nothing is due on its own");
    assert_eq!(stage.pushes(), []);
}

#[test]
fn changes_are_told_by_their_urgency() {
    let mut stage = Stage::new();
    let mut changed = |say: Say| {
        let _ = stage.hears(HTTP, say);
        stage.effects.changed
    };
    assert_eq!(changed(full(1)), Changed::FirstSight);
    assert_eq!(changed(say(2).health("").named("edge-1")), Changed::Nothing, "the same as before");
    assert_eq!(changed(say(3).named("edge-2")), Changed::Details);
    assert_eq!(changed(say(4).health("disk full")), Changed::Failure);
    assert_eq!(changed(say(5).health("disk still full")), Changed::Details);
    assert_eq!(changed(say(6).running("exporters: {}")), Changed::Configuration);
    assert_eq!(changed(say(7).status("a", RemoteConfigStatuses::Failed)), Changed::Failure);
    assert_eq!(changed(say(8).status("a", RemoteConfigStatuses::Applied)), Changed::Configuration);
    assert_eq!(changed(say(9).goodbye()), Changed::Connection);
}

#[test]
fn an_agent_that_was_known_before_is_no_first_sight() {
    let mut stage = Stage::with(Session::new(uid(), Some(Remembered::default())));
    let _ = stage.hears(socket(1), say(3));
    assert_eq!(stage.effects.changed, Changed::Connection);
}

#[test]
fn the_effective_configuration_is_handed_on_once_and_its_hash_is_kept() {
    // CFG-09, CFG-14
    let mut stage = Stage::new();
    let _ = stage.hears(HTTP, full(1));
    let text = stage.effects.effective_config.take().unwrap();
    assert_eq!(text.files[""].body, "receivers: {}");
    assert_eq!(stage.session.record().effective_config.as_ref().unwrap().size, 13);
    let _ = stage.hears(HTTP, full(1));
    assert_eq!(stage.effects.effective_config, None, "a copy");
}

#[test]
fn components_are_asked_for_once_for_each_unknown_hash() {
    // CMPN-02, CMPN-03, CMPN-05
    let capable = CAPABLE | Bit::ReportsAvailableComponents as u64;
    let mut stage = Stage::new();
    let mut step = |say: Say| {
        let flags = stage.hears(socket(1), say).flags;
        let summary = stage.session.record().available_components.as_ref();
        (flags, summary.and_then(|summary| summary.count))
    };
    assert_eq!(step(full(1).capable(capable).components(b"h1", &[])), (COMPONENTS, None));
    assert_eq!(step(say(2)), (0, None), "not in every reply");
    assert_eq!(step(say(3).components(b"h1", &["otlp", "debug"])), (0, Some(2)));
    assert_eq!(step(say(4).components(b"h1", &[])), (0, Some(2)), "a hash alone wipes nothing");
    assert_eq!(step(say(5).components(b"h2", &[])), (COMPONENTS, None), "a new hash drops the old map");
    assert_eq!(step(say(9).components(b"h3", &[])), (FULL_STATE | COMPONENTS, None), "with a gap: both");
    assert_eq!(step(full(10).capable(capable).components(b"h3", &["otlp"])), (0, Some(1)));
}

#[test]
fn components_are_never_asked_of_an_agent_that_does_not_report_them() {
    // CMPN-06, AMB-46
    let mut stage = Stage::known(HTTP);
    assert_eq!(stage.hears(HTTP, say(2).components(b"h", &[])).flags, 0);
    assert_eq!(stage.session.record().available_components.as_ref().unwrap().hash, b"h");
}

#[test]
fn components_that_an_earlier_process_counted_are_not_asked_for() {
    // CMPN-04
    let available_components = Some(ComponentsSummary { hash: b"h".to_vec(), count: Some(87) });
    let remembered = Remembered { available_components, ..Remembered::default() };
    let mut stage = Stage::with(Session::new(uid(), Some(remembered)));
    let first = full(1).capable(CAPABLE | Bit::ReportsAvailableComponents as u64).components(b"h", &[]);
    assert_eq!(stage.hears(HTTP, first).flags, 0);
    assert_eq!(stage.session.record().available_components.as_ref().unwrap().count, Some(87));
}

#[test]
fn hashes_of_any_length_are_opaque_and_told_apart() {
    // CMPN-01
    let long = |end: u8| [vec![7; 999], vec![end]].concat();
    let mut stage = Stage::known(HTTP);
    let mut kept = Vec::new();
    for (number, hash) in [vec![1], long(1), long(2)].iter().enumerate() {
        let _ = stage.hears(HTTP, say(number as u64 + 2).components(hash, &["otlp"]));
        kept.push(stage.session.record().available_components.clone().unwrap().hash);
    }
    assert_eq!(kept.iter().map(Vec::len).collect::<Vec<_>>(), [1, 32, 32]);
    assert_ne!(kept[1], kept[2]);
    let _ = stage.hears(HTTP, say(5).components(b"", &["otlp", "debug"]));
    let summary = stage.session.record().available_components.clone().unwrap();
    assert_eq!((summary.hash.len(), summary.count), (0, Some(2)), "without a hash: tolerated");
}

#[test]
fn custom_capabilities_are_replaced_whole_and_bounded() {
    // CUS-01, CUS-02, CUS-04
    let mut stage = Stage::known(HTTP);
    let _ = stage.hears(HTTP, say(2).custom(&["io.opentelemetry.pause", "nodots"]));
    assert_eq!(stage.session.record().custom_capabilities, ["io.opentelemetry.pause", "nodots"]);
    let _ = stage.hears(HTTP, say(3).custom(&["io.opentelemetry.pause"]));
    assert_eq!(stage.session.record().custom_capabilities, ["io.opentelemetry.pause"]);
    let long = "x".repeat(1 << 20);
    let _ = stage.hears(HTTP, say(4).custom(&vec![long.as_str(); 40]));
    let kept = &stage.session.record().custom_capabilities;
    assert_eq!((kept.len(), kept[0].len()), (32, 128));
    let _ = stage.hears(HTTP, say(5).custom(&[]));
    assert_eq!(stage.session.record().custom_capabilities, Vec::<String>::new());
}

#[test]
fn development_fields_and_unknown_ones_never_disturb_the_rest() {
    // A2S-08, CUS-05, INT-03, INT-04
    let mut stage = Stage::known(HTTP);
    let mut message = say(2).health("disk full");
    message.0.custom_message = Some(crate::opamp::messages::CustomMessage {
        capability: "unknown".into(),
        r#type: "unknown".into(),
        data: Bytes::from_static(b"\0\xff"),
    });
    message.0.connection_settings_request = Some(crate::opamp::messages::ConnectionSettingsRequest::default());
    message.0.connection_settings_status = Some(crate::opamp::messages::ConnectionSettingsStatus::default());
    message.0.package_statuses = Some(crate::opamp::messages::PackageStatuses::default());
    message.0.flags = 0x8000_0000;
    // Field 100 in each wire type: varint, fixed64, bytes, fixed32.
    let unknown =
        [&[0xa0, 6, 1][..], &[0xa1, 6, 0, 0, 0, 0, 0, 0, 0, 0], &[0xa2, 6, 1, 7], &[0xa5, 6, 0, 0, 0, 0]].concat();
    let bytes = [&message.bytes()[..], &unknown].concat();
    assert!(is_acknowledgement(&stage.hears_bytes(HTTP, bytes.into())));
    assert_eq!(stage.session.record().health.as_ref().unwrap().last_error, "disk full");
}

#[test]
fn unknown_fields_are_skipped_at_any_depth() {
    // INT-04: field 100 in the health, which is field 5
    let (health, unknown) = ([0x08, 1], [0xa0, 6, 1]);
    let length = u8::try_from(health.len() + unknown.len()).unwrap();
    let bytes = [&say(3).bytes()[..], &[5 << 3 | 2, length], &health, &unknown].concat();
    let mut stage = Stage::known(HTTP);
    let _ = stage.hears(HTTP, say(2).health("disk full"));
    assert!(is_acknowledgement(&stage.hears_bytes(HTTP, bytes.into())));
    assert!(stage.session.record().health.as_ref().unwrap().healthy);
}

#[test]
fn what_happened_once_does_not_happen_again_with_a_full_report() {
    // CMP-10: a goodbye and the wish for a uid are no state
    let mut stage = Stage::known(socket(1));
    let _ = stage.hears(socket(1), say(2).goodbye());
    assert_eq!(stage.hears(socket(2), say(9)).flags, FULL_STATE);
    let _ = stage.hears(socket(2), full(10));
    assert!(stage.is_connected(), "the goodbye is over");

    let mut stage = Stage::new();
    let new_uid = new_uid_in(&stage.hears(socket(1), full(1).wanting_a_uid())).unwrap();
    stage.session.adopted(new_uid);
    assert_eq!(stage.hears(socket(1), say(9)).flags, FULL_STATE);
    assert_eq!(new_uid_in(&stage.hears(socket(1), full(10))), None, "the wish is fulfilled");
}

#[test]
fn a_status_of_an_unknown_number_is_kept_as_such() {
    // CFG-07, INT-06
    for (number, state) in [
        (0, OfferState::Unset),
        (1, OfferState::Applied),
        (2, OfferState::Applying),
        (3, OfferState::Failed),
        (9, OfferState::Unknown(9)),
    ] {
        let mut stage = Stage::known(HTTP);
        let mut message = say(2).status("a", RemoteConfigStatuses::Unset);
        message.0.remote_config_status.as_mut().unwrap().status = number;
        let _ = stage.hears(HTTP, message);
        assert_eq!(stage.session.record().remote_config.as_ref().unwrap().state, state);
    }
}

#[test]
fn the_time_of_a_status_is_when_it_began() {
    let mut stage = Stage::known(HTTP);
    let mut since = Vec::new();
    for (number, status) in
        [(2, RemoteConfigStatuses::Applying), (3, RemoteConfigStatuses::Applying), (4, RemoteConfigStatuses::Applied)]
    {
        stage.later(10);
        let _ = stage.hears(HTTP, say(number).status("a", status));
        since.push(stage.session.record().remote_config.as_ref().unwrap().since.as_second());
    }
    assert_eq!(since, [10, 10, 30]);
}

#[test]
fn health_without_the_capability_is_taken_all_the_same() {
    // AMB-46
    let mut stage = Stage::new();
    let mut message = say(1).capable(1).named("a");
    message.0.health = Some(ComponentHealth {
        healthy: true,
        component_health_map: [("exporter:otlp".into(), ComponentHealth::default())].into(),
        ..ComponentHealth::default()
    });
    let _ = stage.hears(HTTP, message);
    let health = stage.session.record().health.as_ref().unwrap();
    let expected = UnhealthyComponent { path: "exporter:otlp".into(), ..UnhealthyComponent::default() };
    assert_eq!(health.unhealthy_components, [expected]);
}
