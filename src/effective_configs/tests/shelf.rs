//! What waits, what is kept, and for how many there is room.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    core::PartialObjectMeta,
    runtime::watcher::Event::{self, Apply, Delete, Init, InitApply, InitDone},
};

use super::{
    super::{
        shelf::*,
        stored::{Draft, HASH_ANNOTATION},
    },
    agent, draft,
};
use crate::{api::agent::NotStored, kubernetes::ObjectKey};

const TOO_MANY: Handed = Handed::Not(NotStored::TooMany);
const REFUSED: Option<NotStored> = Some(NotStored::Refused);

/// Who was told that which text is kept, or why not.
type Told = (usize, usize, Option<NotStored>);

/// A shelf over all namespaces, and a clock.
struct Bench {
    shelf: Shelf,
    now: Instant,
}

impl Bench {
    /// Before anything was listed.
    fn unlisted() -> Self {
        Self { shelf: Shelf::new([None]), now: Instant::now() }
    }

    /// With these texts in Secrets.
    fn with(kept: impl IntoIterator<Item = usize>) -> Self {
        let mut bench = Self::unlisted();
        bench.list(kept);
        bench
    }

    fn list(&mut self, kept: impl IntoIterator<Item = usize>) -> Noticed {
        self.sees(Init);
        for number in kept {
            self.sees(InitApply(shown(&draft(number))));
        }
        self.sees(InitDone)
    }

    fn sees(&mut self, event: Event<PartialObjectMeta<Secret>>) -> Noticed {
        self.shelf.apply(&None, event, self.now)
    }

    fn put(&mut self, number: usize, by: usize) -> Handed {
        self.shelf.put(draft(number), agent(by), self.now)
    }

