//! Certificate requests: CSR, AMB-05, AMB-29, AMB-32.

use super::*;
use crate::opamp::violation::Violation;
use ConnectionSettingsStatuses::Applied;

const REQUEST: &[u8] = b"-----BEGIN CERTIFICATE REQUEST-----";
/// What the server is able to do where requests are served.
const CAN_CERTIFY: u64 = CAN | 0x40;

/// An agent that has reported in full with number 1, and whose requests are served.
fn served(channel: Channel, capabilities: u64) -> Stage {
    let mut stage = Stage::new();
    stage.offer.certificate_requests = CertificateRequests::Served;
    let _ = stage.hears(channel, full(1).capable(capabilities));
    stage
}

/// The owner's part of the exchange: it looks at the request before the message is answered.
fn refused_at_once(stage: &mut Stage, from: Channel, say: &Say, reason: &str) -> ServerToAgent {
    let mut receipt = stage.session.receive(decode(say.bytes()).unwrap(), from, stage.now);
    assert_eq!(receipt.certificate_request().map(|request| &request[..]), Some(REQUEST));
    receipt.refuse_certificate(reason);
    let effects = stage.session.answer(receipt, &stage.offer, stage.now);
    stage.note(effects);
    stage.pushed.pop().unwrap().1
}

#[test]
fn a_request_is_acknowledged_and_handed_on_each_time_it_comes() {
    // CSR-01, CSR-08, AMB-29
    for channel in [socket(1), HTTP] {
        let mut stage = served(channel, SILENT);
        for (number, times) in [(2, 3), (3, 1)] {
            for _ in 0..times {
                assert!(is_acknowledgement(&stage.hears(channel, say(number).asking(REQUEST))));
                assert_eq!(stage.effects.certificate_request.as_deref(), Some(REQUEST));
            }
        }
        let _ = stage.hears(channel, say(4));
        assert_eq!(stage.effects.certificate_request, None, "it is no state");
    }
}

#[test]
fn a_full_report_does_not_repeat_a_request() {
    // CMP-10
    let mut stage = served(socket(1), SILENT);
    let _ = stage.hears(socket(1), say(2).asking(REQUEST));
    assert_eq!(stage.hears(socket(1), say(9)).flags, FULL_STATE);
    let _ = stage.hears(socket(1), full(10));
    assert_eq!(stage.effects.certificate_request, None);
}

#[test]
fn the_request_is_copied_out_of_its_message() {
    let mut stage = served(HTTP, SILENT);
    let payload = say(2).asking(REQUEST).bytes();
    let _ = stage.hears_bytes(HTTP, payload.clone());
    let request = stage.effects.certificate_request.as_ref().unwrap();
    assert!(!payload.as_ptr_range().contains(&request.as_ptr()), "a slice would keep the whole message");
}

#[test]
fn what_is_no_request_is_told_so_and_the_rest_of_the_message_counts() {
    // CSR-02, CSR-03, ERR-02
    let mut without = say(2).health("disk full");
    let opamp = Some(OpAmpConnectionSettingsRequest { certificate_request: None });
    without.0.connection_settings_request = Some(ConnectionSettingsRequest { opamp });
    let long = say(2).health("disk full").asking(&vec![b'x'; CERTIFICATE_REQUEST_LIMIT + 1]);
    for (message, expected) in [
        (without, Violation::CertificateRequestMissing),
        (long, Violation::CertificateRequestTooLarge { length: 16_385, limit: 16_384 }),
    ] {
        let mut stage = served(HTTP, SILENT);
        for _ in 0..2 {
            let reply = stage.hears(HTTP, &message);
            assert_eq!(error_in(&reply), Some(expected.to_string().as_str()));
            assert_eq!(stage.effects.violation.as_ref(), Some(&expected));
            assert_eq!(stage.effects.certificate_request, None);
        }
        assert_eq!(stage.session.record().health.as_ref().unwrap().last_error, "disk full");
        assert_eq!(stage.hears(HTTP, say(3)).flags, 0, "its number counts");

        stage.offer.certificate_requests = CertificateRequests::NotServed;
        let mut ignored = message.clone();
        ignored.0.sequence_num = 4;
        assert!(is_acknowledgement(&stage.hears(HTTP, &ignored)), "AMB-32");
        assert_eq!(stage.effects.violation, None);
    }
    let mut stage = served(HTTP, SILENT);
    let _ = stage.hears(HTTP, say(2).asking(&vec![b'x'; CERTIFICATE_REQUEST_LIMIT]));
    assert_eq!(stage.effects.certificate_request.as_ref().map(Bytes::len), Some(16_384), "the longest");
}

#[test]
fn an_empty_request_needs_no_action() {
    // CSR-02
    let mut stage = served(socket(1), SILENT);
    let mut message = say(2);
    message.0.connection_settings_request = Some(ConnectionSettingsRequest::default());
    assert_eq!(stage.hears(socket(1), message).encoded_len(), 18, "0A 10 and the uid");
    assert_eq!(stage.effects.certificate_request, None);
}

