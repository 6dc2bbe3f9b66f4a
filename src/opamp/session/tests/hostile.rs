//! Whatever bytes arrive: an answer, no panic, and little kept.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::opamp::{frame::strip_header, violation::Violation};

/// From the bytes of a frame to the reply, as the transport does it.
fn exchange(session: &mut Session, frame: Bytes, channel: Channel, now: Now) -> Result<Effects, Violation> {
    let inbound = decode(strip_header(frame)?)?;
    let receipt = session.receive(inbound, channel, now);
    Ok(session.answer(receipt, &offering("a"), now))
}

fn now() -> Now {
    Now { instant: Instant::now(), wall: Timestamp::UNIX_EPOCH }
}

fn framed(payload: &[u8]) -> Vec<u8> {
    [&[0], payload].concat()
}

/// A message with every field in it.
fn rich() -> Vec<u8> {
    framed(
        &full(7)
            .components(b"h", &["otlp", "debug"])
            .custom(&["a.b/v2"])
            .settings("host", ConnectionSettingsStatuses::Applying)
            .asking(b"no request")
            .goodbye()
            .wanting_a_uid()
            .bytes(),
    )
}

#[test]
fn every_length_of_a_good_message_is_answered() {
    // ERR-01
    let (whole, now) = (rich(), now());
    for length in 0..=whole.len() {
        let mut session = Session::new(uid(), None);
        let frame = Bytes::copy_from_slice(&whole[..length]);
        if let Err(violation) = exchange(&mut session, frame, HTTP, now) {
            assert!(!violation.to_string().is_empty());
            assert_eq!(session.liveness(), Liveness::Unheard, "ERR-06: nothing has changed");
        }
    }
}

#[test]
fn malformed_payloads_are_told_what_is_wrong() {
    // ERR-01, ERR-03, A2S-02, AMB-17
    let mut bad_text = say(1).named("edge").bytes().to_vec();
    let place = bad_text.windows(4).position(|window| window == b"edge").unwrap();
    bad_text[place] = 0xff;
    for (case, payload, text) in [
        ("no bytes", vec![], "instance_uid missing"),
        ("no uid", vec![0x10, 1], "instance_uid has 0 bytes"),
        ("15 bytes", [&[0x0a, 15][..], &[7; 15]].concat(), "instance_uid has 15 bytes"),
        ("26 bytes", [&[0x0a, 26][..], &[7; 26]].concat(), "instance_uid has 26 bytes"),
        ("truncated", say(1).bytes()[..10].to_vec(), "not a valid AgentToServer"),
        ("wrong wire type", vec![0x08, 1], "AgentToServer.instance_uid"),
        ("no UTF-8", bad_text, "not a valid AgentToServer"),
    ] {
        let violation = decode(payload.into()).unwrap_err();
        assert!(violation.to_string().contains(text), "{case}: {violation}");
    }
}

#[test]
fn a_tree_without_end_is_refused_and_a_deep_one_is_taken() {
    // STS-10, CMPN-07
    let nested = |depth: usize| {
        let mut health = ComponentHealth::default();
        for _ in 0..depth {
            let child = std::mem::take(&mut health);
            health.component_health_map.insert("c".into(), child);
        }
        AgentToServer { health: Some(health), ..say(1).0 }.encode_to_vec()
    };
    assert!(decode(nested(40).into()).is_ok());
    let violation = decode(nested(150).into()).unwrap_err();
    assert!(violation.to_string().len() < 400, "{violation}");
}

#[test]
fn the_heartbeat_of_an_empty_payload_is_a_bare_poll() {
    // WS-05, AMB-17
    let inbound = crate::opamp::inbound::Inbound::bare(uid());
    let mut stage = Stage::known(socket(1));
    let receipt = stage.session.receive(inbound, socket(1), stage.now);
    let effects = stage.session.answer(receipt, &Offer::default(), stage.now);
    assert_eq!((effects.send.len(), effects.changed), (1, Changed::Nothing));
    assert_eq!(stage.hears(socket(1), say(2)).flags, 0, "the baseline is where it was");
}

/// What a crowd of liars under one uid can do.
#[derive(Clone, Debug)]
enum Move {
    Say { channel: u64, number: u64, capabilities: u64, parts: u16 },
    Pong(u64),
    Close(u64),
    Wait(u64),
    Offer(u8),
    Reoffer,
    Refuse,
}

