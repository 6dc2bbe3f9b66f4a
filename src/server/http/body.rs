//! The body of a request, within limits of size, time and memory.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{error::Elapsed, timeout},
};

use super::super::{shared::Shared, websocket::FREE_BYTES};

/// Why a body did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// AMB-22.
    #[error("the body is over the limit of {0} bytes")]
    TooLarge(usize),
    /// It came too slowly, or half of it never.
    #[error("the body did not arrive in time")]
    TooSlow,
    /// Too many large bodies arrive at the same time.
    #[error("too many large messages at once")]
    NoRoom,
    /// The connection ended within it, or its framing is wrong.
    #[error("the body is incomplete")]
    Broken(#[source] hyper::Error),
}

impl From<Elapsed> for BodyError {
    fn from(_: Elapsed) -> Self {
        Self::TooSlow
    }
}

/// A whole body, as it came.
pub struct Received {
    /// The bytes.
    pub bytes: Bytes,
    /// The right to their memory.
    _room: Vec<OwnedSemaphorePermit>,
}

/// Reads all of it.
pub async fn read(body: Incoming, shared: &Shared) -> Result<Received, BodyError> {
    timeout(shared.limits.body_timeout, collect(body, shared)).await?
}

async fn collect(mut body: Incoming, shared: &Shared) -> Result<Received, BodyError> {
    let limit = shared.limits.message_bytes;
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(BodyError::TooLarge(limit));
    }
    let mut room = Room { shared, reserved: FREE_BYTES, permits: Vec::new() };
    room.reserve(announced)?;
    let mut bytes = BytesMut::with_capacity(announced);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
        let total = bytes.len().saturating_add(data.len());
        if total > limit {
            return Err(BodyError::TooLarge(limit));
        }
        room.reserve(total)?;
        bytes.extend_from_slice(&data);
    }
    Ok(Received { bytes: bytes.freeze(), _room: room.permits })
}

/// The memory that a body may fill.
struct Room<'a> {
    shared: &'a Shared,
    reserved: usize,
    permits: Vec<OwnedSemaphorePermit>,
}

impl Room<'_> {
    /// Makes sure of room for so many bytes altogether. Asks for twice what it has, so as not to ask for each piece.
    fn reserve(&mut self, total: usize) -> Result<(), BodyError> {
        if total <= self.reserved {
            return Ok(());
        }
        let wanted = total.max(self.reserved * 2) - self.reserved;
        let permit = Arc::clone(&self.shared.room)
            .try_acquire_many_owned(self.shared.permits(wanted))
            .map_err(|_| BodyError::NoRoom)?;
        self.reserved += wanted;
        self.permits.push(permit);
        Ok(())
    }
}
