//! A revision as it is served: attributes → the encoded offer, computed once for all agents that get the same.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use prost::Message;
use sha2::{Digest, Sha256};

use super::{
    cache::{OfferCache, cached},
    fleet::SecretContent,
    revision::{Origin, Revision, RevisionFile, RevisionHash},
    scrub::Scrubber,
    settings::Settings,
    template::{Template, TemplateError, agent_value},
    yaml::{self, Quoting, YamlError},
};
use crate::{
    api::{
        remote_config::{ConfigFormat, TemplateMode},
        selector::AttributeSelector,
    },
    opamp::{
        InstanceUid,
        messages::{AgentConfigFile, AgentConfigMap, AgentRemoteConfig, ServerToAgent},
        offer::{ConfigHash, RemoteConfigOffer},
        record::Attributes,
    },
};

/// Why an agent is offered nothing although files are meant for it. It keeps what it has; others are not concerned.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NoOffer {
    /// A template does not compile or fails for the agent's attributes.
    #[error("{place}: {error}")]
    Template {
        /// Where.
        place: FilePlace,
        /// What went wrong, and where in the template.
        error: TemplateError,
    },
    /// The template gives something that is not YAML for this agent.
    #[error("{place} as rendered for this agent: {error}")]
    Rendered {
        /// Where.
        place: FilePlace,
        /// What is wrong, and where in the rendered text.
        error: YamlError,
    },
    /// The agent would get two files of one name, or the empty name beside another.
    #[error("the file {0:?} would be there twice, or stand beside a file without a name")]
    FileNameClash(String),
    /// The file comes from a Secret, and agents are served without TLS.
    #[error("the file {0:?} comes from a Secret, and the operator serves agents without TLS")]
    SecretsNeedTls(String),
}

/// A file of a `RemoteConfig`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FilePlace {
    /// The name of the `RemoteConfig`.
    pub remote_config: String,
    /// The name of the file.
    pub file: String,
}

impl fmt::Display for FilePlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RemoteConfig {}, file {:?}", self.remote_config, self.file)
    }
}

/// What becomes of a revision for one agent: `Ok(None)` where it has no file for it.
pub type OfferResult = Result<Option<Arc<RemoteConfigOffer>>, NoOffer>;

/// A revision with its templates compiled and its offers encoded as they are asked for.
pub struct LoadedRevision {
    hash: RevisionHash,
    entries: Vec<LoadedEntry>,
    settings: Option<Arc<Settings>>,
    secrets: Scrubber,
    /// By the entries that an agent gets, as a bit set: none of them is templated.
    shared: Mutex<OfferCache<u64>>,
    /// By everything that the agent's templates see.
    rendered: Mutex<OfferCache<[u8; 32]>>,
}

struct LoadedEntry {
    name: String,
    selector: Option<AttributeSelector>,
    format: ConfigFormat,
    files: Vec<LoadedFile>,
}

struct LoadedFile {
    file: RevisionFile,
    body: Body,
}

enum Body {
    AsItIs,
    Templated(Box<Result<Template, TemplateError>>),
}

impl fmt::Debug for LoadedRevision {
    /// Content may come from Secrets and is not shown.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LoadedRevision").field("hash", &self.hash).finish_non_exhaustive()
    }
}

impl PartialEq for LoadedRevision {
    /// The hash says it all.
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl LoadedRevision {
    /// Prepares a revision for serving; `hash` is its own.
    #[must_use]
    pub fn new(hash: RevisionHash, revision: Revision) -> Self {
        let secrets = Scrubber::of(&revision);
        let entries = revision.entries.into_iter().map(|entry| LoadedEntry {
            name: entry.name,
            selector: entry.selector,
            format: entry.format,
            files: entry.files.into_iter().map(|file| LoadedFile::new(file, entry.template)).collect(),
        });
        Self {
            hash,
            entries: entries.collect(),
            settings: revision.opamp.map(Arc::new),
            secrets,
            shared: Mutex::default(),
            rendered: Mutex::default(),
        }
    }

    /// The hash of the whole revision.
    #[must_use]
    pub fn hash(&self) -> RevisionHash {
        self.hash
    }

    /// How members are to connect; `None`: they keep the connection that they have.
    #[must_use]
    pub fn settings(&self) -> Option<&Arc<Settings>> {
        self.settings.as_ref()
    }

    /// What takes the content of its Secrets out of text.
    #[must_use]
    pub fn secrets(&self) -> &Scrubber {
        &self.secrets
    }

    /// The configuration for one agent. Equal attributes give equal bytes on every replica.
    pub fn offer(&self, uid: &InstanceUid, attributes: &Attributes, secrets: SecretContent) -> OfferResult {
        let selects = |selector: &AttributeSelector| selector.matches(|key| attributes.get(key));
        let (mut chosen, mut entries) = (0_u64, Vec::new());
        for (index, entry) in (0_u32..).zip(&self.entries) {
            if entry.selector.as_ref().is_none_or(selects) {
                chosen |= 1_u64.checked_shl(index).unwrap_or_default();
                entries.push(entry);
            }
        }
        let files = || entries.iter().flat_map(|entry| &entry.files);
        if secrets == SecretContent::Withheld
            && let Some(secret) = files().find(|file| file.file.origin == Origin::Secret)
        {
            return Err(NoOffer::SecretsNeedTls(secret.file.name.clone()));
        }
        let compute = || encode(&entries, uid, attributes);
        if files().any(|file| matches!(file.body, Body::Templated(_))) {
            cached(&self.rendered, template_input(chosen, uid, attributes), compute)
        } else {
            cached(&self.shared, chosen, compute)
        }
    }
}

impl LoadedFile {
    fn new(file: RevisionFile, template: TemplateMode) -> Self {
        let body = match template {
            TemplateMode::Disabled => Body::AsItIs,
            TemplateMode::Jinja => Body::Templated(Box::new(match std::str::from_utf8(&file.body) {
                Ok(source) => Template::compile(source, quoting(file.origin)),
                Err(_) => Err(TemplateError { line: None, fault: "it is not UTF-8".into() }),
            })),
        };
        Self { file, body }
    }

