//! A revision: the whole function from an agent's attributes to its files, frozen and addressed by its content.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::settings::Settings;
use crate::api::{
    remote_config::{ConfigFormat, TemplateMode},
    selector::AttributeSelector,
};

/// What the canonical form is called in itself. A form that gives other bytes for the same revision needs another.
const CANONICAL_VERSION: &str = "opamp.dev/revision/v1";

/// Most entries of a revision; the fleet's list has the same limit.
pub const MAX_ENTRIES: usize = 64;

/// What a fleet offers, made once from its inputs and never changed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Revision {
    /// One for each `RemoteConfig` of the fleet, in the fleet's order.
    pub entries: Vec<RevisionEntry>,
    /// How members are to connect; `None`: they keep the connection that they have.
    pub opamp: Option<Settings>,
}

/// The files of one `RemoteConfig`, and which members get them.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionEntry {
    /// The name of the `RemoteConfig`.
    pub name: String,
    /// Which members get it; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<AttributeSelector>,
    /// Whether the files are templates.
    pub template: TemplateMode,
    /// What a rendered file must be.
    pub format: ConfigFormat,
    /// The files, in the order of the `RemoteConfig`.
    pub files: Vec<RevisionFile>,
}

/// One file of a revision.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionFile {
    /// The key in the agent's map of files.
    pub name: String,
    /// The MIME type that the agent is told; empty: none.
    pub content_type: String,
    /// Where the body came from.
    pub origin: Origin,
    /// The content, or the template of it.
    #[serde(with = "base64_text")]
    pub body: Bytes,
}

impl fmt::Debug for RevisionFile {
    /// The body may come from a Secret and is not shown.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RevisionFile")
            .field("name", &self.name)
            .field("content_type", &self.content_type)
            .field("origin", &self.origin)
            .field("size", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Where the body of a file came from.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Origin {
    /// It stands in the `RemoteConfig` itself.
    Inline,
    /// A key of a ConfigMap.
    ConfigMap,
    /// A key of a Secret: never quoted in a message, and offered over a protected connection only.
    Secret,
}

/// SHA-256 over the canonical form of a revision.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RevisionHash([u8; 32]);

impl RevisionHash {
    /// The hash of a canonical form.
    #[must_use]
    pub fn of(canonical: &[u8]) -> Self {
        Self(Sha256::digest(canonical).into())
    }

    /// Reads 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut digest = [0; 32];
        let digits = text.as_bytes();
        if digits.len() != 2 * digest.len() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        (Self(digest).to_string() == text).then_some(Self(digest))
    }

    /// The first 10 hexadecimal digits: what columns, statuses and names of objects show.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string().chars().take(10).collect()
    }
}

impl fmt::Display for RevisionHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for RevisionHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The canonical form as it is written; [`CanonicalForm`] is the same as it is read.
#[derive(Serialize)]
struct Canonical<'a> {
    version: &'a str,
    entries: &'a [RevisionEntry],
    /// Absent in the revisions of versions that did not know it: those must keep their hashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    opamp: Option<&'a Settings>,
}

#[derive(Deserialize)]
struct CanonicalForm {
    version: String,
    entries: Vec<RevisionEntry>,
    #[serde(default)]
    opamp: Option<Settings>,
}

/// Why bytes are no revision.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum CanonicalError {
    /// They are no JSON, or not of this shape. The parser's text may quote content and is left out.
    #[error("it is not a revision: line {line}, column {column}")]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// Written by another version of the operator.
    #[error("it is in the form {0}, which this version does not know")]
    UnknownVersion(String),
    /// More than any fleet can name.
    #[error("it has {0} entries, the limit is {MAX_ENTRIES}")]
    TooManyEntries(usize),
}

impl Revision {
    /// The canonical form: JSON without white space, keys in the order of the declaration above and maps in the order
    /// of their keys, bodies as base64. Equal revisions give equal bytes on every replica, whatever the order in which
    /// their maps were built.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "it never does")]
    pub fn canonical(&self) -> Vec<u8> {
        #[expect(clippy::expect_used, reason = "strings, lists and maps with string keys are always JSON")]
        serde_json::to_vec(&Canonical {
            version: CANONICAL_VERSION,
            entries: &self.entries,
            opamp: self.opamp.as_ref(),
        })
        .expect("a revision is JSON")
    }

