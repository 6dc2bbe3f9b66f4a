//! Whether an agent is there, and through which channel.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::channel::Channel;
use crate::opamp::now::Now;

/// An agent that polls over HTTP and says nothing for so long is gone, unless the owner sets another limit (AMB-12).
pub const SILENCE_LIMIT: Duration = Duration::from_secs(300);

/// After a goodbye a message that does not count on is a straggler for so long (AMB-23).
const STRAGGLERS: Duration = Duration::from_secs(30);

/// Whether the agent is connected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Liveness {
    /// It has not spoken yet, or only to ask for another uid.
    Unheard,
    /// It speaks through this channel.
    Connected {
        /// The newest that is its own.
        channel: Channel,
        /// Since it speaks through this channel.
        since: Timestamp,
    },
    /// It was there.
    Disconnected {
        /// Since when it is away.
        since: Timestamp,
        /// How it went.
        how: Ending,
    },
}

impl Liveness {
    /// The channel through which it speaks now.
    #[must_use]
    pub fn channel(self) -> Option<Channel> {
        match self {
            Self::Connected { channel, .. } => Some(channel),
            Self::Unheard | Self::Disconnected { .. } => None,
        }
    }
}

/// How an agent went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ending {
    /// It said goodbye (A2S-07).
    Goodbye,
    /// Its socket was closed without a word.
    SocketClosed,
    /// It no longer polls.
    Silent,
    /// It asked for another uid and goes on under that (A2S-03).
    Reidentified,
}

/// The inner side of [`Liveness`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Presence {
    Unheard,
    Here { channel: Channel, since: Timestamp, heard: Instant },
    Gone { channel: Channel, since: Timestamp, at: Now, how: Ending },
}

/// Whether a message began a new stretch of presence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Arrival {
    /// Through a channel that was not the agent's before.
    Began,
    /// As before.
    Continued,
}

impl Presence {
    pub(super) fn liveness(self) -> Liveness {
        match self {
            Self::Unheard => Liveness::Unheard,
            Self::Here { channel, since, .. } => Liveness::Connected { channel, since },
            Self::Gone { at, how, .. } => Liveness::Disconnected { since: at.wall, how },
        }
    }

    /// The channel through which it speaks now.
    pub(super) fn channel(self) -> Option<Channel> {
        match self {
            Self::Here { channel, .. } => Some(channel),
            Self::Unheard | Self::Gone { .. } => None,
        }
    }

    /// The present or last stretch in which it spoke through one channel: which, and since when.
    pub(super) fn stretch(self) -> Option<(Channel, Timestamp)> {
        match self {
            Self::Here { channel, since, .. } | Self::Gone { channel, since, .. } => Some((channel, since)),
            Self::Unheard => None,
        }
    }

    /// The agent was heard.
    pub(super) fn arrive(&mut self, from: Channel, now: Now) -> Arrival {
        match self {
            Self::Here { channel, heard, .. } if *channel == from => {
                *heard = now.instant;
                Arrival::Continued
            }
            Self::Here { .. } | Self::Unheard | Self::Gone { .. } => {
                *self = Self::Here { channel: from, since: now.wall, heard: now.instant };
                Arrival::Began
            }
        }
    }

    /// The agent went, if it was there.
    pub(super) fn depart(&mut self, how: Ending, now: Now) {
        if let Self::Here { channel, since, .. } = *self {
            *self = Self::Gone { channel, since, at: now, how };
        }
    }

    /// Whether a message that does not count on is an echo of a session that ended in good order through this channel.
    pub(super) fn said_goodbye_just_now(self, from: Channel, now: Now) -> bool {
        matches!(self, Self::Gone { channel, at, how: Ending::Goodbye, .. }
            if channel == from && now.instant.saturating_duration_since(at.instant) < STRAGGLERS)
    }

    /// When it will have been silent for too long; a WebSocket never is, its socket tells (HB-05).
    pub(super) fn silent_at(self, limit: Duration) -> Option<Instant> {
        match self {
            Self::Here { channel: Channel::Http, heard, .. } => heard.checked_add(limit),
            Self::Here { channel: Channel::WebSocket(_), .. } | Self::Unheard | Self::Gone { .. } => None,
        }
    }
}
