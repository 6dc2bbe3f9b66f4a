//! Asks the API server who holds a token of a `ServiceAccount`, and remembers what it said.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::{Mutex as Turn, Semaphore},
    time::timeout,
};

use super::{
    claims, clock,
    fault::Fault,
    metrics::{Metrics, ReviewOutcome},
    rate::Rate,
};
use crate::{
    kubernetes::describe,
    opamp::identity::{Digest, Identity},
};

/// How long an answer is taken for the API server's word. It has a cache of 10 s itself for those that it knows.
const FRESH: Duration = Duration::from_secs(10);
/// How long nobody asks after the API server could not be asked.
const PAUSE: Duration = Duration::from_secs(1);
/// Answers of each kind that are remembered. Refused tokens are remembered apart, so that no flood of them drives out
/// those that count.
const MOST: usize = 10_000;
/// Reviews that are under way at once: as many connections to the API server.
const AT_ONCE: usize = 16;
/// A replica that starts asks about the tokens of all its agents; then the API server is left to others.
const RATE: Rate = Rate::new(500, Duration::from_millis(10));
/// How long one review may take, with the wait for its turn: less than the server gives an authentication, so that a
/// former answer can still take its place.
const PATIENCE: Duration = Duration::from_secs(4);
/// How often the log tells that the API server cannot be asked.
const COMPLAINT: Duration = Duration::from_secs(60);

/// What the API server says of a token.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Reviewed {
    /// Whose it is; always [`Identity::ServiceAccount`].
    pub account: Identity,
    /// Those of the audiences asked for that it is meant for; at least one.
    pub audiences: BTreeSet<String>,
}

/// What asking about one token came to.
type Verdict = Result<Reviewed, Fault>;

#[derive(Debug)]
struct Answer {
    asked: BTreeSet<String>,
    at: Instant,
    verdict: Verdict,
    /// Its place in the order in which answers came.
    number: u64,
}

/// The latest answers, each token once.
#[derive(Debug, Default)]
struct Answers {
    by_token: HashMap<Digest, Answer>,
    by_age: BTreeMap<u64, Digest>,
}

impl Answers {
    fn get(&self, token: Digest, asked: &BTreeSet<String>) -> Option<&Answer> {
        self.by_token.get(&token).filter(|answer| asked.is_subset(&answer.asked))
    }

    fn remove(&mut self, token: Digest) {
        if let Some(former) = self.by_token.remove(&token) {
            self.by_age.remove(&former.number);
        }
    }

    fn insert(&mut self, token: Digest, answer: Answer) {
        self.remove(token);
        self.by_age.insert(answer.number, token);
        self.by_token.insert(token, answer);
        if self.by_token.len() > MOST
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_token.remove(&oldest);
        }
    }
}

#[derive(Debug)]
struct Memory {
    accepted: Answers,
    refused: Answers,
    answers: u64,
    /// Who asks about a token at this moment; others who show the same wait for the answer.
    turns: HashMap<Digest, Weak<Turn<()>>>,
    paid_until: Instant,
    unreachable_until: Option<Instant>,
    complained: Option<Instant>,
}

impl Memory {
    /// What is known of a token without asking.
    fn recall(&self, token: Digest, asked: &BTreeSet<String>, now: Instant) -> Option<Verdict> {
        let fresh = |answer: &&Answer| now.saturating_duration_since(answer.at) < FRESH;
        let known = self.accepted.get(token, asked).or_else(|| self.refused.get(token, asked)).filter(fresh);
        if let Some(answer) = known {
            return Some(answer.verdict.clone());
        }
        self.unreachable_until.filter(|until| now < *until).map(|_| self.fall_back(token, asked))
    }

    /// What counts while the API server cannot be asked: who was known stays known.
    fn fall_back(&self, token: Digest, asked: &BTreeSet<String>) -> Verdict {
        self.accepted.get(token, asked).map_or(Err(Fault::Unavailable), |answer| answer.verdict.clone())
    }