#[test]
fn a_request_that_is_not_served_is_ignored_and_the_reply_says_what_is() {
    // AMB-32, CSR-12
    let mut stage = Stage::known(socket(1));
    let reply = stage.hears(socket(1), say(2).asking(REQUEST));
    assert!(is_acknowledgement(&reply));
    assert_eq!(reply.capabilities, CAN);
    assert_eq!(stage.effects.certificate_request, None);
    assert_eq!(stage.hears(socket(1), say(3)).capabilities, 0);
}

#[test]
fn the_agent_is_told_whether_requests_are_served_and_when_that_changes() {
    // CSR-12, S2A-09, AMB-05
    use CertificateRequests::{NotServed, Served};
    for channel in [socket(1), HTTP] {
        let mut stage = Stage::new();
        let mut told = Vec::new();
        for (number, requests) in [(1, Served), (2, Served), (3, NotServed), (4, NotServed), (5, Served)] {
            stage.offer.certificate_requests = requests;
            told.push(stage.hears(channel, full(number)).capabilities);
        }
        let unchanged = |capabilities| if channel == HTTP { capabilities } else { 0 };
        assert_eq!(told, [CAN_CERTIFY, unchanged(CAN_CERTIFY), CAN, unchanged(CAN), CAN_CERTIFY], "{channel:?}");
    }
    let mut stage = Stage::known(socket(1));
    stage.offer = Offer { certificate_requests: Served, ..offering("a") };
    assert_eq!(stage.pushes()[0].1.capabilities, CAN_CERTIFY, "the next message is a push");
    assert_eq!(stage.hears(socket(1), say(2).capable(CAPABLE)).capabilities, 0);
    assert_eq!(stage.hears(socket(1), say(3).capable(CAPABLE).goodbye()).capabilities, 0);
}

#[test]
fn a_bad_request_is_refused_in_its_reply_and_the_rest_of_the_message_counts() {
    // CSR-07, AMB-29, ERR-02
    for channel in [socket(1), HTTP] {
        let mut stage = served(channel, SILENT);
        stage.offer.connection_settings = Some(settings("new"));
        let message = say(2).asking(REQUEST).health("disk full");
        for _ in 0..2 {
            let reply = refused_at_once(&mut stage, channel, &message, "the key is too short");
            assert_eq!(
                error_in(&reply),
                Some("the certificate request (CSR) is refused: the key is too short"),
                "also a copy of it"
            );
            assert_eq!(stage.effects.certificate_request, None);
            assert_eq!(stage.effects.violation, None, "it is no breach of the protocol");
        }
        assert_eq!(stage.session.record().health.as_ref().unwrap().last_error, "disk full");
        let next = stage.hears(channel, say(3));
        assert_eq!(next.flags, 0, "its number counts");
        assert_eq!(host_in(&next).as_deref(), Some("new"), "what the error left out");
    }
}

#[test]
fn capabilities_and_questions_wait_until_no_error_excludes_them() {
    // S2A-05, S2A-07
    let mut stage = Stage::new();
    stage.offer.certificate_requests = CertificateRequests::Served;
    let message = say(7).capable(SILENT).asking(REQUEST);
    assert!(error_in(&refused_at_once(&mut stage, socket(1), &message, "no")).is_some());
    let next = stage.hears(socket(1), say(8));
    assert_eq!((next.capabilities, next.flags), (CAN_CERTIFY, FULL_STATE));
}

#[test]
fn a_late_refusal_is_pushed_to_a_socket() {
    // CSR-07, AMB-29
    let mut stage = served(socket(1), SILENT);
    let _ = stage.hears(socket(1), say(2).asking(REQUEST));
    let pushed = stage.refuses("nobody has approved it");
    let [(channel, message)] = &pushed[..] else { panic!("one push") };
    assert_eq!(*channel, socket(1));
    assert!(error_in(message).unwrap().contains("CSR) is refused: nobody has approved it"));
    assert_eq!(stage.hears(socket(1), say(3)).encoded_len(), 18, "it is not repeated");
}

#[test]
fn a_late_refusal_waits_for_the_next_poll_whose_content_counts() {
    // AMB-29, RTY-02
    let mut stage = served(HTTP, SILENT);
    let _ = stage.hears(HTTP, say(2).asking(REQUEST));
    assert_eq!(stage.refuses("nobody has approved it"), []);
    for _ in 0..2 {
        let reply = stage.hears(HTTP, say(3).health("disk full"));
        assert!(error_in(&reply).is_some_and(|text| text.contains("nobody has approved it")), "also to a copy");
    }
    assert_eq!(stage.session.record().health.as_ref().unwrap().last_error, "disk full");
    assert!(is_acknowledgement(&stage.hears(HTTP, say(4))), "once");
}

#[test]
fn a_refusal_reaches_an_agent_that_was_away_unless_it_has_asked_again() {
    let mut stage = served(socket(1), SILENT);
    let _ = stage.hears(socket(1), say(2).asking(REQUEST));
    let _ = stage.closes(1);
    assert_eq!(stage.refuses("nobody has approved it"), []);
    assert!(error_in(&stage.hears(socket(2), say(3))).is_some());

    let mut stage = served(HTTP, SILENT);
    assert_eq!(stage.refuses("too old"), []);
    let reply = stage.hears(HTTP, say(2).asking(REQUEST));
    assert_eq!(error_in(&reply), None);
    assert_eq!(stage.effects.certificate_request.as_deref(), Some(REQUEST));
    assert_eq!(error_in(&stage.hears(HTTP, say(3))), None);
}

