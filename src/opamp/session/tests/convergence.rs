//! An honest agent behind a line that loses, repeats and reorders: once the line is good again, the server knows the
//! truth and the agent has what it is to have, with few more messages.

use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::opamp::{normalise, record::OfferState};

/// What the agent is and has; it puts what changed since its last message into the next one, and never looks back.
struct Agent {
    host: u8,
    fault: u8,
    running: String,
    status: (String, RemoteConfigStatuses),
    /// The settings that it speaks of, and those that it uses.
    settings: (String, ConnectionSettingsStatuses),
    used: String,
    leaving: Leaving,
    number: u64,
    owed: BTreeSet<Part>,
    channel: Channel,
    last_sent: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Part {
    Host,
    Fault,
    Running,
    Status,
    Settings,
}

const ALL: [Part; 5] = [Part::Host, Part::Fault, Part::Running, Part::Status, Part::Settings];

/// Whether it is about to connect with new settings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Leaving {
    No,
    Soon,
}

/// How the agent connects anew.
#[derive(Clone, Copy, Debug)]
enum Transport {
    Socket,
    Http,
}

/// Whether the server notices that the former socket has ended.
#[derive(Clone, Copy, Debug)]
enum FormerEnd {
    Seen,
    HalfOpen,
}

impl Agent {
    fn new(channel: Channel) -> Self {
        let status = (String::new(), RemoteConfigStatuses::Unset);
        Self {
            host: 0,
            fault: 0,
            running: "0".into(),
            status,
            settings: (String::new(), ConnectionSettingsStatuses::Unset),
            used: String::new(),
            leaving: Leaving::No,
            number: FIRST_NUMBER,
            owed: ALL.into(),
            channel,
            last_sent: None,
        }
    }

    fn transport(&self) -> Transport {
        if self.channel == HTTP { Transport::Http } else { Transport::Socket }
    }

    fn fault(&self) -> String {
        if self.fault == 0 { String::new() } else { format!("fault {}", self.fault) }
    }

    fn host(&self) -> String {
        format!("host-{}", self.host)
    }

    fn speak(&mut self) -> Bytes {
        let mut message = say(self.number).capable(TALKATIVE);
        let owed = std::mem::take(&mut self.owed);
        for part in owed {
            message = match part {
                Part::Host => message.named(&self.host()),
                Part::Fault => message.health(&self.fault()),
                Part::Running => message.running(&self.running),
                Part::Status => message.status(&self.status.0, self.status.1),
                Part::Settings => message.settings(&self.settings.0, self.settings.1),
            };
        }
        self.number += 1;
        let bytes = message.bytes();
        self.last_sent = Some(bytes.clone());
        bytes
    }

    /// A content that begins with `bad` does not work here; after `bad-back` the agent reports what it went back to.
    fn hear(&mut self, message: &ServerToAgent) {
        if message.flags & FULL_STATE != 0 {
            self.owed = ALL.into();
        }
        if let Some(host) = host_in(message).filter(|host| *host != self.settings.0) {
            self.take_settings(host);
        }
        let Some(content) = content_of(message).filter(|content| *content != self.status.0) else { return };
        self.owed.insert(Part::Status);
        if content.starts_with("bad") {
            self.status = (content, RemoteConfigStatuses::Failed);
        } else {
            self.running.clone_from(&content);
            self.owed.insert(Part::Running);
            self.status = (content, RemoteConfigStatuses::Applied);
        }
    }

    /// It connects anew with what it takes; nobody is found at a host that begins with `bad`.
    fn take_settings(&mut self, host: String) {
        self.owed.insert(Part::Settings);
        self.leaving = Leaving::Soon;
        if host.starts_with("bad") {
            self.settings = (host, ConnectionSettingsStatuses::Failed);
        } else {
            self.used.clone_from(&host);
            self.settings = (host, ConnectionSettingsStatuses::Applied);
        }
    }

