//! An API server in memory: Secrets that are listed and watched by selector, and `TokenReviews`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream};
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::broadcast;

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

/// What the server says to `TokenReviews`.
#[derive(Clone, Copy, Default)]
pub(super) enum Reviewing {
    #[default]
    Well,
    /// It answers with this code.
    Failing(u16),
    /// It does not answer.
    Silent,
}

#[derive(Default)]
struct State {
    version: u64,
    secrets: BTreeMap<(String, String), Value>,
    /// Tokens by their text: user name and audiences.
    accounts: BTreeMap<String, (String, Vec<String>)>,
    reviewing: Reviewing,
    /// The audiences of each `TokenReview` so far.
    reviews: Vec<Value>,
    events: Vec<Value>,
}

/// A handle of the server; clones share it.
#[derive(Clone)]
pub(super) struct ApiServer {
    state: Arc<Mutex<State>>,
    changes: broadcast::Sender<(&'static str, Value)>,
}

impl ApiServer {
    pub(super) fn new() -> Self {
        Self { state: Arc::default(), changes: broadcast::Sender::new(256) }
    }

    pub(super) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, std::io::Error>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    /// Stores a Secret, and tells the watchers.
    pub(super) fn put(&self, mut secret: Value) {
        let mut state = self.state();
        state.version += 1;
        secret["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let former = state.secrets.insert(key(&secret), secret.clone());
        drop(state);
        let kind = if former.is_some() { "MODIFIED" } else { "ADDED" };
        let _ = self.changes.send((kind, secret));
    }

    pub(super) fn delete(&self, namespace: &str, name: &str) {
        let secret = self.state().secrets.remove(&(namespace.into(), name.into())).expect("a Secret");
        let _ = self.changes.send(("DELETED", secret));
    }

    /// A token that the server knows.
    pub(super) fn know(&self, token: &str, user: &str, audiences: &[&str]) {
        let audiences = audiences.iter().map(ToString::to_string).collect();
        self.state().accounts.insert(token.into(), (user.into(), audiences));
    }

    pub(super) fn forget(&self, token: &str) {
        self.state().accounts.remove(token);
    }

    pub(super) fn review(&self, reviewing: Reviewing) {
        self.state().reviewing = reviewing;
    }

    /// The audiences of each `TokenReview` since this was asked last.
    pub(super) fn reviews(&self) -> Vec<Value> {
        std::mem::take(&mut self.state().reviews)
    }

    /// The events that were published.
    pub(super) fn events(&self) -> Vec<Value> {
        self.state().events.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let (path, query) = (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().to_owned());
        if path.ends_with("/tokenreviews") {
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            return self.review_token(&body).await;
        }
        if path.contains("/events") {
            let event: Value = serde_json::from_slice(&body).expect("JSON");
            self.state().events.push(event.clone());
            return object(201, &event);
        }
        let selected = move |secret: &Value| is_selected(secret, &path, &query);
        if parts.uri.query().is_some_and(|query| query.contains("watch=true")) {
            return self.watch(selected);
        }
        let state = self.state();
        let items: Vec<_> = state.secrets.values().filter(|secret| selected(secret)).collect();
        let metadata = json!({"resourceVersion": state.version.to_string()});
        object(200, &json!({"kind": "SecretList", "apiVersion": "v1", "metadata": metadata, "items": items}))
    }

    fn watch(&self, selected: impl Fn(&Value) -> bool + Send + 'static) -> Answer {
        let changes = stream::unfold(self.changes.subscribe(), async |mut changes| {
            let change = changes.recv().await.ok()?;
            Some((change, changes))
        });
        let lines = changes.filter_map(move |(kind, secret)| {
            let line = selected(&secret).then(|| json!({"type": kind, "object": secret}).to_string() + "\n");
            async move { line.map(|line| Ok(Frame::data(line.into()))) }
        });
        response(200, lines.boxed())
    }

    async fn review_token(&self, body: &Value) -> Answer {
        let reviewing = {
            let mut state = self.state();
            state.reviews.push(body["spec"]["audiences"].clone());
            state.reviewing
        };
        // It takes a moment, so that others come meanwhile.
        tokio::time::sleep(Duration::from_millis(2)).await;
        match reviewing {
            Reviewing::Silent => std::future::pending().await,
            Reviewing::Failing(code) => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "canary", "reason": "Failed", "code": code});
                object(code, &status)
            }
            Reviewing::Well => {
                let mut review = body.clone();
                review["status"] = self.status_of(&body["spec"]);
                object(201, &review)
            }
        }
    }

    /// As the real one answers: a wrong audience is no failure, and audiences are the intersection.
    fn status_of(&self, spec: &Value) -> Value {
        let state = self.state();
        let Some((user, audiences)) = spec["token"].as_str().and_then(|token| state.accounts.get(token)) else {
            return json!({"user": {}, "error": "canary"});
        };
        let asked = spec["audiences"].as_array().expect("audiences");
        let both: Vec<_> = asked.iter().filter(|it| audiences.iter().any(|audience| *it == audience)).collect();
        if both.is_empty() {
            return json!({"user": {}, "error": "canary"});
        }
        json!({"authenticated": true, "user": {"username": user}, "audiences": both})
    }
}

fn is_selected(secret: &Value, path: &str, query: &str) -> bool {
    let namespace = path.split("/namespaces/").nth(1).and_then(|rest| rest.split('/').next());
    let field = query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=")).unwrap_or_default();
    let (field, value) = field.split_once("%3D").expect("every watch has a field selector");
    let value = value.replace("%2F", "/");
    let is_field = match field {
        "type" => secret["type"] == value.as_str(),
        "metadata.name" => secret["metadata"]["name"] == value.as_str(),
        other => panic!("{other}"),
    };
    let wants_label = query.contains("labelSelector=opamp.dev%2Ffleet");
    namespace.is_none_or(|namespace| secret["metadata"]["namespace"] == namespace)
        && is_field
        && (!wants_label || !secret["metadata"]["labels"]["opamp.dev/fleet"].is_null())
}

fn key(secret: &Value) -> (String, String) {
    let [namespace, name] =
        ["namespace", "name"].map(|part| secret["metadata"][part].as_str().expect("a name").to_owned());
    (namespace, name)
}

fn object(code: u16, object: &Value) -> Answer {
    let text = Bytes::from(object.to_string());
    response(code, async move { Ok(Frame::data(text)) }.into_stream().boxed())
}

fn response(code: u16, body: stream::BoxStream<'static, Result<Frame<Bytes>, std::io::Error>>) -> Answer {
    Response::builder().status(code).body(UnsyncBoxBody::new(StreamBody::new(body))).expect("a response")
}
