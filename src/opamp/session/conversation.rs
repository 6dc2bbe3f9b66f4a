//! What a message does to a session, and how it is answered.

use super::{
    Session,
    channel::Channel,
    duplicate::{self, Standing},
    effects::{Changed, Effects},
    inquiry::Ask,
    liveness::{Arrival, Ending, Presence},
    remote_config::Occasion,
    reply::{SERVER_CAPABILITIES, Said},
    report::{self, Novelties, Novelty, Parts},
    sequence::{Numbered, Step},
};
use crate::opamp::{
    InstanceUid,
    inbound::Inbound,
    messages::{AgentCapabilities as Bit, AgentToServer, AgentToServerFlags, ServerToAgentFlags},
    now::Now,
    offer::Offer,
};

/// A message that was taken and awaits its reply by [`Session::answer`].
#[derive(Debug)]
#[must_use]
pub struct Receipt {
    from: Channel,
    kind: Kind,
    attributes: Novelty,
    effects: Effects,
}

/// Who has spoken, and with that what the reply may hold.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The agent of the session: everything.
    Agent { occasion: Occasion, copy: Option<Answered> },
    /// The agent, for the last time: an acknowledgement.
    Leaving,
    /// A straggler, or somebody on trial: an acknowledgement (AMB-14, AMB-23).
    Visitor(Greeting),
    /// Another agent: its new uid.
    Renamed(InstanceUid, Greeting),
}

/// Whether the server still has to say what it is able to do (AMB-05).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Greeting {
    /// In the next message.
    Due,
    /// It has said so on this connection.
    Done,
}

/// Whether the agent was ever seen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sight {
    /// Never before.
    First,
    /// By this or an earlier process.
    Known,
}

/// What the reply to the last message held, to answer a copy of it in kind (AMB-03, RTY-02).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answered {
    flags: u64,
    capabilities: u64,
    offer: OfferSent,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum OfferSent {
    #[default]
    No,
    Yes,
}

impl Receipt {
    /// Whether the reply depends on the offer; if not, any will do.
    #[must_use]
    pub fn takes_offer(&self) -> bool {
        match self.kind {
            Kind::Agent { .. } => true,
            Kind::Leaving | Kind::Visitor(_) | Kind::Renamed(..) => false,
        }
    }

    /// Whether the attributes are others than before, so that another fleet may take the agent.
    #[must_use]
    pub fn has_new_attributes(&self) -> bool {
        self.attributes == Novelty::New
    }
}

