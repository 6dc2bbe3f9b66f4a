//! Whether the remote configuration goes into the message that is being written.

use std::{sync::Arc, time::Instant};

use super::offering::{Again, Occasion, Sent};
use crate::opamp::{
    messages::AgentCapabilities as Bit,
    offer::{ConfigHash, Offer, RemoteConfigOffer},
    record::{AgentRecord, OfferState},
};

/// What was offered in this session: since the WebSocket was opened, or since the counter began over HTTP (AMB-24).
#[derive(Clone, Debug, Default)]
pub(super) struct RemoteConfigOffers {
    sent: Option<Sent<ConfigHash>>,
    again: Again,
    /// The hash that an earlier process knew of, until the agent reports one.
    remembered: Option<Box<[u8]>>,
}

impl RemoteConfigOffers {
    /// A new session: what was sent before may be lost.
    pub(super) fn begin_session(&mut self) {
        self.sent = None;
    }

    /// What an earlier process was told.
    pub(super) fn remember(&mut self, hash: Vec<u8>) {
        self.remembered = Some(hash.into());
    }

    /// The agent has reported a status itself. One that has not failed leaves nothing to be offered again.
    pub(super) fn reported(&mut self, state: OfferState) {
        self.remembered = None;
        self.again.reported(state);
    }

    /// Offers what failed once more.
    pub(super) fn again(&mut self) {
        self.again = Again::Once;
    }

    /// The configuration to be sent along, counted as sent. In this order: there must be one, the agent must take any
    /// (CFG-02), must not have it (CFG-06) nor have reported that it fails (AMB-24), and it must be due.
    pub(super) fn decide<'o>(
        &mut self,
        record: &AgentRecord,
        offer: &'o Offer,
        occasion: Occasion,
        now: Instant,
    ) -> Option<&'o Arc<RemoteConfigOffer>> {
        let wanted = offer.remote_config.as_ref()?;
        if !record.capabilities.has(Bit::AcceptsRemoteConfig) {
            return None;
        }
        if self.again == Again::No {
            let known = self.known_hash(record);
            let failed = record.failed_config.as_ref().is_some_and(|failed| failed.hash == wanted.hash.as_bytes());
            if failed || known == Some(wanted.hash.as_bytes()) || !self.is_due(record, wanted.hash, occasion, now) {
                return None;
            }
        }
        self.sent = Some(Sent::after(self.sent, wanted.hash, now));
        self.again = Again::No;
        Some(wanted)
    }

    /// The hash that the agent has, as far as anybody knows.
    fn known_hash<'a>(&'a self, record: &'a AgentRecord) -> Option<&'a [u8]> {
        record.remote_config.as_ref().map(|report| report.hash.as_slice()).or(self.remembered.as_deref())
    }

    fn is_due(&self, record: &AgentRecord, hash: ConfigHash, occasion: Occasion, now: Instant) -> bool {
        let Some(sent) = self.sent.filter(|sent| sent.hash == hash) else { return true };
        let reports = record.capabilities.has(Bit::ReportsRemoteConfig) && self.known_hash(record).is_some();
        match occasion {
            Occasion::ReplyToStatus | Occasion::ReplyToCopy | Occasion::ReplyToRequest => true,
            Occasion::Reply => reports && sent.again_at <= now,
            Occasion::Push => false,
        }
    }
}
