//! The name that an issued certificate gives its holder.

use std::fmt;

use crate::opamp::{InstanceUid, identity::Identity};

const SCHEME: &str = "opamp://";

/// An agent, its fleet and its cluster: the URI `opamp://<cluster>/<namespace>/<fleet>/<uid>` in a certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AgentName {
    /// Tells clusters apart that share a CA.
    pub cluster: String,
    /// The namespace of the fleet.
    pub namespace: String,
    /// The fleet.
    pub fleet: String,
    /// The agent.
    pub uid: InstanceUid,
}

impl AgentName {
    /// Reads the URI; `None` unless it is written exactly as [`fmt::Display`] writes it.
    #[must_use]
    pub fn parse(uri: &str) -> Option<Self> {
        let mut parts = uri.strip_prefix(SCHEME)?.split('/');
        let mut part = || parts.next().filter(|part| is_plain(part)).map(str::to_owned);
        let (cluster, namespace, fleet) = (part()?, part()?, part()?);
        let uid = InstanceUid::from_name(&part()?)?;
        let name = Self { cluster, namespace, fleet, uid };
        (name.to_string() == uri).then_some(name)
    }

    /// Who speaks with such a certificate.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::Certificate { namespace: self.namespace.clone(), fleet: self.fleet.clone(), uid: self.uid }
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{SCHEME}{}/{}/{}/{}", self.cluster, self.namespace, self.fleet, self.uid)
    }
}

/// Letters, digits, `-` and `.`: what names of clusters, namespaces and fleets consist of.
#[must_use]
pub fn is_plain(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= 253
        && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0190a5c4-7e2f-7cc0-8000-000000000001";

    #[test]
    fn a_name_is_read_back_from_its_uri() {
        let uri = format!("opamp://4f1c0a9be2/telemetry/edge/{UID}");
        let name = AgentName::parse(&uri).unwrap();
        assert_eq!(name.to_string(), uri);
        assert_eq!(name.identity().to_string(), format!("certificate:telemetry/edge/{UID}"));
    }

    #[test]
    fn a_uri_of_another_shape_is_no_name() {
        for uri in [
            String::new(),
            format!("https://c/telemetry/edge/{UID}"),
            format!("OPAMP://c/telemetry/edge/{UID}"),
            format!("opamp://c/telemetry/edge/{}", UID.to_uppercase()),
            format!("opamp://c/telemetry/edge/{UID}/"),
            format!("opamp://c/telemetry/edge/{UID}?x"),
            format!("opamp://c//edge/{UID}"),
            format!("opamp://c/telemetry/{UID}"),
            format!("opamp://user@c/telemetry/edge/{UID}"),
            format!("opamp://c/tele%6detry/edge/{UID}"),
            "opamp://c/telemetry/edge/7".into(),
        ] {
            assert_eq!(AgentName::parse(&uri), None, "{uri}");
        }
    }
}
