//! Every answer that is no OpAMP message.

use http::{HeaderValue, StatusCode, header};
use hyper::Response;

use super::{
    super::{
        agents::Refusal,
        metrics::HandshakeOutcome,
        proxies::HeaderError,
        room::StoreError,
        websocket::handshake::{self, HandshakeError},
    },
    body::BodyError,
    coding::CodingError,
    router::{Reply, text},
};

/// Why a request is turned away; the text is the body of the response (AMB-21).
#[derive(Debug, thiserror::Error)]
pub enum Rejection {
    /// OpAMP is not served there.
    #[error("OpAMP is not served at this path")]
    Path,
    /// HTTP-01.
    #[error("use POST for an OpAMP message, or GET to open a WebSocket")]
    Method,
    /// HTTP-06, HTTP-07.
    #[error("the Content-Type of an OpAMP message is application/x-protobuf")]
    MediaType,
    /// It opens no WebSocket.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// A proxy says who it is in a way that is not understood.
    #[error(transparent)]
    ClientCertificate(#[from] HeaderError),
    /// AUTH-03.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The body did not arrive.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The body cannot be decoded.
    #[error(transparent)]
    Coding(#[from] CodingError),
    /// Later, perhaps (THR-04).
    #[error(transparent)]
    Overload(#[from] Overload),
    /// A fault of the operator.
    #[error("the message was not answered")]
    NoAnswer,
}

/// Why there is no room now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Overload {
    /// Over [`super::super::Limits::connections`].
    #[error("too many connections")]
    Connections,
    /// Over [`super::super::Limits::handshake_queue`].
    #[error("too many handshakes at once")]
    Handshakes,
    /// Over [`super::super::Limits::unreported`].
    #[error("too many connections that have not reported yet")]
    Unreported,
    /// The operator stops.
    #[error("this replica stops")]
    Draining,
}

impl Rejection {
    /// The status code (AMB-21, AMB-22, AUTH-03, THR-04).
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Path => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::MediaType | Self::Coding(CodingError::Unknown) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Handshake(HandshakeError::Version) => StatusCode::UPGRADE_REQUIRED,
            Self::Handshake(HandshakeError::Method | HandshakeError::NoUpgrade | HandshakeError::Key)
            | Self::ClientCertificate(_)
            | Self::Coding(CodingError::Corrupt(_))
            | Self::Body(BodyError::Broken(_)) => StatusCode::BAD_REQUEST,
            Self::Refused(Refusal::Unauthorized { .. }) => StatusCode::UNAUTHORIZED,
            Self::Refused(Refusal::Forbidden { .. }) => StatusCode::FORBIDDEN,
            Self::Refused(Refusal::TooManyFailures { .. }) => StatusCode::TOO_MANY_REQUESTS,
            Self::Body(BodyError::Store(error)) | Self::Coding(CodingError::Store(error)) => match error {
                StoreError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
                StoreError::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
            },
            Self::Body(BodyError::TooSlow) => StatusCode::REQUEST_TIMEOUT,
            Self::Refused(Refusal::Unavailable { .. }) | Self::Overload(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoAnswer => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// What is counted if the request was to open a WebSocket.
    #[must_use]
    pub fn outcome(&self) -> HandshakeOutcome {
        match self {
            Self::Refused(Refusal::Unauthorized { .. }) => HandshakeOutcome::Unauthorized,
            Self::Refused(Refusal::Forbidden { .. }) => HandshakeOutcome::Forbidden,
            Self::Refused(Refusal::TooManyFailures { .. }) => HandshakeOutcome::TooManyFailures,
            Self::Refused(Refusal::Unavailable { .. }) => HandshakeOutcome::Unavailable,
            Self::Overload(Overload::Connections) => HandshakeOutcome::TooManyConnections,
            Self::Overload(Overload::Handshakes) => HandshakeOutcome::QueueFull,
            Self::Overload(Overload::Unreported) => HandshakeOutcome::TooManyUnreported,
            Self::Overload(Overload::Draining) => HandshakeOutcome::Draining,
            Self::Path
            | Self::Method
            | Self::MediaType
            | Self::Handshake(_)
            | Self::ClientCertificate(_)
            | Self::Body(_)
            | Self::Coding(_)
            | Self::NoAnswer => HandshakeOutcome::Malformed,
        }
    }

    /// The response. `retry_after` is in seconds and used where it has a meaning.
    #[must_use]
    pub fn reply(&self, retry_after: u64) -> Reply {
        let mut reply = Response::new(text(self.to_string() + "\n"));
        *reply.status_mut() = self.status();
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        match self {
            Self::Method => {
                headers.insert(header::ALLOW, HeaderValue::from_static("GET, POST"));
            }
            Self::Coding(CodingError::Unknown) => {
                headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip, identity"));
            }
            Self::Handshake(HandshakeError::Version) => {
                headers.insert(header::SEC_WEBSOCKET_VERSION, handshake::VERSION);
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
                headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            }
            Self::Refused(Refusal::Unauthorized { challenge, message: _ }) => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            }
            Self::Refused(Refusal::TooManyFailures { retry_after }) => {
                let seconds = u64::try_from(retry_after.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Self::Body(BodyError::Store(StoreError::NoRoom))
            | Self::Coding(CodingError::Store(StoreError::NoRoom))
            | Self::Refused(Refusal::Unavailable { .. })
            | Self::Overload(_) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after));
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Self::Body(BodyError::TooSlow | BodyError::Store(StoreError::TooLarge(_)) | BodyError::Broken(_)) => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Self::Path
            | Self::MediaType
            | Self::ClientCertificate(_)
            | Self::Refused(Refusal::Forbidden { .. })
            | Self::Coding(CodingError::Corrupt(_) | CodingError::Store(StoreError::TooLarge(_)))
            | Self::Handshake(HandshakeError::Method | HandshakeError::NoUpgrade | HandshakeError::Key)
            | Self::NoAnswer => {}
        }
        reply
    }
}
