//! When connection settings are offered: CON, AMB-24, AMB-25, AMB-32.

use super::*;
use crate::opamp::record::{FailedOffer, OfferState};
use ConnectionSettingsStatuses::{Applied, Applying, Failed, Unset};

fn offered(stage: &mut Stage, channel: Channel, say: Say) -> Option<String> {
    host_in(&stage.hears(channel, say))
}

/// An agent of these capabilities that has reported in full with number 1 and is to connect to this host from now on.
fn member(channel: Channel, capabilities: u64, host: &str) -> Stage {
    let mut stage = Stage::new();
    let _ = stage.hears(channel, full(1).capable(capabilities));
    stage.offer = leading_to(host);
    stage
}

fn returning(remembered: Remembered) -> Stage {
    let mut stage = Stage::with(Session::new(uid(), Some(remembered)));
    stage.offer = leading_to("new");
    stage
}

#[test]
fn settings_go_only_to_agents_that_take_them() {
    // CON-02, CON-04, peers drop or complain about others
    for (capabilities, expected) in [
        (0x1, None),
        (CAPABLE, None),
        (!0x100, None),
        (0x101, Some("new")),
        (SILENT, Some("new")),
        (TALKATIVE, Some("new")),
    ] {
        for channel in [socket(1), HTTP] {
            let mut stage = Stage::new();
            stage.offer = leading_to("new");
            let reply = stage.hears(channel, full(1).capable(capabilities));
            assert_eq!(host_in(&reply).as_deref(), expected, "{capabilities:#x}");
            assert_eq!(host_in(&stage.hears(channel, full(2).capable(SILENT))).is_none(), expected.is_some());
        }
    }
}

#[test]
fn an_equal_hash_is_never_offered_whatever_the_status() {
    // CON-06
    for status in [Unset, Applied, Applying, Failed] {
        for channel in [socket(1), HTTP] {
            let mut stage = member(channel, TALKATIVE, "new");
            for number in 2..22 {
                assert_eq!(offered(&mut stage, channel, say(number).settings("new", status)), None, "{status:?}");
                assert_eq!(stage.pushes(), [], "{status:?}");
                stage.later(30);
            }
        }
    }
}

#[test]
fn every_reported_status_with_another_hash_is_answered_with_the_offer() {
    // CON-06
    let mut stage = member(HTTP, TALKATIVE, "new");
    for (number, echo) in [(2, ""), (3, "old"), (4, "other"), (5, "other"), (6, "")] {
        let reply = offered(&mut stage, HTTP, say(number).settings(echo, Applied));
        assert_eq!(reply.as_deref(), Some("new"), "{echo:?}");
    }
}

#[test]
fn a_status_that_is_left_out_is_waited_for_with_patience() {
    // CON-06, AMB-24: the agent has said what it has, or is able to
    for (case, first) in [("it named others", full(1).settings("old", Applied)), ("it named none", full(1))] {
        let mut stage = Stage::new();
        stage.offer = leading_to("new");
        assert!(offered(&mut stage, HTTP, first.capable(TALKATIVE)).is_some());
        let mut offers = Vec::new();
        for poll in 1..120_u64 {
            stage.later(30);
            if offered(&mut stage, HTTP, say(poll + 1)).is_some() {
                offers.push(poll * 30);
            }
        }
        assert_eq!(offers, [30, 90, 210, 450, 930, 1830, 2730], "{case}: seconds");
    }
}

#[test]
fn an_agent_that_never_reports_gets_each_hash_once() {
    // AMB-25, and not again because it reconnects: that is what it does with new settings
    for (case, number_after) in [("a new process", 0), ("it counts on", 4)] {
        for channels in [[socket(1), socket(2)], [HTTP, HTTP], [socket(1), HTTP]] {
            let mut stage = member(channels[0], SILENT, "new");
            assert_eq!(offered(&mut stage, channels[0], say(2)).as_deref(), Some("new"));
            assert_eq!(offered(&mut stage, channels[0], say(3)), None, "it speaks on, so it has them");
            let _ = stage.closes(1);
            for number in number_after..number_after + 20 {
                stage.later(600);
                let message = full(number).capable(SILENT);
                assert_eq!(offered(&mut stage, channels[1], message), None, "{case}, {channels:?}");
                assert_eq!(stage.pushes(), []);
            }
            stage.offer = leading_to("newer");
            let reply = offered(&mut stage, channels[1], say(number_after + 20));
            assert_eq!(reply.as_deref(), Some("newer"), "on change");
        }
    }
}

