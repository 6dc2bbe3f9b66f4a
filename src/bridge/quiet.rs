//! How often the same is said of one agent, or of one namespace: whoever is kept out tries again for ever.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

/// Once in this time.
const INTERVAL: Duration = Duration::from_secs(3600);
/// So many subjects are remembered, because anybody can make up uids.
const LIMIT: usize = 10_000;
/// How often it is looked which may be forgotten, when there is no room.
const TIDIED: Duration = Duration::from_secs(10);

/// When something was said of which subject.
#[derive(Debug)]
pub(super) struct Quiet<S> {
    said: HashMap<S, Instant>,
    tidied: Option<Instant>,
}

/// Whether something is to be said of a subject.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Turn {
    /// It is, and counts as said.
    Speak,
    /// It was said already.
    Silence,
    /// There are too many to remember whether it was: it is to be said of all of them together.
    Crowd,
}

impl<S> Default for Quiet<S> {
    fn default() -> Self {
        Self { said: HashMap::new(), tidied: None }
    }
}

impl<S: Eq + Hash> Quiet<S> {
    /// Whether it is to be said now.
    pub(super) fn turn(&mut self, subject: S, now: Instant) -> Turn {
        let is_recent = |said: &Instant| now.saturating_duration_since(*said) < INTERVAL;
        if self.said.get(&subject).is_some_and(is_recent) {
            return Turn::Silence;
        }
        if self.said.len() >= LIMIT && self.tidied.is_none_or(|tidied| now >= tidied + TIDIED) {
            self.tidied = Some(now);
            self.said.retain(|_, said| is_recent(said));
        }
        if self.said.len() >= LIMIT {
            return Turn::Crowd;
        }
        self.said.insert(subject, now);
        Turn::Speak
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opamp::InstanceUid;

    #[test]
    fn the_same_is_said_once_an_hour_of_each_and_of_no_more_than_fit() {
        let start = Instant::now();
        let agent = |number: usize| InstanceUid::from_wire(&(number as u128).to_be_bytes()).expect("16 bytes");
        let mut quiet = Quiet::default();
        for (case, number, after, expected) in [
            ("the first time", 1, Duration::ZERO, Turn::Speak),
            ("within the hour", 1, Duration::from_secs(3599), Turn::Silence),
            ("of another", 2, Duration::ZERO, Turn::Speak),
            ("after an hour", 1, INTERVAL, Turn::Speak),
        ] {
            assert_eq!(quiet.turn(agent(number), start + after), expected, "{case}");
        }
        let turns: Vec<_> = (0..2 * LIMIT).map(|number| quiet.turn(agent(number), start + INTERVAL)).collect();
        let count = |turn| turns.iter().filter(|it| **it == turn).count();
        assert_eq!([Turn::Speak, Turn::Silence, Turn::Crowd].map(count), [LIMIT - 1, 1, LIMIT]);
        assert_eq!(quiet.turn(agent(3 * LIMIT), start + 2 * INTERVAL), Turn::Speak);
        assert_eq!(quiet.said.len(), 1);
    }
}
