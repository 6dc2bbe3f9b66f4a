//! Memory for messages that are not finished, limited for all connections together.

use std::{io, sync::Arc};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of an unfinished message that need no permit: usual reports are below, and 15,000 connections with so much each
/// stay below 250 MB.
pub const FREE_BYTES: usize = 16 << 10;

/// Why nothing more is stored.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// AMB-22.
    #[error("the message is over the limit of {0} bytes")]
    TooLarge(usize),
    /// Too many large messages arrive or leave at the same time.
    #[error("too many large messages at once")]
    NoRoom,
}

/// Bytes that are written one after the other, and the right to their memory.
///
/// Memory is asked for as it is filled, twice as much each time: who only announces much takes none from others.
pub struct Stored {
    bytes: Vec<u8>,
    limit: usize,
    reserved: usize,
    room: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Stored {
    /// Nothing yet; at most `limit` bytes, beyond the free ones out of `room`.
    pub fn new(room: &Arc<Semaphore>, limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, reserved: FREE_BYTES, room: Arc::clone(room), permit: None }
    }

    /// Appends, or stays as it is.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if bytes.len() > self.limit - self.bytes.len() {
            return Err(StoreError::TooLarge(self.limit));
        }
        let total = self.bytes.len() + bytes.len();
        if total > self.reserved {
            self.reserve(total.max(self.reserved.saturating_mul(2)).min(self.limit))?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn reserve(&mut self, total: usize) -> Result<(), StoreError> {
        let more = u32::try_from(total - self.reserved).map_err(|_| StoreError::NoRoom)?;
        let permit = Arc::clone(&self.room).try_acquire_many_owned(more).map_err(|_| StoreError::NoRoom)?;
        match &mut self.permit {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        self.reserved = total;
        self.bytes.reserve_exact(total - self.bytes.len());
        Ok(())
    }
}

impl io::Write for Stored {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRef<[u8]> for Stored {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Stored> for Bytes {
    /// Without a copy; the memory is given back with the last clone.
    fn from(stored: Stored) -> Self {
        Self::from_owner(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_as_it_is_filled_and_given_back_with_the_last_clone() {
        const LIMIT: usize = 100_000;
        let room = Arc::new(Semaphore::new(150_000));
        let mut stored = Stored::new(&room, LIMIT);
        for (stored_bytes, taken) in [
            (16_384, 0),
            (16_385, 16_384),
            (32_768, 16_384),
            (32_769, 49_152),
            (65_537, LIMIT - FREE_BYTES),
            (LIMIT, LIMIT - FREE_BYTES),
        ] {
            stored.append(&vec![7; stored_bytes - stored.bytes.len()]).unwrap();
            assert_eq!(150_000 - room.available_permits(), taken, "{stored_bytes} bytes");
            assert!(stored.bytes.capacity() <= taken + FREE_BYTES, "{stored_bytes} bytes: {}", stored.bytes.capacity());
        }
        assert_eq!(stored.append(b"x"), Err(StoreError::TooLarge(LIMIT)));
        let bytes = Bytes::from(stored);
        let part = bytes.slice(1..2);
        drop(bytes);
        assert!(room.available_permits() < 150_000);
        drop(part);
        assert_eq!(room.available_permits(), 150_000);
    }

    #[test]
    fn what_finds_no_room_takes_none() {
        let room = Arc::new(Semaphore::new(20_000));
        let mut stored = Stored::new(&room, 1 << 20);
        stored.append(&vec![7; 30_000]).unwrap();
        assert_eq!(stored.append(&[7; 10_000]), Err(StoreError::NoRoom));
        assert_eq!((stored.bytes.len(), room.available_permits()), (30_000, 20_000 - FREE_BYTES));
    }
}