#[test]
fn a_client_that_takes_settings_by_starting_anew_over_http_is_not_sent_them_twice() {
    let mut stage = member(HTTP, SILENT, "new");
    assert!(offered(&mut stage, HTTP, say(2)).is_some());
    assert_eq!(offered(&mut stage, HTTP, full(0).capable(SILENT)), None);
    assert_eq!(offered(&mut stage, HTTP, say(1)), None);
}

#[test]
fn what_may_have_been_lost_with_its_socket_is_offered_three_times_and_no_more() {
    // the socket ends without another word: a client that takes settings so must not be sent round in circles
    let mut stage = member(socket(1), SILENT, "new");
    let mut offers = stage.pushes().len();
    for number in 2..12 {
        let _ = stage.closes(number - 1);
        offers += usize::from(offered(&mut stage, socket(number), say(number).capable(SILENT)).is_some());
    }
    assert_eq!(offers, 3);
}

#[test]
fn a_goodbye_shows_that_the_settings_have_arrived() {
    let mut stage = member(socket(1), SILENT, "new");
    assert_eq!(stage.pushes().len(), 1);
    assert_eq!(stage.session.connection_settings_offered(), None, "nobody knows");
    let _ = stage.hears(socket(1), say(2).goodbye());
    assert_eq!(stage.session.connection_settings_offered(), Some(settings("new").hash));
    assert_eq!(offered(&mut stage, socket(2), full(0).capable(SILENT)), None);
}

#[test]
fn an_agent_that_reports_the_same_old_status_at_every_start_is_not_sent_round_in_circles() {
    // CON-06 within a session; over sessions with patience, because it reconnects for each offer
    let mut stage = member(HTTP, TALKATIVE, "new");
    let mut offers = 0;
    for _ in 0..100 {
        for message in [full(0).capable(TALKATIVE).settings("", Unset), say(1)] {
            offers += usize::from(offered(&mut stage, HTTP, message).is_some());
        }
        stage.later(1);
    }
    assert_eq!(offers, 3);
}

#[test]
fn a_copy_is_offered_again_what_its_lost_reply_offered() {
    // RTY-02: also to an agent that reports nothing
    for capabilities in [SILENT, TALKATIVE] {
        let mut stage = member(HTTP, capabilities, "new");
        for _ in 0..3 {
            assert_eq!(offered(&mut stage, HTTP, say(2)).as_deref(), Some("new"));
        }
        assert_eq!(offered(&mut stage, HTTP, say(3)), None);
        assert_eq!(offered(&mut stage, HTTP, say(3)), None, "that one was answered without");
    }
}

#[test]
fn a_change_is_pushed_to_a_socket_once_and_waits_for_the_next_poll_over_http() {
    // S2A-01, WS-06, HTTP-02
    let mut stage = member(socket(1), TALKATIVE, "new");
    let pushed = stage.pushes();
    assert_eq!(pushed.iter().map(|(_, message)| host_in(message)).collect::<Vec<_>>(), [Some("new".into())]);
    stage.later(3600);
    assert_eq!(stage.pushes(), [], "an unrelated wake-up repeats nothing");

    let mut stage = member(HTTP, TALKATIVE, "new");
    for host in ["a", "b", "c"] {
        stage.offer = leading_to(host);
        assert_eq!(stage.pushes(), []);
    }
    assert_eq!(offered(&mut stage, HTTP, say(2)).as_deref(), Some("c"), "only the last");
}

#[test]
fn settings_go_with_the_configuration_in_one_message_and_leave_it_shared() {
    let mut stage = member(socket(1), SILENT, "new");
    stage.offer.remote_config = offering("config").remote_config;
    let effects = stage.session.push(&stage.offer, stage.now);
    let [(_, outbound)] = &effects.send[..] else { panic!("one push") };
    let message = stage.decoded(outbound);
    assert_eq!((content_of(&message).as_deref(), host_in(&message).as_deref()), (Some("config"), Some("new")));
    let encoded = &stage.offer.remote_config.as_ref().unwrap().encoded;
    assert_eq!(outbound.tail.as_ref().unwrap().as_ptr(), encoded.as_ptr());
}

