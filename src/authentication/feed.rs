//! Keeps an authenticator up to date: watches the Secrets that admit agents, and only those.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::ready,
    stream::{BoxStream, SelectAll},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    runtime::watcher::{self, Event},
};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Authenticator,
    authenticator::Believed,
    client_cas::{Authorities, ClientCas, NoAuthority, read},
    notices::{Notice, publish},
    table::{Row, Table, Unusable},
};
use crate::{
    api::{FLEET_LABEL, enrollment::EnrollmentMethod},
    catalog::FleetEntry,
    events::Publisher,
    kubernetes::{Mirror, ObjectKey, Part, Scope, WatchClient, watch_config},
};

/// The type of Secrets with enrollment tokens.
pub const ENROLLMENT_TOKEN_TYPE: &str = "opamp.dev/enrollment-token";
/// The type of Secrets with user and password.
const BASIC_TYPE: &str = "kubernetes.io/basic-auth";
/// Events that are taken together before tables are made anew.
const EVENTS_AT_ONCE: usize = 256;
/// CAs of fleets are watched one by one, so that no other Secret is read; each is a connection to the API server.
const MOST_AUTHORITIES: usize = 256;
/// How often refusals are written down that were left out.
const SWEEP: Duration = Duration::from_secs(5);
/// When nothing expires.
const LONG: Duration = Duration::from_secs(3_600);

/// What a watch has shown.
enum Seen {
    Token(Part, Event<Secret>),
    User(Part, Event<Secret>),
    Authority(ObjectKey, Event<Secret>),
}

type Events = SelectAll<BoxStream<'static, Seen>>;

/// The task behind an [`Authenticator`].
pub struct Feed {
    authenticator: Arc<Authenticator>,
    scope: Scope,
    notices: mpsc::Receiver<Notice>,
    tokens: Mirror<Option<Row>>,
    users: Mirror<Option<Row>>,
    authorities: BTreeMap<ObjectKey, Watched>,
    clashes: BTreeSet<Vec<String>>,
    /// The Secrets that there was no room to watch.
    left_out: BTreeSet<ObjectKey>,
}

/// A Secret with CAs that a fleet names.
struct Watched {
    /// Ends the watch when no fleet names it any more.
    _watch: DropGuard,
    /// Whether it was looked for at least once.
    is_known: bool,
    /// Whether the list that runs at this moment has shown it.
    is_listed: bool,
    authorities: Result<Authorities, NoAuthority>,
}

impl Watched {
    fn new(watch: DropGuard) -> Self {
        Self { _watch: watch, is_known: false, is_listed: false, authorities: Err(NoAuthority::NotFound) }
    }

    fn apply(&mut self, key: &ObjectKey, event: Event<Secret>) {
        match event {
            Event::Init => self.is_listed = false,
            Event::InitApply(secret) | Event::Apply(secret) => {
                self.is_listed = true;
                self.authorities = read(&secret)
                    .inspect_err(|error| tracing::warn!(secret = %key, %error, "a Secret holds no CA for clients"));
            }
            Event::InitDone => {
                self.is_known = true;
                if !self.is_listed {
                    self.authorities = Err(NoAuthority::NotFound);
                }
            }
            Event::Delete(_) => self.authorities = Err(NoAuthority::NotFound),
        }
    }
}

impl Feed {
    pub(super) fn new(authenticator: Arc<Authenticator>, scope: Scope, notices: mpsc::Receiver<Notice>) -> Self {
        let (tokens, users) = (Mirror::new(scope.parts()), Mirror::new(scope.parts()));
        Self {
            authenticator,
            scope,
            notices,
            tokens,
            users,
            authorities: BTreeMap::new(),
            clashes: BTreeSet::new(),
            left_out: BTreeSet::new(),
        }
    }

