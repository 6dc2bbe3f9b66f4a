//! What stands between one agent and its fleet about the agent's connection: what it is offered, whether it may ask for a
//! certificate, and what it has asked for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    super::lock,
    offer::{Joined, join},
};
use crate::{
    agents::summary::Acceptance,
    catalog::{Connection, FleetEntry, settings::FrozenCertificate},
    credentials::{
        certificates::Certificates,
        key::KeyId,
        stored::{AgentCertificate, Given},
        trust::Trust,
    },
    opamp::{
        InstanceUid,
        connection_settings::Recipient,
        messages::AgentCapabilities as Bit,
        now::Now,
        offer::{CertificateRequests, ConnectionSettingsHash, ConnectionSettingsOffer},
    },
    status::view::{IssuedCertificate, IssuedView, SettingsView},
};

/// What an agent's fleet says of its connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::bridge) enum Wanted<'a> {
    /// Nobody can say now: no fleet takes the agent, or this replica is behind. Nothing is offered, nothing withdrawn.
    Unsettled,
    /// Nothing.
    Nothing,
    /// This.
    Settings { fleet: &'a FleetEntry, connection: &'a Connection },
}

impl Issuance<'_> {
    /// The certificate that the agent is to be offered as a member of this fleet.
    pub(in crate::bridge) fn offered(
        &self,
        uid: InstanceUid,
        fleet: &FleetEntry,
        now: Now,
    ) -> Option<(Arc<AgentCertificate>, Arc<Given>)> {
        self.certificates.offered(&uid, &fleet.namespace, &fleet.name, &self.trust.snapshot(), now.wall)
    }
}

impl Wanted<'_> {
    /// Whether members may ask for certificates.
    fn serves_requests(&self) -> bool {
        matches!(self, Self::Settings { connection, .. } if connection.settings.certificate == FrozenCertificate::Issued)
    }
}

/// What was issued, whose certificates count, and what others are offered.
#[derive(Clone, Copy)]
pub(in crate::bridge) struct Issuance<'a> {
    pub(in crate::bridge) certificates: &'a Certificates,
    pub(in crate::bridge) trust: &'a Trust,
    pub(in crate::bridge) offers: &'a SharedOffers,
}

/// Offers that many agents have in common, kept once: all that have no certificate of their own get the same.
#[derive(Default)]
pub(in crate::bridge) struct SharedOffers(Mutex<HashMap<ConnectionSettingsHash, Weak<ConnectionSettingsOffer>>>);

impl SharedOffers {
    fn share(&self, offer: Arc<ConnectionSettingsOffer>) -> Arc<ConnectionSettingsOffer> {
        let mut known = lock(&self.0);
        if let Some(shared) = known.get(&offer.hash).and_then(Weak::upgrade) {
            return shared;
        }
        // A new one is rare: whatever nobody is offered any more goes then.
        known.retain(|_, shared| shared.strong_count() > 0);
        known.insert(offer.hash, Arc::downgrade(&offer));
        offer
    }
}

/// The agent, as far as it decides what it is offered.
#[derive(Clone, Copy, Debug)]
pub(in crate::bridge) struct Party {
    pub(in crate::bridge) uid: InstanceUid,
    pub(in crate::bridge) recipient: Recipient,
    pub(in crate::bridge) acceptance: Acceptance,
}

/// The terms of one agent; nothing for agents whose fleets say nothing of connections.
#[derive(Debug, Default)]
pub(in crate::bridge) struct Terms(Option<Box<Known>>);

#[derive(Debug)]
struct Known {
    /// What the rest was made of; `None`: it is to be made anew.
    basis: Option<Basis>,
    joined: Joined,
    requests: CertificateRequests,
    issued: IssuedView,
    /// When the certificate ends, and with it what is offered.
    until: Option<Instant>,
    kept: Option<KeptRequest>,
    /// The namespace and the key of the request that was handed on and not answered yet.
    awaited: Option<(Box<str>, KeyId)>,
}

/// A request that cannot be decided on yet. The agent does not repeat it: it was acknowledged (AMB-29).
#[derive(Debug)]
pub(in crate::bridge) struct KeptRequest {
    pub(in crate::bridge) request: Bytes,
    /// Free again once the request is.
    pub(in crate::bridge) _place: OwnedSemaphorePermit,
}

/// What becomes of a kept request.
#[derive(Debug)]
pub(in crate::bridge) enum Ripe {
    /// There is none, or it has to wait on.
    NotYet,
    /// It can be decided on.
    Now(Bytes),
    /// It will never be served.
    Never,
}

#[derive(Debug)]
struct Basis {
    connection: Connection,
    recipient: Recipient,
    acceptance: Acceptance,
}

impl Basis {
    fn is_of(&self, connection: &Connection, party: &Party) -> bool {
        let (own, other) = (&self.connection, connection);
        let same_credentials = match (&own.credentials, &other.credentials) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        same_credentials
            && Arc::ptr_eq(&own.settings, &other.settings)
            && own.secrets == other.secrets
            && (self.recipient, self.acceptance) == (party.recipient, party.acceptance)
    }
}

