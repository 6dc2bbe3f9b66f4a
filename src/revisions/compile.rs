//! All inputs of a fleet → its revision, or what is wrong with them.

use std::{collections::BTreeMap, sync::Arc};

use kube::ResourceExt as _;

use super::{
    clash::{Names, find_clashes},
    collector::{KnownEntry, KnownFile, find_undefined},
    digest::digest_of,
    finding::Finding,
    inspect::{Inspection, inspect},
    settings::freeze,
    sources::Bodies,
};
use crate::{
    api::{
        agent_fleet::RemoteConfigEntry, connection_settings::ConnectionSettings, reasons::FleetReason,
        remote_config::RemoteConfig,
    },
    catalog::{
        InputsDigest, Origin, PackedRevision, Revision, RevisionEntry, SecretContent, Settings, revision::MAX_ENTRIES,
        settings::CredentialReference,
    },
};

/// Everything that a fleet's revision is made from, as it was at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `spec.remoteConfigs` of the fleet.
    pub entries: &'a [RemoteConfigEntry],
    /// The `RemoteConfig`s of the fleet's namespace by name; others than those that are named do not matter.
    pub remote_configs: &'a BTreeMap<String, Arc<RemoteConfig>>,
    /// What their references led to.
    pub bodies: &'a Bodies,
    /// `spec.connectionSettings` of the fleet.
    pub settings: NamedSettings<'a>,
    /// Whether agents may be offered content that came from Secrets.
    pub secrets: SecretContent,
}

/// The ConnectionSettings of a fleet.
#[derive(Clone, Copy, Debug)]
pub enum NamedSettings<'a> {
    /// It names none.
    None,
    /// It names some that do not exist.
    Missing(&'a str),
    /// It names these.
    Found(&'a ConnectionSettings),
}

/// A revision that passed every check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Compiled {
    /// The revision, ready to be stored.
    pub revision: PackedRevision,
    /// The digest of what it was made from: as long as it is that of the revision in force, nothing is to be done.
    pub inputs: InputsDigest,
    /// How it has members connect: whatever these settings refer to must be kept before the revision is offered.
    pub settings: Option<Settings>,
}

/// Checks everything and makes the revision. All that is wrong is told at once, except what cannot be known before
/// something else is put right: undefined components are not looked for while a file is missing or broken.
pub fn compile(inputs: &Inputs<'_>) -> Result<Compiled, Vec<Finding>> {
    let (inspected, mut findings) = inspect_all(inputs);
    let names: Vec<Names<'_>> = inputs.entries.iter().filter_map(|entry| names_of(entry, inputs)).collect();
    findings.extend(find_clashes(&names));
    if inputs.entries.len() > MAX_ENTRIES {
        let message = format!("the fleet names {} RemoteConfigs, the limit is {MAX_ENTRIES}", inputs.entries.len());
        findings.push(Finding::fleet(FleetReason::TooLarge, message));
    }
    let opamp = frozen_settings(inputs.settings).map_err(|finding| findings.push(finding)).unwrap_or_default();
    if !findings.is_empty() {
        return Err(findings);
    }
    let mut findings = find_undefined(&inspected.iter().map(Inspected::known).collect::<Vec<_>>());
    let entries = inspected.into_iter().map(Inspected::into_entry).collect();
    let revision = Revision { entries, opamp };
    findings.extend(unprotected_secret(&revision, inputs.secrets));
    let inputs = digest_of(&revision);
    match revision.pack() {
        Ok(packed) if findings.is_empty() => Ok(Compiled { revision: packed, inputs, settings: revision.opamp }),
        Ok(_) => Err(findings),
        Err(error) => {
            findings.push(Finding::fleet(FleetReason::TooLarge, error.to_string()));
            Err(findings)
        }
    }
}

struct Inspected<'a> {
    entry: &'a RemoteConfigEntry,
    remote_config: &'a RemoteConfig,
    inspection: Inspection,
}

fn inspect_all<'a>(inputs: &Inputs<'a>) -> (Vec<Inspected<'a>>, Vec<Finding>) {
    let mut inspected = Vec::new();
    let mut findings = Vec::new();
    for entry in inputs.entries {
        let Some(remote_config) = inputs.remote_configs.get(&entry.name) else {
            let message = format!("RemoteConfig {} does not exist", entry.name);
            findings.push(Finding::fleet(FleetReason::RemoteConfigNotFound, message));
            continue;
        };
        let inspection = inspect(&remote_config.spec, inputs.bodies);
        findings.extend(inspection.findings().iter().map(|(reason, message)| Finding::RemoteConfig {
            name: entry.name.clone(),
            reason: *reason,
            message: message.clone(),
        }));
        inspected.push(Inspected { entry, remote_config, inspection });
    }
    (inspected, findings)
}

