//! Which configurations are kept, which wait to be written, and for whom; without a client or a clock.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Secret;
use kube::{core::PartialObjectMeta, runtime::watcher::Event};

use super::stored::{Draft, Kept, prefix_of};
use crate::{
    api::agent::NotStored,
    kubernetes::{Mirror, ObjectKey, Part},
    opamp::InstanceUid,
};

/// Most Secrets of one fleet.
pub const MAX_PER_FLEET: usize = 100;
/// Most bytes of all texts that wait to be written.
const MAX_WAITING_BYTES: usize = 16 << 20;
/// Agents of one fleet that are asked for their text again when there is room; more than there is ever room for would
/// be asked in vain.
const MAX_GUESTS: usize = MAX_PER_FLEET;
/// Agents of one fleet that are asked in one round.
const INVITED_AT_ONCE: usize = 10;
/// After a refusal a text is tried again a second later, then twice as long each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MOST_ATTEMPTS: u32 = 8;

/// What becomes of a text that was handed in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Handed {
    /// It is kept in the Secret of this name.
    Kept(Arc<str>),
    /// It waits to be written there; the agent's owner is told when that has ended.
    Waits(Arc<str>),
    /// It is not kept.
    Not(NotStored),
}

/// What became of a text that waited.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct News {
    /// Whose it was; the agent may run another by now.
    pub agent: InstanceUid,
    /// The name of the Secret for which it waited.
    pub secret: Arc<str>,
    /// Why it is not kept; `None`: it is.
    pub not_stored: Option<NotStored>,
}

/// What the watch has brought.
#[derive(Debug, Default, PartialEq)]
pub struct Noticed {
    /// Texts that another replica has written meanwhile, or for which there is no room after all.
    pub news: Vec<News>,
    /// Secrets that are gone.
    pub vanished: BTreeSet<ObjectKey>,
}

/// How the attempt to write a text has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Attempt {
    /// It is there, whoever wrote it.
    Done,
    /// Its name is taken by something else.
    Occupied,
    /// The API server will not have it, now or ever.
    Refused,
    /// The API server could not be asked, or has too much to do.
    Postponed,
}

/// What is to be written next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// This; [`Shelf::tried`] must follow.
    Write(Draft),
    /// Something is due then.
    At(Instant),
    /// Nothing.
    Idle,
}

/// A text that waits.
struct Waiting {
    draft: Draft,
    name: Arc<str>,
    agents: HashSet<InstanceUid>,
    refusals: u32,
    due: Instant,
}

impl Waiting {
    fn news(&self, not_stored: Option<NotStored>) -> Vec<News> {
        let to = |agent: &InstanceUid| News { agent: *agent, secret: Arc::clone(&self.name), not_stored };
        self.agents.iter().map(to).collect()
    }
}

/// All that is known of effective configurations in one process.
pub struct Shelf {
    kept: Mirror<Kept>,
    /// Written by this process, with their hashes, and not shown by the watch yet.
    written: BTreeMap<ObjectKey, Written>,
    /// For each part of the watch, when its running list began.
    listing: BTreeMap<Part, Instant>,
    waiting: BTreeMap<ObjectKey, Waiting>,
    bytes: usize,
    /// For each agent that waits, for what.
    wishes: HashMap<InstanceUid, ObjectKey>,
    /// By fleet, agents for whose texts there was no room.
    guests: BTreeMap<ObjectKey, VecDeque<InstanceUid>>,
}

struct Written {
    hash: String,
    at: Instant,
}

impl Shelf {
    /// An empty one; nothing is written before each part was listed.
    #[must_use]
    pub fn new(parts: impl IntoIterator<Item = Part>) -> Self {
        Self {
            kept: Mirror::new(parts),
            written: BTreeMap::new(),
            listing: BTreeMap::new(),
            waiting: BTreeMap::new(),
            bytes: 0,
            wishes: HashMap::new(),
            guests: BTreeMap::new(),
        }
    }

