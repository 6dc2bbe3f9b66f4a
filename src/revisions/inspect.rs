//! One `RemoteConfig` by itself: are its files there, and are they what it says.

use super::{
    collector::{CollectorConfig, Components},
    possibilities::Possibilities,
    sources::{Bodies, resolve},
};
use crate::{
    api::{
        reasons::RemoteConfigReason,
        remote_config::{ConfigFileStatus, ConfigFormat, RemoteConfigSpec, TemplateMode},
    },
    catalog::{
        ConfigHash, Origin, RevisionFile,
        offers::{config_hash, quoting},
        template::Template,
        yaml::{self, Quoting},
    },
};

/// Most bytes of all files of a `RemoteConfig`, whatever they come from. The CRD counts inline bodies in characters
/// and cannot see the others.
pub const MAX_BYTES: usize = 900_000;

/// What was found of a `RemoteConfig`.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The files that are there, in the order of the spec.
    pub(super) files: Vec<InspectedFile>,
    findings: Vec<(RemoteConfigReason, String)>,
}

#[derive(Clone, Debug)]
pub(super) struct InspectedFile {
    pub file: RevisionFile,
    pub components: Components,
}

/// Resolves and checks all files of a `RemoteConfig`.
#[must_use]
pub fn inspect(spec: &RemoteConfigSpec, bodies: &Bodies) -> Inspection {
    let mut inspection = Inspection { files: Vec::new(), findings: Vec::new() };
    for file in &spec.files {
        let mut found = |reason, message: String| {
            inspection.findings.push((reason, format!("file {:?}: {message}", file.name)));
        };
        let (origin, body) = match resolve(file, bodies) {
            Ok(resolved) => resolved,
            Err(message) => {
                found(RemoteConfigReason::ReferenceNotFound, message);
                continue;
            }
        };
        let components = check(spec, &body, quoting(origin)).unwrap_or_else(|(reason, message)| {
            found(reason, message);
            Components::None
        });
        let content_type = file.content_type.clone().unwrap_or_default();
        let file = RevisionFile { name: file.name.clone(), content_type, origin, body };
        inspection.files.push(InspectedFile { file, components });
    }
    let size = inspection.bytes();
    if size > MAX_BYTES {
        let message = format!("the files have {size} bytes together, the limit is {MAX_BYTES}");
        inspection.findings.push((RemoteConfigReason::TooLarge, message));
    }
    inspection
}

impl Inspection {
    /// What is wrong, in the order of the files; nothing if all is well.
    #[must_use]
    pub fn findings(&self) -> &[(RemoteConfigReason, String)] {
        &self.findings
    }

    /// What the conditions are made of: what is wrong, or that all is well.
    #[must_use]
    pub fn reasons(&self) -> Vec<(RemoteConfigReason, String)> {
        if self.findings.is_empty() { vec![(RemoteConfigReason::Valid, String::new())] } else { self.findings.clone() }
    }

    /// The hash over all files, made like the one that agents are told; `None` while a body is missing. An agent that
    /// gets these files and no others, none of them a template, is offered this hash.
    #[must_use]
    pub fn hash(&self) -> Option<ConfigHash> {
        if self.findings.iter().any(|(reason, _)| *reason == RemoteConfigReason::ReferenceNotFound) {
            return None;
        }
        let mut files: Vec<&RevisionFile> = self.files.iter().map(|inspected| &inspected.file).collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Some(config_hash(files.into_iter().map(|file| (&*file.name, &*file.content_type, &*file.body))))
    }

    /// Bytes of the files that are there.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.files.iter().map(|inspected| inspected.file.body.len()).sum()
    }

    /// The files that are there, as the status shows them.
    #[must_use]
    pub fn file_statuses(&self) -> Vec<ConfigFileStatus> {
        let status = |InspectedFile { file, .. }: &InspectedFile| ConfigFileStatus {
            name: file.name.clone(),
            size: i64::try_from(file.body.len()).unwrap_or(i64::MAX),
            hash: match file.origin {
                Origin::Inline | Origin::ConfigMap => Some(ConfigHash::of(&file.body).to_string()),
                Origin::Secret => None,
            },
        };
        self.files.iter().map(status).collect()
    }
}

