//! Candidates against an API server in memory that knows Leases only, with a clock moved by hand.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{Election, Holder, Incarnation, Leading, Metrics, ReplicaLease, Uncounted, election::LEADER_LEASE};

/// How the server treats requests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Mood {
    #[default]
    Well,
    /// It takes them and never answers.
    Silent,
    /// It answers at once that it cannot.
    Refusing,
    /// It answers a read at the last moment, and a write never.
    Sluggish,
}

#[derive(Default)]
struct State {
    leases: BTreeMap<String, Value>,
    version: u64,
    mood: Mood,
    refusals: u32,
}

#[derive(Clone, Default)]
struct ApiServer {
    state: Arc<Mutex<State>>,
}

impl ApiServer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { server.answer(request).await }
        });
        Client::new(service, "opamp-system")
    }

    fn holder(&self, name: &str) -> Option<String> {
        let state = self.state();
        state.leases.get(name)?["spec"]["holderIdentity"].as_str().map(ToOwned::to_owned)
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Full<Bytes>>, io::Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mood = self.state().mood;
        match (mood, parts.method.as_str()) {
            (Mood::Well, _) => {}
            (Mood::Refusing, _) => {
                self.state().refusals += 1;
                return Ok(failure(503, "ServiceUnavailable"));
            }
            (Mood::Sluggish, "GET") => sleep(Duration::from_millis(2_400)).await,
            (Mood::Silent | Mood::Sluggish, _) => return std::future::pending().await,
        }
        let path = parts.uri.path();
        let name = path.strip_prefix("/apis/coordination.k8s.io/v1/namespaces/opamp-system/leases").expect("a Lease");
        Ok(self.state().route(&parts.method, name.trim_start_matches('/'), body))
    }
}

impl State {
    fn route(&mut self, method: &Method, name: &str, body: Value) -> Response<Full<Bytes>> {
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        let known = self.leases.get(name).cloned();
        match (method, known) {
            (&Method::POST, _) => {
                let name = body["metadata"]["name"].as_str().expect("a name").to_owned();
                if self.leases.contains_key(&name) { failure(409, "AlreadyExists") } else { self.store(&name, body) }
            }
            (_, None) => failure(404, "NotFound"),
            (&Method::GET, Some(lease)) => success(&lease),
            (&Method::PUT, Some(lease)) if version(&lease) == version(&body) => self.store(name, body),
            (&Method::DELETE, Some(lease)) if body["preconditions"]["resourceVersion"] == version(&lease) => {
                self.leases.remove(name);
                success(&lease)
            }
            (_, Some(_)) => failure(409, "Conflict"),
        }
    }

    fn store(&mut self, name: &str, mut lease: Value) -> Response<Full<Bytes>> {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.leases.insert(name.into(), lease.clone());
        success(&lease)
    }
}

fn success(object: &Value) -> Response<Full<Bytes>> {
    Response::new(Full::new(object.to_string().into()))
}

fn failure(code: u16, reason: &str) -> Response<Full<Bytes>> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
        "message": reason, "metadata": {}});
    let mut response = success(&status);
    *response.status_mut() = code.try_into().expect("a status code");
    response
}

