//! Ten thousand at once.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::harness::{
    Operator, Reached, Scenario, Swarm, fleet,
    scripted::{Received, Refused, Socket, error_kind, full_report, heartbeat, new_uid},
    swarm::agents,
    system::raise_descriptor_limit,
    wait_for,
};

const CROWD: usize = 10_000;
const SOON: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(180);

/// What became of somebody who came.
enum Arrival {
    Served(Box<Socket>, Bytes),
    /// 503, and told when to come back.
    SentAway,
    /// What must not happen.
    Wronged(String),
}

async fn arrive(address: SocketAddr) -> Arrival {
    let mut socket = match Socket::connect(address).await {
        Ok(socket) => socket,
        Err(Refused::Answered { status, retry_after: true }) if status.as_u16() == 503 => return Arrival::SentAway,
        Err(refused) => return Arrival::Wronged(format!("{refused:?}")),
    };
    let uid = new_uid();
    // No fleet selects them: what they cost the API server is another test's concern.
    if let Err(error) = socket.send(&full_report(&uid, "crowd")).await {
        return Arrival::Wronged(format!("closed after its 101: {error}"));
    }
    match socket.receive().await {
        Received::Message(answer) if error_kind(&answer).is_none() => Arrival::Served(Box::new(socket), uid),
        other => Arrival::Wronged(format!("not answered after its 101: {other:?}")),
    }
}

/// So many come at once; returns those who are served and how many were sent away.
async fn come(count: usize, address: SocketAddr) -> (Vec<(Box<Socket>, Bytes)>, usize) {
    let mut arrivals = JoinSet::new();
    for _ in 0..count {
        arrivals.spawn(arrive(address));
    }
    let (mut served, mut sent_away) = (Vec::new(), 0);
    for arrival in arrivals.join_all().await {
        match arrival {
            Arrival::Served(socket, uid) => served.push((socket, uid)),
            Arrival::SentAway => sent_away += 1,
            Arrival::Wronged(how) => panic!("{how}"),
        }
    }
    (served, sent_away)
}

async fn bystanders(scenario: &Scenario) -> (Operator, Swarm) {
    let operator = scenario.operator().await;
    scenario.apply(&[fleet("edge").build()]);
    let swarm = agents(5, "edge").with("-heartbeat", "1s").start(&operator.websocket());
    scenario.fleet_counts("edge", &[("connected", 5)], SOON).await;
    (operator, swarm)
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_at_once_are_served_or_sent_away_and_served_when_they_return() {
    raise_descriptor_limit();
    let scenario = Scenario::begin("crowd").await;
    let (operator, swarm) = bystanders(&scenario).await;
    let (mut served, mut missing) = come(CROWD, operator.listen).await;
    println!("10,000 at once: {} served, {missing} sent away", served.len());
    for round in 1.. {
        if missing == 0 {
            break;
        }
        assert!(round < 20, "{missing} are still not served");
        let (more, again) = come(missing, operator.listen).await;
        served.extend(more);
        missing = again;
    }
    assert_eq!(served.len(), CROWD);

    let mut heartbeats = JoinSet::new();
    for (mut socket, uid) in served {
        heartbeats.spawn(async move {
            let answer = socket.exchange(&heartbeat(&uid, 2)).await;
            (error_kind(&answer), socket)
        });
    }
    let answers = heartbeats.join_all().await;
    assert!(answers.iter().all(|(error, _)| error.is_none()), "all of them are still connected and served");
    println!("10,000 connected: {} MiB", operator.memory() >> 20);
    assert_eq!(swarm.summary().await.connections, 5, "who was there before did not notice");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_silent_ones_at_most_two_thousand_are_held() {
    raise_descriptor_limit();
    let scenario = Scenario::begin("silent").await;
    let (operator, swarm) = bystanders(&scenario).await;
    let before = operator.memory();
    let mut arrivals = JoinSet::new();
    for _ in 0..CROWD {
        arrivals.spawn(Socket::connect(operator.listen));
    }
    let mut held = Vec::new();
    for arrival in arrivals.join_all().await {
        match arrival {
            Ok(socket) => held.push(socket),
            Err(Refused::Answered { status, retry_after: true }) if status.as_u16() == 503 => {}
            Err(refused) => panic!("{refused:?}"),
        }
    }
    println!("10,000 silent: {} held, {} MiB more", held.len(), operator.memory().saturating_sub(before) >> 20);
    assert!(held.len() <= 2_000, "{} are held", held.len());
    assert!(operator.memory().saturating_sub(before) < 256 << 20, "memory is bounded");
    assert_eq!(swarm.summary().await.connections, 5, "who was there before did not notice");

    let mut ends = JoinSet::new();
    for mut socket in held {
        ends.spawn(async move { socket.stays_silent_for(Duration::from_secs(60)).await });
    }
    let stayed = ends.join_all().await.into_iter().filter(|stayed| *stayed).count();
    assert_eq!(stayed, 0, "who does not report is let go");
    let newcomers = agents(1, "edge").seed("newcomers").start(&operator.websocket());
    newcomers.all(Reached::connected(), PATIENCE).await;
    wait_for("the sockets of the silent are gone", PATIENCE, || async {
        let open = operator.metric("opamp_operator_connections").await;
        if open < 100.0 { Ok(()) } else { Err(format!("{open} connections")) }
    })
    .await;
}
