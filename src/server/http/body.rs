//! The body of a request, within limits of size, time and memory.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{error::Elapsed, timeout};

use super::super::{room::StoreError, shared::Shared};

/// Why a body did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// There is no room for it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It came too slowly, or half of it never.
    #[error("the body did not arrive in time")]
    TooSlow,
    /// The connection ended within it, or its framing is wrong.
    #[error("the body is incomplete")]
    Broken(#[source] hyper::Error),
}

impl From<Elapsed> for BodyError {
    fn from(_: Elapsed) -> Self {
        Self::TooSlow
    }
}

/// Reads all of it.
pub async fn read(body: Incoming, shared: &Shared) -> Result<Bytes, BodyError> {
    timeout(shared.limits.body_timeout, collect(body, shared)).await?
}

async fn collect(mut body: Incoming, shared: &Shared) -> Result<Bytes, BodyError> {
    let limit = shared.limits.message_bytes;
    if body.size_hint().lower() > limit as u64 {
        return Err(StoreError::TooLarge(limit).into());
    }
    let mut stored = shared.stored(limit);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
        stored.append(&data)?;
    }
    Ok(stored.into())
}
