//! How a replica hands on the request of an agent: it creates the Secret that the leader answers in.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::Value;

use super::{
    certificates::Certificates,
    facts::later,
    renewal::Validity,
    request::CertificateRequest,
    stored::{AgentCertificate, Holder, StoredError},
    trust::{Trust, TrustSnapshot},
    writes::{WriteError, Writes},
};
use crate::{api::FIELD_MANAGER, kubernetes::ObjectKey, status::budget::BudgetLimits};

/// A request that was refused is not looked at again so soon: an agent may repeat it as fast as it can. Each time twice as
/// long, for each is another object where somebody else signs.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// The longest of these times.
const LONGEST_REFUSED: Duration = Duration::from_secs(3_600);
/// Most keys of an agent within [`CROWDED_FOR`]. An honest one has a reason to make another key when it restarts.
const MOST_KEYS: usize = 4;
const CROWDED_FOR: Duration = Duration::from_secs(60);
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
    /// The API server has failed, or could not be asked.
    #[error("the certificate request could not be stored: {0}")]
    Write(#[source] WriteError),
    /// The API server refuses it, and will refuse it again: in words of status and reason.
    #[error("the certificate request could not be stored: the API server refuses that ({0})")]
    Refused(String),
    /// The agent makes one key after the other.
    #[error("the agent has asked for certificates for {MOST_KEYS} keys within a minute; it must wait")]
    Crowd,
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

impl From<WriteError> for AskError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Refused(reason) => Self::Refused(reason),
            WriteError::Api(_) | WriteError::TooMany | WriteError::Silent => Self::Write(error),
        }
    }
}

/// What to do with a request that is there already.
#[derive(Clone, Debug, PartialEq)]
enum Again {
    Done(Asked),
    Patch(Value),
}

fn refused_for(attempt: u32) -> Duration {
    REFUSED_FOR.saturating_mul(2_u32.saturating_pow(attempt)).min(LONGEST_REFUSED)
}

/// The same agent has sent a request for the same key before. That it repeats itself changes nothing; that its
/// certificate nears its end, or is of a fleet that the agent has left, asks for another one (CSR-08).
fn again(
    known: &AgentCertificate,
    holder: &Holder,
    trust: &TrustSnapshot,
    validity: Validity,
    now: Timestamp,
) -> Again {
    if let Some(refused) = &known.refused
        && now < later(refused.at, refused_for(known.attempt))
        && known.fleet == holder.fleet
    {
        return Again::Done(Asked::Refused(refused.why.clone()));
    }
    if known.fleet == holder.fleet && known.refused.is_none() {
        match &known.given {
            _ if known.is_due() => return Again::Done(Asked::Waits),
            Some(given) => {
                let is_fresh = now < validity.renewal_time(&known.agent, given);
                if is_fresh && known.counting(|issuer| trust.trusts(issuer), now).is_some() {
                    return Again::Done(Asked::Answered(Arc::new(known.clone())));
                }
            }
            None => {}
        }
    }
    Again::Patch(known.ask_again(&holder.fleet))
}

/// What has become of a Secret that was to be created.
enum Stored {
    Created(Secret),
    Found(Secret),
    GoneAgain,
}

/// Hands on requests. A clone spends from the same budget.
#[derive(Clone)]
pub struct Requests {
    client: Client,
    certificates: Certificates,
    trust: Trust,
    writes: Writes,
}

impl Requests {
    /// Writes over this client, which is one without retries of its own. 20 a second, as many as are answered; a crowd
    /// that comes at once waits its turn.
    #[must_use]
    pub fn new(client: Client, certificates: Certificates, trust: Trust) -> Self {
        Self { client, certificates, trust, writes: Writes::new(BudgetLimits { per_second: 20, burst: 40 }) }
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
        self.check_crowd(holder, &name, now)?;
        let key = ObjectKey::new(&holder.namespace, &name);
        // A renewal is one write: what the watch has shown is asked about first, and proves to be current by its version.
        let mut shown = self.certificates.get(&key);
        for _ in 0..ATTEMPTS {
            let known = match shown.take() {
                Some(shown) => shown,
                None => match self.create(&secrets, &secret).await? {
                    Stored::Created(created) => return Ok(self.noted(created)),
                    Stored::Found(found) => {
                        let occupied = |error| AskError::Occupied { key: key.clone(), error };
                        Arc::new(AgentCertificate::read(&found).map_err(occupied)?)
                    }
                    Stored::GoneAgain => continue,
                },
            };
            let patch = match again(&known, holder, &self.trust.snapshot(), validity, now) {
                Again::Done(asked) => return Ok(asked),
                Again::Patch(patch) => Patch::Merge(patch),
            };
            if let Some(patched) = self.writes.ask(secrets.patch(&name, &PatchParams::default(), &patch)).await? {
                return Ok(self.noted(patched));
            }
        }
        Err(AskError::Contended)
    }

