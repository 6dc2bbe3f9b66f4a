//! One attempt to write a Secret, within the budget of the replica.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{PostParams, ResourceExt as _},
};
use tokio::time::{sleep_until, timeout};

use super::{
    shelf::Attempt,
    store::{locked, now},
    stored::{Draft, EFFECTIVE_CONFIG_TYPE, HASH_ANNOTATION},
};
use crate::{
    api::FIELD_MANAGER,
    kubernetes::describe,
    status::budget::{Budget, Heard},
};

/// A healthy API server answers in milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Who writes: the client is one without retries of its own.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) client: Client,
    pub(super) budget: Arc<Mutex<Budget>>,
}

impl Writer {
    /// Writes a text. That it is there already is as good: its name is its content.
    pub(super) async fn write(self, draft: Draft) -> (Draft, Attempt) {
        self.spend().await;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &draft.key().namespace);
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        let attempt = match self.limited(secrets.create(&parameters, draft.secret())).await {
            Answer::Given(_) => Attempt::Done,
            Answer::Conflict => self.compare(&secrets, &draft).await,
            Answer::Refused(why) => {
                tracing::warn!(secret = %draft.key(), why, "an effective configuration is refused by the API server");
                Attempt::Refused
            }
            Answer::None => Attempt::Postponed,
        };
        (draft, attempt)
    }

    /// Whether the Secret of that name holds that content. It may be gone again.
    async fn compare(&self, secrets: &Api<Secret>, draft: &Draft) -> Attempt {
        match self.limited(secrets.get(&draft.key().name)).await {
            Answer::Given(found) if holds(&found, draft) => Attempt::Done,
            Answer::Given(_) => {
                tracing::warn!(secret = %draft.key(), "a Secret of this name holds something else; delete it");
                Attempt::Occupied
            }
            // It may be gone again; a second later that is known.
            Answer::Conflict | Answer::Refused(_) => Attempt::Refused,
            Answer::None => Attempt::Postponed,
        }
    }

    async fn spend(&self) {
        loop {
            let taken = locked(&self.budget).take(now());
            match taken {
                Ok(()) => return,
                Err(again) => sleep_until(again.into()).await,
            }
        }
    }

    async fn limited<T>(&self, request: impl Future<Output = Result<T, kube::Error>>) -> Answer<T> {
        let (heard, answer) = match timeout(TIME_LIMIT, request).await {
            Ok(Ok(object)) => (Heard::Answer, Answer::Given(object)),
            Ok(Err(kube::Error::Api(status))) => match status.code {
                429 => {
                    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                    (Heard::TooMany { retry_after: Some(Duration::from_secs(seconds.into())) }, Answer::None)
                }
                503 | 504 => (Heard::Nothing, Answer::None),
                409 => (Heard::Answer, Answer::Conflict),
                _ => (Heard::Answer, Answer::Refused(describe(&kube::Error::Api(status)))),
            },
            Ok(Err(error @ (kube::Error::SerdeError(_) | kube::Error::BuildRequest(_)))) => {
                return Answer::Refused(describe(&error));
            }
            Ok(Err(_)) | Err(_) => (Heard::Nothing, Answer::None),
        };
        locked(&self.budget).heard(heard, now());
        answer
    }
}

/// What came of a request.
enum Answer<T> {
    Given(T),
    /// There is such an object.
    Conflict,
    /// In words that quote no object.
    Refused(String),
    /// The server is away or has too much to do; the budget knows.
    None,
}

fn holds(found: &Secret, draft: &Draft) -> bool {
    let claims = found.annotations().get(HASH_ANNOTATION).is_some_and(|hash| hash == draft.hash());
    claims && found.type_.as_deref() == Some(EFFECTIVE_CONFIG_TYPE) && found.data == draft.secret().data
}