/// A replica that stands for election.
struct Candidate {
    leading: watch::Receiver<Leading>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Candidate {
    fn of(server: &ApiServer, replica: &str, incarnation: &str) -> Self {
        let me = Holder { replica: replica.into(), incarnation: Incarnation::from_text(incarnation) };
        let (election, leading) = Election::new(server.client(), "opamp-system", me, Metrics::default());
        let shutdown = CancellationToken::new();
        Self { leading, task: tokio::spawn(election.run(shutdown.clone())), shutdown }
    }

    fn leads(&self) -> bool {
        *self.leading.borrow() == Leading::Yes
    }
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn one_leads_until_it_ends_and_the_other_follows_at_its_next_look() {
    let server = ApiServer::default();
    let first = Candidate::of(&server, "replica-0", "1111111111");
    seconds(1).await;
    let second = Candidate::of(&server, "replica-1", "2222222222");
    seconds(60).await;
    assert!(first.leads() && !second.leads());
    first.shutdown.cancel();
    first.task.await.expect("an orderly end");
    assert_eq!(*first.leading.borrow(), Leading::No);
    assert_eq!(server.holder(LEADER_LEASE), None, "given up");
    seconds(4).await;
    assert!(second.leads());
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_followed_when_its_lease_is_expired() {
    let server = ApiServer::default();
    let first = Candidate::of(&server, "replica-0", "1111111111");
    seconds(1).await;
    let second = Candidate::of(&server, "replica-1", "2222222222");
    seconds(10).await;
    first.task.abort();
    seconds(7).await;
    assert!(!second.leads(), "the Lease may be in force");
    seconds(7).await;
    assert!(second.leads());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_restarts_leads_at_once() {
    let server = ApiServer::default();
    let first = Candidate::of(&server, "replica-0", "1111111111");
    seconds(1).await;
    first.task.abort();
    let again = Candidate::of(&server, "replica-0", "2222222222");
    seconds(1).await;
    assert!(again.leads());
    assert_eq!(server.holder(LEADER_LEASE).as_deref(), Some("replica-0_2222222222"));
}

#[tokio::test(start_paused = true)]
async fn two_that_were_given_one_name_do_not_fight() {
    let server = ApiServer::default();
    let first = Candidate::of(&server, "replica-0", "1111111111");
    seconds(1).await;
    let second = Candidate::of(&server, "replica-0", "2222222222");
    seconds(4).await;
    for _ in 0..100 {
        seconds(1).await;
        assert!(second.leads() && !first.leads());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_stops_before_another_can_lead() {
    let server = ApiServer::default();
    let leader = Candidate::of(&server, "replica-0", "1111111111");
    seconds(1).await;
    assert!(leader.leads());
    server.state().mood = Mood::Silent;
    seconds(10).await;
    assert!(!leader.leads(), "10 s are the Lease's duration");
    server.state().mood = Mood::Well;
    seconds(4).await;
    assert!(leader.leads(), "nobody else has taken it");
}

#[tokio::test(start_paused = true)]
async fn a_leader_stops_in_time_although_its_last_attempt_is_still_under_way() {
    let server = ApiServer::default();
    let leader = Candidate::of(&server, "replica-0", "1111111111");
    sleep(Duration::from_millis(100)).await;
    server.state().mood = Mood::Sluggish;
    sleep(Duration::from_millis(7_800)).await;
    assert!(leader.leads());
    sleep(Duration::from_millis(200)).await;
    assert!(!leader.leads(), "8 s after the last renewal was begun");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_is_asked_once_a_second() {
    let server = ApiServer::default();
    let leader = Candidate::of(&server, "replica-0", "1111111111");
    seconds(1).await;
    server.state().mood = Mood::Refusing;
    seconds(60).await;
    assert!(!leader.leads());
    let asked = server.state().refusals;
    assert!((50..=70).contains(&asked), "{asked} times in a minute");
}

#[tokio::test(start_paused = true)]
async fn the_lead_is_lost_to_whoever_wrote_the_lease() {
    let server = ApiServer::default();
    let leader = Candidate::of(&server, "replica-0", "1111111111");
    seconds(1).await;
    let mut lease = server.state().leases[LEADER_LEASE].clone();
    lease["spec"]["holderIdentity"] = "replica-1_2222222222".into();
    server.state().store(LEADER_LEASE, lease);
    seconds(3).await;
    assert!(!leader.leads());
}

#[tokio::test(start_paused = true)]
async fn a_replicas_lease_tells_of_agents_without_an_object_and_goes_with_the_replica() {
    let server = ApiServer::default();
    let (uncounted, receiver) = watch::channel(Uncounted::new());
    let me = Holder { replica: "replica-0".into(), incarnation: Incarnation::from_text("1111111111") };
    let shutdown = CancellationToken::new();
    let lease = ReplicaLease::new(server.client(), "opamp-system", me, receiver);
    let task = tokio::spawn(lease.run(shutdown.clone()));
    seconds(1).await;
    assert_eq!(server.holder("opamp-replica-replica-0").as_deref(), Some("replica-0_1111111111"));
    uncounted.send_replace(Uncounted::from([("fleet-uid".into(), 3)]));
    seconds(3).await;
    let metadata = server.state().leases["opamp-replica-replica-0"]["metadata"].clone();
    assert_eq!(metadata["annotations"]["opamp.dev/uncounted"], r#"{"fleet-uid":3}"#);
    assert_eq!(metadata["labels"]["opamp.dev/lease"], "replica");
    shutdown.cancel();
    task.await.expect("an orderly end");
    assert_eq!(server.holder("opamp-replica-replica-0"), None);
}