    /// Watches until it is told to stop; to be run once. With the API server away what was known stays known.
    pub async fn run(mut self, watches: WatchClient, publisher: Publisher, stop: CancellationToken) {
        let (_, none) = mpsc::channel(1);
        let notices = std::mem::replace(&mut self.notices, none);
        let authenticator = Arc::clone(&self.authenticator);
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow(&watches) => {}
            () = publish(notices, authenticator.catalog(), &publisher) => {}
        }
    }

    async fn follow(&mut self, watches: &WatchClient) {
        let authenticator = Arc::clone(&self.authenticator);
        let mut events = self.watch_secrets(watches);
        let (mut fleets, mut synced) = (authenticator.catalog().generation(), authenticator.catalog().synced());
        let mut trust = authenticator.trust().changed();
        let mut sweep = interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.watch_authorities(watches, &mut events);
        loop {
            let expiry = self.next_expiry(Timestamp::now());
            tokio::select! {
                Some(seen) = events.next() => {
                    self.apply(seen);
                    for _ in 1..EVENTS_AT_ONCE {
                        let Some(Some(seen)) = events.next().now_or_never() else { break };
                        self.apply(seen);
                    }
                    self.publish();
                }
                // Both live as long as the process.
                Ok(()) = fleets.changed() => {
                    self.watch_authorities(watches, &mut events);
                    self.publish();
                }
                Ok(()) = synced.changed() => self.publish(),
                Ok(()) = trust.changed() => authenticator.tell(),
                () = sleep(expiry) => authenticator.tell(),
                _ = sweep.tick() => authenticator.journal().sweep(super::clock()),
            }
        }
    }

    fn watch_secrets(&self, watches: &WatchClient) -> Events {
        let tokens = watch_config().fields(&format!("type={ENROLLMENT_TOKEN_TYPE}"));
        let users = watch_config().fields(&format!("type={BASIC_TYPE}")).labels(FLEET_LABEL);
        let mut events = SelectAll::new();
        for part in self.scope.parts() {
            events.push(watch(watches, part.clone(), tokens.clone(), {
                let part = part.clone();
                move |event| Seen::Token(part.clone(), event)
            }));
            events.push(watch(watches, part.clone(), users.clone(), move |event| Seen::User(part.clone(), event)));
        }
        events
    }

    /// Watches the Secrets that fleets name now, and no others.
    fn watch_authorities(&mut self, watches: &WatchClient, events: &mut Events) {
        let catalog = self.authenticator.catalog().load();
        let (wanted, left_out) = share_out(catalog.fleets().flat_map(|fleet| named(fleet)).collect());
        self.left_out = left_out;
        self.authorities.retain(|key, _| wanted.contains(key));
        for key in wanted {
            if self.authorities.contains_key(&key) {
                continue;
            }
            let stop = CancellationToken::new();
            let one = watch_config().fields(&format!("metadata.name={}", key.name));
            let part = Some(key.namespace.clone());
            let shown = key.clone();
            let stream = watch(watches, part, one, move |event| Seen::Authority(shown.clone(), event));
            events.push(stream.take_until(stop.clone().cancelled_owned()).boxed());
            self.authorities.insert(key, Watched::new(stop.drop_guard()));
        }
    }

    fn apply(&mut self, seen: Seen) {
        match seen {
            Seen::Token(part, event) => {
                self.tokens.apply(&part, event, |secret| Some(usable(&secret, Row::of_token(&secret))));
            }
            Seen::User(part, event) => {
                self.users.apply(&part, event, |secret| Some(usable(&secret, Row::of_user(&secret))));
            }
            Seen::Authority(key, event) => {
                if let Some(watched) = self.authorities.get_mut(&key) {
                    watched.apply(&key, event);
                }
            }
        }
    }

    fn publish(&mut self) {
        let believed = self.believed();
        let clashes: BTreeSet<_> = believed.tokens.clashes().into_iter().chain(believed.users.clashes()).collect();
        for identities in clashes.difference(&self.clashes) {
            tracing::warn!(
                ?identities,
                "several Secrets hold the same token or password and bind it differently; none of them admits anybody"
            );
        }
        self.clashes = clashes;
        self.authenticator.believe(believed, Timestamp::now());
        self.authenticator.note_unusable_cas(self.unusable_cas());
        if self.is_complete() {
            self.authenticator.mark_synced();
        }
    }

    /// The Secrets with CAs that vouch for nobody, as far as they were looked for.
    fn unusable_cas(&self) -> BTreeMap<ObjectKey, String> {
        let known = self.authorities.iter().filter(|(_, watched)| watched.is_known);
        let unusable = known.filter_map(|(key, watched)| Some((key, watched.authorities.as_ref().err()?.to_string())));
        let left_out = self.left_out.iter().map(|key| (key, NoAuthority::OneTooMany(MOST_AUTHORITIES).to_string()));
        unusable.chain(left_out).map(|(key, why)| (key.clone(), why)).collect()
    }

    fn believed(&self) -> Believed {
        let catalog = self.authenticator.catalog().load();
        let authorities = |fleet: &FleetEntry| {
            let held = named(fleet).filter_map(|key| self.authorities.get(&key)?.authorities.clone().ok());
            held.collect::<Vec<_>>()
        };
        let fleets = catalog.fleets().map(|fleet| (fleet.as_ref(), authorities(fleet)));
        Believed {
            tokens: Table::new(self.tokens.iter().filter_map(|(_, row)| row.as_ref())),
            users: Table::new(self.users.iter().filter_map(|(_, row)| row.as_ref())),
            authorities: ClientCas::new(fleets.filter(|(_, authorities)| !authorities.is_empty()).collect()),
        }
    }

    /// Whether everything was listed at least once. Which CAs there are is known with the fleets.
    fn is_complete(&self) -> bool {
        let has_fleets = *self.authenticator.catalog().synced().borrow();
        let has_secrets = self.tokens.is_complete() && self.users.is_complete();
        has_fleets && has_secrets && self.authorities.values().all(|named| named.is_known)
    }

    /// How long until something expires.
    fn next_expiry(&self, now: Timestamp) -> Duration {
        let believed = self.authenticator.believed();
        let next = believed.tokens.next_expiry(now);
        let wait = next.and_then(|next| Duration::try_from(next.duration_since(now)).ok());
        wait.map_or(LONG, |wait| wait.min(LONG))
    }
}

