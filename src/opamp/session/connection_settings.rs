//! Whether the connection settings go into the message that is being written.
//!
//! A needless offer costs: old clients reconnect at each. So, unlike a configuration, settings are not offered anew because
//! a session begins. The agent's own word decides if it has named settings. One that is able to name them and has not is
//! offered them with growing patience. Of one that never will, it counts what has arrived: it was offered something and
//! spoke on through the same channel.

use std::{sync::Arc, time::Instant};

use super::offering::{Again, Occasion, Sent};
use crate::opamp::{
    messages::AgentCapabilities as Bit,
    offer::{ConnectionSettingsHash, ConnectionSettingsOffer, Offer},
    record::{AgentRecord, OfferState},
};

/// So often an offer is made that may have been lost. More would be a loop: a client that takes new settings starts anew,
/// some without a goodbye, some with the same old status or request, and some with the very bytes of the message before.
const TRIES: u32 = 3;

/// What passed between server and agent about connection settings; nothing for most agents.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionSettingsOffers(Option<Box<Dealings>>);

#[derive(Clone, Debug, Default)]
struct Dealings {
    sent: Option<(Sent<ConnectionSettingsHash>, When)>,
    /// What has arrived at the agent, as far as one can tell without its word.
    arrived: Option<ConnectionSettingsHash>,
    again: Again,
    consent: Consent,
    /// The hash that the agent reported to an earlier process, until it reports one.
    remembered: Option<Box<[u8]>>,
}

/// In which session: since the WebSocket was opened, or since the counter began over HTTP (AMB-24).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum When {
    ThisSession,
    EarlierSession,
}

/// Whether the agent, which does not declare that it takes settings, has asked for some (AMB-32).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Consent {
    #[default]
    NotGiven,
    ForOneOffer,
}

/// Whether something new is known to have arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Arrived {
    Nothing,
    Settings,
}

impl ConnectionSettingsOffers {
    /// A new session. If the former one ended with an offer, nobody knows whether that was lost or is the reason.
    pub(super) fn begin_session(&mut self) {
        if let Some((_, when)) = self.0.as_mut().and_then(|dealings| dealings.sent.as_mut()) {
            *when = When::EarlierSession;
        }
    }

    /// The agent has said something else than before, through the channel of this session: it got what it was sent
    /// there. A copy would tell the contrary (RTY-02).
    pub(super) fn heard(&mut self) -> Arrived {
        let Some(dealings) = &mut self.0 else { return Arrived::Nothing };
        match dealings.sent {
            Some((sent, When::ThisSession)) if dealings.arrived != Some(sent.hash) => {
                dealings.arrived = Some(sent.hash);
                Arrived::Settings
            }
            Some((_, When::ThisSession | When::EarlierSession)) | None => Arrived::Nothing,
        }
    }

    /// What has arrived.
    pub(super) fn arrived(&self) -> Option<ConnectionSettingsHash> {
        self.0.as_ref()?.arrived
    }

    /// The agent reported this hash to an earlier process.
    pub(super) fn remember_report(&mut self, hash: Vec<u8>) {
        self.dealings().remembered = Some(hash.into());
    }

    /// Whether an earlier process knows more of what the agent has than this one.
    pub(super) fn are_remembered(&self) -> bool {
        self.0.as_ref().is_some_and(|dealings| dealings.remembered.is_some())
    }

    /// These had arrived when an earlier process, or another replica, was offering.
    pub(super) fn remember_arrival(&mut self, hash: ConnectionSettingsHash) {
        self.dealings().arrived.get_or_insert(hash);
    }

    /// The agent has reported a status itself. One that has not failed leaves nothing to be offered again.
    pub(super) fn reported(&mut self, state: OfferState) {
        let Some(dealings) = &mut self.0 else { return };
        dealings.remembered = None;
        dealings.again.reported(state);
    }

    /// Offers what failed once more.
    pub(super) fn again(&mut self) {
        self.dealings().again = Again::Once;
    }

    /// The agent asks for a certificate, which comes with settings: it takes them, whatever it declares (AMB-32).
    pub(super) fn consent(&mut self) {
        self.dealings().consent = Consent::ForOneOffer;
    }

    /// It does not get the certificate.
    pub(super) fn forget_consent(&mut self) {
        if let Some(dealings) = &mut self.0 {
            dealings.consent = Consent::NotGiven;
        }
    }

    /// The settings to be sent along, counted as sent. In this order: there must be some, the agent must take any
    /// (CON-02, CON-04), must not have them (CON-06) nor have reported that they fail (CON-07), and they must be due.
    pub(super) fn decide<'o>(
        &mut self,
        record: &AgentRecord,
        offer: &'o Offer,
        occasion: Occasion,
        now: Instant,
    ) -> Option<&'o Arc<ConnectionSettingsOffer>> {
        let wanted = offer.connection_settings.as_ref()?;
        let declares = record.capabilities.has(Bit::AcceptsOpAmpConnectionSettings);
        if !declares && self.0.as_ref().is_none_or(|dealings| dealings.consent == Consent::NotGiven) {
            return None;
        }
        let dealings = self.dealings();
        if dealings.again == Again::No && !dealings.are_due(record, wanted.hash, occasion, now) {
            return None;
        }
        // Whether it will still have what arrived before is not known until it is heard again.
        dealings.arrived = dealings.arrived.filter(|arrived| *arrived == wanted.hash);
        let former = dealings.sent.map(|(sent, _)| sent);
        dealings.sent = Some((Sent::after(former, wanted.hash, now), When::ThisSession));
        dealings.again = Again::No;
        dealings.consent = Consent::NotGiven;
        Some(wanted)
    }

    fn dealings(&mut self) -> &mut Dealings {
        self.0.get_or_insert_default()
    }
}

impl Dealings {
    fn are_due(&self, record: &AgentRecord, hash: ConnectionSettingsHash, occasion: Occasion, now: Instant) -> bool {
        let report = record.connection_settings.as_ref().map(|report| report.hash.as_slice());
        let named = report.or(self.remembered.as_deref()).unwrap_or_default();
        let failed = record.failed_connection_settings.as_ref().map(|failed| failed.hash.as_slice());
        if [Some(named), failed].contains(&Some(hash.as_bytes())) {
            return false;
        }
        // It has not said what it has, nor will it.
        let is_silent = named.is_empty() && !record.capabilities.has(Bit::ReportsConnectionSettingsStatus);
        let says_it_lacks_them = matches!(occasion, Occasion::ReplyToStatus | Occasion::ReplyToRequest);
        if is_silent && !says_it_lacks_them && self.arrived == Some(hash) {
            return false;
        }
        let Some((sent, when)) = self.sent.filter(|(sent, _)| sent.hash == hash) else { return true };
        let (may_be_lost, is_patient) = (sent.times < TRIES, sent.again_at <= now);
        match (occasion, when) {
            (Occasion::ReplyToStatus, When::ThisSession) => true,
            (Occasion::ReplyToStatus, When::EarlierSession) | (Occasion::ReplyToRequest, _) => {
                may_be_lost || is_patient
            }
            // Its word that it has them may be on the way.
            (Occasion::Reply, _) if !is_silent => is_patient,
            (Occasion::ReplyToCopy, _) | (Occasion::Reply, When::EarlierSession) => may_be_lost,
            (Occasion::Push, _) | (Occasion::Reply, When::ThisSession) => false,
        }
    }
}