    fn render(&self, entry: &LoadedEntry, uid: &InstanceUid, attributes: &Attributes) -> Result<Bytes, NoOffer> {
        let Body::Templated(template) = &self.body else { return Ok(self.file.body.clone()) };
        let place = || FilePlace { remote_config: entry.name.clone(), file: self.file.name.clone() };
        let rendered = (**template)
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|template| template.render(&agent_value(uid, attributes)))
            .map_err(|error| NoOffer::Template { place: place(), error })?;
        match entry.format {
            ConfigFormat::Opaque => {}
            ConfigFormat::OpenTelemetryCollector => {
                yaml::parse(&rendered, quoting(self.file.origin))
                    .map_err(|error| NoOffer::Rendered { place: place(), error })?;
            }
        }
        Ok(rendered.into())
    }
}

/// Whether errors may quote a file.
#[must_use]
pub fn quoting(origin: Origin) -> Quoting {
    match origin {
        Origin::Inline | Origin::ConfigMap => Quoting::Allowed,
        Origin::Secret => Quoting::Forbidden,
    }
}

fn encode(entries: &[&LoadedEntry], uid: &InstanceUid, attributes: &Attributes) -> OfferResult {
    let mut config_map = BTreeMap::new();
    for entry in entries {
        for loaded in &entry.files {
            let RevisionFile { name, content_type, .. } = &loaded.file;
            let file =
                AgentConfigFile { body: loaded.render(entry, uid, attributes)?, content_type: content_type.clone() };
            if config_map.insert(name.clone(), file).is_some() {
                return Err(NoOffer::FileNameClash(name.clone()));
            }
        }
    }
    if config_map.is_empty() {
        // An empty map stops the collector of a supervisor: it is never sent.
        return Ok(None);
    }
    if config_map.len() > 1 && config_map.contains_key("") {
        return Err(NoOffer::FileNameClash(String::new()));
    }
    let hash = config_hash(
        config_map.iter().map(|(name, file)| (name.as_str(), file.content_type.as_str(), file.body.as_ref())),
    );
    let remote_config = AgentRemoteConfig {
        config: Some(AgentConfigMap { config_map }),
        config_hash: Bytes::copy_from_slice(hash.as_bytes()),
    };
    let message = ServerToAgent { remote_config: Some(remote_config), ..ServerToAgent::default() };
    Ok(Some(Arc::new(RemoteConfigOffer { hash, encoded: message.encode_to_vec().into() })))
}

/// The hash on the wire (CFG-08, AMB-35): SHA-256 over name, content type and body of each file, each preceded by its
/// length in bytes as a big-endian 64-bit number. The files are expected in the order of their names.
pub fn config_hash<'a>(files: impl Iterator<Item = (&'a str, &'a str, &'a [u8])>) -> ConfigHash {
    let mut digest = Sha256::new();
    for (name, content_type, body) in files {
        for part in [name.as_bytes(), content_type.as_bytes(), body] {
            absorb(&mut digest, part);
        }
    }
    ConfigHash::from_digest(digest.finalize().into())
}