/// The Secrets with CAs that a fleet names.
fn named(fleet: &FleetEntry) -> impl Iterator<Item = ObjectKey> {
    let takes_certificates = fleet.enrollment.methods().contains(&EnrollmentMethod::ClientCertificate);
    let named = fleet.enrollment.client_cas.iter().filter(move |_| takes_certificates);
    named.map(|named| ObjectKey::new(&fleet.namespace, &named.secret_ref.name))
}

/// The Secrets that are watched, and those for which there is no room. The namespaces take turns, so that none takes the
/// room of the others.
fn share_out(named: BTreeSet<ObjectKey>) -> (BTreeSet<ObjectKey>, BTreeSet<ObjectKey>) {
    let mut turns: BTreeMap<String, usize> = BTreeMap::new();
    let turn = |key: ObjectKey| {
        let turn = turns.entry(key.namespace.clone()).or_default();
        *turn += 1;
        (*turn, key)
    };
    let mut in_turn: Vec<_> = named.into_iter().map(turn).collect();
    in_turn.sort();
    let left_out = in_turn.split_off(in_turn.len().min(MOST_AUTHORITIES));
    let keys = |in_turn: Vec<(usize, ObjectKey)>| in_turn.into_iter().map(|(_, key)| key).collect();
    (keys(in_turn), keys(left_out))
}

/// A Secret that is not as it should be opens nothing, whatever it held before.
fn usable(secret: &Secret, row: Result<Row, Unusable>) -> Option<Row> {
    let complain = |error: &Unusable| tracing::warn!(secret = %ObjectKey::of(secret), %error, "a Secret admits nobody");
    row.inspect_err(complain).ok()
}

fn watch(
    watches: &WatchClient,
    part: Part,
    config: watcher::Config,
    seen: impl Fn(Event<Secret>) -> Seen + Send + 'static,
) -> BoxStream<'static, Seen> {
    let client = watches.client().clone();
    let api: Api<Secret> = match part {
        None => Api::all(client),
        Some(namespace) => Api::namespaced(client, &namespace),
    };
    watches.watch(api, config).filter_map(move |event| ready(event.map(&seen))).boxed()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;
    use crate::authentication::tests::authority_pem;

    #[test]
    fn no_namespace_takes_the_room_of_another() {
        let of = |namespace: &str, number: usize| {
            (0..number).map(|number| ObjectKey::new(namespace, format!("ca-{number:03}"))).collect::<Vec<_>>()
        };
        for (case, greedy, modest, expected) in [
            ("there is room for all", 200, 56, (200, 56, 0)),
            ("one names more than there is room for", 300, 2, (254, 2, 46)),
            ("both do", 300, 300, (128, 128, 344)),
        ] {
            let named = of("aaa", greedy).into_iter().chain(of("telemetry", modest)).collect();
            let (watched, left_out) = share_out(named);
            let count = |namespace: &str| watched.iter().filter(|key| key.namespace == namespace).count();
            assert_eq!((count("aaa"), count("telemetry"), left_out.len()), expected, "{case}");
        }
    }

    #[test]
    fn a_secret_that_a_new_list_does_not_show_vouches_for_nobody() {
        let key = ObjectKey::new("telemetry", "corporate");
        let data = [("ca.crt".into(), ByteString(authority_pem().into_bytes()))];
        let secret = Secret { data: Some(data.into()), ..Secret::default() };
        let watch = CancellationToken::new().drop_guard();
        let mut watched = Watched::new(watch);
        for (case, event, expected) in [
            ("a list begins", Event::Init, (false, false)),
            ("it is shown", Event::InitApply(secret), (false, true)),
            ("it is complete", Event::InitDone, (true, true)),
            ("a new list begins", Event::Init, (true, true)),
            ("it broke off and begins again", Event::Init, (true, true)),
            ("it is complete, and shows nothing", Event::InitDone, (true, false)),
        ] {
            watched.apply(&key, event);
            assert_eq!((watched.is_known, watched.authorities.is_ok()), expected, "{case}");
        }
    }
}
