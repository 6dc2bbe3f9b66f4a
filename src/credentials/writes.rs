//! Requests to the API server within a budget, and what is learnt from their failures.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::time::{sleep_until, timeout};

use crate::{
    kubernetes::describe,
    status::budget::{Budget, BudgetLimits, Heard},
};

/// A healthy API server answers in milliseconds.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Why a request had no effect, or it is not known whether it had. In words that quote no object.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WriteError {
    /// The API server refuses it, and will refuse the same again: it is not valid, a policy or quota forbids it, or the
    /// operator may not do it.
    #[error("{0}")]
    Refused(String),
    /// The API server has failed, or could not be reached.
    #[error("{0}")]
    Api(String),
    /// It has too much to do.
    #[error("the API server has too much to do")]
    TooMany,
    /// It does not answer.
    #[error("the API server does not answer")]
    Silent,
}

/// Spends a budget. A clone spends the same.
#[derive(Clone)]
pub(super) struct Writes {
    budget: Arc<Mutex<Budget>>,
}

impl Writes {
    pub(super) fn new(limits: BudgetLimits) -> Self {
        Self { budget: Arc::new(Mutex::new(Budget::new(limits, clock()))) }
    }

    /// Asks when there is room for it; `None` if another has been faster: the object is there already, is another one
    /// than was seen, or is gone.
    pub(super) async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Option<T>, WriteError> {
        self.wait().await;
        let (heard, answer) = match timeout(TIME_LIMIT, request).await {
            Ok(Ok(object)) => (Heard::Answer, Ok(Some(object))),
            Ok(Err(kube::Error::Api(status))) => match status.code {
                404 | 409 => (Heard::Answer, Ok(None)),
                429 => {
                    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                    let retry_after = Some(Duration::from_secs(seconds.into()));
                    (Heard::TooMany { retry_after }, Err(WriteError::TooMany))
                }
                503 | 504 => (Heard::Nothing, Err(WriteError::Api(describe(&kube::Error::Api(status))))),
                400 | 403 | 413 | 422 => (Heard::Answer, Err(WriteError::Refused(describe(&kube::Error::Api(status))))),
                _ => (Heard::Answer, Err(WriteError::Api(describe(&kube::Error::Api(status))))),
            },
            Ok(Err(error)) => (Heard::Nothing, Err(WriteError::Api(describe(&error)))),
            Err(_) => (Heard::Nothing, Err(WriteError::Silent)),
        };
        self.locked(|budget| budget.heard(heard, clock()));
        answer
    }

    /// Spends without asking, as soon as there is room.
    pub(super) async fn wait(&self) {
        while let Err(again) = self.locked(|budget| budget.take(clock())) {
            sleep_until(again.into()).await;
        }
    }

    /// No holder of the lock can leave half a change behind, so a panic elsewhere is no reason to stop.
    fn locked<T>(&self, change: impl FnOnce(&mut Budget) -> T) -> T {
        change(&mut self.budget.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The clock of the runtime, which tests move by hand.
pub(super) fn clock() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_what_would_be_refused_again_is_refused_for_good() {
        let writes = Writes::new(BudgetLimits { per_second: 20, burst: 40 });
        let refused = |why: &str| Err(WriteError::Refused(why.into()));
        let failed = |why: &str| Err(WriteError::Api(why.into()));
        for (code, reason, expected) in [
            (400, "BadRequest", refused("400 BadRequest")),
            (401, "Unauthorized", failed("401 Unauthorized")),
            (403, "Forbidden", refused("403 Forbidden")),
            (404, "NotFound", Ok(None)),
            (409, "AlreadyExists", Ok(None)),
            (413, "RequestEntityTooLarge", refused("413 RequestEntityTooLarge")),
            (422, "Invalid", refused("422 Invalid")),
            (429, "TooManyRequests", Err(WriteError::TooMany)),
            (500, "InternalError", failed("500 InternalError")),
            (503, "ServiceUnavailable", failed("503 ServiceUnavailable")),
            (504, "Timeout", failed("504 Timeout")),
        ] {
            let status = Status::failure("canary", reason).with_code(code).boxed();
            let found: Result<Option<()>, _> = writes.ask(async { Err(kube::Error::Api(status)) }).await;
            assert_eq!(found, expected, "{code}");
        }
        let silent: Result<Option<()>, _> = writes.ask(std::future::pending()).await;
        assert_eq!(silent, Err(WriteError::Silent));
    }
}
