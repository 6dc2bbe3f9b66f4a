//! Guessing at rate.

use std::time::Instant;

use futures::{StreamExt as _, stream};

use super::{TOKEN, World, keep_alive, report, try_both};
use crate::harness::{
    caller::BOTH,
    scripted::{full_report, new_uid},
};

/// Failures of an address that are looked at before it is slowed down; then one a second is.
const FREE: usize = 10;
const GUESSES: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn guesses_are_slowed_down_and_agents_with_certificates_are_not() {
    let world = World::begin("guessing").await;
    let (uid, identity) = world.enrolled().await;
    let neighbour = world.caller().bearer(TOKEN);
    let live = new_uid();
    let mut socket = neighbour.websocket().await.expect("a member of the fleet");
    socket.exchange(&full_report(&live, "edge")).await;
    let session = keep_alive(socket, live);

    let began = Instant::now();
    let guesses = (0..GUESSES).map(|number| {
        let guesser = world.caller().beside(&neighbour).bearer(&format!("guess-number-{number}-of-very-many"));
        let transport = BOTH[number % 2];
        async move { guesser.says(&full_report(&new_uid(), "edge"), transport).await.word() }
    });
    let words: Vec<_> = stream::iter(guesses).buffer_unordered(8).collect().await;
    let looked_at = words.iter().filter(|word| *word == "401").count();
    let slowed = words.iter().filter(|word| *word == "429").count();
    let seconds = usize::try_from(began.elapsed().as_secs()).expect("it was short");
    assert_eq!(looked_at + slowed, GUESSES, "{words:?}");
    // Eight at a time may be on their way when the limit is reached.
    assert!((FREE..=FREE + 8 + seconds + 1).contains(&looked_at), "{looked_at} of {GUESSES} in {seconds} s");

    let certified = world.caller().beside(&neighbour).presenting(&identity);
    try_both("a certificate from the same address", &certified, &report(&uid), "served").await;
    let elsewhere = world.caller().bearer(TOKEN);
    try_both("the token from another address", &elsewhere, &full_report(&new_uid(), "edge"), "served").await;
    assert!(session.await.expect("it goes on"), "the session from the same address is undisturbed");
    let told = world.operator.log();
    assert!(!told.contains("guess-number-"), "no guess is in the log");
    let lines = told.lines().filter(|line| line.contains("UnknownToken")).count();
    assert!(lines < 20, "{lines} lines tell of it");
}
