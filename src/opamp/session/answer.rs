//! What is said to an agent: in reply to a message, or by itself.

use super::{
    Session,
    certificate_request::{Reason, Request, Retransmission},
    channel::Channel,
    conversation::{Kind, Receipt},
    effects::{Changed, Effects},
    inquiry::Ask,
    offering::Occasion,
    reply::{Outbound, Refusal, Said, refuse, server_capabilities},
};
use crate::opamp::{
    messages::ServerToAgentFlags,
    now::Now,
    offer::{CertificateRequests, Offer},
};

/// Whether the server still has to say what it is able to do (AMB-05).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Greeting {
    /// In the next message.
    Due,
    /// It has said so on this connection, with this.
    Done(CertificateRequests),
}

impl Greeting {
    /// What a visitor was told, whose fleet nobody has looked up.
    pub(super) const VISITOR: Self = Self::Done(CertificateRequests::NotServed);
}

/// What the reply to the last message held, to answer a copy of it in kind (AMB-03, RTY-02).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answered {
    flags: u64,
    capabilities: u64,
    remote_config: OfferSent,
    connection_settings: OfferSent,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum OfferSent {
    #[default]
    No,
    Yes,
}

impl OfferSent {
    fn of<T>(offer: Option<&T>) -> Self {
        if offer.is_some() { Self::Yes } else { Self::No }
    }

    /// The occasion, for a message whose former reply offered this.
    fn to_a_copy(self, occasion: Occasion) -> Occasion {
        match self {
            Self::Yes => Occasion::ReplyToCopy,
            Self::No => occasion,
        }
    }
}

/// What the offers of each class go along with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occasions {
    pub(super) remote_config: Occasion,
    pub(super) connection_settings: Occasion,
}

impl Occasions {
    /// The message asks for settings.
    fn with_request(self) -> Self {
        Self { connection_settings: Occasion::ReplyToRequest, ..self }
    }
}

impl Session {
    /// Answers a message: exactly one reply, to its channel, after whatever else follows from it.
    pub fn answer(&mut self, receipt: Receipt, offer: &Offer, now: Now) -> Effects {
        let Receipt { from, kind, request, mut effects, .. } = receipt;
        let said = match kind {
            Kind::Agent { occasions, copy } => match self.settle(request, copy, offer, &mut effects) {
                Verdict::Refused(refusal) => {
                    effects.send.push((from, refusal));
                    return effects;
                }
                Verdict::Granted => self.reply(occasions.with_request(), copy, offer, now, &mut effects),
                Verdict::Accepted => self.reply(occasions, copy, offer, now, &mut effects),
            },
            Kind::Leaving => {
                let served = match self.greeting {
                    Greeting::Due => offer.certificate_requests,
                    Greeting::Done(served) => served,
                };
                Said { capabilities: self.greet(from, served), ..Said::default() }
            }
            Kind::Visitor(greeting) => Said { capabilities: greet_visitor(greeting, from), ..Said::default() },
            Kind::Renamed(to, greeting) => {
                Said { capabilities: greet_visitor(greeting, from), new_uid: Some(to), ..Said::default() }
            }
        };
        effects.send.push((from, said.to(self.uid)));
        effects
    }

    /// Refuses a certificate that the agent has asked for earlier: on a WebSocket at once; an agent that polls, or is not
    /// there, learns it from its next reply, once, and what its message says counts all the same (CSR-07, AMB-29). The
    /// reason is for people and holds no secret.
    pub fn refuse_certificate(&mut self, reason: &str) -> Effects {
        let mut effects = Effects::default();
        let reason = Reason::new(reason);
        self.connection_settings.forget_consent();
        match self.presence.channel() {
            Some(channel @ Channel::WebSocket(_)) => effects.send.push((channel, self.refusal(&reason))),
            Some(Channel::Http) | None => self.late_refusal.put_off(reason),
        }
        effects
    }

    /// Decides on what the message asks for, as far as it can be decided here. A refusal leaves the capabilities and
    /// questions that are due to the next reply: an error excludes them (S2A-05).
    fn settle(&mut self, request: Request, copy: Option<Answered>, offer: &Offer, effects: &mut Effects) -> Verdict {
        match (request, offer.certificate_requests) {
            (Request::Refused(reason), _) => {
                self.connection_settings.forget_consent();
                self.late_refusal.forget();
                return self.refused(copy, self.refusal(&reason));
            }
            (Request::Faulty(violation), CertificateRequests::Served) => {
                let refusal = refuse(Some(self.uid), &Refusal::BadRequest(&violation));
                effects.violation = Some(violation);
                return self.refused(copy, refusal);
            }
            (Request::Certificate(request), CertificateRequests::Served) => {
                self.connection_settings.consent();
                self.late_refusal.forget();
                effects.certificate_request = Some(request);
                return Verdict::Accepted;
            }
            (Request::Granted, _) => {
                self.connection_settings.consent();
                self.late_refusal.forget();
                return Verdict::Granted;
            }
            // It asked before it knew, or does not care: it is told what this server does (AMB-32).
            (Request::Faulty(_) | Request::Certificate(_), CertificateRequests::NotServed) => {
                self.greeting = Greeting::Due;
            }
            (Request::Nothing, _) => {}
        }
        let retransmission = if copy.is_some() { Retransmission::Yes } else { Retransmission::No };
        match self.late_refusal.tell(retransmission) {
            Some(reason) => self.refused(copy, self.refusal(&reason)),
            None => Verdict::Accepted,
        }
    }