#[test]
fn settings_that_failed_are_not_offered_again_until_they_change_or_a_person_asks() {
    // CON-07, CON-11: the agent goes back to its old settings and says so
    for channel in [socket(1), HTTP] {
        let mut stage = member(channel, TALKATIVE, "bad");
        let _ = stage.pushes();
        assert_eq!(offered(&mut stage, channel, say(2).settings("bad", Failed)), None);
        assert_eq!(stage.effects.changed, Changed::Failure);
        assert_eq!(offered(&mut stage, channel, say(3).settings("old", Applied)), None, "it went back");
        let failed = stage.session.record().failed_connection_settings.clone().unwrap();
        assert_eq!((failed.hash, failed.error.as_str()), (settings_hash("bad"), "no route to host"));
        assert_eq!(offered(&mut stage, channel, full(4).capable(TALKATIVE).settings("", Unset)), None);

        stage.session.reoffer();
        let pushed = stage.pushes();
        let reply = offered(&mut stage, channel, say(5));
        assert_eq!(pushed.len() + usize::from(reply.is_some()), 1, "once more");
        assert_eq!(offered(&mut stage, channel, say(6).settings("bad", Failed)), None, "it failed again");
        assert_eq!(stage.pushes(), []);

        stage.offer = leading_to("better");
        let pushed = stage.pushes();
        let reply = offered(&mut stage, channel, say(7));
        assert_eq!(pushed.len() + usize::from(reply.is_some()), 1, "a new hash");
        let _ = stage.hears(channel, say(8).settings("better", Applied));
        assert!(stage.session.record().failed_connection_settings.is_some(), "only APPLIED of that hash clears it");
        let _ = stage.hears(channel, say(9).settings("bad", Applied));
        assert_eq!(stage.session.record().failed_connection_settings, None);
    }
}

#[test]
fn a_status_is_shown_with_its_text_cut_and_the_time_when_it_began() {
    // CON-07
    let mut stage = Stage::known(HTTP);
    assert_eq!(stage.session.record().connection_settings, None, "unknown");
    for (number, status, state, changed) in [
        (2, 0, OfferState::Unset, Changed::Configuration),
        (3, 2, OfferState::Applying, Changed::Configuration),
        (4, 1, OfferState::Applied, Changed::Configuration),
        (5, 3, OfferState::Failed, Changed::Failure),
        (6, 9, OfferState::Unknown(9), Changed::Configuration),
    ] {
        stage.later(10);
        let mut message = say(number);
        message.0.connection_settings_status = Some(ConnectionSettingsStatus {
            last_connection_settings_hash: vec![7; 100].into(),
            status,
            error_message: "x".repeat(10_000),
        });
        let _ = stage.hears(HTTP, message);
        assert_eq!(stage.effects.changed, changed, "{state:?}");
        let report = stage.session.record().connection_settings.clone().unwrap();
        assert_eq!((report.state, report.since), (state, stage.now.wall));
        assert_eq!((report.hash.len(), report.error.len()), (64, 512));
    }
    let _ = stage.hears(HTTP, say(7).settings("a", Applied));
    let since = stage.now.wall;
    stage.later(10);
    let _ = stage.hears(HTTP, say(8).settings("a", Applied));
    assert_eq!(stage.session.record().connection_settings.as_ref().unwrap().since, since);
    assert_eq!(stage.effects.changed, Changed::Nothing, "a repeated status");
}

#[test]
fn what_an_earlier_process_knew_spares_the_offer() {
    // CON-06
    let reported =
        |host| Remembered { connection_settings_reported: Some(settings_hash(host)), ..Remembered::default() };
    let offered_before =
        |host| Remembered { connection_settings_offered: Some(settings(host).hash), ..Remembered::default() };
    let failed = |host| Remembered {
        failed_connection_settings: Some(FailedOffer {
            hash: settings_hash(host),
            error: String::new(),
            at: Timestamp::UNIX_EPOCH,
        }),
        ..Remembered::default()
    };
    for (case, remembered, capabilities, expected) in [
        ("it reported them", reported("new"), TALKATIVE, None),
        ("it reported others", reported("old"), TALKATIVE, Some("new")),
        ("it was offered them and reports nothing", offered_before("new"), SILENT, None),
        ("it was offered others", offered_before("old"), SILENT, Some("new")),
        ("it would have reported them", offered_before("new"), TALKATIVE, Some("new")),
        ("they failed", failed("new"), TALKATIVE, None),
        ("others failed", failed("old"), TALKATIVE, Some("new")),
        ("nothing", Remembered::default(), SILENT, Some("new")),
    ] {
        let reply = offered(&mut returning(remembered), socket(1), say(6).capable(capabilities));
        assert_eq!(reply.as_deref(), expected, "{case}");
    }
    let mut stage = returning(reported("new"));
    let reply = offered(&mut stage, socket(1), full(0).capable(TALKATIVE).settings("old", Applied));
    assert_eq!(reply.as_deref(), Some("new"), "its own word is newer");
}

