//! The only place where a `ServerToAgent` is made: replies, pushes and refusals, for WebSocket and HTTP alike.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use crate::opamp::{
    InstanceUid,
    messages::{
        AgentIdentification, RetryInfo, ServerCapabilities, ServerErrorResponse, ServerErrorResponseType,
        ServerToAgent, server_error_response::Details,
    },
    offer::CertificateRequests,
    violation::Violation,
};

/// What this server is able to do for every agent (S2A-06, S2A-08, S2A-09).
const SERVER_CAPABILITIES: u64 = ServerCapabilities::AcceptsStatus as u64
    | ServerCapabilities::OffersRemoteConfig as u64
    | ServerCapabilities::AcceptsEffectiveConfig as u64
    | ServerCapabilities::OffersConnectionSettings as u64;

/// What this server is able to do for one agent: whether requests are served depends on its fleet (CSR-12).
#[must_use]
pub const fn server_capabilities(certificate_requests: CertificateRequests) -> u64 {
    match certificate_requests {
        CertificateRequests::NotServed => SERVER_CAPABILITIES,
        CertificateRequests::Served => {
            SERVER_CAPABILITIES | ServerCapabilities::AcceptsConnectionSettingsRequest as u64
        }
    }
}

/// A `ServerToAgent` on the wire: the agent's own part and one that it shares with all that get the same. No header
/// byte: the WebSocket puts [`crate::opamp::frame::HEADER`] in front.
#[derive(Clone)]
pub struct Outbound {
    /// The uid and whatever is for this agent alone.
    pub head: Bytes,
    /// Encoded fields that many agents share; protobuf messages concatenate.
    pub tail: Option<Bytes>,
}

impl Outbound {
    /// Bytes of the whole message.
    #[must_use]
    pub fn size(&self) -> usize {
        self.head.len() + self.tail.as_ref().map_or(0, Bytes::len)
    }
}

impl std::fmt::Debug for Outbound {
    /// The content may come from a Secret and is not shown.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Outbound").field("size", &self.size()).finish_non_exhaustive()
    }
}

/// Why a message, or what it asks for, is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal<'a> {
    /// It breaks a rule; it must not be sent again (ERR-02, ERR-04).
    BadRequest(&'a Violation),
    /// It asked for a certificate, now or earlier, and gets none (CSR-07). What else it said was taken (AMB-29).
    Certificate {
        /// For people; without secrets.
        reason: &'a str,
    },
    /// It may be sent again later (THR-01, THR-02, ERR-05).
    Unavailable {
        /// For people; without secrets.
        reason: &'a str,
        /// When to come back; 30 s or more, spread over the clients (AMB-44).
        retry_after: Option<Duration>,
    },
}

/// The answer to a message that reached no session, or whose request is refused. Without a uid the field stays empty: nobody knows who spoke
/// (AMB-17).
#[must_use]
pub fn refuse(uid: Option<InstanceUid>, refusal: &Refusal<'_>) -> Outbound {
    let error = match refusal {
        Refusal::BadRequest(violation) => ServerErrorResponse {
            r#type: ServerErrorResponseType::BadRequest.into(),
            error_message: violation.to_string(),
            details: None,
        },
        Refusal::Certificate { reason } => ServerErrorResponse {
            r#type: ServerErrorResponseType::BadRequest.into(),
            error_message: format!("the certificate request (CSR) is refused: {reason}"),
            details: None,
        },
        Refusal::Unavailable { reason, retry_after } => ServerErrorResponse {
            r#type: ServerErrorResponseType::Unavailable.into(),
            error_message: (*reason).into(),
            details: retry_after.map(|after| {
                let retry_after_nanoseconds = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                Details::RetryInfo(RetryInfo { retry_after_nanoseconds })
            }),
        },
    };
    compose(uid, Content::Error(error))
}

/// The answer to a message that reached no session because its uid is another's: whoever sent it goes on under this one
/// (DUP-03, S2A-04).
#[must_use]
pub fn rename(uid: InstanceUid, to: InstanceUid) -> Outbound {
    let capabilities = server_capabilities(CertificateRequests::NotServed);
    Said { capabilities, new_uid: Some(to), ..Said::default() }.to(uid)
}

