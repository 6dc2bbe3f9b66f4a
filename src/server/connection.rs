//! One peer, and how the rest of the operator reaches the task that serves it.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{Notify, SetOnce};

use super::peer::Protection;
use crate::opamp::{identity::Principal, session::ConnectionId, violation::Violation};

/// How a peer is connected. The text is what `Agent.status.connection.transport` shows.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Transport {
    /// A WebSocket, until it is closed.
    WebSocket,
    /// One HTTP request.
    Http,
}

impl fmt::Display for Transport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::WebSocket => "WebSocket",
            Self::Http => "HTTP",
        })
    }
}

/// One WebSocket, or one HTTP request.
///
/// Its methods may be called from anywhere: they leave a mark and wake the task of the connection, which needs neither a
/// channel nor a lock. Marks do not add up; calling one twice before the task has looked is calling it once. On an HTTP
/// request they do nothing.
#[derive(Debug)]
pub struct Connection {
    /// Unique in this process.
    pub id: ConnectionId,
    /// How it is connected.
    pub transport: Transport,
    /// Who it is, as its credential says.
    pub principal: Arc<Principal>,
    /// The address it comes from, which may be a proxy's or a NAT's.
    pub remote: SocketAddr,
    /// How it is connected to the listener.
    pub protection: Protection,
    marks: Marks,
}

#[derive(Debug, Default)]
struct Marks {
    changed: Notify,
    wake: AtomicBool,
    ping: AtomicBool,
    close: SetOnce<CloseReason>,
}

impl Connection {
    /// A connection that nobody serves yet.
    #[must_use]
    pub fn new(
        id: ConnectionId,
        transport: Transport,
        principal: Arc<Principal>,
        remote: SocketAddr,
        protection: Protection,
    ) -> Self {
        Self { id, transport, principal, remote, protection, marks: Marks::default() }
    }

    /// Has [`super::Agents::due`] called soon.
    pub fn wake(&self) {
        self.marks.wake.store(true, Ordering::Release);
        self.marks.changed.notify_one();
    }

    /// Has a ping sent, whose answer arrives as [`super::Agents::pong`] (AMB-14).
    pub fn ping(&self) {
        self.marks.ping.store(true, Ordering::Release);
        self.marks.changed.notify_one();
    }

    /// Has the connection closed after what is already queued, for which the peer has [`super::Limits::close_timeout`].
    /// The first reason stays.
    pub fn close(&self, reason: CloseReason) {
        if self.marks.close.set(reason).is_ok() {
            self.marks.changed.notify_one();
        }
    }

    /// Waits until one of the above was called. Cancelling it loses nothing.
    pub(super) async fn marked(&self) {
        self.marks.changed.notified().await;
    }

    /// Waits until [`Self::close`] was called.
    pub(super) async fn closing(&self) -> CloseReason {
        *self.marks.close.wait().await
    }

    pub(crate) fn take_wake(&self) -> bool {
        self.marks.wake.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn take_ping(&self) -> bool {
        self.marks.ping.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.marks.close.get().copied()
    }
}

/// Why the server ends a WebSocket. Each has its code and its words in the Close frame (CONN-05).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum CloseReason {
    /// The operator stops; the agent is to come back at once, to another replica.
    Draining,
    /// Another connection speaks for its agents, and this one did not answer a ping (AMB-14).
    Superseded,
    /// The credential or the agent has been revoked while it was connected (CON-14, AMB-43).
    Revoked,
    /// Nothing was heard for too long, not even the answer to a ping.
    Silent,
    /// No agent reported after the upgrade.
    NeverReported,
    /// A message was begun and not finished in time.
    Stalled,
    /// The peer does not read what it is sent.
    NotReading,
    /// The frames break RFC 6455.
    ProtocolError,
    /// The reason in the peer's Close frame is not UTF-8.
    InvalidText,
    /// A message is over the size limit (AMB-22).
    TooLarge,
    /// Text messages, the last of too many offences (AMB-19).
    TextMessages,
    /// Messages that are no protobuf, the last of too many offences (AMB-19).
    Undecodable,
    /// Messages that break another rule, the last of too many offences (AMB-19).
    Offences,
}

impl CloseReason {
    /// The reason if this violation was one too many (AMB-19).
    #[must_use]
    pub fn after(violation: &Violation) -> Self {
        match violation {
            Violation::NotBinary => Self::TextMessages,
            Violation::Undecodable { .. } => Self::Undecodable,
            Violation::HeaderMissing
            | Violation::HeaderTruncated
            | Violation::HeaderTooLong
            | Violation::HeaderNotZero(_)
            | Violation::EmptyMessage
            | Violation::UidLength { .. }
            | Violation::CertificateRequestMissing
            | Violation::CertificateRequestTooLarge { .. } => Self::Offences,
        }
    }

    /// The status code of RFC 6455 §7.4.1.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::Draining => 1001,
            Self::ProtocolError => 1002,
            Self::TextMessages => 1003,
            Self::InvalidText | Self::Undecodable => 1007,
            Self::Superseded | Self::Revoked | Self::NeverReported | Self::Stalled | Self::Offences => 1008,
            Self::TooLarge => 1009,
            Self::Silent | Self::NotReading => 1011,
        }
    }

    /// What the peer is told; at most 123 bytes, so that it fits into a control frame.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Draining => "this replica stops, connect again",
            Self::Superseded => "another connection speaks for this instance_uid",
            Self::Revoked => "the credential or the agent has been revoked",
            Self::Silent => "no answer to a ping",
            Self::NeverReported => "no AgentToServer arrived in time",
            Self::Stalled => "a message was begun and not finished in time",
            Self::NotReading => "what was sent was not read in time",
            Self::ProtocolError => "the frames break RFC 6455",
            Self::InvalidText => "the reason for closing is not UTF-8",
            Self::TooLarge => "the message is over the size limit",
            Self::TextMessages => "OpAMP messages are binary",
            Self::Undecodable => "too many messages were not a valid AgentToServer",
            Self::Offences => "too many malformed messages",
        }
    }

    /// The label of the metric.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Superseded => "superseded",
            Self::Revoked => "revoked",
            Self::Silent => "silent",
            Self::NeverReported => "never_reported",
            Self::Stalled => "stalled",
            Self::NotReading => "not_reading",
            Self::ProtocolError => "protocol_error",
            Self::InvalidText => "invalid_text",
            Self::TooLarge => "too_large",
            Self::TextMessages => "text_messages",
            Self::Undecodable => "undecodable",
            Self::Offences => "offences",
        }
    }
}
