//! Whatever happens between two replicas, in the end everybody knows where an agent is, and it keeps its uid.

use std::time::Duration;

use proptest::prelude::*;

use super::bench::{Agent, OWN, Replica, Socket, fleet, new_uid, pass, settled, text};
use crate::{
    agents::retention::losers,
    api::condition::ConditionType,
    catalog::FleetEntry,
    opamp::messages::{RemoteConfigStatuses as State, ServerToAgent},
    server::now,
};

const AGENTS: usize = 2;
const NAMES: [&str; 2] = ["replica-a", "replica-b"];

/// What may happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// An agent connects to a replica; its former socket is closed, or stays half open.
    Connect {
        agent: usize,
        replica: usize,
        former: Former,
    },
    /// It polls a replica instead.
    Poll {
        agent: usize,
        replica: usize,
    },
    /// It speaks through its socket.
    Heartbeat {
        agent: usize,
    },
    Report {
        agent: usize,
    },
    Goodbye {
        agent: usize,
    },
    /// A replica finds out that its half-open sockets are dead.
    Timeout {
        replica: usize,
    },
    /// The fleet gives something else, or is gone.
    Publish {
        text: Option<u8>,
    },
    /// A replica dies, and its successor begins.
    Restart {
        replica: usize,
    },
    /// A person deletes the object of an agent.
    Delete {
        agent: usize,
    },
    /// The API server is not there for so many seconds.
    Away {
        seconds: u64,
    },
    /// The watches show what there is.
    Show,
    Pass {
        milliseconds: u64,
    },
}

#[derive(Clone, Copy, Debug)]
enum Former {
    Closed,
    HalfOpen,
}

fn event() -> impl Strategy<Value = Event> {
    let (agent, replica) = (0..AGENTS, 0..2_usize);
    let former = prop_oneof![Just(Former::Closed), Just(Former::HalfOpen)];
    prop_oneof![
        4 => (agent.clone(), replica.clone(), former)
            .prop_map(|(agent, replica, former)| Event::Connect { agent, replica, former }),
        2 => (agent.clone(), replica.clone()).prop_map(|(agent, replica)| Event::Poll { agent, replica }),
        3 => agent.clone().prop_map(|agent| Event::Heartbeat { agent }),
        3 => agent.clone().prop_map(|agent| Event::Report { agent }),
        1 => agent.clone().prop_map(|agent| Event::Goodbye { agent }),
        1 => agent.prop_map(|agent| Event::Delete { agent }),
        1 => replica.clone().prop_map(|replica| Event::Timeout { replica }),
        1 => replica.prop_map(|replica| Event::Restart { replica }),
        2 => prop::option::of(0..3_u8).prop_map(|text| Event::Publish { text }),
        1 => (1..30_u64).prop_map(|seconds| Event::Away { seconds }),
        3 => Just(Event::Show),
        6 => (0..8_000_u64).prop_map(|milliseconds| Event::Pass { milliseconds }),
    ]
}

/// Two replicas and the agents between them.
struct World {
    replicas: [Replica; 2],
    agents: Vec<Traveller>,
    fleets: Vec<FleetEntry>,
    restarts: usize,
}

/// An agent with the one socket that is its own, and those that it has left behind.
struct Traveller {
    agent: Agent,
    has: Vec<u8>,
    socket: Option<(usize, Socket)>,
    half_open: Vec<(usize, Socket)>,
}

impl Traveller {
    /// Takes what it is told as an agent would. That it is given another uid would be wrong.
    fn hear(&mut self, messages: &[ServerToAgent]) -> Result<(), TestCaseError> {
        for message in messages {
            prop_assert_eq!(new_uid(message), None, "nobody else has its uid");
            if let Some(config) = &message.remote_config {
                self.has = config.config_hash.to_vec();
            }
        }
        Ok(())
    }