    fn later(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// Writes what is due, and says who was told what.
    fn write(&mut self, attempt: Attempt) -> Vec<Told> {
        match self.shelf.next(self.now) {
            Next::Write(draft) => told(self.shelf.tried(&draft, attempt, self.now)),
            Next::At(_) | Next::Idle => panic!("nothing is due"),
        }
    }

    fn next(&mut self) -> Next {
        self.shelf.next(self.now)
    }
}

/// As the watch shows a text that was written.
fn shown(draft: &Draft) -> PartialObjectMeta<Secret> {
    let mut metadata = draft.secret().metadata.clone();
    metadata.resource_version = Some("1".into());
    PartialObjectMeta { metadata, ..PartialObjectMeta::default() }
}

fn told(news: Vec<News>) -> Vec<Told> {
    let agent = |uid| (0..1_000).find(|number| super::agent(*number) == uid).expect("one of ours");
    let text = |secret: &str| (0..1_000).find(|number| draft(*number).key().name == secret).expect("one of ours");
    let mut told: Vec<_> =
        news.into_iter().map(|news| (agent(news.agent), text(&news.secret), news.not_stored)).collect();
    told.sort_by_key(|(agent, ..)| *agent);
    told
}

fn waits(number: usize) -> Handed {
    Handed::Waits(Arc::from(draft(number).key().name.as_str()))
}

fn kept(number: usize) -> Handed {
    Handed::Kept(Arc::from(draft(number).key().name.as_str()))
}

fn keys(numbers: &[usize]) -> BTreeSet<ObjectKey> {
    numbers.iter().map(|number| draft(*number).key().clone()).collect()
}

#[test]
fn agents_that_run_the_same_are_one_write() {
    let mut bench = Bench::with([]);
    for by in 0..3 {
        assert_eq!(bench.put(1, by), waits(1));
    }
    assert_eq!(bench.write(Attempt::Done), [(0, 1, None), (1, 1, None), (2, 1, None)]);
    assert_eq!(bench.next(), Next::Idle);
    assert_eq!(bench.put(1, 3), kept(1), "what was written is known before the watch shows it");
    assert_eq!(bench.sees(Apply(shown(&draft(1)))), Noticed::default());
    assert_eq!(bench.put(1, 4), kept(1));
}

#[test]
fn nothing_is_written_before_it_is_known_what_there_is() {
    let mut bench = Bench::unlisted();
    assert_eq!(bench.put(1, 1), waits(1));
    assert_eq!(bench.put(2, 2), waits(2));
    assert_eq!(bench.next(), Next::Idle);
    assert_eq!(bench.shelf.kept(), None);
    bench.sees(Init);
    assert_eq!(told(bench.sees(InitApply(shown(&draft(1)))).news), [(1, 1, None)], "another replica has written it");
    bench.sees(InitDone);
    assert!(matches!(bench.next(), Next::Write(next) if next == draft(2)));
    assert_eq!(bench.shelf.kept().map(|kept| kept.len()), Some(1));
}

#[test]
fn the_latest_text_of_an_agent_wins() {
    let mut bench = Bench::with([]);
    assert_eq!(bench.put(1, 1), waits(1));
    assert_eq!(bench.put(2, 1), waits(2));
    assert_eq!(bench.write(Attempt::Done), [(1, 2, None)]);
    assert_eq!(bench.next(), Next::Idle, "nobody runs the former");
    assert_eq!(bench.put(3, 1), waits(3));
    bench.shelf.withdraw(agent(1));
    assert_eq!(bench.next(), Next::Idle);
}

#[test]
fn a_fleet_has_a_hundred_secrets_and_agents_wait_for_room() {
    let mut bench = Bench::with(0..99);
    assert_eq!(bench.put(99, 99), waits(99), "one that waits counts");
    assert_eq!(bench.put(100, 100), TOO_MANY);
    assert_eq!(bench.put(5, 101), kept(5), "one that is there is no further one");
    assert_eq!(bench.write(Attempt::Done), [(99, 99, None)]);
    assert_eq!(bench.put(100, 100), TOO_MANY);
    assert_eq!(bench.put(101, 102), TOO_MANY);
    assert_eq!(bench.shelf.invite(), []);
    assert_eq!(bench.sees(Delete(shown(&draft(7)))).vanished, keys(&[7]));
    assert_eq!(bench.shelf.invite(), [agent(100)], "as many as there is room for");
    assert_eq!(bench.put(100, 100), waits(100));
    assert_eq!(bench.shelf.invite(), []);
}

#[test]
fn what_was_taken_too_much_before_the_list_was_complete_is_given_back() {
    let mut bench = Bench::unlisted();
    for number in 100..103 {
        assert_eq!(bench.put(number, number), waits(number));
    }
    let noticed = bench.list(0..98);
    assert_eq!(noticed.news.len(), 1);
    assert_eq!(noticed.news[0].not_stored, Some(NotStored::TooMany));
}

#[test]
fn no_more_than_a_few_mebibytes_wait() {
    let text = super::text(&[("", &"x".repeat(256 << 10))]);
    let draft = Draft::of(&text, &super::fleet(), std::iter::empty()).expect("a draft");
    let mut bench = Bench::with([]);
    let mut bytes = 0;
    for number in 0..100 {
        let draft = draft.of_another_fleet(&format!("{number:08x}"));
        assert!(matches!(bench.shelf.put(draft, agent(number), bench.now), Handed::Waits(_)));
    }
    while let Next::Write(draft) = bench.next() {
        bytes += draft.size();
        let _ = bench.shelf.tried(&draft, Attempt::Done, bench.now);
    }
    assert_eq!(bytes, 16 << 20);
    assert_eq!(bench.shelf.invite().len(), 36, "the others are asked when there is room again");
}

#[test]
fn what_vanishes_is_told_and_may_be_written_anew() {
    let mut bench = Bench::with([1, 2]);
    assert_eq!(bench.sees(Delete(shown(&draft(1)))).vanished, keys(&[1]));
    assert_eq!(bench.put(1, 1), waits(1));
    bench.write(Attempt::Done);
    bench.later(1);
    assert_eq!(bench.list([2]).vanished, keys(&[1]), "written, and deleted before the watch has shown it");
    assert_eq!(bench.list([]).vanished, keys(&[2]), "deleted while the watch was broken");
}

#[test]
fn what_was_written_during_a_list_is_not_gone_because_it_is_not_in_it() {
    let mut bench = Bench::with([]);
    bench.sees(Init);
    assert_eq!(bench.put(1, 1), waits(1));
    bench.write(Attempt::Done);
    assert_eq!(bench.sees(InitDone), Noticed::default());
    assert_eq!(bench.put(1, 2), kept(1));
}

#[test]
fn a_refusal_is_told_and_tried_again_ever_later_until_it_is_given_up() {
    let mut bench = Bench::with([]);
    bench.put(1, 1);
    let mut waits = Vec::new();
    loop {
        assert_eq!(bench.write(Attempt::Refused), [(1, 1, REFUSED)]);
        let Next::At(time) = bench.next() else { break };
        waits.push((time - bench.now).as_secs());
        bench.now = time;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64]);
    assert_eq!(bench.next(), Next::Idle);
    bench.put(1, 1);
    bench.write(Attempt::Refused);
    bench.later(1);
    assert_eq!(bench.write(Attempt::Done), [(1, 1, None)]);
}

#[test]
fn an_outage_is_no_refusal() {
    let mut bench = Bench::with([]);
    bench.put(1, 1);
    for _ in 0..20 {
        assert_eq!(bench.write(Attempt::Postponed), []);
    }
    assert_eq!(bench.write(Attempt::Done), [(1, 1, None)]);
}

#[test]
fn a_name_that_is_taken_by_something_else_is_not_taken_for_it() {
    let mut bench = Bench::with([]);
    bench.put(1, 1);
    assert_eq!(bench.write(Attempt::Occupied), [(1, 1, REFUSED)]);
    let mut other = shown(&draft(2));
    other.metadata.annotations.get_or_insert_default().insert(HASH_ANNOTATION.into(), "another".into());
    bench.put(2, 2);
    assert_eq!(told(bench.sees(Apply(other)).news), [(2, 2, REFUSED)]);
    assert_eq!(bench.put(2, 2), Handed::Not(NotStored::Refused));
}
