//! The certificates of agents: the plan, and its writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::watcher::Event,
};
use serde_json::json;

use super::{
    AGAIN, LONGEST_LOOK, LOOK, LOOK_FOR_CERT_MANAGER, LOOK_LATER, ROUND, Registrar, Rest, Round, Trouble,
    steps::{fleet, is_by_cert_manager, is_refusal, issuer, needs_cert_manager, subject, take_turns},
};
use crate::{
    api::{FIELD_MANAGER, agent::Agent},
    credentials::{
        audit::{self, Decision},
        carry::{Carried, Desk, Write, refuse},
        certificates::Certificates,
        external::{
            Issuers, Progress,
            cert_manager::{self, Presence},
            not_asked,
        },
        facts::between,
        metrics::{IssueOutcome, Metrics},
        plan::{Plan, Step, Stored, plan},
        request::CertificateRequest,
        roll::{IssuePolicy, Issuer, REVOCATION_FINALIZER, Roll},
        stored::AgentCertificate,
        writes::{WriteError, Writes, clock},
    },
    kubernetes::ObjectKey,
};

/// Writes under way at the same time.
const AT_ONCE: usize = 8;
/// Certificates of one round, about a second's worth: then it is looked at whether something else is more urgent.
const ISSUES_A_ROUND: usize = 20;
/// Other writes of one round, as much.
const OTHERS_A_ROUND: usize = 60;

/// Who carries out steps. Borrowed from the registrar, so that several are under way.
struct Hand<'a> {
    client: &'a Client,
    certificates: &'a Certificates,
    writes: &'a Writes,
    issuing: &'a Writes,
    metrics: &'a Metrics,
    desk: Desk<'a>,
    now: Timestamp,
}

/// What became of a step.
enum Outcome {
    /// It was written, or somebody else was faster.
    Written,
    /// An issuer has signed or refused for this fleet: it is as it should be.
    Served(ObjectKey),
    /// It could not be done; not to be tried again at once.
    Later(ObjectKey, String),
    /// Somebody else must act for this fleet first; with what people must mend.
    Waits(ObjectKey, ObjectKey, Option<String>),
}

impl Registrar {
    /// One round over all agents.
    pub(super) async fn serve(&mut self, roll: &Roll, now: Timestamp) -> Result<Round, Trouble> {
        let revocations = self.published_revocations().await?;
        let Some(settled) = &self.settled else { return Err(Trouble::NotListed) };
        let facts = settled.authority.facts();
        let certificates = self.certificates.all();
        self.orphans.look(roll, &certificates, now);
        let stored = Stored {
            certificates: &certificates,
            revocations: revocations.as_ref(),
            authority: facts.key,
            trusted: &settled.published.issuers,
            authority_ends: facts.not_after,
            orphans: &self.orphans,
        };
        let plan = plan(roll, stored, now);
        self.metrics.show(plan.pending, revocations.map_or(0, |known| known.revocations.len()));
        self.warn_of_full_list(plan.without_room);
        self.look_for_cert_manager(roll).await;
        let outcome = self.carry_out(plan, roll, now).await;
        self.tell(roll);
        outcome
    }

    async fn carry_out(&mut self, plan: Plan, roll: &Roll, now: Timestamp) -> Result<Round, Trouble> {
        let instant = clock();
        let subjects: BTreeSet<_> = plan.steps.iter().map(subject).collect();
        self.resting.retain(|rested, _| subjects.contains(rested));
        let waiting: BTreeSet<_> = plan.steps.iter().filter_map(fleet).collect();
        self.waits.retain(|fleet, _| waiting.contains(fleet));
        let pause = pause(plan.steps.iter().filter(|step| fleet(step).is_some()).count());
        let is_absent = self.is_cert_manager_absent();
        let is_ready = |step: &Step| {
            let until = self.resting.get(&subject(step)).and_then(|rest| rest.until);
            until.is_none_or(|until| until <= instant) && !(is_absent && needs_cert_manager(step))
        };
        // A revocation does not wait for whatever was tried in vain for the same agent.
        let (urgent, steps): (Vec<_>, Vec<_>) =
            plan.steps.into_iter().partition(|step| matches!(step, Step::Hold(_) | Step::Publish { .. }));
        let (issues, others): (Vec<_>, Vec<_>) =
            steps.into_iter().filter(is_ready).partition(|step| matches!(step, Step::Answer(..) | Step::Make(..)));
        let has_more = issues.len() > ISSUES_A_ROUND || !others.is_empty() || !urgent.is_empty();
        let issues = take_turns(issues);
        let Some(settled) = self.settled.take() else { return Err(Trouble::NotListed) };
        let desk = Desk {
            authority: &settled.authority,
            cluster: &settled.published.cluster,
            namespace: &self.settings.namespace.clone(),
            roll,
        };
        let carried = self.carry_out_with(desk, [urgent, others, issues], now).await;
        self.settled = Some(settled);
        let (outcomes, trouble) = carried?;
        self.note(outcomes, pause);
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        Ok(if has_more { Round::More } else { Round::Until(self.next(plan.look_again, now)) })
    }

