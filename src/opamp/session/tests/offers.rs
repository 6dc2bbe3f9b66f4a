//! When a remote configuration is offered: CFG, AMB-24.

use super::*;
use crate::opamp::record::FailedOffer;
use RemoteConfigStatuses::{Applied, Applying, Failed, Unset};

/// Neither status nor anything else is promised, but configurations are accepted.
const MUTE: u64 = 0x3;

fn offered(stage: &mut Stage, channel: Channel, say: Say) -> Option<String> {
    content_of(&stage.hears(channel, say))
}

#[test]
fn the_first_reply_offers_what_the_agent_is_to_have() {
    // CFG-01, CFG-05
    for channel in [socket(1), HTTP] {
        let mut stage = Stage::new();
        stage.offer = offering("a");
        assert_eq!(offered(&mut stage, channel, full(0)).as_deref(), Some("a"));
    }
}

#[test]
fn an_equal_hash_is_never_offered_whatever_the_status() {
    // CFG-04, CFG-06
    for status in [Unset, Applied, Applying, Failed] {
        let mut stage = Stage::known(HTTP);
        stage.offer = offering("a");
        for number in 2..22 {
            assert_eq!(offered(&mut stage, HTTP, say(number).status("a", status)), None, "{status:?}");
            stage.later(30);
        }
    }
}

#[test]
fn every_reported_status_with_another_hash_is_answered_with_the_offer() {
    // CFG-05
    let mut stage = Stage::known(HTTP);
    stage.offer = offering("new");
    for (number, echo) in [(2, ""), (3, "old"), (4, "random"), (5, "random")] {
        let reply = offered(&mut stage, HTTP, say(number).status(echo, Applied));
        assert_eq!(reply.as_deref(), Some("new"), "{echo:?}");
    }
}

#[test]
fn progress_reports_are_not_answered_with_the_same_offer() {
    // S2A-02, STS-03
    let mut stage = Stage::new();
    stage.offer = offering("a");
    assert!(offered(&mut stage, socket(1), full(1)).is_some());
    for (number, status) in [(2, Applying), (3, Applying), (4, Applied)] {
        assert_eq!(offered(&mut stage, socket(1), say(number).status("a", status)), None);
    }
}

#[test]
fn a_remembered_status_is_answered_at_once_and_then_with_patience() {
    // CFG-05, CFG-11, AMB-24
    let mut stage = Stage::known(HTTP);
    stage.offer = offering("a");
    let mut offers = Vec::new();
    for poll in 0..120_u64 {
        if offered(&mut stage, HTTP, say(poll + 2)).is_some() {
            offers.push(poll * 30);
        }
        stage.later(30);
    }
    assert_eq!(offers, [0, 30, 90, 210, 450, 930, 1830, 2730], "seconds");
}

#[test]
fn a_silent_agent_is_offered_each_hash_once_a_session() {
    // CFG-11, AMB-24: without 0x1000
    let mut stage = Stage::new();
    stage.offer = offering("a");
    assert!(offered(&mut stage, socket(1), say(1).capable(MUTE).named("x")).is_some());
    for number in 2..30 {
        stage.later(60);
        assert_eq!(offered(&mut stage, socket(1), say(number)), None);
    }
    stage.offer = offering("b");
    assert_eq!(offered(&mut stage, socket(1), say(30)).as_deref(), Some("b"), "on change");
    let _ = stage.closes(1);
    assert_eq!(offered(&mut stage, socket(2), say(31)).as_deref(), Some("b"), "a new session");
    assert_eq!(offered(&mut stage, socket(2), say(32)), None);
}

#[test]
fn over_http_a_session_begins_when_the_counter_is_reset() {
    // AMB-24
    let mut stage = Stage::new();
    stage.offer = offering("a");
    let mut offers = Vec::new();
    for number in [7, 8, 9, 0, 1, 2] {
        if offered(&mut stage, HTTP, say(number).capable(MUTE).named("x")).is_some() {
            offers.push(number);
        }
    }
    assert_eq!(offers, [7, 0]);
}