    /// Takes the text that an agent runs; the one that it ran before is not waited for any more.
    pub fn put(&mut self, draft: Draft, agent: InstanceUid, now: Instant) -> Handed {
        self.withdraw(agent);
        let key = draft.key().clone();
        let name: Arc<str> = key.name.as_str().into();
        if let Some(hash) = self.known_hash(&key) {
            return if *hash == *draft.hash() { Handed::Kept(name) } else { Handed::Not(NotStored::Refused) };
        }
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.agents.insert(agent);
        } else if self.room_of(&key) == 0 {
            self.invite_later(&key, agent);
            return Handed::Not(NotStored::TooMany);
        } else if self.bytes + draft.size() > MAX_WAITING_BYTES {
            self.invite_later(&key, agent);
            return Handed::Waits(name);
        } else {
            self.bytes += draft.size();
            let agents = HashSet::from([agent]);
            let waiting = Waiting { draft, name: Arc::clone(&name), agents, refusals: 0, due: now };
            self.waiting.insert(key.clone(), waiting);
        }
        self.wishes.insert(agent, key);
        Handed::Waits(name)
    }

    /// An agent runs something else, or nothing that would have to be kept.
    pub fn withdraw(&mut self, agent: InstanceUid) {
        let Some(key) = self.wishes.remove(&agent) else { return };
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.agents.remove(&agent);
        }
    }

    /// Takes an event of the watch over `part`.
    pub fn apply(&mut self, part: &Part, event: Event<PartialObjectMeta<Secret>>, now: Instant) -> Noticed {
        let began = match &event {
            Event::Init => {
                self.listing.insert(part.clone(), now);
                None
            }
            Event::InitDone => self.listing.remove(part),
            Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => None,
        };
        let mut noticed = Noticed::default();
        for moved in self.kept.apply(part, event, |secret| Some(Kept::of(&secret))) {
            if self.kept.get(&moved.key).is_none() {
                noticed.vanished.insert(moved.key);
            } else {
                self.written.remove(&moved.key);
                noticed.news.extend(self.conclude(&moved.key, Attempt::Done));
            }
        }
        if let Some(began) = began {
            noticed.vanished.extend(self.forget_written(part, began));
            noticed.news.extend(self.make_room());
        }
        noticed
    }

    /// What was written before a list began and is not in it was deleted unseen.
    fn forget_written(&mut self, part: &Part, began: Instant) -> Vec<ObjectKey> {
        let covered = |key: &ObjectKey| part.as_ref().is_none_or(|namespace| key.namespace == *namespace);
        let gone = self.written.iter().filter(|(key, written)| covered(key) && written.at < began);
        let gone: Vec<ObjectKey> = gone.map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| drop(self.written.remove(key)));
        gone
    }

    /// Before the first list was complete more may have been taken than there is room for.
    fn make_room(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        let keys: Vec<ObjectKey> = self.waiting.keys().cloned().collect();
        for key in keys {
            if self.known(&key) + self.waiting_of(&key) > MAX_PER_FLEET {
                let dismissed = self.dismiss(&key, Some(NotStored::TooMany));
                dismissed.iter().for_each(|news| self.invite_later(&key, news.agent));
                news.extend(dismissed);
            }
        }
        news
    }

    /// What is to be written next.
    pub fn next(&mut self, now: Instant) -> Next {
        if !self.kept.is_complete() {
            return Next::Idle;
        }
        let unwanted = self.waiting.iter().filter(|(_, waiting)| waiting.agents.is_empty());
        let unwanted: Vec<ObjectKey> = unwanted.map(|(key, _)| key.clone()).collect();
        for key in unwanted {
            self.dismiss(&key, None);
        }
        match self.waiting.values().min_by_key(|waiting| waiting.due) {
            Some(waiting) if waiting.due <= now => Next::Write(waiting.draft.clone()),
            Some(waiting) => Next::At(waiting.due),
            None => Next::Idle,
        }
    }

    /// A text was tried to be written.
    pub fn tried(&mut self, draft: &Draft, attempt: Attempt, now: Instant) -> Vec<News> {
        let key = draft.key();
        match attempt {
            Attempt::Done => {
                if self.kept.get(key).is_none() {
                    self.written.insert(key.clone(), Written { hash: draft.hash().to_owned(), at: now });
                }
            }
            Attempt::Occupied | Attempt::Refused | Attempt::Postponed => {}
        }
        self.delay(key, attempt, now);
        self.conclude(key, attempt)
    }

    fn delay(&mut self, key: &ObjectKey, attempt: Attempt, now: Instant) {
        let Some(waiting) = self.waiting.get_mut(key) else { return };
        match attempt {
            Attempt::Refused => {
                waiting.due = now + FIRST_RETRY * (1 << waiting.refusals.min(MOST_ATTEMPTS));
                waiting.refusals += 1;
            }
            // The budget says when the API server may be asked again.
            Attempt::Postponed => waiting.due = now,
            Attempt::Done | Attempt::Occupied => {}
        }
    }

    /// What an attempt means for those who wait for it.
    fn conclude(&mut self, key: &ObjectKey, attempt: Attempt) -> Vec<News> {
        let Some(waiting) = self.waiting.get(key) else { return Vec::new() };
        match attempt {
            Attempt::Done if self.known_hash(key) == Some(waiting.draft.hash()) => self.dismiss(key, None),
            Attempt::Done | Attempt::Occupied => self.dismiss(key, Some(NotStored::Refused)),
            Attempt::Refused if waiting.refusals >= MOST_ATTEMPTS => self.dismiss(key, Some(NotStored::Refused)),
            // It is told at once, although it may be written yet.
            Attempt::Refused => waiting.news(Some(NotStored::Refused)),
            Attempt::Postponed => Vec::new(),
        }
    }

    /// Nothing is written for these agents any more.
    fn dismiss(&mut self, key: &ObjectKey, not_stored: Option<NotStored>) -> Vec<News> {
        let Some(waiting) = self.waiting.remove(key) else { return Vec::new() };
        self.bytes -= waiting.draft.size();
        waiting.agents.iter().for_each(|agent| drop(self.wishes.remove(agent)));
        waiting.news(not_stored)
    }

    /// Agents that are to hand in their texts again, because there is room now.
    pub fn invite(&mut self) -> Vec<InstanceUid> {
        if !self.kept.is_complete() || self.bytes > MAX_WAITING_BYTES / 2 {
            return Vec::new();
        }
        let fleets: Vec<ObjectKey> = self.guests.keys().cloned().collect();
        let mut invited = Vec::new();
        for fleet in fleets {
            let room = self.room_of(&fleet).min(INVITED_AT_ONCE);
            let Some(guests) = self.guests.get_mut(&fleet) else { continue };
            invited.extend(guests.drain(..room.min(guests.len())));
            if guests.is_empty() {
                self.guests.remove(&fleet);
            }
        }
        invited
    }

    fn invite_later(&mut self, key: &ObjectKey, agent: InstanceUid) {
        let fleet = ObjectKey::new(&key.namespace, prefix_of(&key.name));
        let guests = self.guests.entry(fleet).or_default();
        if guests.len() < MAX_GUESTS && !guests.contains(&agent) {
            guests.push_back(agent);
        }
    }

    /// How many more Secrets the fleet of this one may have.
    fn room_of(&self, key: &ObjectKey) -> usize {
        MAX_PER_FLEET.saturating_sub(self.known(key) + self.waiting_of(key))
    }

    fn known(&self, key: &ObjectKey) -> usize {
        let prefix = prefix_of(&key.name);
        self.kept.named(&key.namespace, prefix).count() + of_fleet(&self.written, key).count()
    }

    fn waiting_of(&self, key: &ObjectKey) -> usize {
        of_fleet(&self.waiting, key).count()
    }

    fn known_hash(&self, key: &ObjectKey) -> Option<&str> {
        let kept = self.kept.get(key).map(|kept| kept.hash.as_str());
        kept.or_else(|| self.written.get(key).map(|written| written.hash.as_str()))
    }

    /// All Secrets that the watch shows; `None` until all have been listed.
    #[must_use]
    pub fn kept(&self) -> Option<Vec<Kept>> {
        self.kept.is_complete().then(|| self.kept.iter().map(|(_, kept)| kept.clone()).collect())
    }

    /// How many Secrets there are, and how many texts wait.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.kept.iter().count(), self.waiting.len())
    }
}

/// The entries of the fleet of this Secret.
fn of_fleet<'m, T>(map: &'m BTreeMap<ObjectKey, T>, key: &'m ObjectKey) -> impl Iterator<Item = &'m T> {
    let prefix = prefix_of(&key.name);
    map.range(ObjectKey::new(&key.namespace, prefix)..)
        .take_while(move |(other, _)| other.namespace == key.namespace && other.name.starts_with(prefix))
        .map(|(_, entry)| entry)
}