    /// What a supervisor does after a failure.
    fn go_back(&mut self) {
        if self.settings.1 == ConnectionSettingsStatuses::Failed && !self.used.is_empty() {
            self.settings = (self.used.clone(), ConnectionSettingsStatuses::Applied);
            self.owed.insert(Part::Settings);
        }
        if self.status.1 == RemoteConfigStatuses::Failed && self.running != "0" {
            self.status = (self.running.clone(), RemoteConfigStatuses::Applied);
            self.owed.insert(Part::Status);
        }
    }
}

/// What happens to a message and to its reply.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Delivered,
    Lost,
    ReplyLost,
    Twice,
    Delayed,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Rename(u8),
    Break(u8),
    Speak(Fate),
    /// The last message once more, as HTTP clients do when no reply comes.
    SpeakAgain(Fate),
    /// A delayed message arrives.
    Arrive(usize),
    GoBack,
    /// Over another channel; the server sees the end of the old socket, or does not.
    Reconnect(Transport, FormerEnd),
    Restart(Transport),
    SayGoodbye(Fate),
    Offer(u8),
    OfferSettings(u8),
    Push,
    Wait(u64),
    ServerRestart,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Delivered),
        1 => Just(Fate::Lost),
        1 => Just(Fate::ReplyLost),
        1 => Just(Fate::Twice),
        1 => Just(Fate::Delayed),
    ]
}

fn transport() -> impl Strategy<Value = Transport> {
    prop_oneof![Just(Transport::Socket), Just(Transport::Http)]
}

fn former_end() -> impl Strategy<Value = FormerEnd> {
    prop_oneof![Just(FormerEnd::Seen), Just(FormerEnd::HalfOpen)]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => any::<u8>().prop_map(Event::Rename),
        2 => (0..3_u8).prop_map(Event::Break),
        10 => fate().prop_map(Event::Speak),
        2 => fate().prop_map(Event::SpeakAgain),
        3 => any::<usize>().prop_map(Event::Arrive),
        1 => Just(Event::GoBack),
        2 => (transport(), former_end()).prop_map(|(transport, end)| Event::Reconnect(transport, end)),
        1 => transport().prop_map(Event::Restart),
        1 => fate().prop_map(Event::SayGoodbye),
        2 => (0..4_u8).prop_map(Event::Offer),
        2 => (0..4_u8).prop_map(Event::OfferSettings),
        1 => Just(Event::Push),
        3 => prop_oneof![Just(1_u64), Just(4), Just(30), Just(400)].prop_map(Event::Wait),
        1 => Just(Event::ServerRestart),
    ]
}

/// Each process counts from another number. Where the first messages of one are lost and the next happens to follow
/// the last of its forerunner, nobody could tell.
const FIRST_NUMBER: u64 = 1_000_000;

struct World {
    restarts: u64,
    stage: Stage,
    agent: Agent,
    delayed: Vec<(Channel, Bytes)>,
    sockets: u64,
    content: String,
    host: String,
    /// Offers of settings that the agent has heard.
    settings_heard: usize,
}

