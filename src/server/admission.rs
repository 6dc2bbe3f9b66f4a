//! Who may connect, and when.
//!
//! The order is the point: whoever cannot be served is told so before the upgrade, because clients retry a refused
//! handshake with back-off, but an accepted and then closed connection at once.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{limits::Limits, pacing::Ramp, shared::now};

/// Connections over [`Limits::connections`] that are open only to be told so. More wait in the kernel's backlog.
pub const SURPLUS: usize = 256;

/// Counts what is open and paces what comes.
#[derive(Debug)]
pub struct Admission {
    connections: Arc<Semaphore>,
    surplus: Arc<Semaphore>,
    unreported: Arc<Semaphore>,
    ramp: Arc<Mutex<Ramp>>,
}

/// The right to an open connection; given back when dropped.
#[derive(Debug)]
pub struct Slot {
    /// What may be done on it.
    pub standing: Standing,
    _permit: OwnedSemaphorePermit,
}

/// Whether a connection counts among those that are served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// It is served.
    Regular,
    /// It is one too many: its request gets 503.
    Surplus,
}

/// The right to a WebSocket that has not reported yet; given back when dropped.
#[derive(Debug)]
pub struct Unreported {
    _permit: OwnedSemaphorePermit,
}

/// The turn of a handshake; given back when dropped before its time.
#[derive(Debug)]
pub struct Turn {
    /// When the handshake may go on.
    pub at: Instant,
    ramp: Arc<Mutex<Ramp>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.ramp).give_back(self.at, now().instant);
    }
}

fn lock(ramp: &Mutex<Ramp>) -> MutexGuard<'_, Ramp> {
    ramp.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Admission {
    /// Nothing is open yet.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let ramp = Ramp::new(limits.handshakes_per_second, limits.handshake_queue, limits.handshake_wait);
        Self {
            connections: Arc::new(Semaphore::new(limits.connections)),
            surplus: Arc::new(Semaphore::new(SURPLUS)),
            unreported: Arc::new(Semaphore::new(limits.unreported)),
            ramp: Arc::new(Mutex::new(ramp)),
        }
    }

    /// Waits until one more connection may be open. `None` never comes while the server runs.
    pub async fn slot(&self) -> Option<Slot> {
        tokio::select! {
            biased;
            permit = Arc::clone(&self.connections).acquire_owned() => Slot::new(Standing::Regular, permit.ok()),
            permit = Arc::clone(&self.surplus).acquire_owned() => Slot::new(Standing::Surplus, permit.ok()),
        }
    }

    /// The slot of a connection that has come now: what was one too many when the slot was given may be so no more.
    pub fn review(&self, slot: Slot) -> Slot {
        match slot.standing {
            Standing::Regular => slot,
            Standing::Surplus => {
                let permit = Arc::clone(&self.connections).try_acquire_owned().ok();
                Slot::new(Standing::Regular, permit).unwrap_or(slot)
            }
        }
    }

    /// The turn of one more handshake, or `None` if too many wait already.
    pub fn turn(&self, now: Instant) -> Option<Turn> {
        let at = lock(&self.ramp).turn(now)?;
        Some(Turn { at, ramp: Arc::clone(&self.ramp) })
    }

    /// The right to open one more WebSocket, unless too many have not reported yet.
    pub fn unreported(&self) -> Option<Unreported> {
        Arc::clone(&self.unreported).try_acquire_owned().ok().map(|permit| Unreported { _permit: permit })
    }

    /// Whether [`Self::unreported`] would be refused now.
    pub fn is_crowded(&self) -> bool {
        self.unreported.available_permits() == 0
    }

    /// Connections and WebSockets that have not reported for which there is room now.
    #[cfg(test)]
    pub fn available(&self) -> (usize, usize) {
        (self.connections.available_permits(), self.unreported.available_permits())
    }
}

impl Slot {
    fn new(standing: Standing, permit: Option<OwnedSemaphorePermit>) -> Option<Self> {
        permit.map(|permit| Self { standing, _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn connections_over_the_limit_are_surplus_and_then_wait() {
        let admission = Admission::new(&Limits { connections: 2, ..Limits::default() });
        let slot = || admission.slot().now_or_never().flatten();
        let regular: Vec<_> = (0..2).filter_map(|_| slot()).collect();
        assert!(regular.iter().all(|slot| slot.standing == Standing::Regular));
        let mut surplus: Vec<_> = (0..SURPLUS).filter_map(|_| slot()).collect();
        assert_eq!(surplus.len(), SURPLUS);
        assert!(surplus.iter().all(|slot| slot.standing == Standing::Surplus));
        assert!(slot().is_none(), "the kernel keeps the rest");
        let one = admission.review(surplus.pop().unwrap());
        assert_eq!(one.standing, Standing::Surplus);
        drop(regular);
        assert_eq!(admission.review(one).standing, Standing::Regular, "there is room when it is used");
        assert_eq!(slot().map(|slot| slot.standing), Some(Standing::Regular));
    }

    #[test]
    fn a_websocket_that_has_reported_makes_room_for_the_next() {
        let admission = Admission::new(&Limits { unreported: 1, ..Limits::default() });
        let first = admission.unreported();
        assert!(first.is_some());
        assert!(admission.unreported().is_none() && admission.is_crowded());
        drop(first);
        assert!(admission.unreported().is_some());
    }
}
