//! The namespaces that this operator serves.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use super::Part;

/// The namespaces that this operator reads and writes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Scope {
    /// Every namespace of the cluster.
    All,
    /// These only.
    Namespaces(BTreeSet<String>),
}

impl Scope {
    /// The scope of `--namespaces`: all when none is named, else those and the operator's own, where the agents that no
    /// fleet takes are kept.
    #[must_use]
    pub fn new(named: impl IntoIterator<Item = String>, own: &str) -> Self {
        let mut namespaces: BTreeSet<String> = named.into_iter().collect();
        if namespaces.is_empty() {
            return Self::All;
        }
        namespaces.insert(own.into());
        Self::Namespaces(namespaces)
    }

    /// Whether objects of this namespace are seen.
    #[must_use]
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespaces(namespaces) => namespaces.contains(namespace),
        }
    }

    /// What one watch each covers.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        match self {
            Self::All => vec![None],
            Self::Namespaces(namespaces) => namespaces.iter().cloned().map(Some).collect(),
        }
    }

    /// The API to list and watch, one for each part of the scope.
    #[must_use]
    pub fn apis<K>(&self, client: &Client) -> Vec<Api<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        match self {
            Self::All => vec![Api::all(client.clone())],
            Self::Namespaces(namespaces) => {
                namespaces.iter().map(|namespace| Api::namespaced(client.clone(), namespace)).collect()
            }
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => formatter.write_str("all namespaces"),
            Self::Namespaces(namespaces) => {
                let names: Vec<_> = namespaces.iter().map(String::as_str).collect();
                formatter.write_str(&names.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_own_namespace_is_always_seen() {
        for (case, named, namespace, expected) in [
            ("all", &[][..], "telemetry", true),
            ("named", &["telemetry"][..], "telemetry", true),
            ("own", &["telemetry"][..], "opamp-system", true),
            ("neither", &["telemetry"][..], "default", false),
        ] {
            let scope = Scope::new(named.iter().map(ToString::to_string), "opamp-system");
            assert_eq!(scope.contains(namespace), expected, "{case}");
        }
    }
}
