use proptest::prelude::*;

use super::*;

const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A masked frame of a client.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    masked(first, payload, MASK)
}

fn masked(first: u8, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        short @ 0..=125 => bytes.push(0x80 | u8::try_from(short).unwrap()),
        medium @ 126..=0xffff => {
            bytes.push(0xfe);
            bytes.extend(u16::try_from(medium).unwrap().to_be_bytes());
        }
        long => {
            bytes.push(0xff);
            bytes.extend((long as u64).to_be_bytes());
        }
    }
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
    bytes
}

/// What comes out if the bytes arrive in these pieces.
fn decode<'a>(limit: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Event>, Fault> {
    let mut decoder = Decoder::new(limit);
    let mut events = Vec::new();
    for mut piece in pieces {
        while let Some(event) = decoder.decode(&mut piece)? {
            events.push(event);
        }
        assert!(piece.is_empty(), "all was taken");
    }
    Ok(events)
}

fn whole(bytes: &[u8]) -> Result<Vec<Event>, Fault> {
    decode(1 << 20, [bytes])
}

fn binary(payload: &'static [u8]) -> Event {
    Event::Binary(Bytes::from_static(payload))
}

#[test]
fn the_samples_of_rfc_6455_are_understood() {
    // §5.7: a masked "Hello", and a ping with it.
    let text = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(whole(&text), Ok(vec![Event::Text]));
    let ping = [0x89, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(whole(&ping), Ok(vec![Event::Ping(Bytes::from_static(b"Hello"))]));
}

#[test]
fn a_stream_means_the_same_wherever_it_is_cut() {
    // WS-08: one message over four frames, with a ping and a pong in between.
    let long = vec![7; 300];
    let stream = [
        frame(0x02, b"one "),
        frame(0x89, b"ping"),
        frame(0x00, b""),
        frame(0x8a, b"pong"),
        frame(0x00, b"mes"),
        frame(0x80, b"sage"),
        frame(0x81, "text ü".as_bytes()),
        frame(0x82, &long),
        frame(0x82, b""),
        frame(0x88, b"\x03\xe8bye"),
    ]
    .concat();
    let expected = Ok(vec![
        Event::Ping(Bytes::from_static(b"ping")),
        Event::Pong(Bytes::from_static(b"pong")),
        binary(b"one message"),
        Event::Text,
        Event::Binary(long.into()),
        binary(b""),
        Event::Close(Some(1000)),
    ]);
    for cut in 0..=stream.len() {
        let (front, back) = stream.split_at(cut);
        assert_eq!(decode(1 << 20, [front, back]), expected, "cut at {cut}");
    }
    assert_eq!(decode(1 << 20, stream.chunks(1)), expected, "byte by byte");
}

#[test]
fn each_breach_of_the_framing_has_its_fault() {
    let over_limit = [&[0x82, 0xff][..], &(1_u64 << 21).to_be_bytes(), &MASK].concat();
    for (case, bytes, expected) in [
        ("RSV1", vec![0xc2, 0x80], Fault::ReservedBit),
        ("RSV3", vec![0x92, 0x80], Fault::ReservedBit),
        ("opcode 3", vec![0x83, 0x80], Fault::UnknownOpcode(3)),
        ("opcode 11", vec![0x8b, 0x80], Fault::UnknownOpcode(11)),
        ("not masked", vec![0x82, 0x01], Fault::Unmasked),
        ("fragmented ping", vec![0x09, 0x80], Fault::FragmentedControl),
        ("ping of 126 bytes", vec![0x89, 0xfe], Fault::LongControl),
        ("16 bits for 125", [&[0x82, 0xfe, 0, 125][..], &MASK].concat(), Fault::LengthEncoding),
        ("64 bits for 65535", [&[0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff][..], &MASK].concat(), Fault::LengthEncoding),
        ("topmost bit", [&[0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0][..], &MASK].concat(), Fault::LengthEncoding),
        ("continues nothing", frame(0x80, b"x"), Fault::NothingToContinue),
        ("binary in binary", [frame(0x02, b"a"), frame(0x82, b"b")].concat(), Fault::Interleaved),
        ("text in binary", [frame(0x02, b"a"), frame(0x81, b"b")].concat(), Fault::Interleaved),
        ("close with one byte", frame(0x88, b"\x03"), Fault::CloseCode),
        ("close with 999", frame(0x88, &999_u16.to_be_bytes()), Fault::CloseCode),
        ("close with 1005", frame(0x88, &1005_u16.to_be_bytes()), Fault::CloseCode),
        ("close with 1006", frame(0x88, &1006_u16.to_be_bytes()), Fault::CloseCode),
        ("close with 1015", frame(0x88, &1015_u16.to_be_bytes()), Fault::CloseCode),
        ("close with 5000", frame(0x88, &5000_u16.to_be_bytes()), Fault::CloseCode),
        ("close without UTF-8", frame(0x88, b"\x03\xe8\xff"), Fault::CloseText),
        ("too large", over_limit, Fault::TooLarge),
    ] {
        assert_eq!(whole(&bytes), Err(expected), "{case}");
        assert_eq!(decode(1 << 20, bytes.chunks(1)), Err(expected), "{case}, byte by byte");
    }
}

#[test]
fn the_limit_holds_for_all_frames_of_a_message_together() {
    for first in [0x01, 0x02] {
        let fits = [frame(first, &[1; 60]), frame(0x80, &[2; 40])].concat();
        assert!(decode(100, [&fits[..]]).is_ok());
        let over = [frame(first, &[1; 60]), frame(0x80, &[2; 41])].concat();
        assert_eq!(decode(100, [&over[..]]), Err(Fault::TooLarge));
    }
    let two = [frame(0x82, &[1; 100]), frame(0x82, &[1; 100])].concat();
    assert_eq!(decode(100, [&two[..]]).map(|events| events.len()), Ok(2), "each for itself");
}

#[test]
fn a_fault_stays() {
    let mut decoder = Decoder::new(100);
    assert_eq!(decoder.decode(&mut &[0x82, 0x01][..]), Err(Fault::Unmasked));
    assert_eq!(decoder.decode(&mut &frame(0x82, b"fine")[..]), Err(Fault::Unmasked));
}

#[test]
fn room_is_asked_for_before_a_large_message_is_stored() {
    let large = vec![1; 3 * FREE_BYTES];
    for stream in [
        frame(0x82, &large),
        [frame(0x02, &large[..20_000]), frame(0x89, b"?"), frame(0x00, &[]), frame(0x80, &large[20_000..])].concat(),
    ] {
        let events = whole(&stream).unwrap();
        let room = |event: &Event| if let Event::Reserve(bytes) = event { Some(*bytes) } else { None };
        assert_eq!(events.iter().filter_map(room).sum::<usize>(), 2 * FREE_BYTES);
        assert_eq!(events.last(), Some(&Event::Binary(large.clone().into())));
    }
    assert!(matches!(whole(&frame(0x82, &large[..FREE_BYTES])).unwrap()[..], [Event::Binary(_)]), "small enough");
}

#[test]
fn a_message_that_is_only_announced_takes_no_room() {
    let mut decoder = Decoder::new(1 << 20);
    let announced = frame(0x82, &vec![1; 1 << 20]);
    let (mut first, mut rest) = announced.split_at(14 + FREE_BYTES);
    assert_eq!(decoder.decode(&mut first), Ok(None));
    let Some(Message::Binary(bytes)) = &decoder.message else { panic!("{decoder:?}") };
    assert_eq!(bytes.capacity(), FREE_BYTES);
    assert_eq!(decoder.decode(&mut rest), Ok(Some(Event::Reserve(FREE_BYTES))));
    assert_eq!(rest.len(), (1 << 20) - FREE_BYTES, "what there is no room for is not taken");
}

#[test]
fn an_idle_decoder_keeps_no_memory() {
    let mut decoder = Decoder::new(1 << 20);
    let stream = [frame(0x82, &[1; 5000]), frame(0x89, b"ping")].concat();
    let mut rest = &stream[..];
    while decoder.decode(&mut rest).unwrap().is_some() {}
    assert!(!decoder.is_amid() && decoder.message.is_none());
    assert!(size_of::<Decoder>() <= 128, "{}", size_of::<Decoder>());
}

proptest! {
    #[test]
    fn garbage_never_panics_and_never_stores_more_than_the_limit(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..32),
    ) {
        let mut decoder = Decoder::new(200);
        'stream: for piece in &pieces {
            let mut rest = &piece[..];
            loop {
                match decoder.decode(&mut rest) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => break 'stream,
                }
            }
            prop_assert!(decoder.message.as_ref().map_or(0, Message::length) <= 200);
        }
    }

    #[test]
    fn messages_arrive_as_they_were_sent(
        messages in prop::collection::vec(
            (prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..5), any::<[u8; 4]>()),
            0..8,
        ),
        size in 1_usize..50,
    ) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for (fragments, mask) in &messages {
            for (index, fragment) in fragments.iter().enumerate() {
                let opcode = if index == 0 { 2 } else { 0 };
                let last = if index + 1 == fragments.len() { 0x80 } else { 0 };
                stream.extend(masked(opcode | last, fragment, *mask));
            }
            expected.push(Event::Binary(fragments.concat().into()));
        }
        prop_assert_eq!(decode(1 << 20, stream.chunks(size)), Ok(expected));
    }
}