    /// What comes of the steps, and the first urgent one that the API server did not take: the others need not suffer.
    async fn carry_out_with(
        &mut self,
        desk: Desk<'_>,
        [urgent, others, issues]: [Vec<Step>; 3],
        now: Timestamp,
    ) -> Result<(Vec<Outcome>, Option<Trouble>), Trouble> {
        let mut trouble = None;
        for step in urgent {
            let done = match desk.carry(step, now).map_err(|error| Trouble::ForPeople(error.to_string()))? {
                Carried::Write(Write::Publish(config_map)) => self.publish(*config_map).await,
                Carried::Write(write) => {
                    let written = self.hand(desk, now).write(write).await.map(drop);
                    written.map_err(|error| Trouble::Write(error.to_string()))
                }
                Carried::Ask(..) => Ok(()),
            };
            trouble = trouble.or_else(|| done.err());
        }
        let hand = self.hand(desk, now);
        let steps = others.into_iter().take(OTHERS_A_ROUND).chain(issues.into_iter().take(ISSUES_A_ROUND));
        let outcomes = stream::iter(steps).map(|step| hand.step(step)).buffer_unordered(AT_ONCE).collect().await;
        Ok((outcomes, trouble))
    }

    fn hand<'a>(&'a self, desk: Desk<'a>, now: Timestamp) -> Hand<'a> {
        Hand {
            client: &self.client,
            certificates: &self.certificates,
            writes: &self.writes,
            issuing: &self.issuing,
            metrics: &self.metrics,
            desk,
            now,
        }
    }

    /// Follows what has become of steps; those that wait for somebody else are looked at again after this pause.
    fn note(&mut self, outcomes: Vec<Outcome>, pause: Duration) {
        let mut last = None;
        let mut found = BTreeMap::new();
        for outcome in outcomes {
            match outcome {
                Outcome::Written => {}
                Outcome::Served(fleet) => drop(found.entry(fleet).or_insert(None)),
                Outcome::Later(subject, why) => {
                    self.rest(subject);
                    last = Some(why);
                }
                Outcome::Waits(subject, fleet, finding) => {
                    self.resting.insert(subject, Rest { times: 0, until: Some(clock() + spread(pause)) });
                    found.insert(fleet, finding);
                }
            }
        }
        if let Some(why) = last {
            tracing::warn!(why, "certificates could not be given out or removed; it is tried again");
        }
        for (fleet, finding) in found {
            match finding {
                Some(finding) => drop(self.waits.insert(fleet, finding)),
                None => drop(self.waits.remove(&fleet)),
            }
        }
    }

    fn warn_of_full_list(&mut self, without_room: usize) {
        if without_room > 0 && self.without_room == 0 {
            tracing::error!(
                without_room,
                "more certificates are revoked than one list holds; the Agents of the others are held until there is room"
            );
        }
        self.without_room = without_room;
    }

    /// Nobody need have asked for a certificate before it shows that cert-manager is not there.
    async fn look_for_cert_manager(&mut self, roll: &Roll) {
        let now = clock();
        if !roll.fleets.values().any(is_by_cert_manager) {
            self.cert_manager = None;
        } else if self.cert_manager.is_none_or(|(_, again)| again <= now) {
            // If the API server does not tell, what was known counts.
            let found = cert_manager::look(&self.writes, &self.client).await.ok();
            let known = found.or_else(|| self.cert_manager.map(|(presence, _)| presence));
            self.cert_manager = known.map(|presence| (presence, clock() + LOOK_FOR_CERT_MANAGER));
        }
    }

