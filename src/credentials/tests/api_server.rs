//! An API server in memory: objects of any kind with resourceVersions and watches, and an end to it at any write.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream, stream::BoxStream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::stored::merge;

/// Where it says which kinds of cert-manager it knows.
const DISCOVERY: &str = "/apis/cert-manager.io/v1";

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

/// Where the life of whoever writes ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Death {
    /// The write does not arrive.
    Before(usize),
    /// It arrives, and the answer does not come back.
    After(usize),
}

#[derive(Default)]
struct State {
    /// By resource, namespace and name.
    objects: BTreeMap<(String, String, String), Value>,
    version: u64,
    /// What happened: the version, the resource, and the event.
    log: Vec<(u64, String, Value)>,
    writes: Vec<String>,
    death: Option<Death>,
    /// Resources that do not exist.
    unknown: Vec<String>,
    /// Resources that the caller has no right to.
    forbidden: Vec<String>,
}

/// A handle of the server; clones share it.
#[derive(Clone)]
pub(super) struct ApiServer {
    state: Arc<Mutex<State>>,
    grown: watch::Sender<()>,
}

struct Target {
    resource: String,
    namespace: Option<String>,
    name: Option<String>,
    query: BTreeMap<String, String>,
}

impl ApiServer {
    pub(super) fn new() -> Self {
        Self { state: Arc::default(), grown: watch::Sender::new(()) }
    }

    pub(super) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, std::io::Error>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer dies there; `None`: it lives. Counting begins anew.
    pub(super) fn die(&self, death: Option<Death>) {
        let mut state = self.state();
        state.writes.clear();
        state.death = death;
    }

    /// The API server knows these kinds no more; all others it knows.
    pub(super) fn know_no(&self, resources: &[&str]) {
        self.state().unknown = resources.iter().map(ToString::to_string).collect();
    }

    /// The caller may do nothing to these kinds any more.
    pub(super) fn forbid(&self, resources: &[&str]) {
        self.state().forbidden = resources.iter().map(ToString::to_string).collect();
    }

    /// Writes so far, as method and path.
    pub(super) fn writes(&self) -> Vec<String> {
        self.state().writes.clone()
    }

    pub(super) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.state().objects.get(&(resource.into(), namespace.into(), name.into())).cloned()
    }

    pub(super) fn list(&self, resource: &str) -> Vec<Value> {
        let state = self.state();
        state.objects.iter().filter(|((kind, ..), _)| kind == resource).map(|(_, object)| object.clone()).collect()
    }

    /// Somebody else writes.
    pub(super) fn put(&self, resource: &str, object: &Value) {
        self.state().store(resource, object.clone());
        self.grown.send_replace(());
    }

    /// Somebody else deletes.
    pub(super) fn delete(&self, resource: &str, namespace: &str, name: &str) {
        self.state().remove(&(resource.into(), namespace.into(), name.into()));
        self.grown.send_replace(());
    }

    async fn answer(self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        if parts.uri.path() == DISCOVERY {
            return self.discover();
        }
        let target = Target::read(&parts.uri);
        if target.query.get("watch").is_some_and(|watch| watch == "true") {
            return self.watch(&target);
        }
        let death = {
            let mut state = self.state();
            if parts.method != Method::GET {
                state.writes.push(format!("{} {}", parts.method, parts.uri.path()));
            }
            state.death.filter(|_| parts.method != Method::GET).map(|death| (death, state.writes.len()))
        };
        if let Some((Death::Before(at), number)) = death
            && number >= at
        {
            return std::future::pending().await;
        }
        let (code, object) = self.state().handle(&parts.method, &target, &body);
        self.grown.send_replace(());
        if let Some((Death::After(at), number)) = death
            && number >= at
        {
            return std::future::pending().await;
        }
        let text = Bytes::from(object.to_string());
        response(code, async move { Ok(Frame::data(text)) }.into_stream().boxed())
    }

    /// What there is of cert-manager.
    fn discover(&self) -> Answer {
        let is_known = !self.state().unknown.contains(&"certificaterequests".to_owned());
        let resource = json!({"name": "certificaterequests", "singularName": "certificaterequest", "namespaced": true,
            "kind": "CertificateRequest", "verbs": ["get", "create"]});
        let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "cert-manager.io/v1",
            "resources": [resource]});
        let (code, object) = if is_known { (200, list) } else { failure(404, "NotFound") };
        let text = Bytes::from(object.to_string());
        response(code, async move { Ok(Frame::data(text)) }.into_stream().boxed())
    }

    fn watch(&self, target: &Target) -> Answer {
        let from: u64 = target.query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or_default();
        let selector = target.query.get("fieldSelector").cloned().unwrap_or_default();
        let (server, resource, namespace) = (self.clone(), target.resource.clone(), target.namespace.clone());
        let grown = self.grown.subscribe();
        let frames = stream::unfold((from, grown), move |(from, mut grown)| {
            let (server, resource, namespace) = (server.clone(), resource.clone(), namespace.clone());
            let selector = selector.clone();
            async move {
                loop {
                    grown.mark_unchanged();
                    let (version, text) = {
                        let state = server.state();
                        let news = state.log.iter().filter(|(version, kind, event)| {
                            *version > from
                                && *kind == resource
                                && fits(&event["object"], namespace.as_deref(), &selector)
                        });
                        let text = news.fold(String::new(), |text, (_, _, event)| text + &event.to_string() + "\n");
                        (state.version, text)
                    };
                    if !text.is_empty() {
                        return Some((Ok(Frame::data(Bytes::from(text))), (version, grown)));
                    }
                    grown.changed().await.ok()?;
                }
            }
        });
        response(200, frames.boxed())
    }
}