fn frozen_settings(settings: NamedSettings<'_>) -> Result<Option<Settings>, Finding> {
    match settings {
        NamedSettings::None => Ok(None),
        NamedSettings::Missing(name) => {
            let message = format!("ConnectionSettings {name} do not exist");
            Err(Finding::fleet(FleetReason::ConnectionSettingsNotFound, message))
        }
        NamedSettings::Found(object) => {
            let name = object.name_any();
            freeze(&name, &object.spec.opamp)
                .map(Some)
                .map_err(|_| Finding::fleet(FleetReason::ConnectionSettingsNotReady, not_ready(&name)))
        }
    }
}

/// What a fleet says of ConnectionSettings that have a fault.
#[must_use]
pub fn not_ready(name: &str) -> String {
    format!("ConnectionSettings {name} are not Ready; their conditions tell why")
}

/// Names are known even where bodies are missing.
fn names_of<'a>(entry: &'a RemoteConfigEntry, inputs: &Inputs<'a>) -> Option<Names<'a>> {
    let remote_config = inputs.remote_configs.get(&entry.name)?;
    let files = remote_config.spec.files.iter().map(|file| file.name.as_str()).collect();
    Some(Names { remote_config: &entry.name, selector: entry.selector.as_ref(), files })
}

impl Inspected<'_> {
    fn known(&self) -> KnownEntry<'_> {
        let files = self.inspection.files.iter().map(|inspected| KnownFile {
            name: &inspected.file.name,
            origin: inspected.file.origin,
            components: &inspected.components,
        });
        KnownEntry { remote_config: &self.entry.name, selector: self.entry.selector.as_ref(), files: files.collect() }
    }

    fn into_entry(self) -> RevisionEntry {
        RevisionEntry {
            name: self.entry.name.clone(),
            selector: self.entry.selector.clone(),
            template: self.remote_config.spec.template,
            format: self.remote_config.spec.format,
            files: self.inspection.files.into_iter().map(|inspected| inspected.file).collect(),
        }
    }
}

fn unprotected_secret(revision: &Revision, secrets: SecretContent) -> Option<Finding> {
    match secrets {
        SecretContent::Offered => None,
        SecretContent::Withheld => {
            let secret = secret_file(revision).or_else(|| secret_value(revision))?;
            let message = format!("{secret} comes from a Secret, and the operator serves agents without TLS");
            Some(Finding::fleet(FleetReason::SecretsNeedTls, message))
        }
    }
}

fn secret_file(revision: &Revision) -> Option<String> {
    revision.entries.iter().find_map(|entry| {
        let file = entry.files.iter().find(|file| file.origin == Origin::Secret)?;
        Some(format!("RemoteConfig {}, file {:?}", entry.name, file.name))
    })
}

