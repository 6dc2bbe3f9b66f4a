//! The objects of the operator's own namespace: the CA, what is published of it, the server's certificate.

use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::ConfigMap};
use kube::{Api, Client, Resource, ResourceExt as _, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use super::{Registrar, Trouble};
use crate::{
    api::FIELD_MANAGER,
    credentials::{
        authority::Authority,
        generations::Generations,
        published::{PublishedAuthorities, PublishedRevocations},
        server_certificate,
        writes::Writes,
    },
};

impl Registrar {
    /// Sees to it that there is a CA, that everybody knows it, and that the server has a certificate. The CA is in its
    /// Secret before it is published, and published before it signs: a replica that does not know it would turn agents
    /// away.
    pub(super) async fn keep_authority(&mut self, now: Timestamp) -> Result<(), Trouble> {
        let (secret, published) = (self.observed.authority.known()?, self.observed.published.known()?);
        self.observed.server.known()?;
        if self.settled.as_ref().is_none_or(|settled| settled.authority.check_dates(now).is_err()) {
            let (cluster, namespace) = (self.settings.cluster.as_deref(), self.settings.namespace.as_str());
            // With Secret and ConfigMap gone nothing else tells whom agents and replicas trust.
            let seen = self.trust.snapshot().authorities().map(|seen| seen.to_config_map(&self.settings.namespace));
            let is_readable = |it: &&ConfigMap| PublishedAuthorities::read(it).is_ok();
            let published = published.filter(is_readable).or(seen.as_ref());
            let settled = Generations::settle(secret, published, cluster, namespace, now)
                .map_err(|error| Trouble::ForPeople(error.to_string()))?;
            self.put_generations(settled, now).await?;
        }
        self.keep_server_certificate(now).await
    }

    async fn put_generations(&mut self, mut settled: Generations, now: Timestamp) -> Result<(), Trouble> {
        if let Some(outgoing) = &settled.outgoing
            && self.settings.server_names.is_some()
            && server_certificate::is_worn(self.observed.server.known()?, outgoing, now)
        {
            self.make_server_certificate(outgoing, now).await?;
        }
        if let Some(secret) = settled.secret.take() {
            let written = self.put(self.observed.authority.known()?, secret).await?;
            self.observed.authority.put(written);
            tracing::info!(not_after = %settled.authority.facts().not_after, "the Secret of the CA was written");
        }
        let found = self.observed.published.known()?;
        if found.and_then(|found| PublishedAuthorities::read(found).ok()).as_ref() != Some(&settled.published) {
            let config_map = settled.published.to_config_map(&self.settings.namespace);
            let written = self.put(found, config_map).await?;
            self.observed.published.put(written);
        }
        self.metrics.authority_ends(settled.authority.facts().not_after);
        self.settled = Some(settled);
        Ok(())
    }

    async fn keep_server_certificate(&mut self, now: Timestamp) -> Result<(), Trouble> {
        let (Some(names), Some(settled)) = (&self.settings.server_names, &self.settled) else { return Ok(()) };
        let found = self.observed.server.known()?;
        let Err(reason) = server_certificate::need(found, names, &settled.published, now) else {
            found.and_then(server_certificate::not_after).into_iter().for_each(|end| self.metrics.server_ends(end));
            return Ok(());
        };
        tracing::info!(?reason, "a certificate for the server is made");
        // The borrow ends with this, for the certificate that is written is noted.
        let settled = self.settled.take();
        let made = match &settled {
            Some(settled) => self.make_server_certificate(&settled.authority, now).await,
            None => Ok(()),
        };
        self.settled = settled;
        made
    }

    async fn make_server_certificate(&mut self, authority: &Authority, now: Timestamp) -> Result<(), Trouble> {
        let names = self.settings.server_names.as_deref().unwrap_or_default();
        let (issued, key) =
            authority.issue_server(names, now).map_err(|error| Trouble::ForPeople(error.to_string()))?;
        let found = self.observed.server.known()?;
        let secret = server_certificate::secret(found, &self.settings.namespace, &key, &issued);
        let written = self.put(found, secret).await?;
        self.observed.server.put(written);
        self.metrics.server_ends(issued.not_after);
        Ok(())
    }

    /// The published list, as it is stored; written again if somebody has deleted or broken it.
    pub(super) async fn published_revocations(&mut self) -> Result<Option<PublishedRevocations>, Trouble> {
        let found = self.observed.revocations.known()?;
        let read = found.map(PublishedRevocations::read).transpose();
        if let Err(error) = &read {
            tracing::error!(%error, "the ConfigMap of revoked certificates cannot be read; it is written anew");
        }
        if let Ok(Some(read)) = read {
            self.revocations = Some(read);
        } else if let Some(last) = self.revocations.clone().or_else(|| self.trust.snapshot().revocations().cloned()) {
            let config_map = last.to_config_map(&self.settings.namespace);
            let written = self.put(found, config_map).await?;
            self.observed.revocations.put(written);
            self.revocations = Some(last);
        }
        Ok(self.revocations.clone())
    }

    /// Publishes a new list.
    pub(super) async fn publish(&mut self, config_map: ConfigMap) -> Result<(), Trouble> {
        let written = self.put(self.observed.revocations.known()?, config_map).await?;
        self.revocations = PublishedRevocations::read(&written).ok();
        self.observed.revocations.put(written);
        Ok(())
    }

    /// Creates an object, or replaces the one that was seen; nothing that somebody else has written meanwhile.
    async fn put<K>(&self, found: Option<&K>, object: K) -> Result<K, Trouble>
    where
        K: Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Serialize,
    {
        put(&self.writes, &self.client, found, object).await
    }
}

async fn put<K>(writes: &Writes, client: &Client, found: Option<&K>, mut object: K) -> Result<K, Trouble>
where
    K: Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize,
{
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
    let name = object.name_any();
    let written = match found {
        None => writes.ask(api.create(&parameters, &object)).await,
        Some(found) => {
            object.meta_mut().resource_version = found.resource_version();
            writes.ask(api.replace(&name, &parameters, &object)).await
        }
    };
    written.map_err(|error| Trouble::Write(format!("{name}: {error}")))?.ok_or(Trouble::Outdated)
}