    /// The content address. It serialises the whole revision: keep it where it is needed twice.
    #[must_use]
    pub fn hash(&self) -> RevisionHash {
        RevisionHash::of(&self.canonical())
    }

    /// Reads a canonical form.
    pub fn from_canonical(canonical: &[u8]) -> Result<Self, CanonicalError> {
        let form: CanonicalForm = serde_json::from_slice(canonical)
            .map_err(|error| CanonicalError::Malformed { line: error.line(), column: error.column() })?;
        if form.version != CANONICAL_VERSION {
            return Err(CanonicalError::UnknownVersion(form.version.chars().take(64).collect()));
        }
        if form.entries.len() > MAX_ENTRIES {
            return Err(CanonicalError::TooManyEntries(form.entries.len()));
        }
        Ok(Self { entries: form.entries, opamp: form.opamp })
    }

    /// Whether any file came from a Secret, or any value of the settings is kept in one.
    #[must_use]
    pub fn has_secret_content(&self) -> bool {
        self.entries.iter().flat_map(|entry| &entry.files).any(|file| file.origin == Origin::Secret)
            || self.opamp.as_ref().is_some_and(|settings| settings.secret_reference().is_some())
    }

    /// Bytes of all bodies.
    #[must_use]
    pub fn size(&self) -> usize {
        self.entries.iter().flat_map(|entry| &entry.files).map(|file| file.body.len()).sum()
    }
}

