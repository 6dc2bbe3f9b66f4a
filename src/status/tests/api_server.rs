//! An API server in memory, for Agent objects only: versions, merge patches, preconditions, and faults on order.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use kube::{Client, client::Body};
use serde_json::{Map, Value, json};

use crate::status::writer::{locked, now};

/// What goes wrong with the next request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It is refused without effect.
    Refuse { code: u16, reason: &'static str, retry_after: u32 },
    /// It has its effect, and is never answered.
    Silence,
    /// Nobody listens.
    Away,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<(String, String), Value>,
    version: u64,
    requests: Vec<(String, std::time::Instant)>,
    faults: VecDeque<Fault>,
    away_until: Option<std::time::Instant>,
}

/// A handle of the server; clones share it.
#[derive(Clone, Default)]
pub(crate) struct ApiServer {
    state: Arc<Mutex<State>>,
}

impl ApiServer {
    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { server.answer(request).await }
        });
        Client::new(service, "default")
    }

    /// What was asked, as `PATCH telemetry status`, since the last time.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.state).requests).into_iter().map(|(request, _)| request).collect()
    }

    /// When it was asked, since the last time.
    pub(crate) fn times(&self) -> Vec<std::time::Instant> {
        std::mem::take(&mut locked(&self.state).requests).into_iter().map(|(_, time)| time).collect()
    }

    pub(crate) fn fail_next(&self, fault: Fault) {
        locked(&self.state).faults.push_back(fault);
    }

    pub(crate) fn away_until(&self, end: std::time::Instant) {
        locked(&self.state).away_until = Some(end);
    }

    /// All objects, as a list would show them.
    pub(crate) fn list(&self) -> Vec<Value> {
        locked(&self.state).objects.values().cloned().collect()
    }

    pub(crate) fn object(&self, namespace: &str, name: &str) -> Option<Value> {
        locked(&self.state).objects.get(&(namespace.into(), name.into())).cloned()
    }

    /// Somebody else creates an object.
    pub(crate) fn put(&self, namespace: &str, name: &str, labels: &Value, status: &Value) {
        let mut state = locked(&self.state);
        let object = json!({"metadata": {"name": name, "labels": labels}, "spec": {}});
        state.create(namespace, object);
        state.modify(namespace, name, &json!({"status": status}));
    }

    /// Somebody else patches an object.
    pub(crate) fn modify(&self, namespace: &str, name: &str, patch: &Value) {
        locked(&self.state).modify(namespace, name, patch);
    }

    /// Somebody deletes an object.
    pub(crate) fn delete(&self, namespace: &str, name: &str) {
        locked(&self.state).objects.remove(&(namespace.into(), name.into()));
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Full<Bytes>>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path: Vec<&str> = parts.uri.path().trim_matches('/').split('/').collect();
        let [_, _, _, _, namespace, _, rest @ ..] = path.as_slice() else { panic!("{}", parts.uri) };
        let (fault, response) = {
            let mut state = locked(&self.state);
            let what = [&[parts.method.as_str(), namespace][..], rest.get(1..).unwrap_or_default()].concat().join(" ");
            state.requests.push((what, now()));
            let away = state.away_until.filter(|end| now() < *end).map(|_| Fault::Away);
            let fault = away.or_else(|| state.faults.pop_front());
            let response = match fault {
                Some(Fault::Refuse { code, reason, retry_after }) => failure(code, reason, retry_after),
                Some(Fault::Away) => failure(503, "Away", 0),
                Some(Fault::Silence) | None => state.route(&parts.method, namespace, rest, &body),
            };
            (fault, response)
        };
        match fault {
            Some(Fault::Away) => Err(std::io::ErrorKind::ConnectionRefused.into()),
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Refuse { .. }) | None => Ok(response),
        }
    }
}

impl State {
    fn route(&mut self, method: &Method, namespace: &str, rest: &[&str], body: &Value) -> Response<Full<Bytes>> {
        let key = |name: &str| (namespace.to_owned(), name.to_owned());
        match (method.as_str(), rest) {
            ("POST", []) => {
                let name = body["metadata"]["name"].as_str().expect("a name").to_owned();
                if self.objects.contains_key(&key(&name)) {
                    return failure(409, "AlreadyExists", 0);
                }
                success(201, &self.create(namespace, body.clone()))
            }
            (_, [name, ..]) if !self.objects.contains_key(&key(name)) => failure(404, "NotFound", 0),
            ("GET", [name]) => success(200, &self.objects[&key(name)]),
            ("PATCH", [name, subresource @ ..]) => {
                let seen = body["metadata"].get("resourceVersion");
                if seen.is_some_and(|seen| *seen != self.objects[&key(name)]["metadata"]["resourceVersion"]) {
                    return failure(409, "Conflict", 0);
                }
                let patch = match subresource {
                    [] => json!({"metadata": {"labels": body["metadata"]["labels"]}}),
                    _ => json!({"status": body["status"]}),
                };
                success(200, &self.modify(namespace, name, &patch))
            }
            ("DELETE", [name]) => {
                let wanted = &body["preconditions"]["uid"];
                if *wanted != self.objects[&key(name)]["metadata"]["uid"] {
                    return failure(409, "Conflict", 0);
                }
                success(200, &self.objects.remove(&key(name)).expect("it is there"))
            }
            other => panic!("{other:?}"),
        }
    }

    fn create(&mut self, namespace: &str, mut object: Value) -> Value {
        self.version += 1;
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        object["apiVersion"] = json!("opamp.dev/v1alpha1");
        object["kind"] = json!("Agent");
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["uid"] = json!(format!("object-{}", self.version));
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["generation"] = json!(1);
        object["status"] = json!({"observedGeneration": -1});
        self.objects.insert((namespace.into(), name), object.clone());
        object
    }

    fn modify(&mut self, namespace: &str, name: &str, patch: &Value) -> Value {
        let object = self.objects.get_mut(&(namespace.into(), name.into())).expect("it is there");
        let before = object.clone();
        merge(object, patch);
        if before["spec"] != object["spec"] {
            object["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        if before != *object {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        }
        object.clone()
    }
}

/// RFC 7386 section 2.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

fn success(code: u16, object: &Value) -> Response<Full<Bytes>> {
    response(code, object)
}

fn failure(code: u16, reason: &str, retry_after: u32) -> Response<Full<Bytes>> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "canary",
        "reason": reason, "code": code, "details": {"retryAfterSeconds": retry_after}});
    response(code, &status)
}

fn response(code: u16, body: &Value) -> Response<Full<Bytes>> {
    Response::builder().status(code).body(Full::new(Bytes::from(body.to_string()))).expect("a response")
}
