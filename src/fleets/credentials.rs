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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::ResourceExt;
    use serde_json::json;

    use super::*;
    use crate::{
        catalog::credentials::{Credential, CredentialKind},
        revisions::{credentials::NotFound, settings::freeze},
    };

    const UID: &str = "0c1d2e3f-0000-0000-0000-000000000000";

    fn fleet() -> AgentFleet {
        let mut fleet = AgentFleet::new("edge", serde_json::from_value(json!({"selector": {}})).expect("a spec"));
        (fleet.metadata.namespace, fleet.metadata.uid) = (Some("telemetry".into()), Some(UID.into()));
        fleet
    }

    /// Settings with a header from the Secret of this name.
    fn settings(secret: &str) -> Settings {
        let header = json!({"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": secret, "key": "header"}}});
        let spec = json!({"endpoint": "wss://a", "headers": [header]});
        freeze(secret, &serde_json::from_value(spec).expect("a spec")).expect("settings")
    }

    fn header(secret: &str) -> CredentialReference {
        CredentialReference::secret(secret, "header")
    }

    fn credential(value: &str) -> Credential {
        Credential { kind: CredentialKind::Value, value: value.to_owned().into() }
    }

    fn found(values: &[(&str, &str)]) -> Found {
        values.iter().map(|(secret, value)| (header(secret), Ok(credential(value)))).collect()
    }

    fn stored(values: &[(&str, &str)]) -> Stored {
        let values: BTreeMap<_, _> = values.iter().map(|(secret, value)| (header(secret), credential(value))).collect();
        Stored::Known { version: "7".into(), credentials: Credentials::new(UID, &values) }
    }

    /// What a write leaves in the Secret, by the names of the Secrets that the values came from; for any other change a word.
    fn after(change: &Change) -> Result<Vec<(&'static str, String)>, &'static str> {
        let (Change::Create(secret) | Change::Replace(secret)) = change else {
            return Err(match change {
                Change::Nothing => "nothing",
                Change::Delete { .. } => "delete",
                Change::Blocked(_) => "blocked",
                Change::Create(_) | Change::Replace(_) => unreachable!(),
            });
        };
        let credentials = Credentials::from_secret(secret).expect("credentials");
        let text = |value: &bytes::Bytes| String::from_utf8_lossy(value).into_owned();
        let value = |name: &'static str| credentials.get(&header(name)).map(|value| (name, text(value)));
        Ok(["new", "old"].into_iter().filter_map(value).collect())
    }

    #[test]
    fn the_secret_holds_what_is_offered_and_what_is_to_be_offered() {
        let (old, new) = (settings("old"), settings("new"));
        let both = found(&[("old", "1"), ("new", "2")]);
        let owned = |values: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            values.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
        };
        for (case, target, served, served_are, found, stored, expected) in [
            ("no settings", None, vec![], Extent::Complete, found(&[]), Stored::Missing, Err("nothing")),
            (
                "the first",
                Some(&new),
                vec![],
                Extent::Complete,
                found(&[("new", "2")]),
                Stored::Missing,
                Ok(owned(&[("new", "2")])),
            ),
            (
                "as it is",
                Some(&new),
                vec![&new],
                Extent::Complete,
                both.clone(),
                stored(&[("new", "2")]),
                Err("nothing"),
            ),
            (
                "rotated",
                Some(&new),
                vec![&new],
                Extent::Complete,
                both.clone(),
                stored(&[("new", "1")]),
                Ok(owned(&[("new", "2")])),
            ),
            (
                "moving",
                Some(&new),
                vec![&old],
                Extent::Complete,
                both.clone(),
                stored(&[("old", "1")]),
                Ok(owned(&[("new", "2"), ("old", "1")])),
            ),
            (
                "moved",
                Some(&new),
                vec![&new],
                Extent::Complete,
                both.clone(),
                stored(&[("old", "1"), ("new", "2")]),
                Ok(owned(&[("new", "2")])),
            ),
            (
                "not all known",
                Some(&new),
                vec![],
                Extent::Partial,
                both.clone(),
                stored(&[("old", "1")]),
                Ok(owned(&[("new", "2"), ("old", "1")])),
            ),
            (
                "inputs at fault",
                None,
                vec![&old],
                Extent::Complete,
                both.clone(),
                stored(&[("old", "0")]),
                Ok(owned(&[("old", "1")])),
            ),
            (
                "deleted by hand",
                Some(&new),
                vec![&new],
                Extent::Complete,
                both.clone(),
                Stored::Missing,
                Ok(owned(&[("new", "2")])),
            ),
            (
                "gone",
                Some(&new),
                vec![&new],
                Extent::Complete,
                Found::from([(header("new"), Err(NotFound::Object))]),
                stored(&[("new", "2")]),
                Ok(vec![]),
            ),
            ("never there", Some(&new), vec![], Extent::Complete, Found::new(), Stored::Missing, Err("nothing")),
            ("no longer needed", None, vec![], Extent::Complete, found(&[]), stored(&[("old", "1")]), Err("delete")),
            ("perhaps needed", None, vec![], Extent::Partial, found(&[]), stored(&[("old", "1")]), Err("nothing")),
            ("somebody else's", Some(&new), vec![], Extent::Complete, both.clone(), Stored::Foreign, Err("blocked")),
            ("not ours to delete", None, vec![], Extent::Complete, found(&[]), Stored::Foreign, Err("nothing")),
        ] {
            let known = Known { target, served: &served, served_are, found: &found, stored: &stored };
            assert_eq!(after(&plan(&fleet(), &known).change), expected, "{case}");
        }
    }

    #[test]
    fn a_secret_is_replaced_only_as_it_was_seen() {
        let new = settings("new");
        let (found, stored) = (found(&[("new", "2")]), stored(&[("new", "1")]));
        let known =
            Known { target: Some(&new), served: &[], served_are: Extent::Complete, found: &found, stored: &stored };
        let Change::Replace(secret) = plan(&fleet(), &known).change else { panic!("it was rotated") };
        assert_eq!(
            (secret.name_any().as_str(), secret.resource_version().as_deref()),
            ("opamp-credentials-0c1d2e3f", Some("7"))
        );
    }

    #[test]
    fn settings_that_lack_a_value_are_told_of_by_name() {
        let new = settings("new");
        for (found, expected) in
            [(found(&[("new", "2")]), None), (found(&[("new", "2\n")]), Some("new")), (Found::new(), Some("new"))]
        {
            let known = Known {
                target: Some(&new),
                served: &[],
                served_are: Extent::Complete,
                found: &found,
                stored: &Stored::Missing,
            };
            assert_eq!(plan(&fleet(), &known).not_ready.as_deref(), expected);
        }
    }
}
