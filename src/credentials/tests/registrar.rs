//! The registrar at work against an API server in memory, and killed at each of its writes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::json;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    api_server::{ApiServer, Death},
    stored::{holder, request},
    uid,
    world::POLICY,
};
use crate::{
    credentials::{
        certificates::Certificates,
        metrics::Metrics,
        profile::server_names,
        registrar::{Findings, Registrar, RegistrarSettings},
        renewal::Validity,
        requests::{AskError, Asked, Requests},
        roll::{Finalizer, KeyWish, Member, Roll, Standing},
        stored::{AgentCertificate, Given, Holder},
        trust::Trust,
    },
    kubernetes::{ObjectKey, Scope},
    opamp::InstanceUid,
};

pub(super) struct Bench {
    server: ApiServer,
    pub(super) certificates: Certificates,
    pub(super) trust: Trust,
    roll: watch::Sender<Option<Arc<Roll>>>,
    pub(super) findings: watch::Receiver<Findings>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Bench {
    /// A replica that has the lead.
    pub(super) fn start(server: &ApiServer, roll: &Roll) -> Self {
        Self::succeed(server, roll, Trust::new())
    }

    /// The same, of a replica that has seen so much before it got the lead.
    fn succeed(server: &ApiServer, roll: &Roll, trust: Trust) -> Self {
        let certificates = Certificates::new(&Scope::All);
        let sender = watch::Sender::new(Some(Arc::new(roll.clone())));
        let settings = RegistrarSettings {
            namespace: "opamp-system".into(),
            cluster: None,
            server_names: Some(server_names(&[], "opamp-system")),
        };
        let (client, metrics) = (server.client(), Metrics::default());
        let registrar = Registrar::new(client, certificates.clone(), trust.clone(), settings, metrics);
        let findings = registrar.findings();
        let tasks = vec![
            tokio::spawn(certificates.clone().run(server.client().into(), Scope::All)),
            tokio::spawn(trust.clone().run(server.client().into(), "opamp-system".into())),
            tokio::spawn(registrar.run(server.client().into(), sender.subscribe())),
        ];
        Self { server: server.clone(), certificates, trust, roll: sender, findings, tasks }
    }

    pub(super) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let waited = timeout(Duration::from_secs(120), async {
            while !is_so(self) {
                sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(waited.await.is_ok(), "{what}: {:?}", self.server.writes());
    }

    pub(super) fn offered(&self, number: u8) -> Option<(Arc<AgentCertificate>, Arc<Given>)> {
        let trust = self.trust.snapshot();
        self.certificates.offered(&uid(number), "telemetry", "edge", &trust, Timestamp::now())
    }

    /// Who is known changes.
    pub(super) fn call(&self, roll: &Roll) {
        self.roll.send_replace(Some(Arc::new(roll.clone())));
    }

    pub(super) fn given(&self, agent: &InstanceUid) -> usize {
        self.certificates.of(agent).iter().filter(|it| it.given.is_some()).count()
    }
}

pub(super) fn member(number: u8, standing: Standing, key_wish: KeyWish) -> (ObjectKey, Member) {
    let (agent, finalizer) = (uid(number), Finalizer::Absent);
    let member =
        Member { agent, fleet: Some("edge".into()), standing, key_wish, in_use: None, in_use_until: None, finalizer };
    (Roll::place("telemetry", &agent), member)
}

pub(super) fn roll(members: impl IntoIterator<Item = (ObjectKey, Member)>) -> Roll {
    Roll {
        members: members.into_iter().collect(),
        fleets: BTreeMap::from([(ObjectKey::new("telemetry", "edge"), POLICY)]),
        departed: BTreeMap::new(),
        operator_namespace: "opamp-system".into(),
    }
}

fn agent_object(number: u8) -> serde_json::Value {
    json!({"apiVersion": "opamp.dev/v1alpha1", "kind": "Agent",
        "metadata": {"namespace": "telemetry", "name": uid(number).to_string()}})
}

#[tokio::test(start_paused = true)]
async fn everything_is_made_at_the_first_start_and_nothing_at_the_second() {
    let server = ApiServer::new();
    let bench = Bench::start(&server, &roll([]));
    bench.until("all is there", |bench| bench.trust.snapshot().revocations().is_some()).await;
    assert_eq!(
        server.writes(),
        [
            "POST /api/v1/namespaces/opamp-system/secrets",
            "POST /api/v1/namespaces/opamp-system/configmaps",
            "POST /api/v1/namespaces/opamp-system/secrets",
            "POST /api/v1/namespaces/opamp-system/configmaps",
        ]
    );
    drop(bench);
    server.die(None);
    let _bench = Bench::start(&server, &roll([]));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(server.writes(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_a_replica_hands_on_is_answered_and_believed() {
    let server = ApiServer::new();
    let bench = Bench::start(&server, &roll([member(1, Standing::Admitted, KeyWish::Own)]));
    let requests = Requests::new(server.client(), bench.certificates.clone(), bench.trust.clone());
    let (holder, request) = (holder(1), request(1));
    let asked = requests.ask(&holder, &request, Validity::default(), Timestamp::now());
    assert_eq!(asked.await, Ok(Asked::Waits));
    bench.until("it is answered", |bench| bench.given(&uid(1)) == 1).await;
    bench.until("the CA is known", |bench| bench.trust.snapshot().cluster().is_some()).await;
    let (found, given) = bench.offered(1).unwrap();
    assert!(found.private_key.is_none());
    let certificate = crate::credentials::pem::read_certificates(given.chain.as_bytes()).unwrap().remove(0);
    let known = bench.trust.snapshot().identify(&certificate, Timestamp::now()).unwrap();
    assert_eq!(known.identity.issued_to(), Some(uid(1)));
    assert_eq!(bench.certificates.holder_of(&certificate).unwrap().0, found);
    let again = requests.ask(&holder, &request, POLICY.validity, Timestamp::now());
    assert_eq!(again.await, Ok(Asked::Answered(found)), "the same again changes nothing");
}

#[tokio::test(start_paused = true)]
async fn secrets_of_another_namespace_are_no_crowd() {
    let server = ApiServer::new();
    let bench = Bench::start(&server, &roll([]));
    for _ in 0..4 {
        let elsewhere = Holder { namespace: "bank".into(), ..holder(1) };
        server.put("secrets", &serde_json::to_value(elsewhere.request(&request(1))).unwrap());
    }
    bench.until("they are known", |bench| bench.certificates.of(&uid(1)).len() == 4).await;
    let requests = Requests::new(server.client(), bench.certificates.clone(), bench.trust.clone());
    for number in 0..=4 {
        let (holder, request) = (holder(1), request(1));
        let asked = requests.ask(&holder, &request, Validity::default(), Timestamp::now()).await;
        assert_eq!(asked, if number < 4 { Ok(Asked::Waits) } else { Err(AskError::Crowd) }, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_refuses_to_store_is_told_with_its_reason_alone() {
    let server = ApiServer::new();
    server.forbid(&["secrets"]);
    let requests = Requests::new(server.client(), Certificates::new(&Scope::All), Trust::new());
    let refused = requests.ask(&holder(1), &request(1), Validity::default(), Timestamp::now()).await.unwrap_err();
    let told = "the certificate request could not be stored: the API server refuses that (403 Forbidden)";
    assert_eq!((&refused, &*refused.to_string()), (&AskError::Refused("403 Forbidden".into()), told));
}

#[tokio::test(start_paused = true)]
async fn a_revocation_is_published_within_a_second_and_survives_its_objects() {
    let server = ApiServer::new();
    server.put("agents", &agent_object(1));
    let bench = Bench::start(&server, &roll([member(1, Standing::Admitted, KeyWish::Operators)]));
    bench.until("it has one", |bench| bench.given(&uid(1)) == 1).await;
    let held = bench.certificates.of(&uid(1))[0].held().next().unwrap().clone();
    let start = Instant::now();
    bench.roll.send_replace(Some(Arc::new(roll([member(1, Standing::Revoked, KeyWish::Operators)]))));
    let is_revoked = |bench: &Bench| bench.trust.snapshot().is_revoked(&held.issuer, &held.serial);
    bench.until("it is revoked", is_revoked).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let finalizers =
        || server.get("agents", "telemetry", &uid(1).to_string()).unwrap()["metadata"]["finalizers"].clone();
    assert_eq!(finalizers(), json!(["opamp.dev/revocation"]));
    let (place, mut known) = member(1, Standing::Revoked, KeyWish::Operators);
    known.finalizer = Finalizer::Present;
    bench.roll.send_replace(Some(Arc::new(roll([(place, known)]))));
    bench.until("its Secret is gone", |bench| bench.certificates.of(&uid(1)).is_empty()).await;
    bench.until("it may vanish", |_| finalizers() == json!([])).await;
    server.delete("configmaps", "opamp-system", "opamp-crl");
    bench
        .until("the list is back", |bench| bench.server.get("configmaps", "opamp-system", "opamp-crl").is_some())
        .await;
    assert!(is_revoked(&bench));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_be_held_keeps_nobody_else_waiting() {
    let server = ApiServer::new();
    let bench = Bench::start(&server, &roll([member(1, Standing::Admitted, KeyWish::Operators)]));
    bench.until("it has one", |bench| bench.given(&uid(1)) == 1).await;
    let held = bench.certificates.of(&uid(1))[0].held().next().unwrap().clone();
    server.forbid(&["agents"]);
    let members = [member(1, Standing::Revoked, KeyWish::Operators), member(2, Standing::Admitted, KeyWish::Operators)];
    bench.roll.send_replace(Some(Arc::new(roll(members))));
    bench.until("it is revoked", |bench| bench.trust.snapshot().is_revoked(&held.issuer, &held.serial)).await;
    bench.until("another is served", |bench| bench.given(&uid(2)) == 1).await;
}

/// So many agents, in this fleet alone.
fn crowd(namespace: &str, count: u16, change: impl Fn(&mut Member)) -> Vec<(ObjectKey, Member)> {
    let agents = (0..count).map(|number| {
        let agent = InstanceUid::from_wire(&[&[7; 14][..], &number.to_be_bytes()].concat()).unwrap();
        let (_, mut member) = member(1, Standing::Admitted, KeyWish::Operators);
        member.agent = agent;
        change(&mut member);
        (Roll::place(namespace, &agent), member)
    });
    agents.collect()
}

#[tokio::test(start_paused = true)]
async fn a_fleet_with_much_to_do_leaves_their_turns_to_others() {
    let server = ApiServer::new();
    let mut roll =
        roll(crowd("alpha", 1_000, |_| ()).into_iter().chain([member(1, Standing::Admitted, KeyWish::Operators)]));
    roll.fleets.insert(ObjectKey::new("alpha", "edge"), POLICY);
    let bench = Bench::start(&server, &roll);
    bench.until("the last has its certificate", |bench| bench.given(&uid(1)) == 1).await;
    let before = bench.certificates.all().len();
    assert!(before <= 41, "{before} before it");
}

#[tokio::test(start_paused = true)]
async fn a_revocation_does_not_wait_for_a_thousand_other_writes() {
    let server = ApiServer::new();
    server.put("agents", &agent_object(1));
    let denied = || {
        crowd("telemetry", 1_000, |member| {
            (member.standing, member.key_wish) = (Standing::Denied, KeyWish::Own);
        })
    };
    let bench = Bench::start(&server, &roll([member(1, Standing::Admitted, KeyWish::Operators)]));
    bench.until("it has one", |bench| bench.given(&uid(1)) == 1).await;
    for (_, member) in denied() {
        let secret = Holder { agent: member.agent, ..holder(1) }.request(&request(1));
        server.put("secrets", &serde_json::to_value(secret).unwrap());
    }
    bench.until("all have asked", |bench| bench.certificates.all().len() == 1_001).await;
    bench.roll.send_replace(Some(Arc::new(roll(denied().into_iter().chain([member(
        1,
        Standing::Admitted,
        KeyWish::Own,
    )])))));
    sleep(Duration::from_secs(1)).await;
    let held = bench.certificates.of(&uid(1))[0].held().next().unwrap().clone();
    let revoked = member(1, Standing::Revoked, KeyWish::Own);
    bench.roll.send_replace(Some(Arc::new(roll(denied().into_iter().chain([revoked])))));
    let start = Instant::now();
    bench.until("it is revoked", |bench| bench.trust.snapshot().is_revoked(&held.issuer, &held.serial)).await;
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    let refused = |bench: &Bench| bench.certificates.all().iter().filter(|it| it.refused.is_some()).count();
    bench.until("all are refused", |bench| refused(bench) == 1_000).await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_authority_is_told_and_left_alone() {
    let server = ApiServer::new();
    drop(Bench::start(&server, &roll([])));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"namespace": "opamp-system", "name": "opamp-ca"}, "data": {"tls.crt": "Y2FuYXJ5", "tls.key": ""}});
    server.put("secrets", &secret);
    let certificates = Certificates::new(&Scope::All);
    let settings = RegistrarSettings { namespace: "opamp-system".into(), cluster: None, server_names: None };
    let registrar = Registrar::new(server.client(), certificates, Trust::new(), settings, Metrics::default());
    let mut findings = registrar.findings();
    let (_sender, receiver) = watch::channel(None);
    let task = tokio::spawn(registrar.run(server.client().into(), receiver));
    findings.changed().await.unwrap();
    let told = findings.borrow().authority.clone().unwrap();
    assert!(told.contains("Secret opamp-ca") && told.contains("backup"), "{told}");
    assert_eq!(server.get("secrets", "opamp-system", "opamp-ca").unwrap()["data"], secret["data"]);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_killed_at_any_write_leaves_nothing_that_the_next_one_cannot_mend() {
    let members = || {
        let denied = member(4, Standing::Denied, KeyWish::Own);
        let own = member(1, Standing::Admitted, KeyWish::Own);
        let operators = [2, 3].map(|number| member(number, Standing::Admitted, KeyWish::Operators));
        roll(operators.into_iter().chain([own, denied]))
    };
    for number in 1..=9 {
        for death in [Death::Before(number), Death::After(number)] {
            let server = ApiServer::new();
            let name = |number: u8| {
                let secret = serde_json::to_value(holder(number).request(&request(number))).unwrap();
                server.put("secrets", &secret);
                secret["metadata"]["name"].as_str().unwrap().to_owned()
            };
            let (asked, refused) = (name(1), name(4));
            server.die(Some(death));
            let killed = Bench::start(&server, &members());
            sleep(Duration::from_secs(3)).await;
            drop(killed);
            server.die(None);
            let bench = Bench::start(&server, &members());
            bench
                .until("all have theirs", |bench| {
                    let given = [1, 2, 3].iter().all(|number| bench.given(&uid(*number)) == 1);
                    given && bench.certificates.of(&uid(4)).iter().all(|it| it.refused.is_some())
                })
                .await;
            sleep(Duration::from_secs(1_000)).await;
            assert_eq!(server.list("secrets").len(), 6, "{death:?}: CA, server, four of agents");
            let agent_born = ObjectKey::new("telemetry", &asked);
            assert!(bench.certificates.get(&agent_born).is_some_and(|it| it.given.is_some()), "{death:?}");
            assert!(bench.certificates.get(&ObjectKey::new("telemetry", &refused)).is_some(), "{death:?}");
            let snapshot = bench.trust.snapshot();
            for certificate in bench.certificates.all().iter().filter_map(|it| it.given.clone()) {
                assert!(snapshot.trusts(&certificate.certificate.issuer), "{death:?}: one CA in the end");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_authority_whose_objects_are_all_deleted_stays_trusted() {
    let server = ApiServer::new();
    let bench = Bench::start(&server, &roll([member(1, Standing::Admitted, KeyWish::Operators)]));
    bench.until("it has one", |bench| bench.given(&uid(1)) == 1).await;
    let former = bench.certificates.of(&uid(1))[0].held().next().unwrap().issuer;
    for resource in ["configmaps", "secrets"] {
        server.delete(resource, "opamp-system", "opamp-ca");
    }
    let signs = |bench: &Bench| bench.trust.snapshot().revocations().map(|list| list.signed_by);
    bench.until("another signs", |bench| signs(bench).is_some_and(|signer| signer != former)).await;
    sleep(Duration::from_secs(5)).await;
    assert!(bench.trust.snapshot().trusts(&former), "nobody is turned away");
    assert!(signs(&bench).is_some_and(|signer| bench.trust.snapshot().trusts(&signer)));
}

#[tokio::test(start_paused = true)]
async fn the_next_leader_puts_back_what_it_has_seen() {
    let server = ApiServer::new();
    server.put("agents", &agent_object(1));
    let bench = Bench::start(&server, &roll([member(1, Standing::Admitted, KeyWish::Operators)]));
    bench.until("it has one", |bench| bench.given(&uid(1)) == 1).await;
    let held = bench.certificates.of(&uid(1))[0].held().next().unwrap().clone();
    bench.call(&roll([member(1, Standing::Revoked, KeyWish::Operators)]));
    let is_revoked = |trust: &Trust| trust.snapshot().is_revoked(&held.issuer, &held.serial);
    bench.until("it is revoked", |bench| is_revoked(&bench.trust)).await;
    bench.until("its Secret is gone", |bench| bench.certificates.of(&uid(1)).is_empty()).await;
    let trust = bench.trust.clone();
    drop(bench);
    for (resource, name) in [("configmaps", "opamp-crl"), ("configmaps", "opamp-ca"), ("secrets", "opamp-ca")] {
        server.delete(resource, "opamp-system", name);
    }
    let bench = Bench::succeed(&server, &roll([]), trust);
    let is_there = |_: &Bench| server.get("configmaps", "opamp-system", "opamp-crl").is_some();
    bench.until("the list is back", is_there).await;
    sleep(Duration::from_secs(5)).await;
    assert!(is_revoked(&bench.trust));
    assert!(bench.trust.snapshot().trusts(&held.issuer), "the former CA is trusted beside its successor");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_killed_while_the_authority_is_replaced_leaves_one_that_signs_and_both_trusted() {
    let members = || roll([member(1, Standing::Admitted, KeyWish::Operators)]);
    let cases = (1..=4).flat_map(|number| [Death::Before(number), Death::After(number)]);
    for death in cases {
        let server = ApiServer::new();
        let bench = Bench::start(&server, &members());
        bench.until("it has one", |bench| bench.given(&uid(1)) == 1).await;
        let former = bench.certificates.of(&uid(1))[0].held().next().unwrap().issuer;
        drop(bench);
        let mut secret = server.get("secrets", "opamp-system", "opamp-ca").unwrap();
        secret["metadata"]["annotations"]["opamp.dev/rotate"] = json!("2026-11-29");
        server.put("secrets", &secret);
        server.die(Some(death));
        let killed = Bench::start(&server, &members());
        sleep(Duration::from_secs(3)).await;
        drop(killed);
        server.die(None);
        let bench = Bench::start(&server, &members());
        let signs = |bench: &Bench| bench.trust.snapshot().revocations().map(|list| list.signed_by);
        bench.until("another signs", |bench| signs(bench).is_some_and(|signer| signer != former)).await;
        let trust = bench.trust.snapshot();
        assert!(trust.trusts(&former) && signs(&bench).is_some_and(|signer| trust.trusts(&signer)), "{death:?}");
        let bundle = crate::credentials::pem::read_certificates(trust.bundle().unwrap().as_bytes()).unwrap();
        assert_eq!(bundle.len(), 2, "{death:?}: one for one wish");
        assert_eq!(bench.given(&uid(1)), 1, "{death:?}");
        assert!(bench.offered(1).is_some(), "{death:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_thousand_that_are_due_at_once_are_served_within_the_budget() {
    let server = ApiServer::new();
    let bench = Bench::start(&server, &roll(crowd("telemetry", 2_000, |_| ())));
    let start = Instant::now();
    bench.until("all have theirs", |bench| bench.certificates.all().len() == 2_000).await;
    let took = start.elapsed().as_secs_f64();
    assert!((95.0..120.0).contains(&took), "20 at once and 20 a second: {took}");
    assert_eq!(server.writes().len(), 2_000 + 4, "one write each");
}
