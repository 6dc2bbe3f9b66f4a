//! The Secret with the values that the members of a fleet are offered: what it must hold before a revision that refers to
//! it is offered, and what is to be done for that. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;

use crate::{
    api::agent_fleet::AgentFleet,
    catalog::{Credentials, Settings, credentials::credentials_secret_name, settings::CredentialReference},
    revisions::credentials::{Found, judge, keep},
};

/// The Secret as it is.
#[derive(Debug, PartialEq)]
pub enum Stored {
    /// There is none.
    Missing,
    /// It holds these.
    Known {
        /// Its resourceVersion.
        version: String,
        /// What it holds.
        credentials: Credentials,
    },
    /// A Secret of its name is somebody else's.
    Foreign,
}

/// What is to be done with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Change {
    /// It is as it must be.
    #[default]
    Nothing,
    /// It is to be made.
    Create(Secret),
    /// It is to be replaced, if it is still as it was seen: it carries the resourceVersion.
    Replace(Secret),
    /// Nothing refers to it any more; it is to be deleted if it is still as it was seen.
    Delete {
        /// Its name.
        name: String,
        /// Its resourceVersion.
        version: String,
    },
    /// It cannot be written: a Secret of this name is somebody else's.
    Blocked(String),
}

/// What is known of a fleet's settings and of the values that they refer to.
#[derive(Debug)]
pub struct Known<'a> {
    /// The settings of the revision that the fleet is to offer.
    pub target: Option<&'a Settings>,
    /// The settings of the revisions that it offers now.
    pub served: &'a [&'a Settings],
    /// Whether [`Self::served`] are all.
    pub served_are: Extent,
    /// What their references led to.
    pub found: &'a Found,
    /// The Secret.
    pub stored: &'a Stored,
}

/// Whether something is known in full.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Extent {
    /// All of it is.
    Complete,
    /// Some may be missing: a replica has not read every revision that the fleet names.
    Partial,
}

/// The state of a fleet's credentials.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// What is to be done.
    pub change: Change,
    /// The ConnectionSettings that refer to something that is missing or not usable.
    pub not_ready: Option<String>,
}

/// What the Secret of a fleet must hold: every value that the revisions that it offers, and the one that it is to offer,
/// refer to. As long as not all of them are known nothing is taken out of it.
#[must_use]
pub fn plan(fleet: &AgentFleet, known: &Known<'_>) -> Kept {
    let not_ready = known.target.filter(|settings| !judge(settings, known.found).faults.is_empty());
    Kept { change: change(fleet, known), not_ready: not_ready.map(|settings| settings.name.clone()) }
}

fn change(fleet: &AgentFleet, known: &Known<'_>) -> Change {
    let uid = fleet.metadata.uid.as_deref().unwrap_or_default();
    let all = || known.served.iter().copied().chain(known.target);
    let references: BTreeSet<CredentialReference> = all().flat_map(Settings::references).collect();
    let former = match known.stored {
        Stored::Missing => None,
        Stored::Known { version, credentials } => Some((version, credentials)),
        Stored::Foreign if references.is_empty() => return Change::Nothing,
        Stored::Foreign => return Change::Blocked(credentials_secret_name(uid)),
    };
    let before = former.map(|(_, credentials)| credentials);
    let needed = Credentials::new(uid, &keep(all(), known.found, before));
    let needed = match (known.served_are, before) {
        (Extent::Partial, Some(before)) => needed.with_others_of(before),
        (Extent::Complete, _) | (Extent::Partial, None) => needed,
    };
    match former {
        None if needed.is_empty() => Change::Nothing,
        None => Change::Create(needed.to_secret(fleet, &references)),
        Some((version, _)) if references.is_empty() && known.served_are == Extent::Complete => {
            Change::Delete { name: credentials_secret_name(uid), version: version.clone() }
        }
        Some((_, before)) if *before == needed => Change::Nothing,
        Some((version, _)) => {
            let mut secret = needed.to_secret(fleet, &references);
            secret.metadata.resource_version = Some(version.clone());
            Change::Replace(secret)
        }
    }
}
