//! Reads and writes that the leader orders one by one: content of inputs, and chores about Agents.

use std::{collections::BTreeSet, sync::Arc};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    Context,
    apply::{Error, only_as_seen, patch_status, within},
    chores::{AgentKey, Carried, Chore, Due, key},
};
use crate::{
    agents::{
        orphans::{self, KeptOut},
        summary::AgentSummary,
        written::approving,
    },
    api::{
        FLEET_LABEL,
        agent::{Access, Agent, AgentStatus},
        agent_fleet::EffectiveConfigDetail,
        condition::{ConditionType, Verdict, find},
        enrollment::Approval,
    },
    catalog::{Assignment, Catalog, Claimant, Subject},
    effective_configs::stored::Kept,
    lease::{Holder, Incarnation, presence::Expired},
    opamp::{InstanceUid, identity::Identity},
    revisions::{
        SourceKind,
        content::{Content, Source},
        inputs::Fetched,
    },
    status::{difference::difference, recall::recall},
};

/// Chores under way at the same time.
const AT_ONCE: usize = 8;

/// Fetches the content of a ConfigMap or Secret.
pub(super) async fn fetch(client: &Client, source: &Source) -> Fetched {
    let Source { kind, key } = source;
    let found = match kind {
        SourceKind::ConfigMap => {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), &key.namespace);
            within(api.get(&key.name)).await.map(|object| (object.resource_version(), Content::from(object)))
        }
        SourceKind::Secret => {
            let api: Api<Secret> = Api::namespaced(client.clone(), &key.namespace);
            within(api.get(&key.name)).await.map(|object| (object.resource_version(), Content::from(object)))
        }
    };
    match found {
        Ok((version, content)) => Fetched::Known { version: version.unwrap_or_default(), content: Arc::new(content) },
        Err(Error::Outdated) => Fetched::Missing,
        Err(error @ (Error::TooMany { .. } | Error::Refused(_) | Error::Silent | Error::Occupied(_))) => {
            Fetched::Failed(error.to_string())
        }
    }
}

/// Carries out chores. What fails is due again.
pub(super) async fn carry_out(context: Arc<Context>, due: Due) -> Carried {
    let Due { chores, gone } = due;
    let (context, gone) = (&*context, &gone);
    let ended = stream::iter(chores).map(|chore| async move {
        match chore {
            Chore::Delete(agent) => Some((key(&agent), delete(context, &agent).await)),
            Chore::Restate(agent) => Some((key(&agent), restate(context, &agent, gone).await)),
            Chore::DeleteLease(expired) => {
                if let Err(error) = delete_lease(context, &expired).await {
                    tracing::debug!(lease = expired.name, %error, "an expired Lease was not deleted");
                }
                None
            }
            Chore::DeleteConfig(kept) => {
                if let Err(error) = delete_config(context, &kept).await {
                    tracing::debug!(secret = %kept.key, %error, "an effective configuration was not deleted");
                }
                None
            }
        }
    });
    let ended: Vec<_> = ended.buffer_unordered(AT_ONCE).filter_map(|ended| async move { ended }).collect().await;
    sort(ended)
}

/// Only what is refused for the agent's own sake counts against it; a server that is busy or away is nobody's fault.
fn sort(ended: Vec<(AgentKey, Result<(), Error>)>) -> Carried {
    let mut carried = Carried::default();
    let mut first = None;
    for ((namespace, uid), outcome) in ended {
        match outcome {
            Ok(()) => carried.done.push((namespace, uid)),
            Err(Error::Outdated) => {}
            Err(error @ Error::Refused(kube::Error::Api(_))) => {
                carried.refused.push((namespace, uid));
                first.get_or_insert((uid, error));
            }
            Err(error @ (Error::TooMany { .. } | Error::Refused(_) | Error::Silent | Error::Occupied(_))) => {
                tracing::debug!(%uid, %error, "an agent without a session was not written");
            }
        }
    }
    if let Some((uid, error)) = first {
        let agents = carried.refused.len();
        tracing::warn!(agents, %uid, %error, "agents without a session could not be written, this one among them");
    }
    carried
}

/// A write within the budget that this replica's bridge spends from, too.
async fn budgeted<T>(context: &Context, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    context.spend().await;
    let outcome = within(request).await;
    context.note(&outcome);
    outcome
}