#[test]
fn what_is_learnt_after_the_agent_has_spoken_counts_less_than_its_own_word() {
    let failed = FailedOffer { hash: settings_hash("new"), error: "no".into(), at: Timestamp::UNIX_EPOCH };
    for (case, status, host, expected) in
        [("it went back", Applied, "old", 1), ("it works now", Applied, "new", 0), ("it failed", Failed, "new", 1)]
    {
        let mut stage = Stage::new();
        stage.later(10);
        let _ = stage.hears(socket(1), full(1).capable(TALKATIVE).settings(host, status));
        stage.session.remember(Remembered {
            failed_connection_settings: Some(failed.clone()),
            connection_settings_reported: Some(settings_hash("other")),
            ..Remembered::default()
        });
        stage.offer = leading_to("new");
        assert_eq!(stage.pushes(), [], "{case}");
        let kept = stage.session.record().failed_connection_settings.as_ref();
        assert_eq!(kept.iter().filter(|kept| kept.at == failed.at).count(), expected, "{case}");
    }
}

#[test]
fn what_has_arrived_is_told_so_that_it_is_remembered() {
    let mut stage = member(HTTP, SILENT, "new");
    assert_eq!(stage.session.connection_settings_offered(), None);
    let _ = stage.hears(HTTP, say(2));
    let _ = stage.hears(HTTP, say(2));
    assert_eq!(stage.session.connection_settings_offered(), None, "a copy: the reply was lost");
    let _ = stage.hears(HTTP, say(3));
    assert_eq!(stage.effects.changed, Changed::Configuration);
    assert_eq!(stage.session.connection_settings_offered(), Some(settings("new").hash));
    let _ = stage.hears(HTTP, say(4));
    assert_eq!(stage.effects.changed, Changed::Nothing);
    let _ = stage.hears(HTTP, say(5).capable(TALKATIVE));
    assert_eq!(stage.session.connection_settings_offered(), None, "it reports: its word counts");
}

#[test]
fn where_nothing_is_configured_nothing_is_sent_whatever_the_echo() {
    // AMB-25
    let mut stage = Stage::known(socket(1));
    for (number, echo) in [(2, ""), (3, "old")] {
        let message = say(number).capable(TALKATIVE).settings(echo, Applied);
        assert_eq!(offered(&mut stage, socket(1), message), None);
    }
    assert_eq!(stage.pushes(), []);
}

#[test]
fn an_agent_that_named_settings_to_an_earlier_process_is_asked_for_its_status() {
    // CMP-11: its message would be complete without
    let first = || full(6).capable(TALKATIVE);
    let remembered =
        || Remembered { connection_settings_reported: Some(settings_hash("new")), ..Remembered::default() };
    for (case, remembered, message, flags) in [
        ("it leaves it out", remembered(), first(), FULL_STATE),
        ("it tells it", remembered(), first().settings("new", Applied), 0),
        ("it never did", Remembered::default(), first(), 0),
    ] {
        let mut stage = Stage::with(Session::new(uid(), Some(remembered)));
        assert_eq!(stage.hears(socket(1), message).flags, flags, "{case}");
        let _ = stage.hears(socket(1), full(7).capable(TALKATIVE));
        stage.later(3600);
        assert_eq!(stage.hears(socket(1), say(8)).flags, 0, "{case}: once");
    }
}

#[test]
fn settings_that_were_replaced_have_not_arrived_any_more() {
    // A, then B, then A again before anybody knows whether B has arrived
    let mut stage = member(socket(1), SILENT, "a");
    assert_eq!(stage.pushes().len(), 1);
    let _ = stage.hears(socket(1), say(2));
    stage.offer = leading_to("b");
    assert_eq!(stage.pushes().len(), 1);
    assert_eq!(stage.effects.changed, Changed::Configuration);
    assert_eq!(stage.session.connection_settings_offered(), None);
    stage.offer = leading_to("a");
    assert_eq!(stage.pushes().len(), 1);
}

#[test]
fn a_client_that_takes_settings_by_starting_anew_with_the_same_bytes_is_not_sent_round_in_circles() {
    // over HTTP its first message looks like a retransmission
    let mut stage = Stage::new();
    stage.offer = leading_to("new");
    let offers = (0..50).filter(|_| offered(&mut stage, HTTP, full(0).capable(SILENT)).is_some()).count();
    assert_eq!(offers, 3);
}
