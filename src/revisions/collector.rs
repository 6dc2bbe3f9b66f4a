//! What a collector's configuration defines and uses, and what is used without being defined.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{exclusion::exclude_each_other, finding::Finding, possibilities::Possibilities};
use crate::{
    api::{reasons::FleetReason, selector::AttributeSelector},
    catalog::{
        Origin,
        offers::quoting,
        yaml::{Node, Quoting},
    },
};

/// Most undefined components that are told apart; the author corrects the first ones first.
const MOST_FINDINGS: usize = 8;

/// Where components are defined.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Section {
    Receivers,
    Processors,
    Exporters,
    Connectors,
    Extensions,
}

impl Section {
    const ALL: [Self; 5] = [Self::Receivers, Self::Processors, Self::Exporters, Self::Connectors, Self::Extensions];

    /// The top-level key.
    const fn key(self) -> &'static str {
        match self {
            Self::Receivers => "receivers",
            Self::Processors => "processors",
            Self::Exporters => "exporters",
            Self::Connectors => "connectors",
            Self::Extensions => "extensions",
        }
    }

    /// Where a component may be defined that is used in this role: a connector ends one pipeline and begins another.
    const fn definitions(self) -> &'static [Self] {
        match self {
            Self::Receivers => &[Self::Receivers, Self::Connectors],
            Self::Exporters => &[Self::Exporters, Self::Connectors],
            Self::Processors => &[Self::Processors],
            Self::Connectors => &[Self::Connectors],
            Self::Extensions => &[Self::Extensions],
        }
    }
}

/// `type` or `type/name`; the collector ignores space around both.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct ComponentId(String);

impl ComponentId {
    fn parse(text: &str) -> Self {
        Self(match text.split_once('/') {
            None => text.trim().to_owned(),
            Some((kind, name)) => format!("{}/{}", kind.trim(), name.trim()),
        })
    }
}

/// The part of a collector's configuration that is checked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct CollectorConfig {
    defined: BTreeMap<Section, BTreeSet<ComponentId>>,
    /// Sections that are filled in only where the agent runs: `receivers: ${file:receivers.yaml}`.
    open: BTreeSet<Section>,
    used: Vec<Use>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Use {
    role: Section,
    component: ComponentId,
    /// The path of the list: `service.pipelines.traces.exporters`.
    list: String,
    line: u64,
}

/// The document is something else than a map.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct NotAMap;

impl fmt::Display for NotAMap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("line 1: the configuration of a collector is a map at its top")
    }
}

impl CollectorConfig {
    /// Reads what is defined and used. An empty document is a configuration that adds nothing.
    pub(super) fn read(document: &Node) -> Result<Self, NotAMap> {
        match document {
            Node::Null | Node::Map(_) => {}
            Node::Text(_) | Node::Other | Node::List(_) => return Err(NotAMap),
        }
        let mut config = Self::default();
        for section in Section::ALL {
            if let Some(value) = document.get(section.key()) {
                config.define(section, value);
            }
        }
        if let Some(service) = document.get("service") {
            config.use_list(Section::Extensions, service, "service");
            for (pipeline, parts) in service.get("pipelines").map(Node::entries).unwrap_or_default() {
                for role in [Section::Receivers, Section::Processors, Section::Exporters] {
                    config.use_list(role, parts, &format!("service.pipelines.{pipeline}"));
                }
            }
        }
        Ok(config)
    }

    fn define(&mut self, section: Section, value: &Node) {
        match value {
            Node::Text(text) if is_expanded_later(text) => {
                self.open.insert(section);
            }
            Node::Null | Node::Text(_) | Node::Other | Node::List(_) | Node::Map(_) => {
                let ids = value.entries().iter().map(|(key, _)| ComponentId::parse(key));
                self.defined.entry(section).or_default().extend(ids);
            }
        }
    }

    fn use_list(&mut self, role: Section, holder: &Node, path: &str) {
        let Some(Node::List(items)) = holder.get(role.key()) else { return };
        for (line, item) in items {
            if let Node::Text(text) = item
                && !is_expanded_later(text)
            {
                let list = format!("{path}.{}", role.key());
                self.used.push(Use { role, component: ComponentId::parse(text), list, line: *line });
            }
        }
    }

    fn defines(&self, used: &Use) -> bool {
        used.role.definitions().iter().any(|section| {
            self.open.contains(section) || self.defined.get(section).is_some_and(|ids| ids.contains(&used.component))
        })
    }
}