    /// Answers the pings and takes the pushes of its own socket; what is left behind answers nothing.
    fn attend(&mut self) -> Result<(), TestCaseError> {
        let Some((_, socket)) = &self.socket else { return Ok(()) };
        let mut messages = socket.pushed();
        if socket.is_pinged() {
            messages.extend(socket.pong());
        }
        messages.extend(socket.pushed());
        self.hear(&messages)
    }

    fn report(&mut self) -> Result<(), TestCaseError> {
        let report = self.agent.report_of(&self.has.clone(), State::Applied);
        let Some((_, socket)) = &self.socket else { return Ok(()) };
        let replies = socket.tell(&report);
        self.hear(&replies)
    }

    fn leave(&mut self, former: Former) {
        match (self.socket.take(), former) {
            (Some((_, socket)), Former::Closed) => socket.close(),
            (Some(socket), Former::HalfOpen) => self.half_open.push(socket),
            (None, Former::Closed | Former::HalfOpen) => {}
        }
    }
}

impl World {
    fn new() -> Self {
        let fleets = vec![fleet("telemetry", "edge").giving("0")];
        let a = Replica::first((NAMES[0], "first"), fleets.clone());
        let b = Replica::with(a.server.clone(), (NAMES[1], "first"), fleets.clone());
        let traveller = || Traveller { agent: Agent::new(), has: Vec::new(), socket: None, half_open: Vec::new() };
        Self { replicas: [a, b], agents: (0..AGENTS).map(|_| traveller()).collect(), fleets, restarts: 0 }
    }