impl Default for Known {
    fn default() -> Self {
        Self {
            basis: None,
            joined: Joined::Nothing,
            requests: CertificateRequests::NotServed,
            issued: IssuedView::NotIssued,
            until: None,
            kept: None,
            awaited: None,
        }
    }
}

impl Terms {
    /// The terms of an agent of which an earlier process has told these requests.
    pub(in crate::bridge) fn remembering(requests: CertificateRequests) -> Self {
        Self(match requests {
            CertificateRequests::NotServed => None,
            CertificateRequests::Served => Some(Box::new(Known { requests, ..Known::default() })),
        })
    }

    /// Takes over what the fleet says now. Without a change of that, of the agent or of its certificates this costs a few
    /// comparisons. Says whether anything is to be shown anew.
    pub(in crate::bridge) fn look(
        &mut self,
        wanted: Wanted<'_>,
        party: &Party,
        issuance: Issuance<'_>,
        now: Now,
    ) -> bool {
        let Wanted::Settings { fleet, connection } = wanted else { return self.look_without(wanted) };
        let known = self.0.get_or_insert_default();
        let is_same = known.basis.as_ref().is_some_and(|basis| basis.is_of(connection, party));
        if is_same && known.until.is_none_or(|until| now.instant < until) {
            return false;
        }
        let former = (known.gist(), known.issued.clone());
        known.requests =
            if wanted.serves_requests() { CertificateRequests::Served } else { CertificateRequests::NotServed };
        known.basis =
            Some(Basis { connection: connection.clone(), recipient: party.recipient, acceptance: party.acceptance });
        known.join(fleet, connection, party, issuance, now);
        (known.gist(), known.issued.clone()) != former
    }

    /// While nobody can say, an agent is told the same as before of whether it may ask: otherwise the bit would come and
    /// go with each moment of doubt.
    fn look_without(&mut self, wanted: Wanted<'_>) -> bool {
        let Some(known) = &mut self.0 else { return false };
        let former = known.gist();
        (known.basis, known.joined, known.until) = (None, Joined::Nothing, None);
        known.issued = IssuedView::NotIssued;
        match wanted {
            Wanted::Unsettled | Wanted::Settings { .. } => {}
            Wanted::Nothing => {
                known.requests = CertificateRequests::NotServed;
                if known.kept.is_none() && known.awaited.is_none() {
                    self.0 = None;
                }
            }
        }
        former != Gist::Nothing
    }

    /// The certificates of the agent have changed, or which count. Says whether that may concern it.
    pub(in crate::bridge) fn anew(&mut self) -> bool {
        let Some(known) = &mut self.0 else { return false };
        known.basis = None;
        known.requests == CertificateRequests::Served || known.awaited.is_some()
    }

    /// The agent has gone. What it has asked for is not forgotten: it may return soon.
    pub(in crate::bridge) fn forget(&mut self) {
        match &mut self.0 {
            Some(known) if known.kept.is_some() => {
                **known = Known { kept: known.kept.take(), requests: known.requests, ..Known::default() };
            }
            Some(_) | None => self.0 = None,
        }
    }

    /// What the agent is to have.
    pub(in crate::bridge) fn offer(&self) -> Option<&Arc<ConnectionSettingsOffer>> {
        match &self.0.as_ref()?.joined {
            Joined::Offered(offer) => Some(offer),
            Joined::Nothing | Joined::Withheld(_) => None,
        }
    }

    /// Whether it may ask for certificates.
    pub(in crate::bridge) fn requests(&self) -> CertificateRequests {
        self.0.as_ref().map_or(CertificateRequests::NotServed, |known| known.requests)
    }

    /// When it is to be looked at again unless something happens before.
    pub(in crate::bridge) fn deadline(&self) -> Option<Instant> {
        self.0.as_ref()?.until
    }

    /// What is shown of the settings.
    pub(in crate::bridge) fn view(&self) -> SettingsView {
        match self.0.as_ref().map(|known| &known.joined) {
            None | Some(Joined::Nothing) => SettingsView::Nothing,
            Some(Joined::Offered(offer)) => SettingsView::Offered(offer.hash),
            Some(Joined::Withheld(why)) => SettingsView::Withheld(why.to_string()),
        }
    }

    /// What is shown of the certificate.
    pub(in crate::bridge) fn issued(&self) -> IssuedView {
        self.0.as_ref().map_or(IssuedView::NotIssued, |known| known.issued.clone())
    }

    /// Keeps a request until it can be decided on; the latest counts.
    pub(in crate::bridge) fn keep(&mut self, kept: KeptRequest) {
        self.0.get_or_insert_default().kept = Some(kept);
    }

    /// What was kept gives up its place: a newer request has come.
    pub(in crate::bridge) fn drop_kept(&mut self) {
        if let Some(known) = &mut self.0 {
            known.kept = None;
        }
    }