impl Target {
    fn read(uri: &http::Uri) -> Self {
        let segments: Vec<_> = uri.path().split('/').filter(|segment| !segment.is_empty()).collect();
        let rest = if segments[0] == "api" { &segments[2..] } else { &segments[3..] };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let query = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        let decoded = |text: &str| text.replace("%3D", "=").replace("%2F", "/");
        Self {
            resource: rest[0].to_owned(),
            namespace,
            name: rest.get(1).map(|name| (*name).to_owned()),
            query: query.map(|(key, value)| (key.to_owned(), decoded(value))).collect(),
        }
    }

    fn key(&self, name: &str) -> (String, String, String) {
        (self.resource.clone(), self.namespace.clone().unwrap_or_default(), name.to_owned())
    }
}

impl State {
    fn store(&mut self, resource: &str, mut object: Value) -> Value {
        self.version += 1;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let key = (resource.to_owned(), namespace, name);
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let kind = if self.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
            object["metadata"]["creationTimestamp"] = json!(jiff::Timestamp::now().to_string());
        }
        self.log.push((self.version, resource.to_owned(), json!({"type": kind, "object": object})));
        self.objects.insert(key, object.clone());
        object
    }

    fn remove(&mut self, key: &(String, String, String)) {
        if let Some(object) = self.objects.remove(key) {
            self.version += 1;
            self.log.push((self.version, key.0.clone(), json!({"type": "DELETED", "object": object})));
        }
    }

    fn handle(&mut self, method: &Method, target: &Target, body: &[u8]) -> (u16, Value) {
        if self.unknown.contains(&target.resource) {
            return failure(404, "NotFound");
        }
        if self.forbidden.contains(&target.resource) {
            return failure(403, "Forbidden");
        }
        let Some(name) = &target.name else {
            return if method == Method::POST { self.create(target, body) } else { (200, self.items(target)) };
        };
        let key = target.key(name);
        let Some(found) = self.objects.get(&key).cloned() else { return failure(404, "NotFound") };
        let version = found["metadata"]["resourceVersion"].clone();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        match method.as_str() {
            "GET" => (200, found),
            "DELETE" => {
                let asked = &body["preconditions"]["resourceVersion"];
                if !asked.is_null() && *asked != version {
                    return failure(409, "Conflict");
                }
                self.remove(&key);
                (200, json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
            }
            "PUT" if body["metadata"]["resourceVersion"] != version => failure(409, "Conflict"),
            "PUT" => (200, self.store(&target.resource, body)),
            _ => {
                let asked = &body["metadata"]["resourceVersion"];
                if !asked.is_null() && *asked != version {
                    return failure(409, "Conflict");
                }
                let mut object = found;
                merge(&mut object, &body);
                (200, self.store(&target.resource, object))
            }
        }
    }

    fn create(&mut self, target: &Target, body: &[u8]) -> (u16, Value) {
        let mut object: Value = serde_json::from_slice(body).expect("JSON");
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        if self.objects.contains_key(&target.key(&name)) {
            return failure(409, "AlreadyExists");
        }
        if let Some(namespace) = &target.namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        (201, self.store(&target.resource, object))
    }

    fn items(&self, target: &Target) -> Value {
        let selector = target.query.get("fieldSelector").map(String::as_str).unwrap_or_default();
        let objects = self.objects.iter().filter(|((kind, ..), _)| *kind == target.resource).map(|(_, object)| object);
        let items: Vec<_> = objects.filter(|object| fits(object, target.namespace.as_deref(), selector)).collect();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": self.version.to_string()},
            "items": items})
    }
}

fn fits(object: &Value, namespace: Option<&str>, selector: &str) -> bool {
    let is_there = namespace.is_none_or(|namespace| object["metadata"]["namespace"] == namespace);
    let is_selected = match selector.split_once('=') {
        Some(("metadata.name", name)) => object["metadata"]["name"] == name,
        Some(("type", kind)) => object["type"] == kind,
        _ => true,
    };
    is_there && is_selected
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "canary",
        "reason": reason, "code": code});
    (code, status)
}

fn response(code: u16, body: BoxStream<'static, Result<Frame<Bytes>, std::io::Error>>) -> Answer {
    Response::builder().status(code).body(UnsyncBoxBody::new(StreamBody::new(body))).expect("a response")
}