    async fn create(&self, secrets: &Api<Secret>, secret: &Secret) -> Result<Stored, AskError> {
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        if let Some(created) = self.writes.ask(secrets.create(&parameters, secret)).await? {
            return Ok(Stored::Created(created));
        }
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        let found = self.writes.ask(secrets.get_opt(name)).await?.flatten();
        Ok(found.map_or(Stored::GoneAgain, Stored::Found))
    }

    /// An agent that makes a key after the other would fill the API server, and take the turn of others.
    fn check_crowd(&self, holder: &Holder, name: &str, now: Timestamp) -> Result<(), AskError> {
        let known = self.certificates.within(&holder.namespace, &holder.agent);
        let is_recent = |it: &&Arc<AgentCertificate>| now < later(it.created_at, CROWDED_FOR);
        let recent = known.iter().filter(is_recent).count();
        if recent < MOST_KEYS || known.iter().any(|it| it.key.name == name) { Ok(()) } else { Err(AskError::Crowd) }
    }

    fn noted(&self, secret: Secret) -> Asked {
        self.certificates.note(secret);
        Asked::Waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{
        authority::Authority,
        published::PublishedAuthorities,
        roll::Issuer,
        tests::{
            at, authority, name,
            stored::{holder, patched, request},
        },
    };

    fn trusting(authority: &Authority) -> TrustSnapshot {
        let bundle = vec![authority.certificate().clone()];
        let issuers = [authority.facts().key].into();
        let published = PublishedAuthorities { cluster: "c".into(), bundle, issuers };
        TrustSnapshot::default().with_authorities(&published.to_config_map("opamp-system")).unwrap()
    }

    #[test]
    fn a_request_that_is_repeated_asks_for_something_new_only_if_there_is_a_reason() {
        const DAY: i64 = 86_400;
        let (own, other, request) = (authority(), authority(), request(1));
        let read = |secret: &Secret| AgentCertificate::read(secret).unwrap();
        let asked = holder(1).request(&request);
        let lifetime = Validity::default().duration;
        let issued = own.issue_agent(&name(1), request.key(), lifetime, at(0)).unwrap();
        let given = patched(&asked, &read(&asked).answer_with(&issued, &Issuer::Internal));
        let refused = patched(&asked, &read(&asked).refuse("no", at(0)));
        let refused_again =
            patched(&patched(&refused, &read(&refused).ask_again("edge")), &read(&asked).refuse("no", at(60)));
        let renewing = patched(&given, &read(&given).ask_again("edge"));
        let moved = Holder { fleet: "other".into(), ..holder(1) };
        let waits = || Again::Done(Asked::Waits);
        let anew = |secret: &Secret, fleet: &str| Again::Patch(read(secret).ask_again(fleet));
        for (case, secret, holder, trusted, seconds, expected) in [
            ("not answered yet", &asked, holder(1), &own, 0, waits()),
            ("answered", &given, holder(1), &own, DAY, Again::Done(Asked::Answered(Arc::new(read(&given))))),
            ("near its end", &given, holder(1), &own, 6 * DAY, anew(&given, "edge")),
            ("asked before", &renewing, holder(1), &own, 6 * DAY, waits()),
            ("of a CA that is trusted no more", &given, holder(1), &other, DAY, anew(&given, "edge")),
            ("refused just now", &refused, holder(1), &own, 59, Again::Done(Asked::Refused("no".into()))),
            ("refused before", &refused, holder(1), &own, 60, anew(&refused, "edge")),
            ("refused twice", &refused_again, holder(1), &own, 179, Again::Done(Asked::Refused("no".into()))),
            ("refused twice before", &refused_again, holder(1), &own, 180, anew(&refused_again, "edge")),
            ("of a former fleet", &given, moved.clone(), &own, DAY, anew(&given, "other")),
            ("refused for a former fleet", &refused, moved, &own, 1, anew(&refused, "other")),
        ] {
            let found = again(&read(secret), &holder, &trusting(trusted), Validity::default(), at(seconds));
            assert_eq!(found, expected, "{case}");
        }
        let renewal = read(&given).ask_again("edge");
        assert_eq!(renewal["metadata"]["annotations"]["opamp.dev/renew"], issued.serial.to_string());
    }
}
