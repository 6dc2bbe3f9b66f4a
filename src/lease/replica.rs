//! The sign of life of one replica: bridges and the leader read it to know whose word on an Agent's status counts.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, ResourceExt};
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;

use super::{
    Holder, RENEWAL,
    hold::{Dress, Failing, Hold, Standing},
};

/// Label of Leases that are a replica's sign of life; its value is [`ROLE_REPLICA`].
pub const ROLE_LABEL: &str = "opamp.dev/lease";
/// The value of [`ROLE_LABEL`].
pub const ROLE_REPLICA: &str = "replica";
/// Annotation of a replica's Lease: JSON, fleet uid → agents served without an object because `--max-agents` is reached.
pub const UNCOUNTED_ANNOTATION: &str = "opamp.dev/uncounted";

/// Agents that a replica serves without an object, by the uid of their fleet.
pub type Uncounted = BTreeMap<String, usize>;

/// The most fleets that [`UNCOUNTED_ANNOTATION`] names: those with the most agents. 50 bytes each leave it far below
/// the 256 KiB that an object's annotations may have.
const MOST_FLEETS: usize = 1_000;

/// The name of a replica's Lease.
#[must_use]
pub fn lease_name(replica: &str) -> String {
    format!("opamp-replica-{replica}")
}

/// What the Lease of a replica says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SignOfLife {
    /// Who gave it.
    pub holder: Holder,
    /// Agents without an object.
    pub uncounted: Uncounted,
}

impl SignOfLife {
    /// Reads a Lease; `None` if nobody of ours holds it. An annotation that is no such map counts as empty, and what is
    /// below one is left out.
    #[must_use]
    pub fn read(lease: &Lease) -> Option<Self> {
        let holder = Holder::parse(lease.spec.as_ref()?.holder_identity.as_deref()?)?;
        let text = lease.annotations().get(UNCOUNTED_ANNOTATION).map_or("{}", String::as_str);
        let mut uncounted: Uncounted = serde_json::from_str(text).unwrap_or_default();
        uncounted.retain(|_, count| *count > 0);
        Some(Self { holder, uncounted })
    }
}

/// This replica's own Lease.
pub struct ReplicaLease {
    hold: Hold,
    name: String,
    uncounted: watch::Receiver<Uncounted>,
    failing: Failing,
}

impl ReplicaLease {
    /// A Lease in the operator's namespace. `uncounted` is read at each renewal.
    #[must_use]
    pub fn new(client: Client, namespace: &str, me: Holder, uncounted: watch::Receiver<Uncounted>) -> Self {
        let api: Api<Lease> = Api::namespaced(client, namespace);
        let name = lease_name(&me.replica);
        Self { hold: Hold::new(api, name.clone(), me), name, uncounted, failing: Failing::default() }
    }

    /// Renews the Lease until `shutdown`, then deletes it: pending status should have been written before.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let pause = self.step().await;
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = time::sleep(pause) => {}
            }
        }
        if let Err(error) = self.hold.delete().await {
            tracing::warn!(%error, "this replica's Lease could not be deleted; the leader removes it when it is expired");
        }
    }

    async fn step(&mut self) -> Duration {
        let begun = time::Instant::now();
        let dress = dress(&self.uncounted.borrow_and_update());
        match self.hold.step(&dress, begun.into_std()).await {
            Ok(Standing::Held) => {
                self.failing.ended(&self.name);
                RENEWAL.saturating_sub(begun.elapsed())
            }
            Ok(Standing::Others { .. }) => {
                tracing::error!(
                    "another process runs under this replica's name; its agents will be shown as if they were gone"
                );
                RENEWAL
            }
            Err(error) => {
                self.failing.again(&self.name, &error);
                Duration::from_secs(1)
            }
        }
    }
}

fn dress(uncounted: &Uncounted) -> Dress {
    let mut most: Vec<_> = uncounted.iter().filter(|(_, count)| **count > 0).collect();
    most.sort_by_key(|(uid, count)| (std::cmp::Reverse(**count), *uid));
    let named: BTreeMap<_, _> = most.into_iter().take(MOST_FLEETS).collect();
    let mut annotations = BTreeMap::new();
    if !named.is_empty() {
        // A map of strings to integers has a JSON form, always.
        annotations.extend(serde_json::to_string(&named).ok().map(|text| (UNCOUNTED_ANNOTATION.into(), text)));
    }
    Dress { labels: BTreeMap::from([(ROLE_LABEL.into(), ROLE_REPLICA.into())]), annotations }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;
    use crate::lease::Incarnation;

    fn lease(identity: &str, annotations: BTreeMap<String, String>) -> Lease {
        let mut lease = Lease {
            spec: Some(LeaseSpec { holder_identity: Some(identity.into()), ..LeaseSpec::default() }),
            ..Lease::default()
        };
        *lease.annotations_mut() = annotations;
        lease
    }

    #[test]
    fn uncounted_agents_are_read_as_they_were_written() {
        let uncounted = Uncounted::from([("fleet-a".into(), 7), ("fleet-b".into(), 1), ("fleet-c".into(), 0)]);
        let seen = SignOfLife::read(&lease("replica-0_0123456789", dress(&uncounted).annotations)).expect("held");
        assert_eq!(
            seen.holder,
            Holder { replica: "replica-0".into(), incarnation: Incarnation::from_text("0123456789") }
        );
        assert_eq!(seen.uncounted, Uncounted::from([("fleet-a".into(), 7), ("fleet-b".into(), 1)]));
    }

    #[test]
    fn a_broken_annotation_counts_nobody() {
        for text in ["", "no json", "[1]", r#"{"fleet": "many"}"#, r#"{"fleet": -3}"#] {
            let annotations = BTreeMap::from([(UNCOUNTED_ANNOTATION.into(), text.into())]);
            let seen = SignOfLife::read(&lease("replica-0_0123456789", annotations)).expect("held");
            assert_eq!(seen.uncounted, Uncounted::new(), "{text:?}");
        }
    }

    #[test]
    fn the_annotation_is_bounded_and_names_the_largest() {
        let uncounted: Uncounted = (0..2_000).map(|number| (format!("fleet-{number:032}"), number + 1)).collect();
        let text = &dress(&uncounted).annotations[UNCOUNTED_ANNOTATION];
        let named: Uncounted = serde_json::from_str(text).expect("JSON");
        assert_eq!(named.len(), 1_000);
        assert_eq!(named.values().min(), Some(&1_001));
        assert!(text.len() < 64 * 1024, "{}", text.len());
    }

    #[test]
    fn a_released_lease_is_nobodys() {
        assert_eq!(SignOfLife::read(&lease("", BTreeMap::new())), None);
        assert_eq!(SignOfLife::read(&Lease::default()), None);
    }
}
