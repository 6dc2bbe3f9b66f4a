//! What every replica knows without a secret: the objects with the CAs, and with what was taken back.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt as _;
use rustls_pki_types::CertificateDer;

use super::{
    key::KeyId,
    pem::{PemError, read_certificates, write_certificates},
    revocations::{ListError, Revocations},
};

/// The name of the Secret and of the ConfigMap of the CA.
pub const AUTHORITY_NAME: &str = "opamp-ca";
/// The name of the ConfigMap with what was taken back.
pub const REVOCATIONS_NAME: &str = "opamp-crl";
/// Key of both: the CAs that are trusted, active and former, in PEM.
pub const BUNDLE_KEY: &str = "ca.crt";
/// Key of the signed list, in PEM.
pub const LIST_KEY: &str = "ca.crl";
/// Key of what the list is made from.
const REVOKED_KEY: &str = "revoked.json";
/// Annotation with the `<cluster>` of the names in certificates.
pub const CLUSTER_ANNOTATION: &str = "opamp.dev/cluster-name";
/// Annotation with the keys of those CAs of the bundle that have issued certificates here: a root that people have put
/// there besides leads to them, and is not believed about agents.
pub const ISSUERS_ANNOTATION: &str = "opamp.dev/issuers";
const NUMBER_ANNOTATION: &str = "opamp.dev/crl-number";
const SIGNED_AT_ANNOTATION: &str = "opamp.dev/crl-signed-at";
const SIGNED_BY_ANNOTATION: &str = "opamp.dev/crl-signed-by";
const MANAGED_BY_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "opamp-operator");

/// Why a ConfigMap of ours cannot be read.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum PublishedError {
    /// There is no bundle, or it is none.
    #[error("{BUNDLE_KEY}: {0}")]
    Bundle(#[from] PemError),
    /// An annotation is missing, or is something else.
    #[error("the annotation {0} is missing or cannot be read")]
    Annotation(&'static str),
    /// There is no list, or it is none.
    #[error("{REVOKED_KEY}: {0}")]
    List(#[from] ListError),
}

/// The CAs that are trusted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PublishedAuthorities {
    /// The `<cluster>` of the names in certificates.
    pub cluster: String,
    /// All CAs that are trusted for the certificates of servers.
    pub bundle: Vec<CertificateDer<'static>>,
    /// The keys of those among them that are believed about agents.
    pub issuers: BTreeSet<KeyId>,
}

impl PublishedAuthorities {
    /// The ConfigMap `opamp-ca` that says so.
    #[must_use]
    pub fn to_config_map(&self, namespace: &str) -> ConfigMap {
        let annotations = [(CLUSTER_ANNOTATION, self.cluster.clone()), (ISSUERS_ANNOTATION, write_keys(&self.issuers))];
        let data = [(BUNDLE_KEY, write_certificates(&self.bundle))];
        config_map(AUTHORITY_NAME, namespace, annotations, data)
    }

    /// Reads what [`Self::to_config_map`] wrote.
    pub fn read(config_map: &ConfigMap) -> Result<Self, PublishedError> {
        let annotations = config_map.annotations();
        let cluster = annotations.get(CLUSTER_ANNOTATION).filter(|name| super::name::is_plain(name));
        Ok(Self {
            cluster: cluster.ok_or(PublishedError::Annotation(CLUSTER_ANNOTATION))?.clone(),
            bundle: read_certificates(value(config_map, BUNDLE_KEY).as_bytes())?,
            issuers: annotations
                .get(ISSUERS_ANNOTATION)
                .and_then(|text| read_keys(text))
                .ok_or(PublishedError::Annotation(ISSUERS_ANNOTATION))?,
        })
    }
}

/// What was taken back, and the list that others can read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PublishedRevocations {
    /// The number of the list; it only grows.
    pub number: u64,
    /// When it was signed.
    pub signed_at: Timestamp,
    /// The CA that has signed it.
    pub signed_by: KeyId,
    /// What was taken back.
    pub revocations: Revocations,
    /// The signed list, in PEM.
    pub list: String,
}

impl PublishedRevocations {
    /// The ConfigMap `opamp-crl` that says so.
    #[must_use]
    pub fn to_config_map(&self, namespace: &str) -> ConfigMap {
        let annotations = [
            (NUMBER_ANNOTATION, self.number.to_string()),
            (SIGNED_AT_ANNOTATION, self.signed_at.to_string()),
            (SIGNED_BY_ANNOTATION, self.signed_by.to_string()),
        ];
        let data = [(LIST_KEY, self.list.clone()), (REVOKED_KEY, self.revocations.to_text())];
        config_map(REVOCATIONS_NAME, namespace, annotations, data)
    }