fn a_move() -> impl Strategy<Value = Move> {
    let capabilities = prop_oneof![Just(0_u64), Just(CAPABLE), Just(0x3), Just(u64::MAX), any::<u64>()];
    prop_oneof![
        8 => (0..4_u64, 0..6_u64, capabilities, any::<u16>())
            .prop_map(|(channel, number, capabilities, parts)| Move::Say { channel, number, capabilities, parts }),
        1 => (0..4_u64).prop_map(Move::Pong),
        1 => (0..4_u64).prop_map(Move::Close),
        1 => prop_oneof![Just(1_u64), Just(3), Just(31), Just(700)].prop_map(Move::Wait),
        1 => (0..3_u8).prop_map(Move::Offer),
        1 => Just(Move::Reoffer),
        1 => Just(Move::Refuse),
    ]
}

type Addition = fn(Say) -> Say;

fn lie(number: u64, capabilities: u64, parts: u16) -> Say {
    let has = |bit: u16| parts & (1 << bit) != 0;
    let status = RemoteConfigStatuses::try_from(i32::from(parts >> 14)).unwrap();
    let steps: [(u16, Addition); 9] = [
        (0, |say| say.named("liar")),
        (1, |say| say.health("always ill")),
        (2, |say| say.running("lies: {}")),
        (3, |say| say.components(b"h", &[])),
        (4, |say| say.custom(&["com.example.lie"])),
        (5, Say::goodbye),
        (6, Say::wanting_a_uid),
        (9, |say| say.asking(b"no request")),
        (10, |say| say.settings("offer-0", ConnectionSettingsStatuses::Failed)),
    ];
    // The rare ones are rarer still: two bits must agree.
    let rare = |bit: u16| bit < 5 || has(bit + 3);
    let mut message = say(number).capable(capabilities);
    for (bit, step) in steps {
        if has(bit) && rare(bit) {
            message = step(message);
        }
    }
    if has(7) { message.status(if has(8) { "offer 0" } else { "old" }, status) } else { message }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn garbage_never_panics(frame in vec(any::<u8>(), 0..300)) {
        let mut session = Session::new(uid(), None);
        let _ = exchange(&mut session, frame.into(), HTTP, now());
    }

    #[test]
    fn damaged_messages_never_panic(damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), channel in 0..4_u64) {
        let (now, mut session) = (now(), Session::new(uid(), None));
        let mut frame = rich();
        for (place, byte) in damage {
            let place = place.index(frame.len());
            frame[place] = byte;
            let channel = if channel == 0 { HTTP } else { socket(channel) };
            let _ = exchange(&mut session, frame.clone().into(), channel, now);
            let _ = session.expire(now);
        }
    }
    #[test]
    fn a_crowd_of_liars_gets_lawful_replies(moves in vec(a_move(), 0..100)) {
        let mut stage = Stage::new();
        for next in moves {
            match next {
                Move::Say { channel, number, capabilities, parts } => {
                    let channel = if channel == 0 { HTTP } else { socket(channel) };
                    let _ = stage.hears(channel, lie(number, capabilities, parts));
                }
                Move::Pong(number) => drop(stage.pongs(number)),
                Move::Close(number) => drop(stage.closes(number)),
                Move::Wait(seconds) => stage.later(seconds),
                Move::Offer(number) => {
                    stage.offer = offering(&format!("offer {number}"));
                    stage.offer.connection_settings = Some(settings(&format!("offer-{number}")));
                    stage.offer.certificate_requests =
                        [CertificateRequests::NotServed, CertificateRequests::Served][usize::from(number % 2)];
                }
                Move::Refuse => drop(stage.refuses("a whim")),
                Move::Reoffer => stage.session.reoffer(),
            }
            for (channel, _) in stage.pushes().into_iter().chain(stage.expires()) {
                prop_assert_ne!(channel, HTTP, "nothing is pushed over HTTP");
            }
            let due = stage.session.deadline().is_some_and(|deadline| deadline <= stage.now.instant);
            prop_assert!(!due, "a deadline that has passed was acted on");
        }
    }
}
