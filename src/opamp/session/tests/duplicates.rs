//! Several that speak under one uid, and new uids: DUP, A2S-03, AMB-13, AMB-14, AMB-15, AMB-17.

use super::*;

/// The agent on socket 1, and somebody else on another channel under its uid.
fn contended(newcomer: Channel) -> Stage {
    let mut stage = Stage::known(socket(1));
    stage.offer = offering("a");
    let _ = stage.pushes();
    let reply = stage.hears(newcomer, full(1).named("clone"));
    assert!(is_acknowledgement(&reply), "at once, without offers");
    assert_eq!(reply.capabilities, CAN, "S2A-07");
    assert_eq!(stage.effects.ping, Some(ConnectionId::new(1)));
    assert_eq!(stage.effects.changed, Changed::Nothing);
    stage
}

fn host(stage: &Stage) -> String {
    stage.session.record().description.as_ref().unwrap().get("host.name").unwrap().into()
}

#[test]
fn a_newcomer_is_acknowledged_and_nothing_it_says_is_taken() {
    // AMB-14, CONN-02
    let mut stage = contended(socket(2));
    assert!(is_acknowledgement(&stage.hears(socket(2), say(2).health("broken"))));
    assert_eq!((host(&stage).as_str(), stage.session.record().health.as_ref().unwrap().healthy), ("edge-1", true));
    assert!(is_acknowledgement(&stage.hears(socket(1), say(2))), "the first agent is undisturbed");
    assert_eq!(stage.session.deadline(), Some(stage.now.instant + Duration::from_secs(3)));
}

#[test]
fn if_the_older_socket_answers_the_newcomer_gets_another_uid_again_and_again() {
    // DUP-02, DUP-03, AMB-13, AMB-14
    let mut stage = contended(socket(2));
    let pushed = stage.pongs(1);
    let [(channel, message)] = &pushed[..] else { panic!("one push: {pushed:?}") };
    assert_eq!(*channel, socket(2));
    let new_uid = new_uid_in(message).unwrap();
    assert_eq!(stage.effects.reidentified, [(socket(2), new_uid)]);
    for number in 2..5 {
        let reply = stage.hears(socket(2), say(number).health("broken"));
        assert_eq!(new_uid_in(&reply), Some(new_uid));
        assert_eq!(content_of(&reply), None);
        assert_eq!(stage.effects.ping, None, "it is known by now");
    }
    assert_eq!(host(&stage), "edge-1");
    assert!(is_acknowledgement(&stage.hears(socket(1), say(2))));
    stage.session.adopted(new_uid);
    let _ = stage.hears(socket(2), say(5));
    assert_eq!(stage.effects.ping, Some(ConnectionId::new(1)), "forgotten: on trial anew");
}

#[test]
fn a_pong_of_somebody_else_decides_nothing() {
    let mut stage = contended(socket(2));
    assert_eq!(stage.pongs(2), []);
    assert_eq!(stage.pongs(7), []);
    assert!(is_acknowledgement(&stage.hears(socket(2), say(2))));
}

#[test]
fn if_the_older_socket_is_silent_the_newcomer_takes_over_and_reports_in_full() {
    // AMB-14, CONN-08
    let mut stage = contended(socket(2));
    stage.later(2);
    assert_eq!(stage.expires(), [], "too early");
    stage.later(1);
    let pushed = stage.expires();
    assert_eq!(pushed.iter().map(|(channel, message)| (*channel, message.flags)).collect::<Vec<_>>(), [(socket(2), 1)]);
    assert_eq!(stage.effects.release, Some(ConnectionId::new(1)));
    assert_eq!(stage.effects.changed, Changed::Connection);
    let reply = stage.hears(socket(2), full(2).named("edge-1b"));
    assert_eq!((reply.flags, content_of(&reply).as_deref()), (0, Some("a")), "once; then its offer");
    assert_eq!(host(&stage), "edge-1b");
    let _ = stage.closes(1);
    assert!(stage.is_connected(), "the dead socket's end is no news");
}

#[test]
fn if_the_older_socket_ends_the_newcomer_takes_over_at_once() {
    // AMB-14: its Close, its goodbye
    let mut stage = contended(socket(2));
    assert_eq!(stage.closes(1).len(), 1);
    assert!(matches!(stage.session.liveness(), Liveness::Connected { channel, .. } if channel == socket(2)));
    assert_eq!(stage.effects.release, None, "it has closed already");

    let mut stage = contended(socket(2));
    assert!(is_acknowledgement(&stage.hears(socket(1), say(2).goodbye())));
    assert_eq!(
        stage.pushed.iter().map(|(channel, message)| (*channel, message.flags)).collect::<Vec<_>>(),
        [(socket(2), 1)]
    );
    assert!(stage.is_connected());
}