    /// Reads what [`Self::to_config_map`] wrote.
    pub fn read(config_map: &ConfigMap) -> Result<Self, PublishedError> {
        Ok(Self {
            number: annotation(config_map, NUMBER_ANNOTATION, |text| text.parse().ok())?,
            signed_at: annotation(config_map, SIGNED_AT_ANNOTATION, |text| text.parse().ok())?,
            signed_by: annotation(config_map, SIGNED_BY_ANNOTATION, KeyId::parse)?,
            revocations: Revocations::parse(value(config_map, REVOKED_KEY))?,
            list: value(config_map, LIST_KEY).to_owned(),
        })
    }
}

/// The keys of CAs as an annotation has them.
pub(super) fn write_keys(keys: &BTreeSet<KeyId>) -> String {
    keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Reads what [`write_keys`] wrote; `None` if a part of it is no key.
pub(super) fn read_keys(text: &str) -> Option<BTreeSet<KeyId>> {
    text.split(',').map(KeyId::parse).collect()
}

fn annotation<T>(
    config_map: &ConfigMap,
    name: &'static str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<T, PublishedError> {
    config_map.annotations().get(name).and_then(|text| read(text)).ok_or(PublishedError::Annotation(name))
}

fn value<'a>(config_map: &'a ConfigMap, key: &str) -> &'a str {
    config_map.data.as_ref().and_then(|data| data.get(key)).map(String::as_str).unwrap_or_default()
}

fn config_map<const A: usize, const D: usize>(
    name: &str,
    namespace: &str,
    annotations: [(&str, String); A],
    data: [(&str, String); D],
) -> ConfigMap {
    let owned = |(key, value): (&str, String)| (key.to_owned(), value);
    let (label, ours) = MANAGED_BY_LABEL;
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some(namespace.into()),
            labels: Some(BTreeMap::from([(label.into(), ours.into())])),
            annotations: Some(annotations.into_iter().map(owned).collect()),
            ..ObjectMeta::default()
        },
        data: Some(data.into_iter().map(owned).collect()),
        ..ConfigMap::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::tests::{at, authority};

    fn authorities() -> PublishedAuthorities {
        let [one, two] = [authority(), authority()];
        PublishedAuthorities {
            cluster: "4f1c0a9be2".into(),
            bundle: vec![one.certificate().clone(), two.certificate().clone()],
            issuers: BTreeSet::from([one.facts().key, two.facts().key]),
        }
    }

    #[test]
    fn the_authorities_are_read_back_from_their_config_map() {
        let written = authorities();
        assert_eq!(PublishedAuthorities::read(&written.to_config_map("opamp-system")), Ok(written));
    }

    #[test]
    fn the_revocations_are_read_back_from_their_config_map() {
        let authority = authority();
        let revocations = Revocations::default();
        let written = PublishedRevocations {
            number: 7,
            signed_at: at(0),
            signed_by: authority.facts().key,
            list: revocations.sign(&authority, 7, at(0)).unwrap(),
            revocations,
        };
        assert_eq!(PublishedRevocations::read(&written.to_config_map("opamp-system")), Ok(written));
    }

    #[test]
    fn what_somebody_has_broken_is_an_error() {
        let good = authorities().to_config_map("opamp-system");
        let empty = ConfigMap::default();
        let spoilt = |name: &str, text: &str| {
            let mut config_map = good.clone();
            config_map.annotations_mut().insert(name.into(), text.into());
            config_map
        };
        let mut without = good.clone();
        without.data = None;
        for (case, config_map, expected) in [
            ("empty", empty, PublishedError::Annotation(CLUSTER_ANNOTATION)),
            (
                "a cluster with a slash",
                spoilt(CLUSTER_ANNOTATION, "a/b"),
                PublishedError::Annotation(CLUSTER_ANNOTATION),
            ),
            ("no keys", spoilt(ISSUERS_ANNOTATION, "5e"), PublishedError::Annotation(ISSUERS_ANNOTATION)),
            ("no bundle", without, PublishedError::Bundle(PemError::Empty)),
        ] {
            assert_eq!(PublishedAuthorities::read(&config_map).unwrap_err(), expected, "{case}");
        }
        assert!(PublishedRevocations::read(&ConfigMap::default()).is_err());
    }
}
