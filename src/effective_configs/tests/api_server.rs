//! An API server in memory, for Secrets only: created once, listed, never changed; and faults on order.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream};
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::effective_configs::store::locked;

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

#[derive(Default)]
struct State {
    secrets: BTreeMap<String, Value>,
    requests: Vec<String>,
    refusals: VecDeque<(u16, &'static str)>,
}

/// A handle of the server; clones share it.
#[derive(Clone, Default)]
pub(super) struct ApiServer {
    state: Arc<Mutex<State>>,
}

impl ApiServer {
    pub(super) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, std::io::Error>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    /// The next writes are refused with these codes and reasons.
    pub(super) fn refuse(&self, refusals: &[(u16, &'static str)]) {
        locked(&self.state).refusals.extend(refusals);
    }

    /// Somebody else has put a Secret there.
    pub(super) fn put(&self, secret: &Value) {
        locked(&self.state).secrets.insert(name(secret), secret.clone());
    }

    pub(super) fn secrets(&self) -> Vec<Value> {
        locked(&self.state).secrets.values().cloned().collect()
    }

    /// What was asked, but for watches.
    pub(super) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.state).requests)
    }

    async fn answer(self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let mut state = locked(&self.state);
        if query.contains("watch=true") {
            // Nothing ever happens.
            return response(200, stream::pending().boxed());
        }
        state.requests.push(format!("{} {}", parts.method, parts.uri.path()));
        let (code, object) = match parts.method.as_str() {
            "POST" => state.create(&body),
            _ => state.read(parts.uri.path(), &query),
        };
        let text = Bytes::from(object.to_string());
        response(code, async move { Ok(Frame::data(text)) }.into_stream().boxed())
    }
}

impl State {
    fn create(&mut self, body: &[u8]) -> (u16, Value) {
        let mut secret: Value = serde_json::from_slice(body).expect("JSON");
        if let Some((code, reason)) = self.refusals.pop_front() {
            return failure(code, reason);
        }
        if self.secrets.contains_key(&name(&secret)) {
            return failure(409, "AlreadyExists");
        }
        secret["metadata"]["uid"] = json!("secret-uid");
        secret["metadata"]["resourceVersion"] = json!("1");
        self.secrets.insert(name(&secret), secret.clone());
        (201, secret)
    }

    fn read(&self, path: &str, query: &str) -> (u16, Value) {
        match path.rsplit('/').next() {
            Some("secrets") => {
                let of_this_type = query.contains("fieldSelector=type%3Dopamp.dev%2Feffective-config");
                let ours = |secret: &&Value| of_this_type && secret["type"] == "opamp.dev/effective-config";
                let items: Vec<Value> = self.secrets.values().filter(ours).map(metadata_only).collect();
                let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": "1"}, "items": items});
                (200, list)
            }
            Some(name) => self.secrets.get(name).map_or_else(|| failure(404, "NotFound"), |found| (200, found.clone())),
            None => failure(404, "NotFound"),
        }
    }
}

fn metadata_only(secret: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": secret["metadata"]})
}

fn name(secret: &Value) -> String {
    secret["metadata"]["name"].as_str().expect("a name").to_owned()
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "canary",
        "reason": reason, "code": code});
    (code, status)
}

fn response(code: u16, body: stream::BoxStream<'static, Result<Frame<Bytes>, std::io::Error>>) -> Answer {
    Response::builder().status(code).body(UnsyncBoxBody::new(StreamBody::new(body))).expect("a response")
}
