//! Coming and going: A2S-07, CONN, HB, AMB-12, AMB-23.

use super::*;

#[test]
fn a_goodbye_takes_the_agent_offline_at_once_and_its_message_counts() {
    // A2S-07
    for channel in [socket(1), HTTP] {
        let mut stage = Stage::known(channel);
        stage.later(5);
        let reply = stage.hears(channel, say(2).health("stopping").goodbye());
        assert!(is_acknowledgement(&reply));
        let since = stage.now.wall;
        assert_eq!(stage.session.liveness(), Liveness::Disconnected { since, how: Ending::Goodbye });
        assert_eq!(stage.session.record().health.as_ref().unwrap().last_error, "stopping");
    }
}

#[test]
fn a_goodbye_is_not_answered_with_questions_or_offers() {
    let mut stage = Stage::known(socket(1));
    stage.offer = offering("a");
    assert!(is_acknowledgement(&stage.hears(socket(1), say(9).goodbye())));
}

#[test]
fn the_end_of_a_socket_takes_its_agent_offline() {
    // CONN-04
    let mut stage = Stage::known(socket(1));
    let _ = stage.closes(2);
    assert!(stage.is_connected(), "another socket");
    let _ = stage.closes(1);
    let since = stage.now.wall;
    assert_eq!(stage.session.liveness(), Liveness::Disconnected { since, how: Ending::SocketClosed });
    assert_eq!(stage.effects.changed, Changed::Connection);
    let _ = stage.closes(1);
    assert_eq!(stage.effects.changed, Changed::Nothing, "once is enough");
}

#[test]
fn the_end_of_a_socket_after_the_goodbye_keeps_the_goodbye() {
    let mut stage = Stage::known(socket(1));
    let _ = stage.hears(socket(1), say(2).goodbye());
    let _ = stage.closes(1);
    assert!(matches!(stage.session.liveness(), Liveness::Disconnected { how: Ending::Goodbye, .. }));
    assert_eq!(stage.effects.changed, Changed::Nothing);
}

#[test]
fn an_echo_after_the_goodbye_does_not_bring_the_agent_back() {
    // AMB-23: goodbye, a heartbeat with a repeated number, goodbye again
    let mut stage = Stage::known(HTTP);
    let _ = stage.hears(HTTP, say(2).capable(CAPABLE).goodbye());
    stage.later(1);
    for echo in
        [say(2).capable(CAPABLE), say(1).capable(CAPABLE), say(0), say(2).capable(CAPABLE).goodbye(), say(3).goodbye()]
    {
        assert!(is_acknowledgement(&stage.hears(HTTP, echo)), "every message has a reply");
        assert!(!stage.is_connected());
        assert_eq!(stage.effects.changed, Changed::Nothing);
    }
}

#[test]
fn after_the_goodbye_a_new_session_begins() {
    // AMB-23
    for (case, seconds, channel, next) in [
        ("it counts on", 1, HTTP, say(3)),
        ("30 s later", 30, HTTP, say(1).capable(CAPABLE)),
        ("a poll 30 s later", 30, HTTP, say(0)),
        ("a new process reports itself", 1, HTTP, full(0)),
        ("over a new socket", 1, socket(2), say(1).capable(CAPABLE)),
    ] {
        let mut stage = Stage::known(HTTP);
        let _ = stage.hears(HTTP, say(2).goodbye());
        stage.later(seconds);
        let _ = stage.hears(channel, next);
        assert!(stage.is_connected(), "{case}");
        assert_eq!(stage.effects.changed, Changed::Connection, "{case}");
    }
}

#[test]
fn an_orderly_reconnect_is_regular() {
    // DUP-01, STS-02
    let mut stage = Stage::known(socket(1));
    let _ = stage.hears(socket(1), say(2).goodbye());
    let reply = stage.hears(socket(2), say(3).capable(CAPABLE));
    assert!(is_acknowledgement(&reply));
    assert_eq!(reply.capabilities, CAN);
    assert_eq!(stage.effects.ping, None);
}

#[test]
fn an_agent_that_no_longer_polls_is_offline_after_the_limit_and_back_with_its_next_poll() {
    // CONN-07, AMB-12
    for (limit, session) in
        [(300, Session::new(uid(), None)), (90, Session::new(uid(), None).with_silence_limit(Duration::from_secs(90)))]
    {
        let mut stage = Stage::with(session);
        let _ = stage.hears(HTTP, full(1));
        stage.later(10);
        let _ = stage.hears(HTTP, say(2));
        assert_eq!(stage.session.deadline(), Some(stage.now.instant + Duration::from_secs(limit)));
        stage.later(limit - 1);
        let _ = stage.expires();
        assert!(stage.is_connected(), "too early it does nothing");
        stage.later(1);
        let _ = stage.expires();
        assert!(matches!(stage.session.liveness(), Liveness::Disconnected { how: Ending::Silent, .. }));
        assert_eq!((stage.effects.changed, stage.session.deadline()), (Changed::Connection, None));
        assert_eq!(stage.hears(HTTP, say(3)).flags, 0, "the record was kept");
        assert!(stage.is_connected());
    }
}

#[test]
fn silence_on_a_socket_means_nothing() {
    // HB-05, AMB-12
    let mut stage = Stage::known(socket(1));
    stage.later(86_400);
    assert_eq!(stage.session.deadline(), None);
    let _ = stage.expires();
    assert!(stage.is_connected());
}

#[test]
fn a_session_that_only_remembers_is_unheard() {
    let session = Session::new(uid(), Some(Remembered::default()));
    assert_eq!(session.liveness(), Liveness::Unheard);
    assert_eq!(session.deadline(), None);
}
