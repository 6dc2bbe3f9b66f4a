//! What `ConfigMap`s and Secrets hold, in a form that does not show it.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::sources::SourceKind;
use crate::{api::enrollment::ENROLLMENT_TOKEN_TYPE, catalog::credentials::CredentialKind, kubernetes::ObjectKey};

/// A ConfigMap or a Secret that is referred to.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Source {
    /// Which of the two.
    pub kind: SourceKind,
    /// Its place.
    pub key: ObjectKey,
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.kind, self.key.name)
    }
}

/// The keys and values of a source.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Content {
    values: BTreeMap<String, Bytes>,
    /// The type of a Secret.
    secret_type: Option<String>,
}

impl fmt::Debug for Content {
    /// The values may be secret and are not shown.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.values.keys()).finish()
    }
}

impl Content {
    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Bytes> {
        self.values.get(key)
    }

    /// All keys and values.
    pub fn values(&self) -> impl Iterator<Item = (&String, &Bytes)> {
        self.values.iter()
    }

    /// The type of a Secret.
    #[must_use]
    pub fn secret_type(&self) -> Option<&str> {
        self.secret_type.as_deref()
    }

    /// What its values are, if agents are offered them.
    #[must_use]
    pub fn kind(&self) -> CredentialKind {
        match self.secret_type() {
            Some(ENROLLMENT_TOKEN_TYPE) => CredentialKind::EnrollmentToken,
            Some(_) | None => CredentialKind::Value,
        }
    }
}

impl From<ConfigMap> for Content {
    /// Text and binary keys alike; the API server keeps them apart.
    fn from(object: ConfigMap) -> Self {
        let text = object.data.unwrap_or_default().into_iter().map(|(key, value)| (key, Bytes::from(value)));
        let binary = object.binary_data.unwrap_or_default().into_iter().map(|(key, value)| (key, Bytes::from(value.0)));
        Self { values: text.chain(binary).collect(), secret_type: None }
    }
}

impl From<Secret> for Content {
    fn from(object: Secret) -> Self {
        let values = object.data.unwrap_or_default().into_iter().map(|(key, value)| (key, Bytes::from(value.0)));
        Self { values: values.collect(), secret_type: object.type_ }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn text_and_binary_keys_are_found_alike() {
        let config_map = ConfigMap {
            data: Some(BTreeMap::from([("text".into(), "ä".into())])),
            binary_data: Some(BTreeMap::from([("binary".into(), ByteString(vec![0xff]))])),
            ..ConfigMap::default()
        };
        let content = Content::from(config_map);
        assert_eq!(content.get("text").map(|value| &value[..]), Some("ä".as_bytes()));
        assert_eq!(content.get("binary").map(|value| &value[..]), Some(&[0xff][..]));
        assert_eq!(content.get("other"), None);
    }

    #[test]
    fn debug_shows_keys_and_never_values() {
        let data = BTreeMap::from([("token".to_owned(), ByteString(b"canary".to_vec()))]);
        let content = Content::from(Secret { data: Some(data), ..Secret::default() });
        assert_eq!(format!("{content:?}"), r#"{"token"}"#);
    }
}