impl World {
    fn new() -> Self {
        let mut stage = Stage::new();
        stage.offer = Offer { connection_settings: Some(settings("good-0")), ..offering("good-0") };
        Self {
            restarts: 0,
            stage,
            agent: Agent::new(socket(1)),
            delayed: Vec::new(),
            sockets: 1,
            content: "good-0".into(),
            host: "good-0".into(),
            settings_heard: 0,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Rename(host) => {
                self.agent.host = host;
                self.agent.owed.insert(Part::Host);
            }
            Event::Break(fault) => {
                self.agent.fault = fault;
                self.agent.owed.insert(Part::Fault);
            }
            Event::Speak(fate) => {
                let bytes = self.agent.speak();
                self.send(bytes, fate);
            }
            Event::SpeakAgain(fate) => {
                if let Some(bytes) = self.agent.last_sent.clone() {
                    self.send(bytes, fate);
                }
            }
            Event::Arrive(index) => {
                if !self.delayed.is_empty() {
                    let (channel, bytes) = self.delayed.remove(index % self.delayed.len());
                    let _ = self.stage.hears_bytes(channel, bytes);
                    self.react();
                }
            }
            Event::GoBack => self.agent.go_back(),
            Event::Reconnect(transport, end) => self.reconnect(transport, end),
            Event::Restart(transport) => {
                self.reconnect(transport, FormerEnd::Seen);
                self.restarts += 1;
                self.agent.number = FIRST_NUMBER - 1_000 * self.restarts;
                self.agent.owed = ALL.into();
            }
            Event::SayGoodbye(fate) => {
                let message = say(self.agent.number).capable(TALKATIVE).goodbye();
                self.agent.number += 1;
                self.send(message.bytes(), fate);
                self.reconnect(self.agent.transport(), FormerEnd::Seen);
            }
            Event::Offer(which) => {
                self.content = ["good-1", "good-2", "bad-1", "bad-2"][usize::from(which)].into();
                self.stage.offer.remote_config = offering(&self.content).remote_config;
            }
            Event::OfferSettings(which) => {
                self.host = ["good-1", "good-2", "bad-1", "bad-2"][usize::from(which)].into();
                self.stage.offer.connection_settings = Some(settings(&self.host));
            }
            Event::Push => {
                self.stage.pushed = self.stage.pushes();
                self.react();
            }
            Event::Wait(seconds) => self.wait(seconds),
            Event::ServerRestart => self.restart_server(),
        }
    }

    fn send(&mut self, bytes: Bytes, fate: Fate) {
        let channel = self.agent.channel;
        match fate {
            Fate::Lost => {}
            Fate::Delayed => self.delayed.push((channel, bytes)),
            Fate::ReplyLost => {
                let _ = self.stage.hears_bytes(channel, bytes);
                self.react();
            }
            Fate::Delivered => self.deliver(&bytes),
            Fate::Twice => {
                self.deliver(&bytes);
                self.deliver(&bytes);
            }
        }
    }

    fn deliver(&mut self, bytes: &Bytes) {
        let reply = self.stage.hears_bytes(self.agent.channel, bytes.clone());
        self.react();
        self.tell(&reply);
    }

    /// The agent hears a message, and connects anew if that gave it other settings.
    fn tell(&mut self, message: &ServerToAgent) {
        self.settings_heard += usize::from(message.connection_settings.is_some());
        self.agent.hear(message);
        if std::mem::replace(&mut self.agent.leaving, Leaving::No) == Leaving::Soon {
            self.reconnect(self.agent.transport(), FormerEnd::Seen);
        }
    }

    /// The line's side of the effects: a living socket answers a ping and hears what is pushed.
    fn react(&mut self) {
        loop {
            for (channel, message) in std::mem::take(&mut self.stage.pushed) {
                if channel == self.agent.channel {
                    assert_eq!(message.agent_identification, None, "the agent is the only one there is");
                    self.tell(&message);
                }
            }
            let Some(pinged) = self.stage.effects.ping.take() else { return };
            if Channel::WebSocket(pinged) == self.agent.channel {
                let effects = self.stage.session.pong(pinged);
                self.stage.note(effects);
            }
        }
    }