#[test]
fn nothing_is_offered_to_an_agent_that_accepts_nothing() {
    // CFG-02, A2S-05, SEC-02, INT-02
    for capabilities in [0x1, 0x1001, 0xfffd] {
        for channel in [socket(1), HTTP] {
            let mut stage = Stage::new();
            stage.offer = offering("a");
            let reply = stage.hears(channel, full(1).capable(capabilities));
            assert_eq!(content_of(&reply), None, "{capabilities:#x}");
            assert_eq!(content_of(&stage.hears(channel, full(9))).as_deref(), Some("a"), "it changed its mind");
            let _ = stage.hears(channel, say(10).capable(0x1001));
            stage.offer = offering("b");
            assert_eq!(stage.pushes(), []);
            assert_eq!(content_of(&stage.hears(channel, say(11).status("a", Applied))), None);
        }
    }
}

#[test]
fn an_agent_whose_capabilities_are_unknown_is_offered_nothing() {
    // CFG-02: a bare poll of an unknown uid
    let mut stage = Stage::new();
    stage.offer = offering("a");
    assert_eq!(offered(&mut stage, HTTP, say(0)), None);
}

#[test]
fn where_nothing_is_assigned_nothing_is_sent_whatever_the_echo() {
    // AMB-24
    let mut stage = Stage::known(socket(1));
    for (number, echo) in [(2, ""), (3, "old")] {
        assert!(is_acknowledgement(&stage.hears(socket(1), say(number).status(echo, Applied))));
    }
    assert_eq!(stage.pushes(), []);
}

#[test]
fn a_change_is_pushed_to_a_socket_once_and_waits_for_the_next_poll_over_http() {
    // CFG-03, WS-06, HTTP-02, RTY-04
    let mut stage = Stage::known(socket(1));
    stage.offer = offering("a");
    let pushed = stage.pushes();
    assert_eq!(pushed.iter().map(|(channel, _)| *channel).collect::<Vec<_>>(), [socket(1)]);
    assert_eq!(content_of(&pushed[0].1).as_deref(), Some("a"));
    stage.later(3600);
    assert_eq!(stage.pushes(), [], "an unrelated wake-up repeats nothing");

    let mut stage = Stage::known(HTTP);
    for content in ["a", "b", "c", "d", "e"] {
        stage.offer = offering(content);
        assert_eq!(stage.pushes(), []);
    }
    assert_eq!(offered(&mut stage, HTTP, say(2)).as_deref(), Some("e"), "only the last");
}

#[test]
fn nothing_is_pushed_before_the_agent_has_spoken_or_after_it_has_gone() {
    // STS-01
    let mut stage = Stage::new();
    stage.offer = offering("a");
    assert_eq!(stage.pushes(), []);
    let _ = stage.hears(socket(1), full(1));
    let _ = stage.hears(socket(1), say(2).goodbye());
    stage.offer = offering("b");
    assert_eq!(stage.pushes(), []);
}

#[test]
fn what_failed_is_not_offered_again_until_it_changes() {
    // CFG-06, AMB-24: also where the agent goes back by itself and reports the former hash as applied
    let mut stage = Stage::new();
    stage.offer = offering("good");
    assert!(offered(&mut stage, socket(1), full(1)).is_some());
    stage.offer = offering("bad");
    assert_eq!(stage.pushes().len(), 1);
    assert_eq!(offered(&mut stage, socket(1), say(2).status("bad", Failed)), None);
    assert_eq!(offered(&mut stage, socket(1), say(3).status("good", Applied)), None, "it went back");
    let failed = stage.session.record().failed_config.clone().unwrap();
    assert_eq!((failed.hash, failed.error.as_str()), (hash_of("bad"), "no such exporter"));
    for number in 4..20 {
        stage.later(60);
        assert_eq!(offered(&mut stage, socket(1), say(number)), None);
        assert_eq!(stage.pushes(), []);
    }
    let _ = stage.closes(1);
    assert_eq!(offered(&mut stage, socket(2), full(20).status("good", Applied)), None, "nor after a reconnect");
    stage.offer = offering("better");
    assert_eq!(stage.pushes().len(), 1, "a new hash");
    assert_eq!(offered(&mut stage, socket(2), say(21).status("better", Applied)), None);
    assert!(stage.session.record().failed_config.is_some(), "only APPLIED of that hash clears it");
    let _ = stage.hears(socket(2), say(22).status("bad", Applied));
    assert_eq!(stage.session.record().failed_config, None);
}