async fn delete(context: &Context, agent: &AgentSummary) -> Result<(), Error> {
    let api: Api<Agent> = Api::namespaced(context.client.clone(), &agent.namespace);
    let seen = only_as_seen(Some(agent.object_uid.to_string()), Some(agent.resource_version.to_string()));
    budgeted(context, api.delete(&agent.uid.to_string(), &seen)).await?;
    tracing::debug!(uid = %agent.uid, namespace = %agent.namespace, "the object of an agent that is gone was deleted");
    Ok(())
}

async fn delete_lease(context: &Context, expired: &Expired) -> Result<(), Error> {
    let api: Api<Lease> = Api::namespaced(context.client.clone(), &context.namespace);
    within(api.delete(&expired.name, &only_as_seen(None, Some(expired.version.clone())))).await.map(|_| ())
}

/// It is immutable, so that only its uid tells it from one that was written anew under its name.
async fn delete_config(context: &Context, kept: &Kept) -> Result<(), Error> {
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &kept.key.namespace);
    let seen = only_as_seen(Some(kept.uid.clone()), Some(kept.version.clone()));
    budgeted(context, api.delete(&kept.key.name, &seen)).await.map(|_| ())
}

/// Reads an agent, and says anew what its last owner can no longer say. The read makes sure that there is no owner.
async fn restate(context: &Context, agent: &AgentSummary, gone: &BTreeSet<Holder>) -> Result<(), Error> {
    let api: Api<Agent> = Api::namespaced(context.client.clone(), &agent.namespace);
    let found = within(api.get(&agent.uid.to_string())).await?;
    let former = found.status.clone().unwrap_or_default();
    let away = Away {
        uid: agent.uid,
        namespace: &agent.namespace,
        generation: found.metadata.generation.unwrap_or_default(),
        access: found.spec.access,
        former: &former,
    };
    let Some(status) = restated(away, gone, &context.catalog.load(), Timestamp::now()) else {
        return Ok(());
    };
    let found = relabel(context, &api, found, status.fleet.as_deref()).await?;
    // A status is made of strings, numbers, lists and objects, all of which have a JSON form.
    let values = serde_json::to_value(&former).ok().zip(serde_json::to_value(&status).ok());
    let Some(difference) = values.and_then(|(former, status)| difference(&former, &status)) else { return Ok(()) };
    context.spend().await;
    let outcome = patch_status(&context.client, &found, difference).await;
    context.note(&outcome);
    outcome.map(|_| ())
}

/// The label follows the fleet that takes the agent, and stays when it is lost. It needs a patch of its own, because a
/// patch of the status cannot carry it.
async fn relabel(context: &Context, api: &Api<Agent>, mut found: Agent, fleet: Option<&str>) -> Result<Agent, Error> {
    let Some(fleet) = fleet.filter(|fleet| found.labels().get(FLEET_LABEL).is_none_or(|label| label != fleet)) else {
        return Ok(found);
    };
    let metadata = json!({"resourceVersion": found.resource_version(), "labels": {FLEET_LABEL: fleet}});
    let patch = Patch::Merge(json!({"metadata": metadata}));
    let name = found.name_any();
    let answer = budgeted(context, api.patch_metadata(&name, &PatchParams::default(), &patch)).await?;
    found.metadata.resource_version = answer.metadata.resource_version;
    Ok(found)
}

/// An agent that is away, as its object says.
#[derive(Clone, Copy)]
struct Away<'a> {
    uid: InstanceUid,
    namespace: &'a str,
    generation: i64,
    access: Option<Access>,
    former: &'a AgentStatus,
}

/// What the leader says of an agent; `None` while somebody else speaks for it.
fn restated(away: Away<'_>, gone: &BTreeSet<Holder>, catalog: &Catalog, now: Timestamp) -> Option<AgentStatus> {
    // What follows is said of the spec as it was read.
    let former = AgentStatus { observed_generation: away.generation, ..away.former.clone() };
    let status = unowned(&former, gone, now)?;
    match away.access {
        Some(Access::Denied) => return Some(orphans::kept_out(&status, KeptOut::Denied, now)),
        Some(Access::Revoked) => return Some(orphans::kept_out(&status, KeptOut::Revoked, now)),
        Some(Access::Approved) | None => {}
    }
    let status = matched(away, status, catalog, now);
    let fleet = status.fleet.as_deref().and_then(|fleet| catalog.fleet(away.namespace, fleet));
    let waits = away.access.is_none() && fleet.is_some_and(|fleet| fleet.enrollment.approval == Approval::Manual);
    Some(if waits {
        orphans::pending(&status, &approving(away.namespace, &away.uid), now)
    } else {
        orphans::admitted(&status, fleet.map(|fleet| fleet.uid.as_str()), now)
    })
}