    /// A copy that is not refused any more is answered as the message was before.
    fn refused(&mut self, copy: Option<Answered>, refusal: Outbound) -> Verdict {
        self.answered = copy.unwrap_or_default();
        Verdict::Refused(refusal)
    }

    fn refusal(&self, reason: &Reason) -> Outbound {
        refuse(Some(self.uid), &Refusal::Certificate { reason: reason.text() })
    }

    /// Sends an offer or a question that is due to an agent on a WebSocket. A configuration and settings go in one
    /// message: clients look at each part of a message by itself.
    pub(super) fn push_offer(&mut self, offer: &Offer, now: Now, effects: &mut Effects) {
        let Some(channel @ Channel::WebSocket(_)) = self.presence.channel() else { return };
        let occasions = Occasions { remote_config: Occasion::Push, connection_settings: Occasion::Push };
        let mut said = self.offered(occasions, offer, now, effects);
        said.flags = if self.full_state.is_due() { self.ask(now) } else { 0 };
        if said.remote_config.is_none() && said.connection_settings.is_none() && said.flags == 0 {
            return;
        }
        if let Greeting::Done(_) = self.greeting {
            said.capabilities = self.greet(channel, offer.certificate_requests);
        }
        effects.send.push((channel, said.to(self.uid)));
    }

    /// The reply to the agent: what is asked of it, what is offered, and what the server is able to do.
    fn reply(
        &mut self,
        occasions: Occasions,
        copy: Option<Answered>,
        offer: &Offer,
        now: Now,
        effects: &mut Effects,
    ) -> Said {
        let former = copy.unwrap_or_default();
        let occasions = Occasions {
            remote_config: former.remote_config.to_a_copy(occasions.remote_config),
            connection_settings: former.connection_settings.to_a_copy(occasions.connection_settings),
        };
        let mut said = self.offered(occasions, offer, now, effects);
        let channel = self.presence.channel().unwrap_or(Channel::Http);
        said.capabilities = former.capabilities | self.greet(channel, offer.certificate_requests);
        said.flags = former.flags | self.ask(now);
        self.answered = Answered {
            flags: said.flags,
            capabilities: said.capabilities,
            remote_config: OfferSent::of(said.remote_config.as_ref()),
            connection_settings: OfferSent::of(said.connection_settings.as_ref()),
        };
        said
    }

    /// What is due of the offer.
    fn offered(&mut self, occasions: Occasions, offer: &Offer, now: Now, effects: &mut Effects) -> Said {
        let arrived = self.connection_settings.arrived();
        let config = self.remote_config.decide(&self.record, offer, occasions.remote_config, now.instant);
        let settings = self.connection_settings.decide(&self.record, offer, occasions.connection_settings, now.instant);
        if self.connection_settings.arrived() != arrived {
            effects.changed = effects.changed.max(Changed::Configuration);
        }
        Said {
            remote_config: config.map(|due| due.encoded.clone()),
            connection_settings: settings.map(|due| due.encoded.clone()),
            ..Said::default()
        }
    }

    /// The flags of the next message. After a full report the server says anew what it is able to do (AMB-05).
    pub(super) fn ask(&mut self, now: Now) -> u64 {
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

    /// The server's capabilities: over HTTP in each reply, on a WebSocket when they are due or have changed.
    fn greet(&mut self, channel: Channel, served: CertificateRequests) -> u64 {
        let greeting = std::mem::replace(&mut self.greeting, Greeting::Done(served));
        match (greeting, channel) {
            (Greeting::Done(former), Channel::WebSocket(_)) if former == served => 0,
            (Greeting::Done(_) | Greeting::Due, Channel::WebSocket(_) | Channel::Http) => server_capabilities(served),
        }
    }
}

/// What a message gets for what it asks.
enum Verdict {
    Accepted,
    Granted,
    Refused(Outbound),
}

fn greet_visitor(greeting: Greeting, channel: Channel) -> u64 {
    match (greeting, channel) {
        (Greeting::Done(_), Channel::WebSocket(_)) => 0,
        (Greeting::Due, Channel::WebSocket(_)) | (Greeting::Due | Greeting::Done(_), Channel::Http) => {
            server_capabilities(CertificateRequests::NotServed)
        }
    }
}