    fn is_cert_manager_absent(&self) -> bool {
        self.cert_manager.is_some_and(|(presence, _)| presence == Presence::Absent)
    }

    /// Says what people must mend.
    fn tell(&self, roll: &Roll) {
        let mut fleets = self.waits.clone();
        if self.is_cert_manager_absent() {
            let concerned = roll.fleets.iter().filter(|(_, policy)| is_by_cert_manager(policy));
            fleets.extend(concerned.map(|(fleet, _)| (fleet.clone(), cert_manager::ABSENT.to_owned())));
        }
        self.findings.send_if_modified(|findings| {
            let is_news = findings.fleets != fleets;
            findings.fleets = fleets;
            is_news
        });
    }

    /// Not at once again: after 5 s, then each time twice as long, up to 40 s.
    fn rest(&mut self, subject: ObjectKey) {
        let rest = self.resting.entry(subject).or_default();
        rest.until = Some(clock() + AGAIN * (1 << rest.times.min(3)));
        rest.times += 1;
    }

    /// When to look again.
    fn next(&self, look_again: Option<Timestamp>, now: Timestamp) -> std::time::Instant {
        let due = look_again.map(|at| clock() + between(now, at));
        let rested = self.resting.values().filter_map(|rest| rest.until).min();
        let looked = self.cert_manager.map(|(_, again)| again);
        [due, rested, looked].into_iter().flatten().chain([clock() + ROUND]).min().unwrap_or_else(clock)
    }
}