    /// Takes what was kept, if it can be decided on now.
    pub(in crate::bridge) fn ripe(&mut self, wanted: Wanted<'_>, acceptance: Acceptance) -> Ripe {
        let Some(known) = self.0.as_mut().filter(|known| known.kept.is_some()) else { return Ripe::NotYet };
        match wanted {
            Wanted::Unsettled => return Ripe::NotYet,
            Wanted::Settings { .. } if wanted.serves_requests() && acceptance != Acceptance::Admitted => {
                return Ripe::NotYet;
            }
            Wanted::Nothing | Wanted::Settings { .. } => {}
        }
        match known.kept.take() {
            Some(kept) if wanted.serves_requests() => Ripe::Now(kept.request),
            Some(_) => Ripe::Never,
            None => Ripe::NotYet,
        }
    }

    /// A request for this key was handed on, as of a fleet of this namespace.
    pub(in crate::bridge) fn await_answer(&mut self, namespace: &str, key: KeyId) {
        self.0.get_or_insert_default().awaited = Some((namespace.into(), key));
    }

    /// Why the request that was handed on is refused, if it is: told once.
    pub(in crate::bridge) fn refusal(&mut self, certificates: &[Arc<AgentCertificate>]) -> Option<String> {
        let known = self.0.as_mut()?;
        let (namespace, key) = known.awaited.as_ref()?;
        let is_asked = |it: &&Arc<AgentCertificate>| *it.key.namespace == **namespace && it.is_for(key);
        let asked = certificates.iter().find(is_asked)?;
        if asked.is_due() {
            return None;
        }
        known.awaited = None;
        asked.refused.as_ref().map(|refused| refused.why.clone())
    }
}

/// What an agent is offered, for comparisons.
#[derive(Debug, Eq, PartialEq)]
enum Gist {
    Nothing,
    Offered(ConnectionSettingsHash),
    Withheld(Box<str>),
}

impl Known {
    fn gist(&self) -> Gist {
        match &self.joined {
            Joined::Nothing => Gist::Nothing,
            Joined::Offered(offer) => Gist::Offered(offer.hash),
            Joined::Withheld(why) => Gist::Withheld(why.clone()),
        }
    }

    fn join(&mut self, fleet: &FleetEntry, connection: &Connection, party: &Party, issuance: Issuance<'_>, now: Now) {
        let is_issued = self.requests == CertificateRequests::Served;
        let found = is_issued.then(|| issuance.offered(party.uid, fleet, now)).flatten();
        self.until = found.as_ref().and_then(|(_, given)| {
            let left = given.certificate.not_after.duration_since(now.wall);
            now.instant.checked_add(Duration::try_from(left).unwrap_or_default())
        });
        self.joined = match party.acceptance {
            Acceptance::Admitted => {
                let issued = found.as_ref().map(|(certificate, given)| (&**certificate, &**given));
                match join(connection, issued, party.recipient) {
                    Joined::Offered(offer) if !is_issued => Joined::Offered(issuance.offers.share(offer)),
                    joined @ (Joined::Nothing | Joined::Offered(_) | Joined::Withheld(_)) => joined,
                }
            }
            Acceptance::Pending | Acceptance::Denied | Acceptance::Revoked => Joined::Nothing,
        };
        self.issued = if is_issued { issued_view(fleet, party, issuance, found, now) } else { IssuedView::NotIssued };
    }
}

/// What is told of the certificate that a fleet's settings ask for. Nothing of an agent that can have none: it neither
/// takes settings nor has asked.
fn issued_view(
    fleet: &FleetEntry,
    party: &Party,
    issuance: Issuance<'_>,
    found: Option<(Arc<AgentCertificate>, Arc<Given>)>,
    now: Now,
) -> IssuedView {
    if let Some((certificate, given)) = found {
        return IssuedView::Valid(IssuedCertificate {
            serial: given.certificate.serial.to_string(),
            not_after: given.certificate.not_after,
            secret: certificate.key.name.clone(),
        });
    }
    let mut known = issuance.certificates.within(&fleet.namespace, &party.uid);
    known.retain(|certificate| certificate.fleet == fleet.name);
    let is_due = known.iter().any(|certificate| certificate.is_due());
    let refused = known.iter().filter_map(|certificate| certificate.refused.as_ref()).max_by_key(|refused| refused.at);
    let ends = known.iter().filter_map(|certificate| Some(certificate.given.as_ref()?.certificate.not_after));
    match (refused, ends.filter(|not_after| *not_after <= now.wall).max()) {
        _ if is_due => IssuedView::Pending,
        (Some(refused), _) => IssuedView::Refused(refused.why.clone()),
        (None, Some(not_after)) => IssuedView::Expired(not_after),
        (None, None) if party.recipient.capabilities.has(Bit::AcceptsOpAmpConnectionSettings) => IssuedView::Pending,
        (None, None) => IssuedView::NotIssued,
    }
}
