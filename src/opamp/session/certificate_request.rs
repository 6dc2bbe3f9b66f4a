//! What an agent asks for in `connection_settings_request`, and how it is told that it does not get it.

use bytes::Bytes;

use crate::opamp::{messages::AgentToServer, normalise, violation::Violation};

/// Bytes of a certificate request that is looked at. One with an RSA key of 8192 bits and a dozen names has 4 KiB.
pub const CERTIFICATE_REQUEST_LIMIT: usize = 16 << 10;
/// Bytes of the reason that an agent is told.
const REASON_LIMIT: usize = 512;

/// What a message asks for. It is no state: absence means nothing (CMP-10).
#[derive(Debug)]
pub(super) enum Request {
    /// Nothing, or nothing that needs action (CSR-02).
    Nothing,
    /// A certificate.
    Certificate(Bytes),
    /// Something that nobody could give.
    Faulty(Violation),
    /// A certificate, and the offer has it.
    Granted,
    /// A certificate, and the owner of the session has refused at once.
    Refused(Reason),
}

impl Request {
    /// The request is copied: a slice would keep the whole message.
    pub(super) fn of(message: &AgentToServer) -> Self {
        let request = message.connection_settings_request.as_ref();
        let Some(opamp) = request.and_then(|request| request.opamp.as_ref()) else { return Self::Nothing };
        let Some(certificate) = &opamp.certificate_request else {
            return Self::Faulty(Violation::CertificateRequestMissing);
        };
        let (length, limit) = (certificate.csr.len(), CERTIFICATE_REQUEST_LIMIT);
        if length > limit {
            return Self::Faulty(Violation::CertificateRequestTooLarge { length, limit });
        }
        Self::Certificate(Bytes::copy_from_slice(&certificate.csr))
    }

    /// The certificate request, if there is one to be decided on.
    pub(super) fn certificate(&self) -> Option<&Bytes> {
        match self {
            Self::Certificate(request) => Some(request),
            Self::Nothing | Self::Faulty(_) | Self::Granted | Self::Refused(_) => None,
        }
    }
}

/// Why a certificate is refused, cut to what an agent is told.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Reason(Box<str>);

impl Reason {
    pub(super) fn new(reason: &str) -> Self {
        Self(normalise::shorten(reason, REASON_LIMIT).into())
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

/// A refusal that came when no message could take it: the next reply does (AMB-29).
#[derive(Clone, Debug, Default)]
pub(super) struct LateRefusal(Option<Box<Late>>);

#[derive(Clone, Debug)]
struct Late {
    reason: Reason,
    told: Told,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Told {
    NotYet,
    Once,
}

/// Whether a message is the last one once more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Retransmission {
    No,
    Yes,
}

impl LateRefusal {
    /// To be told in the next reply.
    pub(super) fn put_off(&mut self, reason: Reason) {
        self.0 = Some(Box::new(Late { reason, told: Told::NotYet }));
    }

    /// Another request has come.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }

    /// The reason to be told in this reply: once, and again only to a copy of the message whose reply told it (RTY-02).
    pub(super) fn tell(&mut self, retransmission: Retransmission) -> Option<Reason> {
        let late = self.0.as_mut()?;
        if late.told == Told::Once && retransmission == Retransmission::No {
            self.0 = None;
            return None;
        }
        late.told = Told::Once;
        Some(late.reason.clone())
    }
}
