//! An honest agent that takes connection settings and never says so, as the supervisor does, behind a line that breaks: it
//! ends with the right settings, and is not sent round in circles by offers of what it has.
//!
//! The line is as TCP and HTTP are. A socket keeps the order, and what was under way is lost when it breaks. A client that
//! polls sends the same bytes until it has a reply.

use proptest::{collection::vec, prelude::*};

use super::*;

/// Whether the client says goodbye before it connects with new settings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Manners {
    Polite,
    Rude,
}

/// How the client counts when it connects with new settings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Counter {
    GoesOn,
    BeginsAnew,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Speak(Fate),
    Offer(u8),
    Push(Fate),
    /// For a reason of its own.
    Reconnect,
    Wait(u64),
    ServerRestart,
}

/// What becomes of what the server sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    Arrives,
    IsLost,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![3 => Just(Fate::Arrives), 1 => Just(Fate::IsLost)]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => fate().prop_map(Event::Speak),
        2 => (0..3_u8).prop_map(Event::Offer),
        2 => fate().prop_map(Event::Push),
        1 => Just(Event::Reconnect),
        1 => prop_oneof![Just(1_u64), Just(40), Just(2000)].prop_map(Event::Wait),
        1 => Just(Event::ServerRestart),
    ]
}

struct World {
    stage: Stage,
    manners: Manners,
    counter: Counter,
    channel: Channel,
    sockets: u64,
    number: u64,
    /// A poll that has had no reply.
    unanswered: Option<Bytes>,
    used: String,
    wanted: String,
    /// Offers of what is wanted now, and how many of the last one were lost.
    made: usize,
    lost: usize,
    /// What was offered last.
    offered: String,
}

impl World {
    fn new(channel: Channel, manners: Manners, counter: Counter) -> Self {
        let mut stage = Stage::new();
        stage.offer = leading_to("host-0");
        Self {
            stage,
            manners,
            counter,
            channel,
            sockets: 1,
            number: 1,
            unanswered: None,
            used: String::new(),
            wanted: "host-0".into(),
            made: 0,
            lost: 0,
            offered: String::new(),
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Speak(fate) => self.speak(fate),
            Event::Offer(which) if format!("host-{which}") != self.wanted => {
                self.wanted = format!("host-{which}");
                self.stage.offer = leading_to(&self.wanted);
                self.made = 0;
            }
            Event::Offer(_) => {}
            Event::Push(fate) => {
                for (_, message) in self.stage.pushes() {
                    self.hear(&message, fate);
                }
            }
            Event::Reconnect => self.reconnect(),
            Event::Wait(seconds) => self.stage.later(seconds),
            Event::ServerRestart => {
                let remembered = Remembered {
                    connection_settings_offered: self.stage.session.connection_settings_offered(),
                    ..Remembered::default()
                };
                self.stage.session = Session::new(uid(), Some(remembered));
                self.reconnect();
            }
        }
    }

    /// Three offers that are lost one after the other are the last of a hash: two at most are lost here.
    fn suffer(&mut self, message: &ServerToAgent, fate: Fate) -> Fate {
        let Some(host) = host_in(message) else { return fate };
        if host != self.offered {
            self.offered = host;
            self.lost = 0;
        }
        self.made += 1;
        if fate == Fate::IsLost && self.lost < 2 {
            self.lost += 1;
            return Fate::IsLost;
        }
        Fate::Arrives
    }

    fn speak(&mut self, fate: Fate) {
        let (number, capabilities) = (self.number, SILENT);
        let bytes = self.unanswered.take().unwrap_or_else(|| {
            self.number += 1;
            full(number).capable(capabilities).bytes()
        });
        let reply = self.stage.hears_bytes(self.channel, bytes.clone());
        if self.channel == HTTP && self.suffer(&reply, fate) == Fate::IsLost {
            self.unanswered = Some(bytes);
        } else if self.channel == HTTP {
            self.take(&reply);
        } else {
            self.hear(&reply, fate);
        }
    }

    /// What a socket brings, or loses when it breaks.
    fn hear(&mut self, message: &ServerToAgent, fate: Fate) {
        match self.suffer(message, fate) {
            Fate::Arrives => self.take(message),
            Fate::IsLost => self.reconnect(),
        }
    }

    fn take(&mut self, message: &ServerToAgent) {
        let Some(host) = host_in(message) else { return };
        self.used = host;
        if self.manners == Manners::Polite && self.channel != HTTP {
            let _ = self.stage.hears(self.channel, say(self.number).capable(SILENT).goodbye());
            self.number += 1;
        }
        if self.counter == Counter::BeginsAnew {
            self.number = 0;
        }
        self.reconnect();
    }

    fn reconnect(&mut self) {
        if let Channel::WebSocket(connection) = self.channel {
            let _ = self.stage.session.closed(connection, self.stage.now);
            self.sockets += 1;
            self.channel = socket(self.sockets);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_silent_agent_ends_with_the_right_settings_after_few_offers(
        channel in prop_oneof![Just(socket(1)), Just(HTTP)],
        manners in prop_oneof![Just(Manners::Polite), Just(Manners::Rude)],
        counter in prop_oneof![Just(Counter::GoesOn), Just(Counter::BeginsAnew)],
        events in vec(event(), 0..60),
    ) {
        let restarts = events.iter().filter(|event| matches!(event, Event::ServerRestart)).count();
        let mut world = World::new(channel, manners, counter);
        for event in events {
            world.happen(event);
        }
        for _ in 0..6 {
            world.happen(Event::Speak(Fate::Arrives));
            world.stage.later(30);
        }
        prop_assert_eq!(&world.used, &world.wanted);
        // Each process of the server may have to learn anew that the agent has them.
        prop_assert!(world.made <= 3 * (restarts + 1) + world.lost, "{} offers", world.made);
        let made = world.made;
        for _ in 0..50 {
            world.happen(Event::Push(Fate::Arrives));
            world.happen(Event::Speak(Fate::Arrives));
            world.happen(Event::Reconnect);
            world.happen(Event::Wait(1000));
        }
        prop_assert_eq!(world.made, made, "it has them");
    }
}