    fn remember(&mut self, token: Digest, asked: BTreeSet<String>, verdict: &Verdict, now: Instant) {
        self.answers += 1;
        let answer = Answer { asked, at: now, verdict: verdict.clone(), number: self.answers };
        let (to, from) = match verdict {
            Ok(_) => (&mut self.accepted, &mut self.refused),
            Err(_) => (&mut self.refused, &mut self.accepted),
        };
        from.remove(token);
        to.insert(token, answer);
    }

    fn turn(&mut self, token: Digest) -> Arc<Turn<()>> {
        if let Some(turn) = self.turns.get(&token).and_then(Weak::upgrade) {
            return turn;
        }
        self.turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Turn::new(()));
        self.turns.insert(token, Arc::downgrade(&turn));
        turn
    }
}

/// A token about which somebody is to be asked. It has no `Debug`: it is a secret.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    /// The token.
    pub token: &'a str,
    /// Its digest.
    pub digest: Digest,
    /// The audiences that would do.
    pub audiences: &'a BTreeSet<String>,
}

/// The reviews of this replica.
pub(super) struct Reviews {
    api: Api<TokenReview>,
    /// Locked for the time of a look-up only.
    memory: Mutex<Memory>,
    permits: Semaphore,
    metrics: Metrics,
}

impl Reviews {
    pub(super) fn new(client: Client, metrics: Metrics) -> Self {
        let memory = Memory {
            accepted: Answers::default(),
            refused: Answers::default(),
            answers: 0,
            turns: HashMap::new(),
            paid_until: clock(),
            unreachable_until: None,
            complained: None,
        };
        Self { api: Api::all(client), memory: Mutex::new(memory), permits: Semaphore::new(AT_ONCE), metrics }
    }

    /// Says who holds a token, from memory or by asking. `check` is asked once more when the turn has come, so that those
    /// who queued before they had failed too often do not go on.
    pub(super) async fn review(&self, question: Question<'_>, check: impl Fn() -> Result<(), Fault>) -> Verdict {
        let Question { digest, audiences, .. } = question;
        if let Some(verdict) = self.memory().recall(digest, audiences, clock()) {
            return verdict;
        }
        match timeout(PATIENCE, self.ask(question, check)).await {
            Ok(verdict) => verdict,
            Err(_) => self.unreachable(question, "it did not answer in time"),
        }
    }

    async fn ask(&self, question: Question<'_>, check: impl Fn() -> Result<(), Fault>) -> Verdict {
        let Question { digest, audiences, .. } = question;
        let turn = self.memory().turn(digest);
        let _turn = turn.lock().await;
        let _permit = self.permits.acquire().await.map_err(|_| Fault::Unavailable)?;
        check()?;
        {
            let mut memory = self.memory();
            if let Some(verdict) = memory.recall(digest, audiences, clock()) {
                return verdict;
            }
            if RATE.wait(memory.paid_until, clock()).is_some() {
                return memory.fall_back(digest, audiences);
            }
            memory.paid_until = RATE.pay(memory.paid_until, clock());
        }
        match self.api.create(&PostParams::default(), &review_of(question)).await {
            Ok(TokenReview { status: Some(status), .. }) => self.conclude(question, judge(&status, audiences)),
            Ok(TokenReview { status: None, .. }) => self.unreachable(question, "it gave no answer"),
            // It will not have this token, whoever asks.
            Err(kube::Error::Api(status)) if [400, 413, 422].contains(&status.code) => {
                self.conclude(question, Err(Fault::ReviewRefused))
            }
            Err(error) => self.unreachable(question, &describe(&error)),
        }
    }

    fn conclude(&self, question: Question<'_>, verdict: Verdict) -> Verdict {
        self.metrics.reviewed(if verdict.is_ok() { ReviewOutcome::Accepted } else { ReviewOutcome::Refused });
        self.memory().remember(question.digest, question.audiences.clone(), &verdict, clock());
        verdict
    }