    async fn happen(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Connect { agent, replica, former } => self.connect(agent, replica, former)?,
            Event::Poll { agent, replica } => self.poll(agent, replica)?,
            Event::Heartbeat { agent } => {
                let traveller = &mut self.agents[agent];
                let heartbeat = traveller.agent.heartbeat();
                let replies = traveller.socket.as_ref().map(|(_, socket)| socket.tell(&heartbeat));
                traveller.hear(&replies.unwrap_or_default())?;
            }
            Event::Report { agent } => self.agents[agent].report()?,
            Event::Goodbye { agent } => {
                let traveller = &mut self.agents[agent];
                let goodbye = traveller.agent.goodbye();
                if let Some((_, socket)) = &traveller.socket {
                    let _ = socket.tell(&goodbye);
                }
                traveller.leave(Former::Closed);
            }
            Event::Timeout { replica } => self.time_out(replica),
            Event::Restart { replica } => self.restart(replica),
            Event::Delete { agent } => {
                let (server, uid) = (&self.replicas[0].server, self.agents[agent].agent.uid);
                for namespace in [OWN, "telemetry"] {
                    server.delete(namespace, &uid.to_string());
                }
            }
            Event::Publish { text } => self.publish(text)?,
            Event::Away { seconds } => {
                self.replicas[0].server.away_until(now().instant + Duration::from_secs(seconds));
            }
            Event::Show => self.replicas.iter().for_each(Replica::show),
            Event::Pass { milliseconds } => self.pass(milliseconds).await,
        }
        self.agents.iter_mut().try_for_each(Traveller::attend)
    }

    async fn pass(&self, milliseconds: u64) {
        for _ in 0..milliseconds / 400 {
            pass(Duration::from_millis(400)).await;
            self.replicas.iter().for_each(Replica::show);
        }
        pass(Duration::from_millis(milliseconds % 400)).await;
    }

    fn connect(&mut self, agent: usize, replica: usize, former: Former) -> Result<(), TestCaseError> {
        let traveller = &mut self.agents[agent];
        traveller.leave(former);
        traveller.socket = Some((replica, self.replicas[replica].open()));
        traveller.report()
    }

    fn poll(&mut self, agent: usize, replica: usize) -> Result<(), TestCaseError> {
        let traveller = &mut self.agents[agent];
        traveller.leave(Former::Closed);
        let report = traveller.agent.report_of(&traveller.has.clone(), State::Applied);
        let reply = self.replicas[replica].poll(&report);
        traveller.hear(&[reply])
    }

    fn time_out(&mut self, replica: usize) {
        for traveller in &mut self.agents {
            let (dead, left) = std::mem::take(&mut traveller.half_open).into_iter().partition(|(at, _)| *at == replica);
            let dead: Vec<(usize, Socket)> = dead;
            traveller.half_open = left;
            dead.into_iter().for_each(|(_, socket)| socket.close());
        }
    }

    fn restart(&mut self, replica: usize) {
        self.restarts += 1;
        let owner = (NAMES[replica], &*format!("run {}", self.restarts));
        let successor = Replica::with(self.replicas[replica].server.clone(), owner, self.fleets.clone());
        std::mem::replace(&mut self.replicas[replica], successor).die();
        for traveller in &mut self.agents {
            traveller.half_open.retain(|(at, _)| *at != replica);
            traveller.socket.take_if(|(at, _)| *at == replica);
        }
    }

    fn publish(&mut self, text: Option<u8>) -> Result<(), TestCaseError> {
        // One admits whoever comes, so that agents without a fleet may connect, and selects nobody.
        let other = fleet("telemetry", "other").selecting("plan9");
        let edge = text.map(|text| fleet("telemetry", "edge").giving(&text.to_string()));
        self.fleets = edge.into_iter().chain([other]).collect();
        self.replicas.iter().for_each(|replica| replica.publish(self.fleets.clone()));
        for traveller in &mut self.agents {
            let messages = traveller.socket.as_ref().map(|(_, socket)| socket.due()).unwrap_or_default();
            traveller.hear(&messages)?;
        }
        Ok(())
    }

    /// Nothing happens any more: half-open sockets time out, and what is due is done.
    async fn come_to_rest(&mut self) -> Result<(), TestCaseError> {
        for round in 0..6 {
            self.pass(40_000).await;
            if round == 2 {
                (0..2).for_each(|replica| self.time_out(replica));
            }
            for traveller in &mut self.agents {
                traveller.attend()?;
                traveller.report()?;
            }
            settled(&[&self.replicas[0], &self.replicas[1]]).await;
            self.lead();
            self.agents.iter_mut().try_for_each(Traveller::attend)?;
        }
        Ok(())
    }

    /// What the leader does about two objects of one agent.
    fn lead(&self) {
        for traveller in &self.agents {
            for loser in losers(&self.replicas[0].index.get(&traveller.agent.uid)) {
                self.replicas[0].server.delete(&loser.namespace, &loser.uid.to_string());
            }
        }
    }

    async fn check(&mut self) -> Result<(), TestCaseError> {
        self.replicas[0].requests();
        for traveller in &mut self.agents {
            let Some((replica, socket)) = &traveller.socket else { continue };
            let uid = traveller.agent.uid;
            prop_assert_eq!(&*self.replicas[0].holder(uid).0, NAMES[*replica]);
            prop_assert_eq!(self.replicas[0].condition(uid, ConditionType::Connected), "True, SessionOpen");
            let offer = socket.tell(&traveller.agent.report_of(b"another", State::Applied));
            let expected = self.fleets.iter().any(|fleet| fleet.name == "edge").then_some(());
            prop_assert_eq!(offer.first().and_then(text).map(|_| ()), expected, "it is offered what it lacks");
        }
        pass(Duration::from_secs(400)).await;
        settled(&[&self.replicas[0], &self.replicas[1]]).await;
        let requests = self.replicas[0].requests();
        prop_assert_eq!((requests.created, requests.deleted), (0, 0));
        // The last question has changed the status of each once, and who polled has fallen silent.
        prop_assert!(requests.status <= AGENTS, "{:?}", requests);
        let total: i64 = self.replicas.iter().map(|replica| replica.bridge.metrics.sessions.get()).sum();
        prop_assert!(total <= i64::try_from(2 * AGENTS).unwrap_or(0));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn an_agent_is_held_where_it_speaks_and_keeps_its_uid(events in prop::collection::vec(event(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        runtime.block_on(async {
            let mut world = World::new();
            for event in events {
                world.happen(event).await?;
            }
            world.come_to_rest().await?;
            world.check().await
        })?;
    }
}