#[test]
fn a_newcomer_over_http_is_judged_likewise_and_hears_with_its_next_poll() {
    // AMB-14
    let mut stage = contended(HTTP);
    assert_eq!(stage.pongs(1), [], "nothing can be pushed");
    let first = new_uid_in(&stage.hears(HTTP, say(2))).unwrap();
    assert_eq!(new_uid_in(&stage.hears(HTTP, say(3))), Some(first));

    let mut stage = contended(HTTP);
    stage.later(3);
    assert_eq!(stage.expires(), []);
    assert_eq!(stage.effects.release, Some(ConnectionId::new(1)));
    assert_eq!(stage.hears(HTTP, say(2)).flags, FULL_STATE);
    let reply = stage.hears(HTTP, full(3));
    assert_eq!((reply.flags, content_of(&reply).as_deref()), (0, Some("a")));
}

#[test]
fn a_socket_takes_over_from_http_at_once() {
    // AMB-14
    let mut stage = Stage::known(HTTP);
    let reply = stage.hears(socket(1), say(2).capable(CAPABLE));
    assert!(is_acknowledgement(&reply));
    assert_eq!(stage.effects.ping, None);
    assert!(matches!(stage.session.liveness(), Liveness::Connected { channel, .. } if channel == socket(1)));
}

#[test]
fn after_its_end_nothing_is_a_duplicate() {
    // AMB-14, AMB-15
    for end in ["goodbye", "close"] {
        let mut stage = Stage::known(socket(1));
        if end == "close" {
            let _ = stage.closes(1);
        } else {
            let _ = stage.hears(socket(1), say(2).goodbye());
        }
        let _ = stage.hears(socket(2), full(0));
        assert_eq!((stage.effects.ping, stage.is_connected()), (None, true), "{end}");
    }
}

#[test]
fn the_same_uid_twice_on_one_socket_is_no_duplicate() {
    // AMB-15
    let mut stage = Stage::known(socket(1));
    let _ = stage.hears(socket(1), full(1).named("clone"));
    assert_eq!((stage.effects.ping, stage.session.deadline()), (None, None));
}

#[test]
fn over_http_a_judged_newcomer_is_forgotten_when_the_older_socket_ends() {
    // AMB-14: after its Close nothing is a duplicate; the agent itself may poll from now on
    let mut stage = contended(HTTP);
    let _ = stage.pongs(1);
    assert!(new_uid_in(&stage.hears(HTTP, say(2))).is_some());
    let _ = stage.closes(1);
    assert_eq!(new_uid_in(&stage.hears(HTTP, say(3))), None);
    assert!(stage.is_connected());
}

#[test]
fn a_successor_does_not_inherit_the_answers_to_its_predecessor() {
    let mut stage = Stage::known(socket(1));
    assert_eq!(stage.hears(socket(1), say(9)).flags, FULL_STATE);
    let _ = stage.hears(socket(2), full(1));
    assert_eq!(stage.closes(1).len(), 1, "asked for full state");
    assert_eq!(stage.hears(socket(2), full(1)).flags, 0, "its last message once more");
}

#[test]
fn clones_get_a_uid_each() {
    // DUP-03: a virtual machine copied many times
    let mut stage = Stage::known(socket(1));
    for number in 2..12 {
        let _ = stage.hears(socket(number), full(1));
    }
    let pushed = stage.pongs(1);
    let uids: std::collections::BTreeSet<_> = pushed.iter().filter_map(|(_, message)| new_uid_in(message)).collect();
    assert_eq!(uids.len(), 10);
}

#[test]
fn of_several_newcomers_the_latest_takes_over_and_the_others_are_judged_against_it() {
    let mut stage = contended(socket(2));
    stage.later(1);
    let _ = stage.hears(socket(3), full(1));
    stage.later(2);
    let pushed = stage.expires();
    assert_eq!(pushed.iter().map(|(channel, _)| *channel).collect::<Vec<_>>(), [socket(3)]);
    assert_eq!(stage.effects.ping, Some(ConnectionId::new(3)));
    assert_eq!(stage.session.deadline(), Some(stage.now.instant + Duration::from_secs(3)));
    let pushed = stage.pongs(3);
    assert_eq!(pushed.iter().map(|(channel, _)| *channel).collect::<Vec<_>>(), [socket(2)]);
    assert!(new_uid_in(&pushed[0].1).is_some());
}

#[test]
fn a_newcomer_that_leaves_is_forgotten() {
    for end in ["goodbye", "close"] {
        let mut stage = contended(socket(2));
        if end == "close" {
            assert_eq!(stage.closes(2), []);
        } else {
            assert!(is_acknowledgement(&stage.hears(socket(2), say(2).goodbye())));
        }
        assert_eq!(stage.session.deadline(), None, "{end}");
        assert_eq!(stage.pongs(1), [], "{end}");
        assert!(stage.is_connected(), "{end}");
    }
}

#[test]
fn newcomers_without_end_leave_little_behind() {
    let mut stage = Stage::known(socket(1));
    for number in 2..2000 {
        let _ = stage.hears(socket(number), full(1));
    }
    assert_eq!(stage.pongs(1).len(), 16);
}

