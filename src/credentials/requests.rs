//! How a replica hands on the request of an agent: it creates the Secret that the leader answers in.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    runtime::watcher::Event,
};
use serde_json::Value;

use super::{
    certificates::Certificates,
    renewal::Validity,
    request::CertificateRequest,
    stored::{AgentCertificate, Holder, StoredError},
    writes::{WriteError, Writes},
};
use crate::{
    api::FIELD_MANAGER,
    kubernetes::{ObjectKey, Part},
    status::budget::BudgetLimits,
};

/// A request that was refused is not looked at again so soon: an agent may repeat it as fast as it can.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// A change by somebody else between reading and writing is met again; more than twice in a row is no accident.
const ATTEMPTS: usize = 3;

/// What became of a request that was handed on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Asked {
    /// The leader will answer; the index of certificates shows it.
    Waits,
    /// It was answered before, and the certificate is far from its end.
    Answered(Arc<AgentCertificate>),
    /// It was refused a moment ago.
    Refused(String),
}

/// Why a request was not handed on. No variant holds content.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum AskError {
    /// The API server refuses it, or could not be asked.
    #[error("the certificate request could not be stored: {0}")]
    Write(#[from] WriteError),
    /// Others keep changing the Secret.
    #[error("the certificate request could not be stored: its Secret keeps changing")]
    Contended,
    /// There is such a Secret, and it is something else.
    #[error("the certificate request could not be stored: the Secret {key} exists, and {error}; delete it")]
    Occupied {
        /// The Secret.
        key: ObjectKey,
        /// What is wrong with it.
        #[source]
        error: StoredError,
    },
}

/// What to do with a request that is there already.
#[derive(Clone, Debug, PartialEq)]
enum Again {
    Done(Asked),
    Patch(Value),
}

/// The same agent has sent a request for the same key before. That it repeats itself changes nothing; that its
/// certificate nears its end, or is of a fleet that the agent has left, asks for another one (CSR-08).
fn again(known: &AgentCertificate, holder: &Holder, validity: Validity, now: Timestamp) -> Again {
    if let Some(refused) = &known.refused
        && now < super::facts::later(refused.at, REFUSED_FOR)
        && known.fleet == holder.fleet
    {
        return Again::Done(Asked::Refused(refused.why.clone()));
    }
    if known.fleet == holder.fleet && known.refused.is_none() {
        match &known.given {
            _ if known.is_due() => return Again::Done(Asked::Waits),
            Some(given) => {
                let held = &given.certificate;
                if now < validity.renewal_time(&known.agent, held.not_before, held.not_after) {
                    return Again::Done(Asked::Answered(Arc::new(known.clone())));
                }
            }
            None => {}
        }
    }
    Again::Patch(known.ask_again(&holder.fleet))
}

/// Hands on requests. A clone spends from the same budget.
#[derive(Clone)]
pub struct Requests {
    client: Client,
    certificates: Certificates,
    writes: Writes,
}

impl Requests {
    /// Writes over this client, which is one without retries of its own. 20 a second, as many as are answered; a crowd
    /// that comes at once waits its turn.
    #[must_use]
    pub fn new(client: Client, certificates: Certificates) -> Self {
        Self { client, certificates, writes: Writes::new(BudgetLimits { per_second: 20, burst: 40 }) }
    }

    /// Hands on a request that was found good. Whoever has checked it has seen to it that the agent may have a
    /// certificate of this fleet; the leader checks that again.
    pub async fn ask(
        &self,
        holder: &Holder,
        request: &CertificateRequest,
        validity: Validity,
        now: Timestamp,
    ) -> Result<Asked, AskError> {
        let secret = holder.request(request);
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &holder.namespace);
        let name = secret.metadata.name.clone().unwrap_or_default();
        for _ in 0..ATTEMPTS {
            let parameters = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
            let known = match self.writes.ask(secrets.create(&parameters, &secret)).await? {
                Some(created) => return Ok(self.noted(created)),
                None => match self.writes.ask(secrets.get_opt(&name)).await? {
                    Some(Some(found)) => found,
                    // It is gone again.
                    Some(None) | None => continue,
                },
            };
            let occupied = |error| AskError::Occupied { key: ObjectKey::new(&holder.namespace, &name), error };
            let patch = match again(&AgentCertificate::read(&known).map_err(occupied)?, holder, validity, now) {
                Again::Done(asked) => return Ok(asked),
                Again::Patch(patch) => Patch::Merge(patch),
            };
            if let Some(patched) = self.writes.ask(secrets.patch(&name, &PatchParams::default(), &patch)).await? {
                return Ok(self.noted(patched));
            }
        }
        Err(AskError::Contended)
    }

    fn noted(&self, secret: Secret) -> Asked {
        let part: Part = None;
        self.certificates.take(&part, Event::Apply(secret));
        Asked::Waits
    }
}
