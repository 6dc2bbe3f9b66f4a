//! A cluster in memory, as far as the plan changes it.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt as _;

use super::{
    at,
    stored::{holder, patched, request},
    uid,
};
use crate::{
    credentials::{
        authority::Authority,
        carry::{Carried, Desk, Write},
        key::KeyId,
        orphans::Orphans,
        plan::{Plan, Stored, plan},
        published::PublishedRevocations,
        renewal::Validity,
        roll::{Finalizer, IssuePolicy, Issuer, KeyWish, Member, Roll, Standing},
        serial::Serial,
        stored::AgentCertificate,
    },
    kubernetes::ObjectKey,
};

/// Certificates of ten minutes, renewed from the sixth minute on.
pub(super) const POLICY: IssuePolicy = IssuePolicy {
    issuer: Issuer::Internal,
    validity: Validity { duration: Duration::from_secs(600), renew_before: Duration::from_secs(200) },
};

pub(super) struct World {
    pub(super) secrets: BTreeMap<String, Secret>,
    pub(super) published: Option<ConfigMap>,
    pub(super) roll: Roll,
    pub(super) authority: Authority,
    pub(super) now: Timestamp,
    /// The CAs that are trusted.
    pub(super) trusted: BTreeSet<KeyId>,
    /// What the leader remembers.
    pub(super) orphans: RefCell<Orphans>,
    /// How many writes there were.
    pub(super) writes: usize,
}

impl World {
    /// A fleet that gives out certificates, and nobody in it.
    pub(super) fn new() -> Self {
        let fleets = BTreeMap::from([(ObjectKey::new("telemetry", "edge"), POLICY)]);
        let roll = Roll {
            members: BTreeMap::new(),
            fleets,
            departed: BTreeMap::new(),
            operator_namespace: "opamp-system".into(),
        };
        let authority = super::authority();
        let trusted = BTreeSet::from([authority.facts().key]);
        let secrets = BTreeMap::new();
        let mut world = Self {
            secrets,
            published: None,
            roll,
            authority,
            now: at(0),
            trusted,
            orphans: RefCell::default(),
            writes: 0,
        };
        world.settle();
        world
    }

    pub(super) fn join(&mut self, number: u8, standing: Standing, key_wish: KeyWish) -> &mut Member {
        let (agent, finalizer) = (uid(number), Finalizer::Absent);
        let member = Member {
            agent,
            fleet: Some("edge".into()),
            standing,
            key_wish,
            in_use: None,
            in_use_until: None,
            finalizer,
        };
        self.roll.members.entry(Roll::place("telemetry", &agent)).insert_entry(member).into_mut()
    }

    pub(super) fn member(&mut self, number: u8) -> &mut Member {
        self.roll.members.get_mut(&Roll::place("telemetry", &uid(number))).unwrap()
    }

    /// A replica hands on a request of this agent.
    pub(super) fn ask(&mut self, number: u8) -> String {
        let secret = holder(number).request(&request(number));
        let name = secret.name_any();
        self.create(secret);
        name
    }

    fn create(&mut self, mut secret: Secret) {
        self.writes += 1;
        secret.metadata.resource_version = Some(self.writes.to_string());
        secret.metadata.creation_timestamp = Some(Time(self.now));
        self.secrets.entry(secret.name_any()).or_insert(secret);
    }

    pub(super) fn certificates(&self) -> Vec<Arc<AgentCertificate>> {
        self.secrets.values().map(|secret| Arc::new(AgentCertificate::read(secret).unwrap())).collect()
    }

    pub(super) fn of(&self, number: u8) -> Vec<Arc<AgentCertificate>> {
        self.certificates().into_iter().filter(|it| it.agent == uid(number)).collect()
    }

    pub(super) fn revocations(&self) -> Option<PublishedRevocations> {
        self.published.as_ref().map(|config_map| PublishedRevocations::read(config_map).unwrap())
    }

    pub(super) fn is_revoked(&self, serial: &Serial) -> bool {
        self.revocations().is_some_and(|list| list.revocations.contains(&self.authority.facts().key, serial))
    }

    pub(super) fn plan(&self) -> Plan {
        let (certificates, revocations) = (self.certificates(), self.revocations());
        self.orphans.borrow_mut().look(&self.roll, &certificates, self.now);
        let stored = Stored {
            certificates: &certificates,
            revocations: revocations.as_ref(),
            authority: self.authority.facts().key,
            trusted: &self.trusted,
            authority_ends: self.authority.facts().not_after,
            orphans: &self.orphans.borrow(),
        };
        plan(&self.roll, stored, self.now)
    }

    /// The writes of the plan as it is now.
    pub(super) fn planned(&self) -> Vec<Write> {
        let desk = Desk { authority: &self.authority, cluster: "c", namespace: "opamp-system", roll: &self.roll };
        let carried = self.plan().steps.into_iter().map(|step| desk.carry(step, self.now).unwrap());
        carried
            .map(|carried| match carried {
                Carried::Write(write) => write,
                Carried::Ask(..) => panic!("nobody else is to be asked"),
            })
            .collect()
    }

    pub(super) fn apply(&mut self, write: Write) {
        match write {
            Write::Create(secret) => self.create(*secret),
            Write::Patch(certificate, patch) => {
                self.writes += 1;
                if let Some(secret) = self.unchanged(&certificate) {
                    let mut secret = patched(secret, &patch);
                    secret.metadata.resource_version = Some(self.writes.to_string());
                    self.secrets.insert(certificate.key.name.clone(), secret);
                }
            }
            Write::Delete(certificate) => {
                self.writes += 1;
                if self.unchanged(&certificate).is_some() {
                    self.secrets.remove(&certificate.key.name);
                }
            }
            Write::Hold(agent) => self.finalize(&agent, Finalizer::Present),
            Write::Release(agent) => self.finalize(&agent, Finalizer::Absent),
            Write::Publish(config_map) => {
                self.writes += 1;
                self.published = Some(*config_map);
            }
        }
    }

    fn finalize(&mut self, agent: &ObjectKey, finalizer: Finalizer) {
        self.writes += 1;
        self.roll.members.get_mut(agent).unwrap().finalizer = finalizer;
    }

    fn unchanged(&self, certificate: &AgentCertificate) -> Option<&Secret> {
        let secret = self.secrets.get(&certificate.key.name)?;
        (secret.resource_version().as_deref() == Some(certificate.version.as_str())).then_some(secret)
    }

    /// Works until there is nothing to do.
    pub(super) fn settle(&mut self) {
        for _ in 0..20 {
            let writes = self.planned();
            if writes.is_empty() {
                return;
            }
            writes.into_iter().for_each(|write| self.apply(write));
        }
        panic!("there is always something to do: {:?}", self.plan().steps);
    }

    pub(super) fn pass(&mut self, seconds: i64) {
        self.now = at(self.now.as_second() - at(0).as_second() + seconds);
    }
}