impl Hand<'_> {
    async fn step(&self, step: Step) -> Outcome {
        let (subject, issuer, fleet) = (subject(&step), issuer(&step), fleet(&step));
        if issuer.is_some() {
            self.issuing.wait().await;
        }
        let carried = match self.desk.carry(step, self.now) {
            Ok(carried) => carried,
            Err(error) => return self.failed(subject, issuer.as_ref(), error.to_string()),
        };
        let write = match carried {
            Carried::Write(write) => write,
            Carried::Ask(certificate, request, policy) => {
                let place = ObjectKey::new(&certificate.key.namespace, &certificate.fleet);
                match self.inquire(certificate, &request, &policy).await {
                    Ok(write) => write,
                    Err(finding) => return Outcome::Waits(subject, place, finding),
                }
            }
        };
        let decides = issuer.is_some() || is_refusal(&write);
        match self.write(write).await {
            Ok(written) => {
                if let Some(written) = written.filter(|_| decides) {
                    self.decided(&written, issuer.as_ref());
                }
                fleet.map_or(Outcome::Written, Outcome::Served)
            }
            Err(error) => self.failed(subject, issuer.as_ref(), error.to_string()),
        }
    }

    /// Asks an issuer that is not ours for the answer. If there is none yet: what people must mend, if anything.
    async fn inquire(
        &self,
        certificate: Arc<AgentCertificate>,
        request: &CertificateRequest,
        policy: &IssuePolicy,
    ) -> Result<Write, Option<String>> {
        let issuers = Issuers { client: self.client, writes: self.writes, cluster: self.desk.cluster };
        match issuers.ask(&certificate, request, policy, self.now).await {
            Ok(Progress::Issued(issued)) => {
                let patch = certificate.answer_with(&issued, &policy.issuer);
                Ok(Write::Patch(certificate, patch))
            }
            Ok(Progress::Refused(why)) => Ok(refuse(certificate, &why, self.now)),
            Ok(Progress::Waits(finding)) => Err(finding),
            Err(error) => Err(Some(not_asked(&policy.issuer, &error.to_string()))),
        }
    }

    /// Tells of a decision that was written.
    fn decided(&self, written: &Secret, issuer: Option<&Issuer>) {
        let read = AgentCertificate::read(written).ok();
        let Some(decision) = read.and_then(|read| Decision::shown_by(&read, issuer)) else { return };
        audit::record(&decision, 1);
        let outcome = match decision.outcome {
            audit::Outcome::Issued => IssueOutcome::Issued,
            audit::Outcome::Refused => IssueOutcome::Refused,
        };
        issuer.iter().for_each(|issuer| self.metrics.issued(issuer, outcome));
    }

    fn failed(&self, subject: ObjectKey, issuer: Option<&Issuer>, why: String) -> Outcome {
        issuer.into_iter().for_each(|issuer| self.metrics.issued(issuer, IssueOutcome::Failed));
        Outcome::Later(subject, why)
    }

    /// Writes, and follows at once what the API server answers: a Secret as it is then. That somebody else was faster is no
    /// failure: the next plan is made from what there is then.
    async fn write(&self, write: Write) -> Result<Option<Secret>, WriteError> {
        match write {
            Write::Create(secret) => {
                let parameters = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
                let secrets = self.secrets(&secret.namespace().unwrap_or_default());
                if let Some(created) = self.writes.ask(secrets.create(&parameters, &secret)).await? {
                    self.certificates.note(created.clone());
                    return Ok(Some(created));
                }
            }
            Write::Patch(certificate, patch) => {
                let (name, patch) = (&certificate.key.name, Patch::Merge(patch));
                let secrets = self.secrets(&certificate.key.namespace);
                match self.writes.ask(secrets.patch(name, &PatchParams::default(), &patch)).await? {
                    Some(patched) => {
                        self.certificates.note(patched.clone());
                        return Ok(Some(patched));
                    }
                    None => self.look(&certificate).await?,
                }
            }
            Write::Delete(certificate) => {
                let preconditions = Preconditions {
                    resource_version: Some(certificate.version.clone()),
                    uid: Some(certificate.object_uid.clone()),
                };
                let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                let secrets = self.secrets(&certificate.key.namespace);
                match self.writes.ask(secrets.delete(&certificate.key.name, &parameters)).await? {
                    Some(_) => self.gone(&certificate.key),
                    None => self.look(&certificate).await?,
                }
            }
            Write::Hold(agent) => self.finalize(&agent, Wish::Present).await?,
            Write::Release(agent) => self.finalize(&agent, Wish::Absent).await?,
            // It is the registrar's: what was published last is remembered there.
            Write::Publish(_) => {}
        }
        Ok(None)
    }

    /// Looks at what has become of a Secret.
    async fn look(&self, certificate: &Arc<AgentCertificate>) -> Result<(), WriteError> {
        let ObjectKey { namespace, name } = &certificate.key;
        match self.writes.ask(self.secrets(namespace).get_opt(name)).await?.flatten() {
            Some(found) => self.certificates.note(found),
            None => self.gone(&certificate.key),
        }
        Ok(())
    }

    fn gone(&self, key: &ObjectKey) {
        let mut gone = Secret::default();
        (gone.metadata.namespace, gone.metadata.name) = (Some(key.namespace.clone()), Some(key.name.clone()));
        self.certificates.take(&None, Event::Delete(gone));
    }

    async fn finalize(&self, agent: &ObjectKey, wish: Wish) -> Result<(), WriteError> {
        let agents: Api<Agent> = Api::namespaced(self.client.clone(), &agent.namespace);
        let Some(Some(found)) = self.writes.ask(agents.get_metadata_opt(&agent.name)).await? else { return Ok(()) };
        let is_present = |name: &String| name == REVOCATION_FINALIZER;
        let mut finalizers = found.finalizers().to_vec();
        match (wish, finalizers.iter().any(is_present)) {
            (Wish::Present, true) | (Wish::Absent, false) => return Ok(()),
            // The API server takes no finalizer for what is being deleted.
            (Wish::Present, false) if found.metadata.deletion_timestamp.is_some() => return Ok(()),
            (Wish::Present, false) => finalizers.push(REVOCATION_FINALIZER.into()),
            (Wish::Absent, true) => finalizers.retain(|name| !is_present(name)),
        }
        let metadata = json!({"resourceVersion": found.resource_version(), "finalizers": finalizers});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        self.writes.ask(agents.patch_metadata(&agent.name, &PatchParams::default(), &patch)).await?;
        Ok(())
    }

    fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// The pause until it is looked again whether somebody else has signed, when so many wait.
fn pause(waiting: usize) -> Duration {
    LOOK_LATER.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX)).clamp(LOOK, LONGEST_LOOK)
}

/// Half of it to all of it, so that those that were asked together are not looked at together for ever.
fn spread(pause: Duration) -> Duration {
    pause.mul_f64(f64::midpoint(1.0, rand::random()))
}

/// Whether a finalizer is to be there.
#[derive(Clone, Copy)]
enum Wish {
    Present,
    Absent,
}