/// Everything that decides what the templates of an agent give.
fn template_input(chosen: u64, uid: &InstanceUid, attributes: &Attributes) -> [u8; 32] {
    let mut digest = Sha256::new_with_prefix(chosen.to_be_bytes());
    absorb(&mut digest, uid.as_bytes());
    for map in [&attributes.identifying, &attributes.non_identifying] {
        digest.update(map.len().to_be_bytes());
        for (key, value) in map {
            absorb(&mut digest, key.as_bytes());
            absorb(&mut digest, value.as_bytes());
        }
    }
    digest.finalize().into()
}

fn absorb(digest: &mut Sha256, part: &[u8]) {
    digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
    digest.update(part);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::revision::RevisionEntry;

    fn file(name: &str, body: &str) -> RevisionFile {
        RevisionFile {
            name: name.into(),
            content_type: "text/yaml".into(),
            origin: Origin::Inline,
            body: body.to_owned().into(),
        }
    }

    fn entry(name: &str, selects: &str, files: Vec<RevisionFile>) -> RevisionEntry {
        let selector = (!selects.is_empty()).then(|| AttributeSelector {
            match_attributes: BTreeMap::from([("os.type".into(), selects.into())]),
            ..AttributeSelector::default()
        });
        RevisionEntry {
            name: name.into(),
            selector,
            template: TemplateMode::Disabled,
            format: ConfigFormat::Opaque,
            files,
        }
    }

    fn jinja(name: &str, body: &str) -> RevisionEntry {
        RevisionEntry {
            template: TemplateMode::Jinja,
            format: ConfigFormat::OpenTelemetryCollector,
            ..entry(name, "", vec![file("collector.yaml", body)])
        }
    }

    fn loaded(entries: Vec<RevisionEntry>) -> LoadedRevision {
        let revision = Revision { entries, ..Revision::default() };
        LoadedRevision::new(revision.hash(), revision)
    }

    fn attributes(os: &str, host: &str) -> Attributes {
        Attributes {
            identifying: BTreeMap::new(),
            non_identifying: BTreeMap::from([("os.type".into(), os.into()), ("host.name".into(), host.into())]),
        }
    }

    fn offer(revision: &LoadedRevision, os: &str, host: &str) -> OfferResult {
        let uid = InstanceUid::from_wire(&[3; 16]).unwrap();
        revision.offer(&uid, &attributes(os, host), SecretContent::Offered)
    }

    fn files(offer: &RemoteConfigOffer) -> Vec<(String, String)> {
        let message = ServerToAgent::decode(offer.encoded.clone()).unwrap();
        let remote_config = message.remote_config.unwrap();
        assert_eq!(&remote_config.config_hash[..], offer.hash.as_bytes());
        let map = remote_config.config.unwrap().config_map;
        map.into_iter().map(|(name, file)| (name, String::from_utf8(file.body.to_vec()).unwrap())).collect()
    }

    #[test]
    fn a_member_gets_the_files_of_the_entries_that_select_it() {
        let revision = loaded(vec![
            entry("base", "", vec![file("b", "base")]),
            entry("linux", "linux", vec![file("a", "linux"), file("c", "more")]),
            entry("windows", "windows", vec![file("a", "windows")]),
        ]);
        for (os, expected) in [
            ("linux", vec![("a", "linux"), ("b", "base"), ("c", "more")]),
            ("windows", vec![("a", "windows"), ("b", "base")]),
            ("darwin", vec![("b", "base")]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(n, b)| (n.to_owned(), b.to_owned())).collect();
            assert_eq!(files(&offer(&revision, os, "").unwrap().unwrap()), expected, "{os}");
        }
    }

    #[test]
    fn no_file_is_no_offer_and_never_an_empty_map() {
        let revision = loaded(vec![entry("linux", "linux", vec![file("a", "")])]);
        assert!(offer(&revision, "windows", "").unwrap().is_none());
        assert!(offer(&loaded(vec![]), "windows", "").unwrap().is_none());
    }

    #[test]
    fn the_offer_is_field_3_of_server_to_agent_and_nothing_else() {
        let revision = loaded(vec![entry("base", "", vec![file("", "body")])]);
        let encoded = offer(&revision, "linux", "").unwrap().unwrap().encoded.clone();
        assert_eq!(encoded[0], 3 << 3 | 2, "field 3, length-delimited");
        assert_eq!(usize::from(encoded[1]), encoded.len() - 2);
    }

    #[test]
    fn the_hash_is_over_lengths_names_content_types_and_bodies() {
        let mut expected = Sha256::new();
        for part in ["a.yaml", "text/yaml", "x: 1"] {
            expected.update((part.len() as u64).to_be_bytes());
            expected.update(part);
        }
        let revision = loaded(vec![entry("base", "", vec![file("a.yaml", "x: 1")])]);
        let expected = ConfigHash::from_digest(expected.finalize().into());
        assert_eq!(offer(&revision, "linux", "").unwrap().unwrap().hash, expected);
    }

    #[test]
    fn agents_with_the_same_files_share_one_encoded_offer() {
        let revision =
            loaded(vec![entry("base", "", vec![file("a", "1")]), entry("w", "windows", vec![file("b", "2")])]);
        let first = offer(&revision, "linux", "one").unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &offer(&revision, "darwin", "two").unwrap().unwrap()));
        assert_ne!(first.hash, offer(&revision, "windows", "one").unwrap().unwrap().hash);
    }

    #[test]
    fn a_change_for_others_is_no_change_on_the_wire() {
        let with = |body| {
            loaded(vec![entry("l", "linux", vec![file("a", "1")]), entry("w", "windows", vec![file("a", body)])])
        };
        let (before, after) = (with("2"), with("3"));
        assert_ne!(before.hash(), after.hash());
        let wire = |revision, os| offer(revision, os, "").unwrap().unwrap();
        assert_eq!(wire(&before, "linux").encoded, wire(&after, "linux").encoded);
        assert_ne!(wire(&before, "windows").hash, wire(&after, "windows").hash);
    }

    #[test]
    fn templates_are_rendered_for_each_agent_and_kept() {
        let revision = loaded(vec![jinja("base", "host: {{ agent.attributes['host.name'] }}")]);
        let one = offer(&revision, "linux", "one").unwrap().unwrap();
        assert_eq!(files(&one)[0].1, "host: one");
        assert_eq!(files(&offer(&revision, "linux", "two").unwrap().unwrap())[0].1, "host: two");
        assert!(Arc::ptr_eq(&one, &offer(&revision, "linux", "one").unwrap().unwrap()));
    }

    #[test]
    fn a_template_that_fails_for_one_agent_tells_file_and_place() {
        for (case, body, expected) in [
            (
                "undefined",
                "a: 1\nb: {{ agent.attributes['gpu'] }}",
                "RemoteConfig base, file \"collector.yaml\": line 2: undefined value",
            ),
            (
                "no YAML for this agent",
                "a: 1\nb: {{ agent.attributes['host.name'] }}",
                "RemoteConfig base, file \"collector.yaml\" as rendered for this agent: line 2, column ",
            ),
            ("does not compile", "{{", "RemoteConfig base, file \"collector.yaml\": line 1: syntax error"),
        ] {
            let revision = loaded(vec![jinja("base", body)]);
            let message = offer(&revision, "linux", "[").unwrap_err().to_string();
            assert!(message.starts_with(expected), "{case}: {message}");
        }
    }

    #[test]
    fn content_from_a_secret_is_withheld_and_never_quoted() {
        let secret = RevisionFile { origin: Origin::Secret, ..file("token", "canary: {{ agent.canary }}: [") };
        let plain = loaded(vec![entry("l", "linux", vec![secret.clone()])]);
        let uid = InstanceUid::generate();
        let offer_to = |os| plain.offer(&uid, &attributes(os, ""), SecretContent::Withheld);
        assert_eq!(offer_to("linux").unwrap_err(), NoOffer::SecretsNeedTls("token".into()));
        assert!(offer_to("windows").unwrap().is_none(), "has no file from a Secret");
        let templated = RevisionEntry { files: vec![secret], ..jinja("base", "") };
        let error = offer(&loaded(vec![templated]), "linux", "").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
    }

    #[test]
    fn bodies_and_content_types_arrive_as_they_were_written() {
        // CFG-14
        let long = "x".repeat(500_000);
        for body in [&b"\0\xff\xfe\r\n"[..], b"", long.as_bytes()] {
            let opaque =
                RevisionFile { body: Bytes::copy_from_slice(body), content_type: String::new(), ..file("", "") };
            let written = Revision { entries: vec![entry("base", "", vec![opaque])], ..Revision::default() };
            let read = Revision::from_canonical(&written.canonical()).unwrap();
            let offered = offer(&LoadedRevision::new(read.hash(), read), "linux", "").unwrap().unwrap();
            let message = ServerToAgent::decode(offered.encoded.clone()).unwrap();
            let map = message.remote_config.unwrap().config.unwrap().config_map;
            assert_eq!((map.len(), &map[""].body[..], map[""].content_type.as_str()), (1, body, ""));
        }
    }

    #[test]
    fn two_files_of_one_name_are_never_merged_silently() {
        for (case, first, second) in [("same name", "a", "a"), ("no name beside another", "", "a")] {
            let revision =
                loaded(vec![entry("x", "", vec![file(first, "1")]), entry("y", "linux", vec![file(second, "2")])]);
            assert!(matches!(offer(&revision, "linux", ""), Err(NoOffer::FileNameClash(_))), "{case}");
            assert!(offer(&revision, "windows", "").unwrap().is_some(), "{case}");
        }
    }
}