#[test]
fn what_failed_is_offered_once_more_when_a_person_asks() {
    // AMB-24
    for (case, reports) in [("it still has the failed one", &["bad"][..]), ("it went back", &["bad", "good"])] {
        for channel in [socket(1), HTTP] {
            let mut stage = Stage::known(channel);
            stage.offer = offering("bad");
            let _ = stage.hears(channel, say(2).status("bad", Failed));
            for (index, echo) in reports.iter().enumerate().skip(1) {
                assert_eq!(offered(&mut stage, channel, say(index as u64 + 2).status(echo, Applied)), None);
            }
            let next = reports.len() as u64 + 2;
            stage.session.reoffer();
            let pushed = stage.pushes();
            let reply = offered(&mut stage, channel, say(next));
            let times = pushed.len() + usize::from(reply.is_some());
            assert_eq!(times, 1, "{case}, {channel:?}");
            assert_eq!(offered(&mut stage, channel, say(next + 1).status("bad", Failed)), None, "it failed again");
            assert_eq!(stage.pushes(), [], "{case}");
        }
    }
}

#[test]
fn the_wish_survives_that_the_agent_repeats_its_failure_first() {
    let mut stage = Stage::known(HTTP);
    stage.offer = offering("bad");
    let _ = stage.hears(HTTP, say(2).status("bad", Failed));
    stage.session.reoffer();
    assert_eq!(offered(&mut stage, HTTP, say(3).status("bad", Failed)).as_deref(), Some("bad"));
    assert_eq!(offered(&mut stage, HTTP, say(4).status("bad", Failed)), None);
}

#[test]
fn a_wish_without_a_failure_does_nothing() {
    let mut stage = Stage::known(socket(1));
    stage.offer = offering("a");
    let _ = stage.hears(socket(1), say(2).status("a", Applied));
    stage.session.reoffer();
    assert_eq!(stage.pushes(), []);
    assert_eq!(offered(&mut stage, socket(1), say(3)), None);
}

#[test]
fn hashes_of_an_earlier_process_spare_the_offer() {
    // CFG-06
    let returning = |content: &str| {
        let last_reported = Some(hash_of(content));
        let mut stage = Stage::with(Session::new(uid(), Some(Remembered { last_reported, ..Remembered::default() })));
        stage.offer = offering("a");
        stage
    };
    for (case, content, expected) in [("the same", "a", None), ("an older one", "old", Some("a"))] {
        let reply = offered(&mut returning(content), socket(1), say(6).capable(CAPABLE));
        assert_eq!(reply.as_deref(), expected, "{case}");
    }
    let reply = offered(&mut returning("a"), socket(1), full(0));
    assert_eq!(reply.as_deref(), Some("a"), "its own word is newer: it has lost it");
}

#[test]
fn a_failure_of_an_earlier_process_still_counts() {
    let failed = FailedOffer { hash: hash_of("bad"), error: "no".into(), at: Timestamp::UNIX_EPOCH };
    let remembered = Remembered { failed: Some(failed), ..Remembered::default() };
    let mut stage = Stage::new();
    let _ = stage.hears(HTTP, say(4).capable(CAPABLE));
    stage.session.remember(remembered);
    stage.offer = offering("bad");
    assert_eq!(offered(&mut stage, HTTP, say(5)), None);
    assert_eq!(offered(&mut stage, HTTP, full(6).status("good", Applied)), None);
    stage.session.reoffer();
    assert_eq!(offered(&mut stage, HTTP, say(7)).as_deref(), Some("bad"));
}

#[test]
fn the_offer_is_shared_and_not_copied() {
    let mut stage = Stage::known(socket(1));
    stage.offer = offering("a");
    let effects = stage.session.push(&stage.offer, stage.now);
    let [(_, outbound)] = &effects.send[..] else { panic!("one push") };
    let encoded = &stage.offer.remote_config.as_ref().unwrap().encoded;
    assert_eq!(outbound.tail.as_ref().unwrap().as_ptr(), encoded.as_ptr());
}

#[test]
fn a_failure_that_is_learnt_after_the_agent_has_reported_counts_unless_it_was_overcome() {
    // AMB-24: the agent went back by itself, and what an earlier process saw fail is read after its first report
    for (case, content, status) in
        [("it went back", "good", Applied), ("it has none yet", "", Unset), ("it works now", "bad", Applied)]
    {
        let mut stage = Stage::new();
        let _ = stage.hears(socket(1), full(1).status(content, status));
        let failed = FailedOffer { hash: hash_of("bad"), error: String::new(), at: stage.now.wall };
        stage.session.remember(Remembered { failed: Some(failed), ..Remembered::default() });
        stage.offer = offering("bad");
        assert_eq!(stage.pushes(), [], "{case}");
        assert_eq!(stage.session.record().failed_config.is_some(), content != "bad", "{case}");
    }
}
