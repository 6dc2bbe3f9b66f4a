//! Who gives out and who gets certificates, from what the watches show: what the registrar plans with.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::{
    agents::{
        departures::Departure,
        summary::{Acceptance, AgentSummary},
    },
    api::{agent::Access, enrollment::CertificateIssuer},
    catalog::{Catalog, FleetEntry, fleet::Offering, settings::FrozenCertificate},
    credentials::{
        certificates::Certificates,
        renewal::Validity,
        roll::{Finalizer, IssuePolicy, Issuer, KeyWish, Member, Roll, Standing},
        serial::Serial,
        stored::KeyOrigin,
    },
    kubernetes::ObjectKey,
};

/// How long an agent has for a request of its own before the operator makes a key for it.
const OWN_REQUEST: Duration = Duration::from_secs(30);

/// What the watches show.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    /// All Agents.
    pub agents: &'a [Arc<AgentSummary>],
    /// All fleets.
    pub catalog: &'a Catalog,
    /// All certificates and requests.
    pub certificates: &'a Certificates,
    /// Agents that were revoked when their objects vanished.
    pub departures: &'a [Departure],
    /// An agent that is revoked in this namespace is revoked in all.
    pub operator_namespace: &'a str,
}

/// A roll, and how long it holds.
#[derive(Clone, Debug)]
pub struct Called {
    /// Who is on it.
    pub roll: Roll,
    /// When it is another although nothing has changed.
    pub until: Option<Timestamp>,
}

/// Calls the roll. The agents and fleets must all have been shown: who is missing loses certificates.
#[must_use]
pub fn call(shown: Shown<'_>, now: Timestamp) -> Called {
    let fleets = shown.catalog.fleets().filter_map(|fleet| Some((key_of(fleet), policy(fleet)?))).collect();
    let departed = shown.departures.iter().map(|it| (Roll::place(&it.namespace, &it.uid), it.at)).collect();
    let mut called = Called {
        roll: Roll {
            members: BTreeMap::new(),
            fleets,
            departed,
            operator_namespace: shown.operator_namespace.to_owned(),
        },
        until: None,
    };
    for agent in shown.agents {
        let (key_wish, changes_at) = key_wish(shown, agent, now);
        called.until = [called.until, changes_at].into_iter().flatten().min();
        called.roll.members.insert(Roll::place(&agent.namespace, &agent.uid), member(agent, key_wish));
    }
    called
}

fn key_of(fleet: &FleetEntry) -> ObjectKey {
    ObjectKey::new(fleet.namespace.as_str(), fleet.name.as_str())
}

/// How a fleet gives out certificates; `None` if it does not. Of one whose revision this replica has not read that is not
/// known: it goes on as it is, because a request that was let through would be refused for ever otherwise.
fn policy(fleet: &FleetEntry) -> Option<IssuePolicy> {
    let is_loaded = !matches!(fleet.offering, Offering::NotLoaded);
    let gives_out = fleet
        .revisions()
        .filter_map(|revision| revision.settings())
        .any(|settings| settings.certificate == FrozenCertificate::Issued);
    if is_loaded && !gives_out {
        return None;
    }
    let certificates = &fleet.enrollment.certificates;
    let issuer = match (certificates.issuer, &certificates.issuer_ref) {
        (CertificateIssuer::Internal, _) => Issuer::Internal,
        (CertificateIssuer::CertificateSigningRequest, _) => Issuer::CertificateSigningRequest,
        (CertificateIssuer::CertManager, Some(issuer)) => {
            Issuer::CertManager { name: issuer.name.clone(), kind: issuer.kind.clone(), group: issuer.group.clone() }
        }
        // The schema forbids it.
        (CertificateIssuer::CertManager, None) => return None,
    };
    let validity = Validity { duration: certificates.duration(), renew_before: certificates.renew_before() };
    Some(IssuePolicy { issuer, validity })
}

fn member(agent: &AgentSummary, key_wish: KeyWish) -> Member {
    let used = agent.certificate.as_ref().filter(|certificate| certificate.in_use_since.is_some());
    Member {
        agent: agent.uid,
        fleet: agent.fleet.as_deref().map(str::to_owned),
        standing: standing(agent),
        key_wish,
        in_use: used.and_then(|certificate| Serial::parse(&certificate.serial)),
        in_use_until: used.map(|certificate| certificate.not_after),
        finalizer: match (agent.is_held_for_revocation, agent.deleted) {
            (true, _) => Finalizer::Present,
            (false, None) => Finalizer::Absent,
            (false, Some(_)) => Finalizer::TooLate,
        },
    }
}

/// What a person has said counts at once; that an agent may take part, when its status says so.
fn standing(agent: &AgentSummary) -> Standing {
    match (agent.access, agent.acceptance) {
        (Some(Access::Revoked), _) => Standing::Revoked,
        (Some(Access::Denied), _) => Standing::Denied,
        (Some(Access::Approved) | None, Some(Acceptance::Admitted)) => Standing::Admitted,
        (
            Some(Access::Approved) | None,
            Some(Acceptance::Pending | Acceptance::Denied | Acceptance::Revoked) | None,
        ) => Standing::Waiting,
    }
}

/// Who is to make the agent's key, and when that will change.
fn key_wish(shown: Shown<'_>, agent: &AgentSummary, now: Timestamp) -> (KeyWish, Option<Timestamp>) {
    let waits = standing(agent) == Standing::Admitted
        && agent.accepts_connection_settings
        && agent.is_connected()
        && is_given_settings(shown.catalog, agent)
        && !has_own_key(shown.certificates, agent);
    let since = agent.connected.as_ref().map(|connected| connected.since).max(agent.accepted_since);
    let Some(since) = since.filter(|_| waits) else { return (KeyWish::Own, None) };
    let due = since.checked_add(OWN_REQUEST).unwrap_or(Timestamp::MAX);
    if due <= now { (KeyWish::Operators, None) } else { (KeyWish::Own, Some(due)) }
}

/// Whether it is known what the agent's fleet gives.
fn is_given_settings(catalog: &Catalog, agent: &AgentSummary) -> bool {
    let fleet = agent.fleet.as_deref().and_then(|name| catalog.fleet(&agent.namespace, name));
    fleet.is_some_and(|fleet| !matches!(fleet.offering, Offering::NotLoaded) && policy(fleet).is_some())
}

/// Whether it has sent a request here.
fn has_own_key(certificates: &Certificates, agent: &AgentSummary) -> bool {
    let here = certificates.within(&agent.namespace, &agent.uid);
    here.iter().any(|certificate| certificate.origin == KeyOrigin::Agent)
}

#[cfg(test)]
mod tests;
