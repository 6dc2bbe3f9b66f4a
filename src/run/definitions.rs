//! Whether the custom resources are there at all.

use std::{fmt::Debug, time::Duration};

use anyhow::bail;
use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource, api::ListParams};
use opamp_operator::{
    api::{
        agent::Agent, agent_fleet::AgentFleet, connection_settings::ConnectionSettings, remote_config::RemoteConfig,
    },
    kubernetes::{Scope, describe},
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// A server that has not answered by then is waited for as for one that is away.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends with an error where a definition is missing: every watch would fail, and say so in words that do not help. A
/// server that does not answer is no reason to end: the watches wait for it.
pub async fn require(client: &Client, scope: &Scope, namespace: &str) -> anyhow::Result<()> {
    require_one::<AgentFleet>(client, scope, namespace).await?;
    require_one::<RemoteConfig>(client, scope, namespace).await?;
    require_one::<ConnectionSettings>(client, scope, namespace).await?;
    require_one::<Agent>(client, scope, namespace).await
}

async fn require_one<K>(client: &Client, scope: &Scope, namespace: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = match scope {
        Scope::All => Api::all(client.clone()),
        Scope::Namespaces(_) => Api::namespaced(client.clone(), namespace),
    };
    let kind = K::kind(&());
    match timeout(PATIENCE, api.list_metadata(&ListParams::default().limit(1))).await {
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => bail!(
            "this cluster does not know the kind {kind}; install the custom resource definitions with: opamp-operator \
             crds | kubectl apply --server-side -f -"
        ),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => tracing::warn!(
            kind = &*kind,
            "the operator may not list this kind, and waits until it may; see config/rbac for the rights that it needs"
        ),
        Ok(Err(error)) => {
            tracing::warn!(
                kind = &*kind,
                error = describe(&error),
                "the API server does not answer yet, and is waited for"
            );
        }
        Err(_) => tracing::warn!(kind = &*kind, "the API server does not answer yet, and is waited for"),
        Ok(Ok(_)) => {}
    }
    Ok(())
}