/// What is said to an agent besides its uid; with everything left out it is the plain acknowledgement (S2A-01).
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Shared with all that get the same.
    pub(super) remote_config: Option<Bytes>,
    /// Mostly for this agent alone.
    pub(super) connection_settings: Option<Bytes>,
    pub(super) flags: u64,
    pub(super) capabilities: u64,
    pub(super) new_uid: Option<InstanceUid>,
}

impl Said {
    pub(super) fn to(self, uid: InstanceUid) -> Outbound {
        compose(Some(uid), Content::Said(self))
    }
}

/// An error excludes everything else, by the shape of this type (S2A-05, AMB-06).
enum Content {
    Error(ServerErrorResponse),
    Said(Said),
}

fn compose(uid: Option<InstanceUid>, content: Content) -> Outbound {
    let instance_uid = uid.map_or_else(Bytes::new, |uid| Bytes::copy_from_slice(uid.as_bytes()));
    let (message, own, tail) = match content {
        Content::Error(error) => {
            (ServerToAgent { error_response: Some(error), ..ServerToAgent::default() }, None, None)
        }
        Content::Said(Said { remote_config, connection_settings, flags, capabilities, new_uid }) => {
            let agent_identification =
                new_uid.map(|uid| AgentIdentification { new_instance_uid: Bytes::copy_from_slice(uid.as_bytes()) });
            let message = ServerToAgent { flags, capabilities, agent_identification, ..ServerToAgent::default() };
            (message, connection_settings, remote_config)
        }
    };
    let mut head = ServerToAgent { instance_uid, ..message }.encode_to_vec();
    head.extend_from_slice(own.as_deref().unwrap_or_default());
    Outbound { head: head.into(), tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: [u8; 16] = [7; 16];

    fn uid() -> InstanceUid {
        InstanceUid::from_wire(&UID).unwrap()
    }

    #[test]
    fn a_plain_acknowledgement_is_the_uid_and_nothing_else() {
        // S2A-01: 0A 10 and 16 bytes
        let outbound = Said::default().to(uid());
        assert_eq!(outbound.head, [&[0x0a, 0x10][..], &UID].concat());
        assert_eq!((outbound.tail, outbound.head.len()), (None, 18));
    }

    #[test]
    fn an_error_stands_alone_and_names_the_fault() {
        // S2A-05, ERR-02, ERR-03, AMB-17
        let violation = Violation::UidLength { length: 15 };
        let message = ServerToAgent::decode(refuse(None, &Refusal::BadRequest(&violation)).head).unwrap();
        let error_response = Some(ServerErrorResponse {
            r#type: 1,
            error_message: "instance_uid has 15 bytes, it must have exactly 16".into(),
            details: None,
        });
        assert_eq!(message, ServerToAgent { error_response, ..ServerToAgent::default() });
    }

    #[test]
    fn only_unavailable_carries_the_time_to_come_back_in_nanoseconds() {
        // ERR-05, THR-02
        let refusal = Refusal::Unavailable { reason: "full", retry_after: Some(Duration::from_secs(30)) };
        let message = ServerToAgent::decode(refuse(Some(uid()), &refusal).head).unwrap();
        let error = message.error_response.unwrap();
        assert_eq!((error.r#type, error.error_message.as_str()), (2, "full"));
        assert_eq!(error.details, Some(Details::RetryInfo(RetryInfo { retry_after_nanoseconds: 30_000_000_000 })));
    }

    #[test]
    fn the_server_says_what_it_is_able_to_do_and_nothing_more() {
        // S2A-06, S2A-08, S2A-09
        assert_eq!(server_capabilities(CertificateRequests::NotServed), 0x27);
        assert_eq!(server_capabilities(CertificateRequests::Served), 0x67, "CSR-12");
    }

    #[test]
    fn the_content_of_an_offer_is_never_shown() {
        let said = Said { remote_config: Some(Bytes::from_static(b"secret")), ..Said::default() };
        assert_eq!(format!("{:?}", said.to(uid())), "Outbound { size: 24, .. }");
    }
}