    fn reconnect(&mut self, transport: Transport, end: FormerEnd) {
        let former = self.agent.channel;
        self.sockets += 1;
        self.agent.channel = match transport {
            Transport::Http => HTTP,
            Transport::Socket => socket(self.sockets),
        };
        if let (Channel::WebSocket(connection), FormerEnd::Seen) = (former, end) {
            self.delayed.retain(|(channel, _)| *channel != former);
            let effects = self.stage.session.closed(connection, self.stage.now);
            self.stage.note(effects);
            self.react();
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.stage.later(seconds);
        if self.stage.session.deadline().is_some_and(|deadline| deadline <= self.stage.now.instant) {
            self.stage.pushed = self.stage.expires();
            self.react();
        }
    }

    fn restart_server(&mut self) {
        let record = self.stage.session.record().clone();
        let remembered = Remembered {
            last_reported: record.remote_config.map(|report| report.hash),
            failed: record.failed_config,
            description: record.description,
            connection_settings_reported: record.connection_settings.map(|report| report.hash),
            connection_settings_offered: self.stage.session.connection_settings_offered(),
            failed_connection_settings: record.failed_connection_settings.map(|failed| *failed),
            available_components: record.available_components,
        };
        self.stage.session = Session::new(uid(), Some(remembered));
        self.delayed.retain(|(channel, _)| *channel == HTTP);
        self.reconnect(self.agent.transport(), FormerEnd::HalfOpen);
    }

    /// One heartbeat interval on a line without faults; whatever the agent has to say, it says at once.
    fn heartbeat(&mut self) -> usize {
        self.wait(30);
        let mut messages = 0;
        loop {
            let bytes = self.agent.speak();
            self.deliver(&bytes);
            self.wait(4);
            messages += 1;
            assert!(messages < 10, "an endless exchange (STS-07)");
            if self.agent.owed.is_empty() {
                return messages;
            }
        }
    }

    /// The first part in which the server's picture differs from the truth.
    fn difference(&self) -> Option<&'static str> {
        let record = self.stage.session.record();
        let agent = &self.agent;
        let host = record.description.as_ref().and_then(|description| description.get("host.name"));
        let fault = record.health.as_ref().map(|health| health.last_error.clone());
        let files = say(0).running(&agent.running).0.effective_config.unwrap().config_map.unwrap().config_map;
        let running = normalise::summarise(&normalise::EffectiveConfigText { files });
        let report = record.remote_config.as_ref().map(|report| (report.hash.clone(), report.state));
        let failed = record.failed_config.as_ref().map(|failed| failed.hash.clone());
        let has_what_is_offered = agent.status.0 == self.content || failed == Some(hash_of(&self.content));
        let settings = record.connection_settings.as_ref().map(|report| (report.hash.clone(), report.state));
        let failed_settings = record.failed_connection_settings.as_ref().map(|failed| failed.hash.clone());
        let has_settings = agent.used == self.host || failed_settings == Some(settings_hash(&self.host));
        let settings_are_known =
            settings == Some((settings_hash(&agent.settings.0), OfferState::from_wire(agent.settings.1 as i32)));
        let parts = [
            (host == Some(agent.host().as_str()), "host"),
            (fault == Some(agent.fault()), "health"),
            (record.effective_config == Some(running), "effective configuration"),
            (
                report == Some((hash_of(&agent.status.0), OfferState::from_wire(agent.status.1 as i32))),
                "status of the configuration",
            ),
            (has_what_is_offered, "offer"),
            (settings_are_known, "status of the settings"),
            (has_settings, "settings"),
            (self.stage.is_connected(), "connection"),
        ];
        parts.into_iter().find(|(is_right, _)| !is_right).map(|(_, part)| part)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_history_ends_in_the_truth(events in vec(event(), 0..80)) {
        let mut world = World::new();
        for event in events {
            world.happen(event);
        }
        world.delayed.clear();
        world.settings_heard = 0;
        let mut rounds = 0;
        let mut messages = 0;
        while let Some(difference) = world.difference() {
            rounds += 1;
            // The longest patience of a question or an offer is 15 minutes.
            prop_assert!(rounds <= 32, "still not right after 16 minutes: {}", difference);
            messages += world.heartbeat();
        }
        prop_assert!(messages <= rounds + 4, "{} messages in {} rounds", messages, rounds);
        // As long as its word is missing: after 0, 30, 90, 210, 450 and 930 seconds.
        prop_assert!(world.settings_heard <= 6, "{} offers of settings", world.settings_heard);
        // It stays right, and falls silent but for a question that only a full report ends.
        let mut questions = 0;
        for _ in 0..40 {
            let _ = world.heartbeat();
            prop_assert_eq!(world.difference(), None);
            questions += usize::from(!world.agent.owed.is_empty());
        }
        prop_assert_eq!(questions, 0);
        let bytes = world.agent.speak();
        let reply = world.stage.hears_bytes(world.agent.channel, bytes);
        prop_assert!(is_acknowledgement(&reply), "{:?}", reply);
    }
}
