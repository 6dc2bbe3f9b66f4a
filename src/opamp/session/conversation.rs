//! What a message does to a session, until it is answered.

use bytes::Bytes;

use super::{
    Session,
    answer::{Answered, Greeting, Occasions},
    certificate_request::{Reason, Request},
    channel::Channel,
    connection_settings::Arrived,
    duplicate::{self, Standing},
    effects::{Changed, Effects},
    liveness::{Arrival, Ending, Presence},
    offering::Occasion,
    reply::Said,
    report::{self, Novelties, Novelty, Parts},
    sequence::{Numbered, Step},
};
use crate::opamp::{
    InstanceUid,
    inbound::Inbound,
    messages::{AgentCapabilities as Bit, AgentToServer, AgentToServerFlags},
    now::Now,
};

/// A message that was taken and awaits its reply by [`Session::answer`].
#[derive(Debug)]
#[must_use]
pub struct Receipt {
    pub(super) from: Channel,
    pub(super) kind: Kind,
    pub(super) request: Request,
    attributes: Novelty,
    pub(super) effects: Effects,
}

/// Who has spoken, and with that what the reply may hold.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// The agent of the session: everything.
    Agent { occasions: Occasions, copy: Option<Answered> },
    /// The agent, for the last time: an acknowledgement.
    Leaving,
    /// A straggler, or somebody on trial: an acknowledgement (AMB-14, AMB-23).
    Visitor(Greeting),
    /// Another agent: its new uid.
    Renamed(InstanceUid, Greeting),
}

/// Whether the agent was ever seen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sight {
    /// Never before.
    First,
    /// By this or an earlier process.
    Known,
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

    /// The certificate request of the agent itself, if it has one. Whether it is served depends on the offer that
    /// [`Session::answer`] is given.
    #[must_use]
    pub fn certificate_request(&self) -> Option<&Bytes> {
        self.request.certificate()
    }

    /// Refuses the certificate request at once: the reply tells it, and why; the reason is for people and holds no secret
    /// (CSR-07). Without a request it does nothing.
    pub fn refuse_certificate(&mut self, reason: &str) {
        if self.request.certificate().is_some() {
            self.request = Request::Refused(Reason::new(reason));
        }
    }

    /// The offer that [`Session::answer`] will be given holds the certificate that is asked for: the agent has asked once
    /// more, so its former offer may be lost, and the reply repeats it unless the agent has reported its hash (CSR-08).
    /// Without a request it does nothing.
    pub fn grant_certificate(&mut self) {
        if self.request.certificate().is_some() {
            self.request = Request::Granted;
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

    fn occasions(&self) -> Occasions {
        let occasion = |status| if self.parts.contains(status) { Occasion::ReplyToStatus } else { Occasion::Reply };
        Occasions {
            remote_config: occasion(Parts::REMOTE_CONFIG_STATUS),
            connection_settings: occasion(Parts::CONNECTION_SETTINGS_STATUS),
        }
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

    /// A visitor speaks again: nothing that it says is taken over.
    fn receive_again(&mut self, standing: Standing, heard: &Heard, from: Channel) -> Receipt {
        if heard.farewell == Farewell::Leaves {
            self.visitors.forget_channel(from);
        }
        match standing {
            Standing::OnTrial { .. } => Receipt::new(from, Kind::Visitor(Greeting::VISITOR)),
            Standing::Renamed { to } => Receipt::new(from, Kind::Renamed(to, Greeting::VISITOR)),
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
        let request = Request::of(&inbound.message);
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
            Farewell::Stays => Kind::Agent { occasions: heard.occasions(), copy },
            Farewell::Leaves => {
                self.leave(Ending::Goodbye, now, &mut effects);
                Kind::Leaving
            }
        };
        Receipt { from, kind, request, attributes, effects }
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
        if step != Step::Copy && self.connection_settings.heard() == Arrived::Settings {
            effects.changed = effects.changed.max(Changed::Configuration);
        }
        if from == Channel::Http {
            effects.suspicion = self.watch.get_or_insert_default().number(former, next, step);
            if step == Step::GapBack {
                self.remote_config.begin_session();
                self.connection_settings.begin_session();
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
        self.connection_settings.begin_session();
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
        if parts.contains(Parts::CONNECTION_SETTINGS_STATUS)
            && let Some(report) = &self.record.connection_settings
        {
            self.connection_settings.reported(report.state);
        }
        if brought.novelties.capabilities == Novelty::New {
            self.greeting = Greeting::Due;
        }
        self.want_full_state(parts, step, now);
        self.want_components(brought.novelties);
        brought.novelties
    }

    /// A complete report ends the need for one; every gap begins a new one, also if its message looks complete (AMB-01).
    /// Where one gap follows the other the question is put off. The status of connection settings is not promised, but an
    /// agent that named some to an earlier process has one to tell.
    fn want_full_state(&mut self, parts: Parts, step: Step, now: Now) {
        let promised = Parts::promised_by(self.record.capabilities);
        if parts.contains(promised) {
            self.full_state.close();
        }
        match step {
            Step::GapForward | Step::GapBack => match self.gaps.another(now.instant) {
                None => self.full_state.renew(),
                Some(until) => self.full_state.put_off(until),
            },
            Step::First if !self.reported.contains(promised) || self.connection_settings.are_remembered() => {
                self.full_state.open();
            }
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
        // As a visitor it was told what holds for everybody.
        self.greeting = Greeting::VISITOR;
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
}

impl Receipt {
    fn new(from: Channel, kind: Kind) -> Self {
        let (attributes, effects) = (Novelty::AsBefore, Effects::default());
        Self { from, kind, request: Request::Nothing, attributes, effects }
    }
}
