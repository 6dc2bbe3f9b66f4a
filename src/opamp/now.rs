//! Time as an argument.

use std::time::Instant;

/// One reading of both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For deadlines.
    pub instant: Instant,
    /// For what people read.
    pub wall: jiff::Timestamp,
}