/// The status of an agent that no session speaks for.
fn unowned(former: &AgentStatus, gone: &BTreeSet<Holder>, now: Timestamp) -> Option<AgentStatus> {
    let connection = former.connection.as_ref()?;
    let owner = Holder {
        replica: connection.replica.clone(),
        incarnation: Incarnation::from_text(connection.incarnation.as_str()),
    };
    if orphans::is_handed_over(former) {
        Some(former.clone())
    } else {
        gone.contains(&owner).then(|| orphans::gone(former, now))
    }
}

/// The same with the fleet of its namespace that takes the agent now.
fn matched(away: Away<'_>, status: AgentStatus, catalog: &Catalog, now: Timestamp) -> AgentStatus {
    let Away { uid, namespace, former, .. } = away;
    // Which fleets an identity of a later version may join is not known here: what was said of them stays.
    let recorded = former.connection.as_ref().and_then(|connection| Identity::parse(&connection.identity));
    let Some(identity) = recorded else { return status };
    let attributes = recall(&status).description;
    let subject =
        Subject { uid, who: Claimant::recorded(&identity), attributes: attributes.as_ref(), home: Some(namespace) };
    let is_matched =
        find(&status.conditions, ConditionType::Matched).is_some_and(|it| it.status == Verdict::True.as_str());
    match catalog.assign(&subject) {
        // To another namespace an agent moves only when it returns.
        Assignment::Matched(fleet, _) if fleet.namespace == namespace => {
            if is_matched && status.fleet.as_ref() == Some(&fleet.name) {
                orphans::keeping(status, fleet.effective_config)
            } else {
                // A Secret of its former fleet goes with that fleet.
                let kept = match fleet.effective_config {
                    EffectiveConfigDetail::Stored => EffectiveConfigDetail::Hash,
                    detail @ (EffectiveConfigDetail::None | EffectiveConfigDetail::Hash) => detail,
                };
                orphans::keeping(orphans::taken(&status, &fleet.name, &fleet.uid, now), kept)
            }
        }
        Assignment::Matched(..) | Assignment::Unmatched(_) if is_matched => {
            orphans::keeping(orphans::lost(&status, now), EffectiveConfigDetail::Hash)
        }
        Assignment::Matched(..) | Assignment::Unmatched(_) => status,
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        api::{
            agent_fleet::EffectiveConfigDetail,
            enrollment::{Enrollment, EnrollmentMethod},
            selector::AttributeSelector,
        },
        catalog::{
            AnonymousNamespaces, Policy, SecretContent,
            fleet::{FleetEntry, Offering},
        },
    };

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    fn status(connected: &str, fleet: Option<&str>) -> AgentStatus {
        let condition = |type_: &str, status: &str, reason: &str| {
            json!({"type": type_, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-11-29T12:00:00Z"})
        };
        let (matched, why) = if fleet.is_some() { ("True", "FleetSelects") } else { ("False", "NoFleetSelects") };
        let reason = if connected == "True" { "SessionOpen" } else { "ConnectionClosed" };
        serde_json::from_value(json!({
            "fleet": fleet,
            "connection": {"transport": "WebSocket", "replica": "replica-0", "incarnation": "1111111111", "epoch": 1,
                "since": "2026-11-29T12:00:00Z", "method": "Anonymous", "identity": "anonymous", "remoteAddress": "::1"},
            "attributes": {"identifying": {"service.name": "otelcol"}},
            "capabilities": ["AcceptsRemoteConfig"],
            "conditions": [condition("Matched", matched, why), condition("Connected", connected, reason)],
        }))
        .expect("a status")
    }

    fn catalog(fleets: &[(&str, &str)]) -> Catalog {
        let fleets = fleets.iter().map(|(namespace, name)| {
            Arc::new(FleetEntry {
                namespace: (*namespace).into(),
                name: (*name).into(),
                uid: "uid".into(),
                priority: 0,
                created: Timestamp::UNIX_EPOCH,
                selector: AttributeSelector::default(),
                enrollment: Enrollment { methods: Some(vec![EnrollmentMethod::Anonymous]), ..Enrollment::default() },
                effective_config: EffectiveConfigDetail::Hash,
                offering: Offering::NoRevision,
                credentials: None,
            })
        });
        let policy = Policy { anonymous: AnonymousNamespaces::All, secrets: SecretContent::Withheld };
        Catalog::new(fleets.collect(), policy, 1)
    }

    fn away(former: &AgentStatus) -> Away<'_> {
        let generation = former.observed_generation;
        Away { uid: InstanceUid::generate(), namespace: "telemetry", generation, access: None, former }
    }

    #[test]
    fn what_a_person_decides_about_an_agent_that_is_away_shows() {
        let manual = {
            let fleets = catalog(&[("telemetry", "edge")])
                .fleets()
                .map(|fleet| {
                    let enrollment = Enrollment { approval: Approval::Manual, ..fleet.enrollment.clone() };
                    Arc::new(FleetEntry { enrollment, ..(**fleet).clone() })
                })
                .collect();
            let policy = Policy { anonymous: AnonymousNamespaces::All, secrets: SecretContent::Withheld };
            Catalog::new(fleets, policy, 1)
        };
        let automatic = catalog(&[("telemetry", "edge")]);
        let reason = |status: &AgentStatus, kind| find(&status.conditions, kind).map(|it| it.reason.clone());
        let mut former = status("False", Some("edge"));
        for (case, access, catalog, fleet, [accepted, matched, applied]) in [
            ("denied", Some(Access::Denied), &automatic, None, ["Denied", "NoFleetSelects", "NotMatched"]),
            ("revoked", Some(Access::Revoked), &automatic, None, ["Revoked", "NoFleetSelects", "NotMatched"]),
            ("may return", None, &automatic, Some("edge"), ["Admitted", "FleetSelects", "NoRevision"]),
            ("needs approval", None, &manual, Some("edge"), ["PendingApproval", "FleetSelects", "NotAccepted"]),
            ("approved", Some(Access::Approved), &manual, Some("edge"), ["Admitted", "FleetSelects", "NoRevision"]),
            ("approved and denied", Some(Access::Denied), &manual, None, ["Denied", "NoFleetSelects", "NotMatched"]),
        ] {
            former = restated(Away { access, ..away(&former) }, &BTreeSet::new(), catalog, NOW).expect("a status");
            assert_eq!(former.fleet.as_deref(), fleet, "{case}");
            let shown = [ConditionType::Accepted, ConditionType::Matched, ConditionType::ConfigApplied]
                .map(|kind| reason(&former, kind).unwrap_or_default());
            assert_eq!(shown, [accepted, matched, applied], "{case}");
        }
    }

    #[test]
    fn what_the_leader_says_is_said_of_the_spec_that_it_has_read() {
        let gone = BTreeSet::from([Holder::parse("replica-0_1111111111").expect("a holder")]);
        for connected in ["True", "False"] {
            let mut former = status(connected, Some("edge"));
            former.observed_generation = 1;
            let revoked = Away { generation: 2, access: Some(Access::Revoked), ..away(&former) };
            let after = restated(revoked, &gone, &catalog(&[]), NOW).expect("a status");
            let accepted = find(&after.conditions, ConditionType::Accepted).expect("a condition");
            assert_eq!((after.observed_generation, accepted.observed_generation), (2, Some(2)), "{connected}");
        }
    }

    /// The fleet and the conditions that are said anew; `None`: nothing is said.
    fn said(former: &AgentStatus, gone: &[&str], fleets: &[(&str, &str)]) -> Option<(Option<String>, Vec<String>)> {
        let gone = gone.iter().filter_map(|identity| Holder::parse(identity)).collect();
        let after = restated(away(former), &gone, &catalog(fleets), NOW)?;
        let shown = after.conditions.iter().filter(|it| ["Matched", "Connected"].contains(&it.type_.as_str()));
        Some((after.fleet, shown.map(|it| format!("{}={}", it.type_, it.status)).collect()))
    }

    #[test]
    fn the_leader_speaks_only_for_agents_that_nobody_else_speaks_for() {
        let here = [("telemetry", "edge")];
        let gone = ["replica-0_1111111111"];
        for (case, former, gone, fleets, expected) in [
            ("its replica lives", status("True", Some("edge")), &[][..], &here[..], None),
            ("a later run's", status("True", Some("edge")), &["replica-0_2222222222"][..], &here[..], None),
            (
                "its replica is gone",
                status("True", Some("edge")),
                &gone[..],
                &here[..],
                Some((Some("edge"), ["Matched=True", "Connected=Unknown"])),
            ),
            (
                "gone, and its fleet too",
                status("True", Some("edge")),
                &gone[..],
                &[][..],
                Some((None, ["Matched=False", "Connected=Unknown"])),
            ),
            (
                "it left",
                status("False", Some("edge")),
                &[][..],
                &here[..],
                Some((Some("edge"), ["Matched=True", "Connected=False"])),
            ),
            (
                "it left, its fleet is gone",
                status("False", Some("edge")),
                &[][..],
                &[][..],
                Some((None, ["Matched=False", "Connected=False"])),
            ),
            (
                "it left, a fleet elsewhere",
                status("False", Some("edge")),
                &[][..],
                &[("shop", "edge")][..],
                Some((None, ["Matched=False", "Connected=False"])),
            ),
            (
                "it left, the fleet is back",
                status("False", None),
                &[][..],
                &here[..],
                Some((Some("edge"), ["Matched=True", "Connected=False"])),
            ),
            (
                "it left, another fleet",
                status("False", Some("edge")),
                &[][..],
                &[("telemetry", "core")][..],
                Some((Some("core"), ["Matched=True", "Connected=False"])),
            ),
        ] {
            let expected =
                expected.map(|(fleet, conditions)| (fleet.map(str::to_owned), conditions.map(str::to_owned).to_vec()));
            assert_eq!(said(&former, gone, fleets), expected, "{case}");
        }
    }

    #[test]
    fn an_agent_that_left_names_no_secret_of_a_fleet_that_keeps_none_for_it() {
        let mut former = status("False", Some("edge"));
        let config = json!({"hash": "aa", "size": 5, "secretRef": {"name": "opamp-effective-1"}});
        former.effective_config = serde_json::from_value(config).expect("a configuration");
        for (case, fleet, detail, expected) in [
            ("as before", "edge", EffectiveConfigDetail::Stored, true),
            ("the hash alone is wanted", "edge", EffectiveConfigDetail::Hash, false),
            ("another fleet", "core", EffectiveConfigDetail::Stored, false),
        ] {
            let fleets = catalog(&[("telemetry", fleet)]);
            let fleets =
                fleets.fleets().map(|fleet| Arc::new(FleetEntry { effective_config: detail, ..(**fleet).clone() }));
            let policy = Policy { anonymous: AnonymousNamespaces::All, secrets: SecretContent::Withheld };
            let catalog = Catalog::new(fleets.collect(), policy, 1);
            let uid = InstanceUid::generate();
            let after = restated(Away { uid, ..away(&former) }, &BTreeSet::new(), &catalog, NOW).expect("a status");
            let config = after.effective_config.expect("a configuration");
            assert_eq!(config.secret_ref.is_some(), expected, "{case}");
        }
        let lost = restated(away(&former), &BTreeSet::new(), &catalog(&[]), NOW);
        let config = lost.and_then(|status| status.effective_config).expect("a configuration");
        assert_eq!((config.hash.as_str(), config.secret_ref), ("aa", None), "no fleet");
    }

    #[test]
    fn what_needs_no_word_is_not_touched() {
        let former = status("False", Some("edge"));
        let here = catalog(&[("telemetry", "edge")]);
        let after = restated(away(&former), &BTreeSet::new(), &here, NOW);
        assert_eq!(after, Some(former));
        let mut later = status("False", Some("edge"));
        later.connection.as_mut().expect("a connection").identity = "future:telemetry/edge".into();
        let after = restated(away(&later), &BTreeSet::new(), &here, NOW);
        assert_eq!(after, Some(later), "an identity of a later version");
    }
}