#[test]
fn the_reason_is_cut() {
    let mut stage = served(socket(1), SILENT);
    let pushed = stage.refuses(&"x".repeat(100_000));
    assert!(error_in(&pushed[0].1).unwrap().len() < 600);
}

#[test]
fn a_request_is_the_consent_to_one_offer() {
    // AMB-32: the agent does not declare that it takes settings
    for channel in [socket(1), HTTP] {
        let mut stage = served(channel, CAPABLE);
        let _ = stage.hears(channel, say(2).asking(REQUEST));
        let _ = stage.hears(channel, say(3));
        stage.offer.connection_settings = Some(settings("with-certificate"));
        let pushed = stage.pushes();
        let reply = stage.hears(channel, say(4));
        assert_eq!(pushed.iter().map(|(_, message)| message).chain([&reply]).filter_map(host_in).count(), 1);
        stage.offer.connection_settings = Some(settings("changed"));
        assert_eq!(stage.pushes(), []);
        assert_eq!(host_in(&stage.hears(channel, say(5))), None, "one offer");

        let again = stage.hears(channel, say(6).asking(REQUEST));
        assert_eq!(host_in(&again).as_deref(), Some("changed"), "it is there already: in the reply");
        let copy = stage.hears(channel, say(6).asking(REQUEST));
        assert_eq!(host_in(&copy).as_deref(), Some("changed"), "RTY-02");
    }
}

#[test]
fn a_refusal_takes_the_consent_back() {
    for when in ["at once", "later"] {
        let mut stage = served(socket(1), CAPABLE);
        let _ = stage.hears(socket(1), say(2).asking(REQUEST));
        if when == "later" {
            let _ = stage.refuses("no");
        } else {
            let _ = refused_at_once(&mut stage, socket(1), &say(3).asking(REQUEST), "no");
        }
        stage.offer.connection_settings = Some(settings("new"));
        assert_eq!(stage.pushes(), [], "{when}");
    }
}

#[test]
fn the_offer_that_answers_a_request_is_not_repeated_to_the_next_one() {
    // CSR-08: the agent has what answers its former request, and renews
    let mut stage = served(socket(1), TALKATIVE);
    let _ = stage.hears(socket(1), say(2).asking(REQUEST));
    stage.offer.connection_settings = Some(settings("first"));
    assert_eq!(stage.pushes().len(), 1);
    let _ = stage.hears(socket(1), say(3).settings("first", Applied));
    let reply = stage.hears(socket(1), say(4).asking(REQUEST));
    assert!(is_acknowledgement(&reply));
    stage.offer.connection_settings = Some(settings("second"));
    assert_eq!(host_in(&stage.pushes()[0].1).as_deref(), Some("second"));
}

#[test]
fn a_request_that_comes_again_is_answered_again_by_what_it_was_given() {
    // CSR-08, AMB-29: the agent lost the certificate, or the offer was lost; not in circles if it asks at every start
    for capabilities in [CAPABLE, SILENT, TALKATIVE] {
        let mut stage = served(HTTP, capabilities);
        stage.offer.connection_settings = Some(settings("with-certificate"));
        let mut offers = 0;
        for number in 2..30 {
            offers += usize::from(host_in(&granted(&mut stage, &say(number).asking(REQUEST))).is_some());
        }
        assert_eq!(offers, 3, "{capabilities:#x}");
        stage.later(120);
        let reply = granted(&mut stage, &say(30).asking(REQUEST));
        assert_eq!(host_in(&reply).as_deref(), Some("with-certificate"), "with patience");
        let named = say(31).capable(TALKATIVE).settings("with-certificate", Applied).asking(REQUEST);
        stage.later(3600);
        assert_eq!(host_in(&granted(&mut stage, &named)), None, "it says that it has it");
    }
}

/// The owner finds the certificate in what it offers already.
fn granted(stage: &mut Stage, say: &Say) -> ServerToAgent {
    let mut receipt = stage.session.receive(decode(say.bytes()).unwrap(), HTTP, stage.now);
    receipt.grant_certificate();
    let effects = stage.session.answer(receipt, &stage.offer, stage.now);
    assert_eq!(effects.certificate_request, None, "it was decided on");
    stage.note(effects);
    stage.pushed.pop().unwrap().1
}

#[test]
fn nothing_is_taken_of_somebody_on_trial_or_leaving() {
    // AMB-14
    let mut stage = served(socket(1), SILENT);
    let _ = stage.hears(socket(2), full(0).asking(REQUEST));
    assert_eq!(stage.effects.certificate_request, None);
    let mut stage = served(socket(1), SILENT);
    let _ = stage.hears(socket(1), say(2).asking(REQUEST).goodbye());
    assert_eq!(stage.effects.certificate_request, None);
}
