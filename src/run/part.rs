//! The parts of the operator, each a task that runs until it is told to stop.

use std::time::Duration;

use tokio::{
    task::{AbortHandle, JoinHandle},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// How long a part may take to end. The process has 30 s in all: 18 for connections, 5 for pending status.
const FAREWELL: Duration = Duration::from_secs(2);

/// Rings when a part has ended that nobody has told to: half an operator is worse than one that is started anew.
#[derive(Clone, Default)]
pub struct Alarm(CancellationToken);

impl Alarm {
    /// Whether it rings.
    pub fn is_ringing(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until it rings.
    pub async fn rung(&self) {
        self.0.cancelled().await;
    }
}

/// A part that runs.
pub struct Part {
    stop: CancellationToken,
    task: AbortHandle,
    guard: JoinHandle<()>,
}

impl Part {
    /// Starts a part; should it end by itself, or break, the alarm rings.
    pub fn start<F>(name: &'static str, alarm: &Alarm, run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(stop.clone()));
        let (abort, told, alarm) = (task.abort_handle(), stop.clone(), alarm.clone());
        let guard = tokio::spawn(async move {
            let outcome = task.await;
            if !told.is_cancelled() {
                tracing::error!(part = name, broke = outcome.is_err(), "a part of the operator has ended");
                alarm.0.cancel();
            }
        });
        Self { stop, task: abort, guard }
    }

    /// The same for work that knows of no end: it is dropped where it waits.
    pub fn start_endless(name: &'static str, alarm: &Alarm, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self::start(name, alarm, |stop| async move {
            let _ = stop.run_until_cancelled_owned(work).await;
        })
    }

    /// Tells it to stop, and waits until it has. What does not end in time is cut off; every write of it carries a
    /// resourceVersion.
    pub async fn end(self) {
        self.stop.cancel();
        if timeout(FAREWELL, self.guard).await.is_err() {
            self.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::timeout;

    use super::*;

    async fn rings(alarm: &Alarm) -> bool {
        timeout(Duration::from_secs(1), alarm.rung()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_ends_or_breaks_unasked_rings_the_alarm() {
        let alarm = Alarm::default();
        let _ended = Part::start_endless("ended", &alarm, ready(()));
        assert!(rings(&alarm).await);
        let alarm = Alarm::default();
        let _broken = Part::start_endless("broken", &alarm, async { panic!("broken") });
        assert!(rings(&alarm).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_was_told_to_stop_does_not() {
        let alarm = Alarm::default();
        let orderly = Part::start("orderly", &alarm, |stop| async move { stop.cancelled().await });
        let endless = Part::start_endless("endless", &alarm, pending());
        let stubborn = Part::start("stubborn", &alarm, |_| pending());
        assert!(!rings(&alarm).await);
        for part in [orderly, endless, stubborn] {
            part.end().await;
        }
        assert!(!rings(&alarm).await);
    }
}