/// The collector replaces `${env:NAME}`, `${file:PATH}` and the like when it starts.
fn is_expanded_later(text: &str) -> bool {
    text.contains("${")
}

/// What is known of a file's components.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Components {
    /// The file is the configuration of a collector: what it uses must be defined.
    Checked(CollectorConfig),
    /// Nobody said so, but it reads like one: what it defines counts, what it uses is its author's business.
    Offered(CollectorConfig),
    /// A template of one: what it may define counts, the rest is seen when it is rendered.
    Template(Possibilities),
    /// None.
    None,
}

/// One file of an entry.
#[derive(Clone, Debug)]
pub(super) struct KnownFile<'a> {
    pub name: &'a str,
    pub origin: Origin,
    pub components: &'a Components,
}

/// An entry of the fleet with what is known of its files.
#[derive(Clone, Debug)]
pub(super) struct KnownEntry<'a> {
    pub remote_config: &'a str,
    pub selector: Option<&'a AttributeSelector>,
    pub files: Vec<KnownFile<'a>>,
}

/// Components that a pipeline or the service uses and that no file defines which the same member could get. Supervisors
/// merge files, so that what counts is the union; of a template it is what it may render to.
pub(super) fn find_undefined(entries: &[KnownEntry<'_>]) -> Vec<Finding> {
    let undefined = entries.iter().flat_map(|entry| {
        let together: Vec<&Components> = entries
            .iter()
            .filter(|other| !exclude_each_other(entry.selector, other.selector))
            .flat_map(|other| other.files.iter().map(|file| file.components))
            .collect();
        undefined_in(entry, &together)
    });
    let messages = undefined.take(MOST_FINDINGS);
    messages.map(|message| Finding::fleet(FleetReason::UndefinedComponent, message)).collect()
}

fn undefined_in(entry: &KnownEntry<'_>, together: &[&Components]) -> Vec<String> {
    let is_defined = |used: &Use| {
        together.iter().any(|components| match components {
            Components::Checked(config) | Components::Offered(config) => config.defines(used),
            Components::Template(possibilities) => possibilities.contain(&used.component.0),
            Components::None => false,
        })
    };
    let mut messages = Vec::new();
    for file in &entry.files {
        let Components::Checked(config) = file.components else { continue };
        // An entry that excludes even itself selects nobody, and nothing is wrong with what nobody gets.
        let undefined = config.used.iter().filter(|used| !together.is_empty() && !is_defined(used));
        messages.extend(undefined.take(MOST_FINDINGS).map(|used| describe(entry.remote_config, file, used)));
    }
    messages
}

fn describe(remote_config: &str, file: &KnownFile<'_>, used: &Use) -> String {
    let sections: Vec<&str> = used.role.definitions().iter().map(|section| section.key()).collect();
    let (place, sections) =
        (format!("RemoteConfig {remote_config}, file {:?}, line {}", file.name, used.line), sections.join(" or "));
    match quoting(file.origin) {
        Quoting::Allowed => format!(
            "{place}: {} names {}, which no file of the same member defines under {sections}",
            used.list, used.component.0
        ),
        Quoting::Forbidden => {
            format!(
                "{place}: a list of {} names one that no file of the same member defines under {sections}",
                used.role.key()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::yaml;

    fn config(yaml: &str) -> CollectorConfig {
        CollectorConfig::read(&yaml::parse(yaml, Quoting::Allowed).unwrap()).unwrap()
    }

    fn undefined(files: &[(Option<&AttributeSelector>, Components)]) -> Vec<String> {
        let entries: Vec<_> = files
            .iter()
            .map(|(selector, components)| KnownEntry {
                remote_config: "base",
                selector: *selector,
                files: vec![KnownFile { name: "collector.yaml", origin: Origin::Inline, components }],
            })
            .collect();
        let findings = find_undefined(&entries).into_iter();
        findings
            .map(|finding| match finding {
                Finding::Fleet { reason: FleetReason::UndefinedComponent, message } => message,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn checked(yaml: &str) -> Components {
        Components::Checked(config(yaml))
    }

    const COMPLETE: &str = "
receivers: {otlp: {protocols: {grpc: }}, otlp/2: }
processors: {batch: }
exporters: {debug: {}}
connectors: {count: }
extensions: {health_check: }
service:
  extensions: [health_check]
  pipelines:
    traces: {receivers: [otlp, otlp/2], processors: [batch], exporters: [debug, count]}
    metrics/counted: {receivers: [count], exporters: [debug]}
";

    #[test]
    fn what_is_defined_may_be_used() {
        for (case, yaml) in [
            ("all kinds", COMPLETE.to_owned()),
            ("nothing", String::new()),
            (
                "space in an id",
                "exporters: {otlp/x: }\nservice: {pipelines: {logs: {exporters: [' otlp / x ']}}}".into(),
            ),
            ("expanded later", "service: {pipelines: {logs: {exporters: ['${env:EXPORTER}']}}}".into()),
            (
                "section from elsewhere",
                "exporters: ${file:e.yaml}\nservice: {pipelines: {logs: {exporters: [otlp]}}}".into(),
            ),
            ("service from elsewhere", "service: ${file:service.yaml}".into()),
        ] {
            assert_eq!(undefined(&[(None, checked(&yaml))]), Vec::<String>::new(), "{case}");
        }
    }

    #[test]
    fn what_is_not_defined_is_told_with_its_place() {
        for (case, defined, missing, expected) in [
            (
                "receiver",
                "otlp/2: ",
                "other: ",
                "line 10: service.pipelines.traces.receivers names otlp/2, which no file of the same member defines under receivers or connectors",
            ),
            (
                "processor",
                "batch: ",
                "other: ",
                "line 10: service.pipelines.traces.processors names batch, which no file of the same member defines under processors",
            ),
            (
                "extension",
                "health_check: ",
                "other: ",
                "line 8: service.extensions names health_check, which no file of the same member defines under extensions",
            ),
        ] {
            let messages = undefined(&[(None, checked(&COMPLETE.replacen(defined, missing, 1)))]);
            assert_eq!(messages, [format!("RemoteConfig base, file \"collector.yaml\", {expected}")], "{case}");
        }
        let without_connector = checked(&COMPLETE.replacen("count: ", "other: ", 1));
        assert_eq!(undefined(&[(None, without_connector)]).len(), 2, "it is used twice");
    }

    #[test]
    fn the_files_that_one_member_can_get_are_taken_together() {
        let os = |value: &str| AttributeSelector {
            match_attributes: BTreeMap::from([("os.type".into(), value.into())]),
            ..AttributeSelector::default()
        };
        let (linux, windows) = (os("linux"), os("windows"));
        let uses = || checked("service: {pipelines: {logs: {exporters: [otlp]}}}");
        let defines = || checked("exporters: {otlp: }");
        let template = |source| Components::Template(Possibilities::of(source));
        let offered = || Components::Offered(config("exporters: {otlp: }"));
        for (case, user, definer, expected) in [
            ("both for all", None, (None, defines()), 0),
            ("a member can get both", Some(&linux), (None, defines()), 0),
            ("the user is for all", None, (Some(&linux), defines()), 0),
            ("no member can get both", Some(&linux), (Some(&windows), defines()), 1),
            ("a file of no format defines it", None, (None, offered()), 0),
            ("a template may define it", None, (None, template("exporters: {otlp: }")), 0),
            ("a template that computes its keys", None, (None, template("exporters: {{ x }}")), 0),
            ("a template of something else", None, (None, template("level: {{ x }}")), 1),
            ("a template that no such member gets", Some(&linux), (Some(&windows), template("{{ x }}")), 1),
            ("no components", None, (None, Components::None), 1),
        ] {
            assert_eq!(undefined(&[(user, uses()), definer]).len(), expected, "{case}");
        }
    }

    #[test]
    fn a_file_from_a_secret_is_never_quoted() {
        let components = checked("service: {extensions: [canary], pipelines: {canary: {exporters: [canary]}}}");
        let files = vec![KnownFile { name: "collector.yaml", origin: Origin::Secret, components: &components }];
        let findings = find_undefined(&[KnownEntry { remote_config: "base", selector: None, files }]);
        assert_eq!(findings.len(), 2);
        assert!(!format!("{findings:?}").contains("canary"), "{findings:?}");
    }

    #[test]
    fn a_collector_is_configured_by_a_map() {
        for (yaml, expected) in [("[a]", true), ("text", true), ("1", true), ("", false), ("{}", false)] {
            let node = yaml::parse(yaml, Quoting::Allowed).unwrap();
            assert_eq!(CollectorConfig::read(&node).is_err(), expected, "{yaml}");
        }
    }
}
