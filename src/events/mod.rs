//! Events on objects that people write: one for each transition of a condition, never one for each heartbeat.
//!
//! Never about single agents: ten thousand of them would be ten thousand writes outside every budget. What must be
//! current is in a condition; an event only says when it began.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    api::condition::{ConditionType, Verdict, find},
    kubernetes::describe,
};

/// The API server refuses a note of more than 1,024 bytes.
const NOTE_LIMIT: usize = 1_000;

/// How long the publication of one event may take: the client has no limit of its own, and whoever publishes waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// Notes whose repetitions are counted; one more is a new event.
const MOST_NOTES: usize = 64;

/// Who the events are from.
const CONTROLLER: &str = "opamp-operator";

/// The reason of the event when all is well again.
pub const RECOVERED: &str = "Recovered";

/// Something that began.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transition {
    /// Whether somebody should have a look.
    pub severity: Severity,
    /// The reason of the condition, or another word in its form.
    pub reason: &'static str,
    /// In words.
    pub note: String,
}

/// Whether somebody should have a look.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Severity {
    /// Nobody need.
    Normal,
    /// Somebody should.
    Warning,
}

/// What is to be told of an object that people write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Restatement {
    /// A merge patch for its status.
    pub status: Option<Value>,
    /// What began.
    pub events: Vec<Transition>,
}

impl Restatement {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { status, events } = self;
        status.is_none() && events.is_empty()
    }
}

/// What began between two states of an object, as its condition `Ready` tells: a fault that was not there, or was
/// another one, or that it is well again. That a new object is well is no event.
///
/// `reasons` are the words that the reason of `Ready` may be; another word is no event.
#[must_use]
pub fn transition(old: &[Condition], new: &[Condition], reasons: &[&'static str]) -> Option<Transition> {
    let was = find(old, ConditionType::Ready);
    let is = find(new, ConditionType::Ready)?;
    if was.is_some_and(|was| was.status == is.status && was.reason == is.reason) {
        return None;
    }
    if is.status == Verdict::False.as_str() {
        let reason = reasons.iter().find(|reason| **reason == is.reason)?;
        return Some(Transition { severity: Severity::Warning, reason, note: is.message.clone() });
    }
    was.filter(|was| was.status != is.status)?;
    Some(Transition { severity: Severity::Normal, reason: RECOVERED, note: is.message.clone() })
}

/// Where events are published.
#[derive(Clone)]
pub struct Publisher {
    client: Client,
    reporter: Reporter,
    /// One for each of the latest notes. A recorder counts an event of the same reason as a repetition, and keeps the
    /// note of the first: of one recorder for all, people would read what was wrong an hour ago.
    recorders: Arc<Mutex<VecDeque<(String, Recorder)>>>,
}

impl Publisher {
    /// A publisher on behalf of this replica.
    #[must_use]
    pub fn new(client: Client, replica: &str) -> Self {
        let reporter = Reporter { controller: CONTROLLER.into(), instance: Some(replica.into()) };
        Self { client, reporter, recorders: Arc::default() }
    }

    fn recorder(&self, note: &str) -> Recorder {
        let mut recorders = self.recorders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, recorder)) = recorders.iter().find(|(known, _)| known == note) {
            return recorder.clone();
        }
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        recorders.truncate(MOST_NOTES - 1);
        recorders.push_front((note.to_owned(), recorder.clone()));
        recorder
    }

    /// Publishes what began. A failure is noted at debug level only: an event is a convenience, and when somebody has
    /// deleted one, its repetitions fail for minutes.
    pub async fn publish(&self, about: &ObjectReference, transitions: Vec<Transition>) {
        for Transition { severity, reason, note } in transitions {
            let note = cut(note);
            let recorder = self.recorder(&note);
            let event = Event {
                type_: match severity {
                    Severity::Normal => EventType::Normal,
                    Severity::Warning => EventType::Warning,
                },
                reason: reason.into(),
                note: Some(note).filter(|note| !note.is_empty()),
                action: "Reconcile".into(),
                secondary: None,
            };
            match timeout(PATIENCE, recorder.publish(&event, about)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(error = describe(&error), reason, "an event was not published"),
                Err(_) => tracing::debug!(reason, "an event was not published in time"),
            }
        }
    }
}

fn cut(mut note: String) -> String {
    if note.len() > NOTE_LIMIT {
        let room = NOTE_LIMIT - '…'.len_utf8();
        let end = (0..=room).rev().find(|end| note.is_char_boundary(*end)).unwrap_or_default();
        note.truncate(end);
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use jiff::Timestamp;
    use kube::client::Body;

    use super::*;
    use crate::api::condition::{Finding, merge};

    fn ready(verdict: Verdict, reason: &'static str) -> Vec<Condition> {
        let finding = Finding { condition: ConditionType::Ready, verdict, reason, message: format!("{reason}.") };
        merge(&[], vec![finding], Some(1), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn only_what_began_is_an_event() {
        let clash = || ready(Verdict::False, "FileNameClash");
        let large = || ready(Verdict::False, "TooLarge");
        let well = || ready(Verdict::True, "Completed");
        for (case, old, new, expected) in [
            ("new and well", vec![], well(), None),
            ("new and faulty", vec![], clash(), Some((Severity::Warning, "FileNameClash"))),
            ("still faulty", clash(), clash(), None),
            ("faulty in another way", clash(), large(), Some((Severity::Warning, "TooLarge"))),
            ("no longer well", well(), clash(), Some((Severity::Warning, "FileNameClash"))),
            ("well again", clash(), well(), Some((Severity::Normal, RECOVERED))),
            ("still well", well(), well(), None),
        ] {
            let found = transition(&old, &new, &["FileNameClash", "TooLarge"]);
            assert_eq!(found.map(|found| (found.severity, found.reason)), expected, "{case}");
        }
    }

    /// A publisher whose API server takes all events, and what it was asked for: the method, and the note.
    fn publisher() -> (Publisher, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let heard = Arc::clone(&heard);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let event: Value = serde_json::from_slice(&body).unwrap();
                heard.lock().unwrap().push(format!("{} {}", parts.method, event["note"].as_str().unwrap()));
                Ok::<_, Infallible>(Response::new(Full::new(body)))
            }
        });
        (Publisher::new(Client::new(service, "default"), "replica-0"), asked)
    }

    #[tokio::test]
    async fn only_an_event_of_the_same_note_is_a_repetition() {
        let (publisher, asked) = publisher();
        let fleet = ObjectReference { name: Some("edge".into()), namespace: Some("t".into()), ..Default::default() };
        for note in ["first", "second", "first"] {
            let event = Transition { severity: Severity::Normal, reason: "RevisionCreated", note: note.into() };
            publisher.publish(&fleet, vec![event]).await;
        }
        assert_eq!(*asked.lock().unwrap(), ["POST first", "POST second", "PATCH first"]);
    }

    #[tokio::test]
    async fn no_more_notes_are_kept_than_the_limit() {
        let (publisher, _) = publisher();
        (0..2 * MOST_NOTES).for_each(|number| drop(publisher.recorder(&number.to_string())));
        assert_eq!(publisher.recorders.lock().unwrap().len(), MOST_NOTES);
    }

    #[test]
    fn a_note_keeps_to_the_limit_of_the_api_server() {
        for (note, expected) in [("ä".repeat(500), 1_000), ("ä".repeat(501), 999), (String::new(), 0)] {
            assert_eq!(cut(note).len(), expected);
        }
    }
}