/// Checks one body, and says what it is known to define.
fn check(spec: &RemoteConfigSpec, body: &[u8], quoting: Quoting) -> Result<Components, (RemoteConfigReason, String)> {
    let text = std::str::from_utf8(body).map_err(|error| {
        (RemoteConfigReason::NotText, format!("it is not valid UTF-8 from byte {} on", error.valid_up_to()))
    });
    match (spec.template, spec.format) {
        (TemplateMode::Jinja, format) => {
            let text = text?;
            Template::compile(text, quoting)
                .map_err(|error| (RemoteConfigReason::InvalidTemplate, error.to_string()))?;
            Ok(match format {
                ConfigFormat::OpenTelemetryCollector => Components::Template(Possibilities::of(text)),
                ConfigFormat::Opaque => Components::None,
            })
        }
        (TemplateMode::Disabled, ConfigFormat::OpenTelemetryCollector) => {
            let invalid = |message| (RemoteConfigReason::InvalidYaml, message);
            let node = yaml::parse(text?, quoting).map_err(|error| invalid(error.to_string()))?;
            CollectorConfig::read(&node).map(Components::Checked).map_err(|error| invalid(error.to_string()))
        }
        (TemplateMode::Disabled, ConfigFormat::Opaque) => {
            let node = text.ok().and_then(|text| yaml::parse(text, Quoting::Forbidden).ok());
            let config = node.and_then(|node| CollectorConfig::read(&node).ok());
            Ok(config.map_or(Components::None, Components::Offered))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::revisions::sources::{BodyReference, Missing, SourceKind, references};

    fn spec(template: &str, format: &str, files: &Value) -> RemoteConfigSpec {
        serde_json::from_value(json!({"template": template, "format": format, "files": files})).unwrap()
    }

    fn secret(key: &str) -> BodyReference {
        BodyReference { kind: SourceKind::Secret, name: "credentials".into(), key: key.into() }
    }

    fn from_secret() -> Value {
        json!([{"name": "a", "bodyFrom": {"secretKeyRef": {"name": "credentials", "key": "a"}}}])
    }

    #[test]
    fn each_fault_has_its_reason_and_its_place() {
        use RemoteConfigReason::{InvalidTemplate, InvalidYaml, NotText, ReferenceNotFound, TooLarge};
        let inline = |body: &str| json!([{"name": "a", "body": body}]);
        let found = |body: &'static [u8]| BTreeMap::from([(secret("a"), Ok(Bytes::from_static(body)))]);
        let lost = |missing| BTreeMap::from([(secret("a"), Err(missing))]);
        let (collector, opaque, none) = ("OpenTelemetryCollector", "Opaque", BTreeMap::new);
        for (case, spec, bodies, reason, message) in [
            (
                "YAML",
                spec("Disabled", collector, &inline("a:\n  b: 1\n c: 2")),
                none(),
                InvalidYaml,
                "file \"a\": line 3, column ",
            ),
            (
                "no map",
                spec("Disabled", collector, &inline("- a")),
                none(),
                InvalidYaml,
                "file \"a\": line 1: the configuration",
            ),
            (
                "template",
                spec("Jinja", collector, &inline("a: 1\nb: {{ x")),
                none(),
                InvalidTemplate,
                "file \"a\": line 2: syntax error",
            ),
            (
                "template of anything",
                spec("Jinja", opaque, &inline("{% if %}")),
                none(),
                InvalidTemplate,
                "file \"a\": line 1: ",
            ),
            (
                "not read yet",
                spec("Disabled", opaque, &from_secret()),
                none(),
                ReferenceNotFound,
                "file \"a\": Secret credentials does not exist",
            ),
            (
                "no object",
                spec("Disabled", opaque, &from_secret()),
                lost(Missing::Object),
                ReferenceNotFound,
                "file \"a\": Secret credentials does not exist",
            ),
            (
                "no key",
                spec("Disabled", opaque, &from_secret()),
                lost(Missing::Key),
                ReferenceNotFound,
                "file \"a\": Secret credentials has no key a",
            ),
            (
                "bytes as YAML",
                spec("Disabled", collector, &from_secret()),
                found(b"a: \xff"),
                NotText,
                "file \"a\": it is not valid UTF-8 from byte 3 on",
            ),
            (
                "bytes as template",
                spec("Jinja", opaque, &from_secret()),
                found(b"\xff"),
                NotText,
                "file \"a\": it is not valid UTF-8 from byte 0 on",
            ),
            (
                "too much",
                spec("Disabled", opaque, &inline(&"a".repeat(900_001))),
                none(),
                TooLarge,
                "the files have 900001 bytes together",
            ),
        ] {
            let inspection = inspect(&spec, &bodies);
            let [(found, text)] = inspection.findings() else { panic!("{case}: {:?}", inspection.findings()) };
            assert_eq!(*found, reason, "{case}");
            assert!(text.starts_with(message), "{case}: {text}");
        }
    }

    #[test]
    fn what_is_right_is_valid() {
        let bytes = BTreeMap::from([(secret("a"), Ok(Bytes::from_static(b"\xff\0")))]);
        let inline = |body: &str| json!([{"name": "a", "body": body}]);
        for (case, spec) in [
            ("bytes of any kind", spec("Disabled", "Opaque", &from_secret())),
            ("text that is no YAML", spec("Disabled", "Opaque", &inline("a: ["))),
            (
                "a template that is no YAML before it is rendered",
                spec("Jinja", "OpenTelemetryCollector", &inline("{% if true %}\n{{ agent.uid }}: [{% endif %}")),
            ),
            ("a collector's configuration", spec("Disabled", "OpenTelemetryCollector", &inline("receivers: {otlp: }"))),
        ] {
            assert_eq!(inspect(&spec, &bytes).reasons(), [(RemoteConfigReason::Valid, String::new())], "{case}");
        }
    }

    #[test]
    fn the_status_shows_size_and_hashes_but_no_hash_while_a_body_is_missing() {
        let files = json!([{"name": "b", "body": "abc"}, {"name": "a", "contentType": "text/yaml", "body": ""}]);
        let inspection = inspect(&spec("Disabled", "Opaque", &files), &BTreeMap::new());
        assert_eq!(inspection.bytes(), 3);
        let statuses = inspection.file_statuses();
        assert_eq!((statuses[0].name.as_str(), statuses[0].size), ("b", 3));
        // SHA-256 of "abc": FIPS 180-2, appendix B.1
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(statuses[0].hash.as_deref(), Some(digest));
        let in_order_of_names = [("a", "text/yaml", &b""[..]), ("b", "", b"abc")];
        assert_eq!(inspection.hash(), Some(config_hash(in_order_of_names.into_iter())));
        assert_eq!(inspect(&spec("Disabled", "Opaque", &from_secret()), &BTreeMap::new()).hash(), None);
    }

    #[test]
    fn the_body_of_a_secret_has_no_hash_of_its_own() {
        let bodies = BTreeMap::from([(secret("a"), Ok(Bytes::from_static(b"hunter2")))]);
        let inspection = inspect(&spec("Disabled", "Opaque", &from_secret()), &bodies);
        let statuses = inspection.file_statuses();
        assert_eq!((statuses[0].size, &statuses[0].hash), (7, &None));
        assert!(inspection.hash().is_some(), "of all files together it is what agents report, too");
    }

    #[test]
    fn references_are_told_once_each() {
        let reference = |key| json!({"secretKeyRef": {"name": "credentials", "key": key}});
        let files = json!([{"name": "a", "bodyFrom": reference("a")}, {"name": "b", "bodyFrom": reference("a")},
            {"name": "c", "body": ""}, {"name": "d", "bodyFrom": reference("d")}]);
        let found = references(&spec("Disabled", "Opaque", &files));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [secret("a"), secret("d")]);
    }

    #[test]
    fn content_of_a_secret_is_in_no_message() {
        for (template, format) in [("Jinja", "Opaque"), ("Disabled", "OpenTelemetryCollector")] {
            for body in [
                &b"canary: 1\ncanary: 2"[..],
                b"{{ canary canary",
                b"{% canary %}",
                b"a: *canary",
                b"- canary",
                b"a: \"canary",
                b"canary\xff",
            ] {
                let bodies = BTreeMap::from([(secret("a"), Ok(Bytes::from_static(body)))]);
                let inspection = inspect(&spec(template, format, &from_secret()), &bodies);
                assert!(!format!("{:?}", inspection.findings()).contains("canary"), "{:?}", inspection.findings());
            }
        }
    }
}