mod base64_text {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(body: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(body))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map(Bytes::from).map_err(|_| D::Error::custom("not base64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::selector::{AttributeOperator, AttributeRequirement},
        catalog::settings::{
            CredentialReference, FrozenCertificate, FrozenHeader, FrozenProxy, FrozenSystemAuthorities, FrozenTls,
            FrozenVerification, HeaderValue,
        },
    };

    fn file(name: &str, body: &'static [u8]) -> RevisionFile {
        RevisionFile {
            name: name.into(),
            content_type: "text/yaml".into(),
            origin: Origin::Secret,
            body: Bytes::from_static(body),
        }
    }

    fn revision(attributes: &[(&str, &str)]) -> Revision {
        let selector = AttributeSelector {
            match_attributes: attributes.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            match_expressions: vec![AttributeRequirement {
                key: "os.type".into(),
                operator: AttributeOperator::In,
                values: vec!["linux".into()],
            }],
        };
        Revision {
            entries: vec![RevisionEntry {
                name: "base".into(),
                selector: Some(selector),
                template: TemplateMode::Disabled,
                format: ConfigFormat::OpenTelemetryCollector,
                files: vec![file("collector.yaml", b"a: 1")],
            }],
            ..Revision::default()
        }
    }

    #[test]
    fn the_canonical_form_is_this_text_for_ever() {
        let canonical = String::from_utf8(revision(&[("b", "2"), ("a", "1")]).canonical()).unwrap();
        assert_eq!(
            canonical,
            concat!(
                r#"{"version":"opamp.dev/revision/v1","entries":[{"name":"base","selector":{"matchAttributes":{"#,
                r#""a":"1","b":"2"},"matchExpressions":[{"key":"os.type","operator":"In","values":["linux"]}]},"#,
                r#""template":"Disabled","format":"OpenTelemetryCollector","files":[{"name":"collector.yaml","#,
                r#""contentType":"text/yaml","origin":"Secret","body":"YTogMQ=="}]}]}"#,
            )
        );
    }

    #[test]
    fn settings_follow_the_entries_and_leave_those_without_them_as_they_were() {
        let mut with = revision(&[]);
        let before = with.canonical();
        with.opamp = Some(settings());
        let canonical = String::from_utf8(with.canonical()).unwrap();
        let entries = String::from_utf8(before).unwrap();
        let opamp = concat!(
            r#","opamp":{"name":"edge","endpoint":"wss://a","headers":[{"name":"X","literal":"1"},"#,
            r#"{"name":"Authorization","reference":{"kind":"Secret","name":"edge-token","key":"header"}}],"#,
            r#""certificate":{"secret":"client"},"tls":{"systemAuthorities":"Trusted","verification":"Required"},"#,
            r#""proxy":{"url":"127.0.0.1:8443"},"heartbeatSeconds":30}}"#,
        );
        assert_eq!(canonical, entries.trim_end_matches('}').to_owned() + opamp);
        assert_eq!(Revision::from_canonical(canonical.as_bytes()), Ok(with));
    }

    /// Settings with a part of each kind.
    fn settings() -> Settings {
        let secret = |name: &str, key: &str| CredentialReference::secret(name, key);
        let header = |name: &str, value| FrozenHeader { name: name.into(), value };
        Settings {
            name: "edge".into(),
            endpoint: "wss://a".into(),
            headers: vec![
                header("X", HeaderValue::Literal("1".into())),
                header("Authorization", HeaderValue::Reference(secret("edge-token", "header"))),
            ],
            certificate: FrozenCertificate::Secret("client".into()),
            tls: Some(FrozenTls {
                authorities: None,
                system_authorities: FrozenSystemAuthorities::Trusted,
                min_version: None,
                max_version: None,
                cipher_suites: Vec::new(),
                verification: FrozenVerification::Required,
            }),
            proxy: Some(FrozenProxy { url: "127.0.0.1:8443".into(), connect_headers: Vec::new() }),
            heartbeat_seconds: 30,
        }
    }

    #[test]
    fn the_order_in_which_maps_were_filled_does_not_change_the_hash() {
        assert_eq!(revision(&[("a", "1"), ("b", "2")]).hash(), revision(&[("b", "2"), ("a", "1")]).hash());
    }

    #[test]
    fn whatever_an_agent_could_notice_changes_the_hash() {
        type Change = fn(&mut RevisionEntry);
        let original = revision(&[("a", "1")]);
        let changes: [(&str, Change); 7] = [
            ("name", |entry| entry.name = "other".into()),
            ("selector", |entry| entry.selector = None),
            ("template", |entry| entry.template = TemplateMode::Jinja),
            ("format", |entry| entry.format = ConfigFormat::Opaque),
            ("file name", |entry| entry.files[0].name = String::new()),
            ("content type", |entry| entry.files[0].content_type = String::new()),
            ("body", |entry| entry.files[0].body = Bytes::from_static(b"a: 2")),
        ];
        for (case, change) in changes {
            let mut other = original.clone();
            change(&mut other.entries[0]);
            assert_ne!(other.hash(), original.hash(), "{case}");
        }
    }

    #[test]
    fn a_canonical_form_reads_back_as_the_same_revision() {
        let original = revision(&[("a", "1")]);
        assert_eq!(Revision::from_canonical(&original.canonical()), Ok(original));
    }

    #[test]
    fn what_is_no_revision_of_this_version_is_refused_without_quoting_it() {
        for (case, bytes, expected) in [
            ("no JSON", &b"canary"[..], CanonicalError::Malformed { line: 1, column: 1 }),
            ("a later form", br#"{"version":"v2","entries":[]}"#, CanonicalError::UnknownVersion("v2".into())),
        ] {
            assert_eq!(Revision::from_canonical(bytes), Err(expected), "{case}");
        }
        let many = Revision { entries: vec![revision(&[]).entries.remove(0); MAX_ENTRIES + 1], ..Revision::default() };
        assert_eq!(Revision::from_canonical(&many.canonical()), Err(CanonicalError::TooManyEntries(65)));
    }

    #[test]
    fn a_hash_reads_back_from_its_own_text_only() {
        let hash = RevisionHash::of(b"");
        assert_eq!(hash.short(), "e3b0c44298");
        assert_eq!(RevisionHash::parse(&hash.to_string()), Some(hash));
        for text in ["", "e3b0c44298", &hash.to_string().to_uppercase(), &"+1".repeat(32)] {
            assert_eq!(RevisionHash::parse(text), None, "{text}");
        }
    }

    #[test]
    fn debug_never_shows_a_body() {
        let shown = format!(
            "{:?}",
            Revision {
                entries: vec![RevisionEntry {
                    files: vec![file("token", b"canary")],
                    ..revision(&[]).entries[0].clone()
                }],
                ..Revision::default()
            }
        );
        assert!(!shown.contains("canary") && !shown.contains("99, 97"), "{shown}");
    }
}