/// What of a message matters before its parts are looked at.
struct Heard {
    /// Absent in a bare poll: that is a sign of life and nothing else (AMB-02).
    numbered: Option<Numbered>,
    farewell: Farewell,
    wants_new_uid: WantsNewUid,
    parts: Parts,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Farewell {
    Leaves,
    Stays,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum WantsNewUid {
    Yes,
    No,
}

impl Heard {
    fn of(inbound: &Inbound) -> Self {
        let message = &inbound.message;
        let bare = AgentToServer { instance_uid: message.instance_uid.clone(), ..AgentToServer::default() };
        let wants_new_uid = message.flags & AgentToServerFlags::RequestInstanceUid as u64 != 0;
        Self {
            numbered: (*message != bare).then_some(Numbered { number: message.sequence_num, digest: inbound.digest }),
            farewell: if message.agent_disconnect.is_some() { Farewell::Leaves } else { Farewell::Stays },
            wants_new_uid: if wants_new_uid { WantsNewUid::Yes } else { WantsNewUid::No },
            parts: Parts::of(message),
        }
    }

    fn occasion(&self) -> Occasion {
        if self.parts.contains(Parts::REMOTE_CONFIG_STATUS) { Occasion::ReplyToStatus } else { Occasion::Reply }
    }
}

impl Session {
    /// Takes one message. It does not answer yet: the offer may depend on what the message says.
    pub fn receive(&mut self, inbound: Inbound, from: Channel, now: Now) -> Receipt {
        let heard = Heard::of(&inbound);
        match self.visitors.greet(from, heard.numbered, now.instant) {
            Some(Standing::OnTrial { .. }) if heard.wants_new_uid == WantsNewUid::Yes => {
                self.visitors.forget_channel(from);
            }
            Some(standing) => return self.receive_again(standing, &heard, from),
            None => {}
        }
        if self.uid.is_nil() || heard.wants_new_uid == WantsNewUid::Yes {
            return self.rename(&heard, from, now);
        }
        match self.presence {
            Presence::Here { channel: Channel::WebSocket(older), .. } if from != Channel::WebSocket(older) => {
                let mut receipt = Receipt::new(from, Kind::Visitor(Greeting::Due));
                if heard.farewell == Farewell::Stays {
                    self.visitors.put_on_trial(from, heard.numbered, now.instant);
                    receipt.effects.ping = Some(older);
                }
                receipt
            }
            Presence::Gone { .. } if self.is_straggler(&heard, from, now) => {
                Receipt::new(from, Kind::Visitor(self.greeting))
            }
            Presence::Unheard | Presence::Here { .. } | Presence::Gone { .. } => {
                self.listen(inbound, &heard, from, now)
            }
        }
    }

    /// Answers a message: exactly one reply, to its channel, after whatever else follows from it.
    pub fn answer(&mut self, receipt: Receipt, offer: &Offer, now: Now) -> Effects {
        let Receipt { from, kind, attributes: _, mut effects } = receipt;
        let said = match kind {
            Kind::Agent { occasion, copy } => self.reply(occasion, copy, offer, now),
            Kind::Leaving => Said { capabilities: self.greet(from), ..Said::default() },
            Kind::Visitor(greeting) => Said { capabilities: greet_visitor(greeting, from), ..Said::default() },
            Kind::Renamed(to, greeting) => {
                Said { capabilities: greet_visitor(greeting, from), new_uid: Some(to), ..Said::default() }
            }
        };
        effects.send.push((from, said.to(self.uid)));
        effects
    }

    /// A visitor speaks again: nothing that it says is taken over.
    fn receive_again(&mut self, standing: Standing, heard: &Heard, from: Channel) -> Receipt {
        if heard.farewell == Farewell::Leaves {
            self.visitors.forget_channel(from);
        }
        match standing {
            Standing::OnTrial { .. } => Receipt::new(from, Kind::Visitor(Greeting::Done)),
            Standing::Renamed { to } => Receipt::new(from, Kind::Renamed(to, Greeting::Done)),
        }
    }

    /// The agent asks for a uid, or has the nil one, which is nobody's: its record begins under the new uid (A2S-03,
    /// AMB-13, AMB-17).
    fn rename(&mut self, heard: &Heard, from: Channel, now: Now) -> Receipt {
        let to = self.visitors.rename(from, heard.numbered, now.instant);
        let mut receipt = Receipt::new(from, Kind::Renamed(to, Greeting::Due));
        receipt.effects.reidentified.push((from, to));
        if self.presence.channel() == Some(from) {
            self.leave(Ending::Reidentified, now, &mut receipt.effects);
        }
        receipt
    }

    /// Another agent of this uid was here first, at another replica: the one that speaks here is told to take another
    /// (DUP-03, S2A-04). Over HTTP it learns so from its next reply.
    pub fn give_new_uid(&mut self, now: Now) -> Effects {
        let mut effects = Effects::default();
        let Some(channel) = self.presence.channel() else { return effects };
        let new_uid = self.visitors.rename(channel, None, now.instant);
        if duplicate::socket(channel).is_some() {
            effects.send.push((channel, Said { new_uid: Some(new_uid), ..Said::default() }.to(self.uid)));
        }
        effects.reidentified.push((channel, new_uid));
        self.leave(Ending::Reidentified, now, &mut effects);
        effects
    }

    /// Whether a message after the goodbye is an echo of the ended session: it comes the same way, soon, and does not
    /// count on (AMB-23). One with a description is the first of a new process, however that counts.
    fn is_straggler(&self, heard: &Heard, from: Channel, now: Now) -> bool {
        let counts_on = match (heard.numbered, self.sequence.last()) {
            (Some(next), Some(last)) => next.number > last.number,
            (None, _) | (Some(_), None) => false,
        };
        let is_new = heard.parts.contains(Parts::DESCRIPTION) && heard.numbered != self.sequence.last();
        let is_over = !is_new && (!counts_on || heard.farewell == Farewell::Leaves);
        is_over && self.presence.said_goodbye_just_now(from, now)
    }

    /// The agent of this session speaks.
    fn listen(&mut self, inbound: Inbound, heard: &Heard, from: Channel, now: Now) -> Receipt {
        let mut effects = Effects::default();
        if self.presence.arrive(from, now) == Arrival::Began {
            self.begin(&mut effects);
        }
        let (copy, attributes) = match self.step(heard.numbered, from, &mut effects) {
            Some(Step::Copy) => (Some(self.answered), Novelty::AsBefore),
            Some(step @ (Step::First | Step::Regular | Step::GapForward | Step::GapBack)) => {
                (None, self.take(inbound.message, heard.parts, step, now, &mut effects).attributes)
            }
            None => (None, Novelty::AsBefore),
        };
        if attributes == Novelty::New && from == Channel::Http {
            let watch = self.watch.get_or_insert_default();
            let suspicion = self.record.description.as_ref().and_then(|description| watch.describe(description));
            effects.suspicion = effects.suspicion.or(suspicion);
        }
        let kind = match heard.farewell {
            Farewell::Stays => Kind::Agent { occasion: heard.occasion(), copy },
            Farewell::Leaves => {
                self.leave(Ending::Goodbye, now, &mut effects);
                Kind::Leaving
            }
        };
        Receipt { from, kind, attributes, effects }
    }

    /// Where the message stands in the sequence. Over HTTP a counter that begins anew is a new session (AMB-24), and
    /// the bare poll of an agent that has not reported to this process asks for its state (AMB-02).
    fn step(&mut self, numbered: Option<Numbered>, from: Channel, effects: &mut Effects) -> Option<Step> {
        let former = self.sequence.last();
        let Some(next) = numbered else {
            if former.is_none() {
                self.full_state.open();
            }
            return None;
        };
        let step = self.sequence.advance(next);
        if from == Channel::Http {
            effects.suspicion = self.watch.get_or_insert_default().number(former, next, step);
            if step == Step::GapBack {
                self.remote_config.begin_session();
            }
        }
        Some(step)
    }

    /// A new stretch of presence: whatever was under way on the former channel may be lost.
    fn begin(&mut self, effects: &mut Effects) {
        let changed = match self.sight {
            Sight::First => Changed::FirstSight,
            Sight::Known => Changed::Connection,
        };
        self.sight = Sight::Known;
        self.greeting = Greeting::Due;
        self.remote_config.begin_session();
        self.full_state.reconnected();
        self.components.reconnected();
        effects.changed = effects.changed.max(changed);
    }

    /// Takes the parts of a message into the record and asks for what is missing (CMP-05, CMP-09, CMP-11).
    fn take(&mut self, message: AgentToServer, parts: Parts, step: Step, now: Now, effects: &mut Effects) -> Novelties {
        let brought = report::apply(&mut self.record, message, now.wall);
        self.reported.add(parts);
        effects.changed = effects.changed.max(brought.changed);
        effects.effective_config = brought.effective_config;
        if parts.contains(Parts::REMOTE_CONFIG_STATUS)
            && let Some(report) = &self.record.remote_config
        {
            self.remote_config.reported(report.state);
        }
        if brought.novelties.capabilities == Novelty::New {
            self.greeting = Greeting::Due;
        }
        self.want_full_state(parts, step);
        self.want_components(brought.novelties);
        brought.novelties
    }

    /// A complete report ends the need for one; every gap begins a new one, also if its message looks complete (AMB-01).
    fn want_full_state(&mut self, parts: Parts, step: Step) {
        let promised = Parts::promised_by(self.record.capabilities);
        if parts.contains(promised) {
            self.full_state.close();
        }
        match step {
            Step::GapForward | Step::GapBack => self.full_state.renew(),
            Step::First if !self.reported.contains(promised) => self.full_state.open(),
            Step::First | Step::Regular | Step::Copy => {}
        }
    }

    /// The components are wanted if their hash is unknown and the agent is able to send them (CMPN-03, CMPN-06).
    fn want_components(&mut self, novelties: Novelties) {
        let reports = self.record.capabilities.has(Bit::ReportsAvailableComponents);
        let summary = self.record.available_components.as_ref();
        if !reports || summary.is_none_or(|summary| summary.hash.is_empty() || summary.count.is_some()) {
            self.components.close();
        } else if novelties.components == Novelty::New {
            self.components.renew();
        } else {
            self.components.open();
        }
    }

    /// The agent has gone from its channel. The newest on trial is it: it takes over and reports in full, because
    /// nothing that it said on trial was taken (AMB-14).
    pub(super) fn leave(&mut self, how: Ending, now: Now, effects: &mut Effects) {
        self.presence.depart(how, now);
        effects.changed = effects.changed.max(Changed::Connection);
        if how != Ending::Reidentified {
            self.visitors.forget_polling();
        }
        let Some(successor) = self.visitors.acquit(now.instant) else { return };
        let _ = self.presence.arrive(successor.channel, now);
        self.begin(effects);
        self.greeting = Greeting::Done;
        self.answered = Answered::default();
        if let Some(last) = successor.last {
            let _ = self.sequence.advance(last);
        }
        self.full_state.renew();
        if duplicate::socket(successor.channel).is_some() {
            let flags = self.ask(now);
            effects.send.push((successor.channel, Said { flags, ..Said::default() }.to(self.uid)));
        }
        if self.visitors.on_trial() {
            effects.ping = duplicate::socket(successor.channel);
        }
    }

    /// Everybody on trial is another agent and is told so, on a WebSocket at once.
    pub(super) fn convict_visitors(&mut self, effects: &mut Effects) {
        for (channel, new_uid) in self.visitors.convict() {
            if duplicate::socket(channel).is_some() {
                let said = Said { new_uid: Some(new_uid), ..Said::default() };
                effects.send.push((channel, said.to(self.uid)));
            }
            effects.reidentified.push((channel, new_uid));
        }
    }

    /// Sends an offer or a question that is due to an agent on a WebSocket.
    pub(super) fn push_offer(&mut self, offer: &Offer, now: Now, effects: &mut Effects) {
        let Some(channel @ Channel::WebSocket(_)) = self.presence.channel() else { return };
        let due = self.remote_config.decide(&self.record, offer, Occasion::Push, now.instant);
        let remote_config = due.map(|due| due.encoded.clone());
        let flags = if self.full_state.is_due() { self.ask(now) } else { 0 };
        if remote_config.is_some() || flags != 0 {
            effects.send.push((channel, Said { remote_config, flags, ..Said::default() }.to(self.uid)));
        }
    }

    /// The reply to the agent: what is asked of it, what is offered, and what the server is able to do.
    fn reply(&mut self, occasion: Occasion, copy: Option<Answered>, offer: &Offer, now: Now) -> Said {
        let (former, occasion) = match copy {
            Some(former) if former.offer == OfferSent::Yes => (former, Occasion::ReplyToStatus),
            Some(former) => (former, occasion),
            None => (Answered::default(), occasion),
        };
        let due = self.remote_config.decide(&self.record, offer, occasion, now.instant);
        let remote_config = due.map(|due| due.encoded.clone());
        let capabilities = former.capabilities | self.greet(self.presence.channel().unwrap_or(Channel::Http));
        let flags = former.flags | self.ask(now);
        let offer = if remote_config.is_some() { OfferSent::Yes } else { OfferSent::No };
        self.answered = Answered { flags, capabilities, offer };
        Said { remote_config, flags, capabilities, new_uid: None }
    }

    /// The flags of the next message. After a full report the server says anew what it is able to do (AMB-05).
    fn ask(&mut self, now: Now) -> u64 {
        let mut flags = 0;
        if self.full_state.ask(now.instant) == Ask::Now {
            flags |= ServerToAgentFlags::ReportFullState as u64;
            self.greeting = Greeting::Due;
        }
        if self.components.ask(now.instant) == Ask::Now {
            flags |= ServerToAgentFlags::ReportAvailableComponents as u64;
        }
        flags
    }

    /// The server's capabilities: over HTTP in each reply, on a WebSocket when they are due.
    fn greet(&mut self, channel: Channel) -> u64 {
        let greeting = std::mem::replace(&mut self.greeting, Greeting::Done);
        greet_visitor(greeting, channel)
    }
}

impl Receipt {
    fn new(from: Channel, kind: Kind) -> Self {
        Self { from, kind, attributes: Novelty::AsBefore, effects: Effects::default() }
    }
}

fn greet_visitor(greeting: Greeting, channel: Channel) -> u64 {
    match (greeting, channel) {
        (Greeting::Done, Channel::WebSocket(_)) => 0,
        (Greeting::Due, Channel::WebSocket(_)) | (Greeting::Due | Greeting::Done, Channel::Http) => SERVER_CAPABILITIES,
    }
}