    fn unreachable(&self, Question { digest, audiences, .. }: Question<'_>, why: &str) -> Verdict {
        self.metrics.reviewed(ReviewOutcome::Failed);
        let mut memory = self.memory();
        memory.unreachable_until = Some(clock() + PAUSE);
        if memory.complained.is_none_or(|told| clock() >= told + COMPLAINT) {
            memory.complained = Some(clock());
            tracing::warn!(error = why, "the API server cannot be asked about tokens of ServiceAccounts");
        }
        memory.fall_back(digest, audiences)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // No holder can leave half a change behind.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn review_of(Question { token, audiences, .. }: Question<'_>) -> TokenReview {
    let audiences = audiences.iter().cloned().collect();
    let spec = TokenReviewSpec { audiences: Some(audiences), token: Some(token.to_owned()) };
    TokenReview { spec, ..TokenReview::default() }
}

/// Accepts the token of a `ServiceAccount` that is meant for one of these audiences. The API server answers with those that
/// were asked for and that it is meant for; a server that does not know audiences answers with none.
fn judge(status: &TokenReviewStatus, asked: &BTreeSet<String>) -> Verdict {
    if status.authenticated != Some(true) {
        return Err(Fault::ReviewRefused);
    }
    let user = status.user.as_ref().and_then(|user| user.username.as_deref()).unwrap_or_default();
    let account = claims::account(user).ok_or(Fault::NotServiceAccount)?;
    let audiences: BTreeSet<String> =
        status.audiences.iter().flatten().filter(|audience| asked.contains(*audience)).cloned().collect();
    if audiences.is_empty() { Err(Fault::WrongAudience) } else { Ok(Reviewed { account, audiences }) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked() -> BTreeSet<String> {
        ["opamp.dev", "opamp.dev/telemetry"].map(str::to_owned).into()
    }

    #[test]
    fn only_a_service_account_with_one_of_the_audiences_is_accepted() {
        let (account, audiences) = ("system:serviceaccount:shop:collector", ["opamp.dev/telemetry"]);
        for (case, status, expected) in [
            (
                "good",
                json!({"authenticated": true, "user": {"username": account}, "audiences": audiences}),
                Ok("serviceaccount:shop/collector"),
            ),
            (
                "not authenticated",
                json!({"user": {"username": account}, "audiences": audiences}),
                Err(Fault::ReviewRefused),
            ),
            ("error", json!({"error": "canary"}), Err(Fault::ReviewRefused)),
            ("no user", json!({"authenticated": true, "audiences": audiences}), Err(Fault::NotServiceAccount)),
            (
                "a user",
                json!({"authenticated": true, "user": {"username": "admin"}, "audiences": audiences}),
                Err(Fault::NotServiceAccount),
            ),
            (
                "a server without audiences",
                json!({"authenticated": true, "user": {"username": account}}),
                Err(Fault::WrongAudience),
            ),
            (
                "another audience",
                json!({"authenticated": true, "user": {"username": account}, "audiences": ["vault"]}),
                Err(Fault::WrongAudience),
            ),
        ] {
            let verdict = judge(&serde_json::from_value(status).unwrap(), &asked());
            let account = verdict.map(|reviewed| reviewed.account.to_string());
            assert_eq!(account, expected.map(str::to_owned), "{case}");
        }
    }

    #[test]
    fn refused_tokens_drive_out_none_that_count() {
        let mut answers = [Answers::default(), Answers::default()];
        let token = |number: u64| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_be_bytes());
            Digest(digest)
        };
        let answer = |number| Answer { asked: asked(), at: clock(), verdict: Err(Fault::ReviewRefused), number };
        for number in 0..=10_000 {
            answers[0].insert(token(number), answer(number));
            answers[1].insert(token(0), answer(number));
        }
        let counts = answers.each_ref().map(|answers| (answers.by_token.len(), answers.by_age.len()));
        assert_eq!(counts, [(MOST, MOST), (1, 1)]);
        assert!(answers[0].get(token(0), &asked()).is_none(), "the oldest has gone");
        assert!(answers[0].get(token(1), &BTreeSet::new()).is_some());
        assert!(answers[0].get(token(1), &["vault".to_owned()].into()).is_none(), "it was not asked about that");
    }
}
