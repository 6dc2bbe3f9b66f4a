//! The writes of a plan: the only place where fleets, RemoteConfigs, ConnectionSettings, revisions and credentials are
//! written.
//!
//! Every write carries the resourceVersion that the plan was made from, so that a leader which was paused, and does not
//! know yet that another one leads, loses against whatever that one has written.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::{NamespaceResourceScope, api::core::v1::Secret};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    api::agent_fleet::AgentFleet,
    catalog::Revision,
    events::{Publisher, Restatement},
    fleets::{self, credentials::Change},
    kubernetes::describe,
    revisions::inputs::StoredRevision,
};

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(10);

/// Why a plan was not applied in full. It is made anew, from what is there then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody has written the object since the plan was made, or it is gone.
    #[error("the object was changed meanwhile")]
    Outdated,
    /// The API server has too much to do; nothing was written.
    #[error("the API server has too much to do")]
    TooMany {
        /// Its `Retry-After`, if it gave one.
        retry_after: Option<Duration>,
    },
    /// The API server refused, or could not be reached.
    #[error("{}", describe(.0))]
    Refused(kube::Error),
    /// It did not answer in time; whether it wrote is not known.
    #[error("no answer within {} s", REQUEST.as_secs())]
    Silent,
    /// A Secret of the name that the operator needs exists, and holds something else.
    #[error("Secret {0} exists and does not hold what it is named after; delete it")]
    Occupied(String),
}

/// Carries out the plan for a fleet; gives the fleet as it is then, if it was written.
pub async fn apply_fleet(
    client: &Client,
    publisher: &Publisher,
    fleet: &AgentFleet,
    plan: fleets::plan::Plan,
) -> Result<Option<AgentFleet>, Error> {
    let fleets::plan::Plan { credentials, create, status, obsolete, events } = plan;
    let namespace = fleet.namespace().unwrap_or_default();
    // What a revision refers to has to be there before it can be offered. A value that is on offer alone is written with
    // nothing else.
    let unused = write_credentials(client, &namespace, credentials).await?;
    // The revision has to exist before the status names it: replicas read it as soon as they see the name.
    if let Some(secret) = create {
        create_revision(client, &namespace, &secret).await?;
    }
    let written = match status {
        Some(status) => Some(patch_status(client, fleet, status).await?),
        None => None,
    };
    // Nothing guards a deletion against a fleet that has moved on but a look at that fleet. After the patch, because
    // the former status may have named them.
    if !obsolete.is_empty() || unused.is_some() {
        if written.is_none() {
            expect_unchanged(client, fleet).await?;
        }
        for stored in obsolete {
            let StoredRevision { name, uid, version, inputs: _ } = stored;
            delete_secret(client, &namespace, &name, only_as_seen(Some(uid), Some(version))).await?;
        }
        if let Some(Unused { name, version }) = unused {
            delete_secret(client, &namespace, &name, only_as_seen(None, Some(version))).await?;
        }
    }
    publisher.publish(&fleet.object_ref(&()), events).await;
    Ok(written)
}

/// Tells of an object what is planned; gives the object as it is then, if it was written.
pub async fn restate<K>(
    client: &Client,
    publisher: &Publisher,
    object: &K,
    restatement: Restatement,
) -> Result<Option<K>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let Restatement { status, events } = restatement;
    let written = match status {
        Some(status) => Some(patch_status(client, object, status).await?),
        None => None,
    };
    publisher.publish(&object.object_ref(&()), events).await;
    Ok(written)
}

/// Patches the status of an object as it was read.
pub(super) async fn patch_status<K>(client: &Client, object: &K, status: Value) -> Result<K, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let patch = json!({"metadata": {"resourceVersion": object.resource_version()}, "status": status});
    within(api.patch_status(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))).await
}

async fn create_revision(client: &Client, namespace: &str, secret: &Secret) -> Result<(), Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    match within(api.create(&PostParams::default(), secret)).await {
        Ok(_) => Ok(()),
        // Its name is its content: an earlier attempt, or another leader, has made it.
        Err(Error::Refused(kube::Error::Api(status))) if status.is_already_exists() => {
            let name = secret.name_any();
            let found = within(api.get(&name)).await?;
            let hash = |secret| Revision::from_secret(secret).ok().map(|(hash, _)| hash);
            if hash(&found) == hash(secret) { Ok(()) } else { Err(Error::Occupied(name)) }
        }
        Err(error) => Err(error),
    }
}

async fn expect_unchanged(client: &Client, fleet: &AgentFleet) -> Result<(), Error> {
    let api: Api<AgentFleet> = Api::namespaced(client.clone(), &fleet.namespace().unwrap_or_default());
    let found = within(api.get(&fleet.name_any())).await?;
    if found.resource_version() == fleet.resource_version() { Ok(()) } else { Err(Error::Outdated) }
}

/// A Secret with credentials that nothing refers to any more.
struct Unused {
    name: String,
    version: String,
}

/// Writes the Secret with credentials; gives it back if it is to be deleted, which has time.
async fn write_credentials(client: &Client, namespace: &str, change: Change) -> Result<Option<Unused>, Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    match change {
        Change::Nothing => {}
        Change::Create(secret) => match within(api.create(&PostParams::default(), &secret)).await {
            Ok(_) => {}
            // The watch will show it.
            Err(Error::Refused(kube::Error::Api(status))) if status.is_already_exists() => return Err(Error::Outdated),
            Err(error) => return Err(error),
        },
        Change::Replace(secret) => {
            within(api.replace(&secret.name_any(), &PostParams::default(), &secret)).await?;
        }
        Change::Delete { name, version } => return Ok(Some(Unused { name, version })),
        Change::Blocked(name) => return Err(Error::Occupied(name)),
    }
    Ok(None)
}

async fn delete_secret(client: &Client, namespace: &str, name: &str, seen: DeleteParams) -> Result<(), Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    match within(api.delete(name, &seen)).await {
        Ok(_) | Err(Error::Outdated) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A deletion that fails if the object is another one, or has changed.
pub(super) fn only_as_seen(uid: Option<String>, resource_version: Option<String>) -> DeleteParams {
    DeleteParams { preconditions: Some(Preconditions { uid, resource_version }), ..DeleteParams::default() }
}

/// A request within its time. A conflict, or an object that is gone, means that the plan is outdated.
pub(super) async fn within<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match timeout(REQUEST, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_not_found() => Err(Error::Outdated),
        Ok(Err(kube::Error::Api(status))) if status.code == 429 => {
            let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
            Err(Error::TooMany { retry_after: (seconds > 0).then(|| Duration::from_secs(seconds.into())) })
        }
        Ok(Err(error)) => Err(Error::Refused(error)),
        Err(_) => Err(Error::Silent),
    }
}