fn secret_value(revision: &Revision) -> Option<String> {
    let settings = revision.opamp.as_ref()?;
    let CredentialReference { name, key, .. } = settings.secret_reference()?;
    Some(format!("ConnectionSettings {}, key {key} of {name}", settings.name))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::{agent_fleet::AgentFleet, reasons::RemoteConfigReason},
        revisions::sources::{BodyReference, SourceKind},
    };

    /// The resources of a namespace, as far as a fleet's revision is made from them.
    struct Namespace {
        remote_configs: BTreeMap<String, Arc<RemoteConfig>>,
        bodies: Bodies,
        settings: Option<ConnectionSettings>,
        secrets: SecretContent,
    }

    impl Namespace {
        fn with(remote_configs: &[(&str, Value)]) -> Self {
            let remote_configs = remote_configs.iter().map(|(name, spec)| {
                let spec = serde_json::from_value(spec.clone()).unwrap();
                ((*name).to_owned(), Arc::new(RemoteConfig::new(name, spec)))
            });
            let token = BodyReference { kind: SourceKind::Secret, name: "s".into(), key: "token".into() };
            Self {
                remote_configs: remote_configs.collect(),
                bodies: BTreeMap::from([(token, Ok(Bytes::from_static(b"canary")))]),
                settings: None,
                secrets: SecretContent::Offered,
            }
        }

        fn compile(&self, entries: Value) -> Result<Compiled, Vec<Finding>> {
            let entries: Vec<RemoteConfigEntry> = serde_json::from_value(entries).unwrap();
            compile(&Inputs {
                entries: &entries,
                remote_configs: &self.remote_configs,
                bodies: &self.bodies,
                settings: self.settings.as_ref().map_or(NamedSettings::None, NamedSettings::Found),
                secrets: self.secrets,
            })
        }
    }

    fn collector(name: &str, body: &str) -> Value {
        json!({"format": "OpenTelemetryCollector", "files": [{"name": name, "body": body}]})
    }

    fn words(result: Result<Compiled, Vec<Finding>>) -> Vec<String> {
        let findings = result.err().unwrap_or_default().into_iter();
        findings
            .map(|finding| match finding {
                Finding::Fleet { reason, .. } => format!("fleet {reason:?}"),
                Finding::RemoteConfig { name, reason, .. } => format!("{name} {reason:?}"),
            })
            .collect()
    }

    #[test]
    fn every_fault_shows_on_the_object_whose_author_can_mend_it() {
        let namespace = Namespace::with(&[
            ("good", collector("good.yaml", "exporters: {otlp: }")),
            ("broken", collector("broken.yaml", "a: [")),
            ("waiting", json!({"files": [{"name": "w", "bodyFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]})),
            ("template", json!({"template": "Jinja", "files": [{"name": "t", "body": "{{"}]})),
            ("same", collector("good.yaml", "")),
            ("unnamed", collector("", "")),
            ("undefined", collector("undefined.yaml", "service: {pipelines: {logs: {exporters: [nothing]}}}")),
            ("secret", json!({"files": [{"name": "s", "bodyFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}]})),
        ]);
        for (case, entries, expected) in [
            ("all well", json!([{"name": "good"}, {"name": "secret"}]), &[][..]),
            ("nothing at all", json!([]), &[]),
            ("no such RemoteConfig", json!([{"name": "good"}, {"name": "gone"}]), &["fleet RemoteConfigNotFound"]),
            ("no YAML", json!([{"name": "broken"}]), &["broken InvalidYaml"]),
            ("no ConfigMap", json!([{"name": "waiting"}]), &["waiting ReferenceNotFound"]),
            ("no template", json!([{"name": "template"}]), &["template InvalidTemplate"]),
            ("a name twice", json!([{"name": "good"}, {"name": "same"}]), &["fleet FileNameClash"]),
            ("no name beside another", json!([{"name": "good"}, {"name": "unnamed"}]), &["fleet FileNameClash"]),
            ("undefined", json!([{"name": "good"}, {"name": "undefined"}]), &["fleet UndefinedComponent"]),
            (
                "all at once",
                json!([{"name": "gone"}, {"name": "broken"}, {"name": "good"}, {"name": "same"}, {"name": "undefined"}]),
                &["fleet RemoteConfigNotFound", "broken InvalidYaml", "fleet FileNameClash"],
            ),
        ] {
            assert_eq!(words(namespace.compile(entries)), expected, "{case}");
        }
    }

    #[test]
    fn names_may_meet_where_selectors_exclude_each_other() {
        let namespace = Namespace::with(&[("a", collector("x", "")), ("b", collector("x", ""))]);
        let os = |value: &str| json!({"matchAttributes": {"os.type": value}});
        for (case, first, second, expected) in [
            ("different systems", os("linux"), os("windows"), 0),
            ("one system", os("linux"), os("linux"), 1),
            ("all", json!({}), os("linux"), 1),
        ] {
            let entries = json!([{"name": "a", "selector": first}, {"name": "b", "selector": second}]);
            assert_eq!(words(namespace.compile(entries)).len(), expected, "{case}");
        }
    }

    #[test]
    fn content_of_secrets_needs_a_protected_listener() {
        let mut namespace = Namespace::with(&[(
            "secret",
            json!({"files": [{"name": "s", "bodyFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}]}),
        )]);
        assert!(namespace.compile(json!([{"name": "secret"}])).is_ok());
        namespace.secrets = SecretContent::Withheld;
        let result = namespace.compile(json!([{"name": "secret"}]));
        assert!(!format!("{result:?}").contains("canary"));
        assert_eq!(words(result), ["fleet SecretsNeedTls"]);
    }

    #[test]
    fn more_than_a_secret_holds_is_too_large() {
        // Every file is within the limit of its RemoteConfig, and does not compress.
        let noise = std::iter::successors(Some(7_u64), |state| {
            Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        });
        let body: String = noise.take(800_000).map(|state| char::from(b' ' + state.to_be_bytes()[0] % 90)).collect();
        let file = |name: &str| json!({"files": [{"name": name, "body": body}]});
        let namespace = Namespace::with(&[("a", file("a")), ("b", file("b"))]);
        assert!(namespace.compile(json!([{"name": "a"}])).is_ok());
        assert_eq!(words(namespace.compile(json!([{"name": "a"}, {"name": "b"}]))), ["fleet TooLarge"]);
    }

    #[test]
    fn the_same_inputs_give_the_same_revision_and_any_change_another() {
        let compiled = |body: &str| {
            let namespace = Namespace::with(&[("z", collector("z", body)), ("unused", collector("z", "a: ["))]);
            namespace.compile(json!([{"name": "z"}])).unwrap()
        };
        assert_eq!(compiled("a: 1"), compiled("a: 1"));
        assert_ne!(compiled("a: 1").revision.hash(), compiled("a: 2").revision.hash());
        assert_ne!(compiled("a: 1").inputs, compiled("a: 2").inputs);
    }

    #[test]
    fn a_compiled_revision_is_served_as_it_was_written() {
        let namespace = Namespace::with(&[("z", collector("z.yaml", "receivers: {otlp: }"))]);
        let compiled = namespace.compile(json!([{"name": "z"}])).unwrap();
        let fleet = AgentFleet::new("edge", serde_json::from_value(json!({"selector": {}})).unwrap());
        let (hash, revision) = Revision::from_secret(&compiled.revision.to_secret(&fleet, compiled.inputs)).unwrap();
        assert_eq!(hash, compiled.revision.hash());
        assert_eq!(revision.entries[0].files[0].body, "receivers: {otlp: }");
    }

    #[test]
    fn a_remote_config_is_judged_alike_for_all_its_fleets() {
        let namespace = Namespace::with(&[("broken", collector("b", "a: ["))]);
        let Err(findings) = namespace.compile(json!([{"name": "broken"}])) else { panic!("it is broken") };
        let alone = inspect(&namespace.remote_configs["broken"].spec, &namespace.bodies);
        let [Finding::RemoteConfig { reason, message, .. }] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!((*reason, message.as_str()), (alone.findings()[0].0, alone.findings()[0].1.as_str()));
        assert_eq!(*reason, RemoteConfigReason::InvalidYaml);
    }

    fn settings(endpoint: &str) -> ConnectionSettings {
        let header = json!({"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "t", "key": "header"}}});
        let spec = json!({"opamp": {"endpoint": endpoint, "headers": [header]}});
        ConnectionSettings::new("edge", serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn connection_settings_are_part_of_a_revision_by_reference() {
        let mut namespace = Namespace::with(&[("z", collector("z", "a: 1"))]);
        let without = namespace.compile(json!([{"name": "z"}])).unwrap();
        namespace.settings = Some(settings("wss://a"));
        let with = namespace.compile(json!([{"name": "z"}])).unwrap();
        assert_ne!((with.revision.hash(), with.inputs), (without.revision.hash(), without.inputs));
        let references: Vec<_> = with.settings.iter().flat_map(Settings::references).collect();
        assert_eq!(references, [CredentialReference::secret("t", "header")]);
        namespace.settings = Some(settings("wss://b"));
        assert_ne!(namespace.compile(json!([{"name": "z"}])).unwrap().revision.hash(), with.revision.hash());
    }

    #[test]
    fn connection_settings_that_are_not_there_are_waited_for() {
        let namespace = Namespace::with(&[]);
        let (remote_configs, bodies, secrets) = (&namespace.remote_configs, &namespace.bodies, namespace.secrets);
        let settings = NamedSettings::Missing("edge");
        let made = compile(&Inputs { entries: &[], remote_configs, bodies, settings, secrets });
        assert_eq!(words(made), ["fleet ConnectionSettingsNotFound"]);
    }

    #[test]
    fn a_value_from_a_secret_needs_tls_like_a_file_from_one() {
        let mut namespace = Namespace::with(&[]);
        namespace.settings = Some(settings("ws://a"));
        assert!(namespace.compile(json!([])).is_ok());
        namespace.secrets = SecretContent::Withheld;
        assert_eq!(words(namespace.compile(json!([]))), ["fleet SecretsNeedTls"]);
    }
}
