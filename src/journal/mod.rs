//! Lines of the log that somebody else may bring about as fast as they can: one of a kind in ten seconds, with how many it
//! stands for, so that a crowd fills no disk and drowns nothing.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How often a line of one kind is written; what comes between is counted.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// Kinds that are told apart; the rest shares one line.
pub const MOST: usize = 1_000;

/// Which lines were written lately, and what was left out since.
#[derive(Debug)]
pub struct Journal<Kind, Line> {
    /// `None` is all for which there is no room.
    told: Mutex<HashMap<Option<Kind>, Told<Line>>>,
}

#[derive(Debug)]
struct Told<Line> {
    at: Instant,
    left_out: u64,
    last: Line,
}

impl<Line> Told<Line> {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.at + INTERVAL
    }
}

impl<Kind, Line> Default for Journal<Kind, Line> {
    fn default() -> Self {
        Self { told: Mutex::default() }
    }
}

impl<Kind: Eq + Hash, Line: Clone> Journal<Kind, Line> {
    /// For how many the line stands that is to be written now, if any is.
    pub fn take(&self, kind: Kind, line: &Line, now: Instant) -> Option<u64> {
        let (mut told, kind) = (self.told(), Some(kind));
        if told.len() >= MOST && !told.contains_key(&kind) {
            told.retain(|_, told| !told.is_over(now) || told.left_out > 0);
        }
        let kind = if told.contains_key(&kind) || told.len() < MOST { kind } else { None };
        match told.get_mut(&kind) {
            Some(told) if told.is_over(now) => {
                told.at = now;
                Some(std::mem::take(&mut told.left_out) + 1)
            }
            Some(told) => {
                told.left_out += 1;
                told.last = line.clone();
                None
            }
            None => {
                told.insert(kind, Told { at: now, left_out: 0, last: line.clone() });
                Some(1)
            }
        }
    }

    /// What was left out and would not be told otherwise, and for how many each line stands. To be asked every few seconds.
    pub fn left_over(&self, now: Instant) -> Vec<(Line, u64)> {
        let mut left_over = Vec::new();
        self.told().retain(|_, told| {
            let is_over = told.is_over(now);
            if is_over && told.left_out > 0 {
                left_over.push((told.last.clone(), told.left_out));
            }
            !is_over
        });
        left_over
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.told().is_empty()
    }

    fn told(&self) -> MutexGuard<'_, HashMap<Option<Kind>, Told<Line>>> {
        // No holder can leave half a change behind.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
