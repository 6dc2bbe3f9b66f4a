//! What is to be looked at, and when; without a clock of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// Pieces of work with the time at which each is due. A piece that is at work is not handed out a second time; asked
/// for meanwhile, it is due again afterwards.
#[derive(Debug)]
pub struct Agenda<T> {
    due: BTreeMap<T, Instant>,
    at_work: BTreeSet<T>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { due: BTreeMap::new(), at_work: BTreeSet::new() }
    }
}

impl<T: Clone + Ord> Agenda<T> {
    /// Asks for a piece of work at this time; an earlier time that was asked for stays.
    pub fn ask(&mut self, work: T, at: Instant) {
        let due = self.due.entry(work).or_insert(at);
        *due = at.min(*due);
    }

    /// The next piece that is due and not at work: the one that has been due for the longest, so that none is passed
    /// over for ever.
    pub fn next_due(&mut self, now: Instant) -> Option<T> {
        let due = self.due.iter().filter(|(work, at)| **at <= now && !self.at_work.contains(*work));
        let work = due.min_by_key(|(_, at)| **at).map(|(work, _)| work.clone())?;
        self.due.remove(&work);
        Some(work)
    }

    /// When [`Self::next_due`] will have something, unless it is asked for earlier.
    #[must_use]
    pub fn next_time(&self) -> Option<Instant> {
        self.due.iter().filter(|(work, _)| !self.at_work.contains(*work)).map(|(_, at)| *at).min()
    }

    /// A piece is at work from now on.
    pub fn begin(&mut self, work: T) {
        self.at_work.insert(work);
    }

    /// A piece is no longer at work.
    pub fn end(&mut self, work: &T) {
        self.at_work.remove(work);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_earliest_time_counts() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut agenda = Agenda::default();
        agenda.ask("edge", after(5));
        agenda.ask("edge", after(3));
        agenda.ask("edge", after(4));
        assert_eq!(agenda.next_time(), Some(after(3)));
        assert_eq!(agenda.next_due(after(2)), None);
        assert_eq!(agenda.next_due(after(3)), Some("edge"));
        assert_eq!((agenda.next_due(after(9)), agenda.next_time()), (None, None));
    }

    #[test]
    fn what_has_been_due_for_the_longest_comes_first() {
        let start = Instant::now();
        let mut agenda = Agenda::default();
        agenda.ask("core", start + Duration::from_secs(2));
        agenda.ask("edge", start + Duration::from_secs(1));
        let later = start + Duration::from_secs(3);
        assert_eq!([agenda.next_due(later), agenda.next_due(later)], [Some("edge"), Some("core")]);
    }

    #[test]
    fn what_is_at_work_waits_for_its_end() {
        let start = Instant::now();
        let mut agenda = Agenda::default();
        agenda.begin("edge");
        agenda.ask("edge", start);
        agenda.ask("core", start);
        assert_eq!(agenda.next_due(start), Some("core"));
        assert_eq!((agenda.next_due(start), agenda.next_time()), (None, None));
        agenda.end(&"edge");
        assert_eq!(agenda.next_due(start), Some("edge"));
    }
}