#[test]
fn an_agent_that_asks_for_a_uid_gets_the_same_one_again_until_it_uses_it() {
    // A2S-03, AMB-13, RTY-03
    for channel in [socket(1), HTTP] {
        let mut stage = Stage::new();
        let request = full(1).wanting_a_uid();
        let new_uid = new_uid_in(&stage.hears(channel, request.clone())).unwrap();
        assert_eq!(stage.effects.reidentified, [(channel, new_uid)]);
        assert_eq!(stage.session.liveness(), Liveness::Unheard, "the record begins under the new uid");
        assert_eq!(stage.session.record().description, None);
        assert_eq!(new_uid_in(&stage.hears(channel, request)), Some(new_uid), "a copy");
        assert_eq!(stage.effects.reidentified, [], "given once");
        assert_eq!(new_uid_in(&stage.hears(channel, say(2).wanting_a_uid())), Some(new_uid), "the next request");
        assert_eq!(new_uid_in(&stage.hears(channel, say(3))), Some(new_uid), "in flight under the old uid");
        stage.session.adopted(new_uid);
        assert_eq!(new_uid_in(&stage.hears(channel, full(4))), None);
        assert!(stage.is_connected());
    }
}

#[test]
fn the_new_uid_is_given_again_for_ten_minutes() {
    // AMB-13
    let mut stage = Stage::new();
    let new_uid = new_uid_in(&stage.hears(HTTP, full(1).wanting_a_uid()));
    stage.later(599);
    assert_eq!(new_uid_in(&stage.hears(HTTP, say(2))), new_uid);
    stage.later(600);
    assert_eq!(new_uid_in(&stage.hears(HTTP, say(3))), None);
}

#[test]
fn a_session_is_deserted_when_nobody_is_there_and_nobody_has_to_be_told() {
    let mut stage = Stage::new();
    assert!(stage.session.is_deserted(stage.now), "nobody has spoken");
    let _ = stage.hears(HTTP, full(1).wanting_a_uid());
    assert!(!stage.session.is_deserted(stage.now), "its new uid may have to be told again");
    stage.later(600);
    assert!(stage.session.is_deserted(stage.now));
    let _ = stage.hears(socket(1), full(1));
    assert!(!stage.session.is_deserted(stage.now), "it is there");
    let _ = stage.closes(1);
    assert!(stage.session.is_deserted(stage.now));
}

#[test]
fn agents_that_share_a_temporary_uid_get_a_uid_each() {
    // A2S-03: unique
    let mut stage = Stage::new();
    let mut uids = std::collections::BTreeSet::new();
    for number in 0..100 {
        let name = format!("edge-{number}");
        uids.insert(new_uid_in(&stage.hears(HTTP, full(1).named(&name).wanting_a_uid())).unwrap());
        uids.insert(new_uid_in(&stage.hears(socket(number), full(1).wanting_a_uid())).unwrap());
    }
    assert_eq!(uids.len(), 200);
}

#[test]
fn a_known_agent_that_asks_for_a_uid_goes_on_under_the_new_one() {
    // A2S-03, AMB-13
    let mut stage = Stage::known(socket(1));
    assert!(new_uid_in(&stage.hears(socket(1), say(2).wanting_a_uid())).is_some());
    assert!(matches!(stage.session.liveness(), Liveness::Disconnected { how: Ending::Reidentified, .. }));
    assert_eq!(stage.effects.changed, Changed::Connection);
}

#[test]
fn the_nil_uid_is_nobodys() {
    // AMB-17
    let nil = InstanceUid::from_wire(&[0; 16]).unwrap();
    let mut stage = Stage::with(Session::new(nil, None));
    stage.offer = offering("a");
    let mut message = full(1);
    message.0.instance_uid = Bytes::from_static(&[0; 16]);
    let mut uids = std::collections::BTreeSet::new();
    for number in 1..5 {
        let reply = stage.hears(socket(number), message.clone());
        uids.insert(new_uid_in(&reply).unwrap());
        assert_eq!((content_of(&reply), reply.flags, reply.capabilities), (None, 0, CAN));
    }
    assert_eq!((uids.len(), stage.session.liveness()), (4, Liveness::Unheard));
}

#[test]
fn alternating_agents_over_http_are_only_suspected() {
    // DUP-02, AMB-14
    let mut stage = Stage::new();
    let mut suspicions = Vec::new();
    for turn in 0..10 {
        for (host, number) in [("one", 10 + turn), ("two", 500 + turn)] {
            let reply = stage.hears(HTTP, full(number).named(host));
            assert_eq!(new_uid_in(&reply), None);
            suspicions.extend(stage.effects.suspicion);
        }
    }
    assert_eq!(suspicions, [Suspicion::CountersAlternate], "one sign is enough, and once");
}
