//! The present moment, as an argument of everything that decides.

use std::time::Instant;

use jiff::Timestamp;

/// One moment on both clocks: the one that never jumps, for deadlines, and the one that people read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Now {
    /// For deadlines and distances.
    pub instant: Instant,
    /// For what is shown.
    pub wall: Timestamp,
}
