//! Templates of files: compiled once, rendered for each agent, with bounded work and output.

use std::{collections::BTreeMap, fmt};

use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value, syntax::SyntaxConfig};

use super::yaml::Quoting;
use crate::opamp::{InstanceUid, record::Attributes};

/// Work that one rendering may take. One unit is an instruction, or 64 bytes of text made on the way, so that memory is
/// bounded as well: 16 MB.
const FUEL: u64 = 250_000;
/// Most bytes of a rendered file: as much as a ConfigMap or a Secret holds.
pub const MAX_RENDERED: usize = 1 << 20;

/// What went wrong in a template, and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TemplateError {
    /// Counted from 1, as far as it is known.
    pub line: Option<usize>,
    /// What is wrong.
    pub fault: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(formatter, "line {line}: ")?;
        }
        formatter.write_str(&self.fault)
    }
}

impl std::error::Error for TemplateError {}

/// A template that compiles.
pub struct Template {
    environment: Environment<'static>,
    quoting: Quoting,
}

impl fmt::Debug for Template {
    /// The source may come from a Secret and is not shown.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Template").field("quoting", &self.quoting).finish_non_exhaustive()
    }
}

/// The one template of each environment: none can reach another.
const NAME: &str = "file";

impl Template {
    /// Compiles a source. [`Quoting`] says whether errors, now and at rendering, may show pieces of it.
    pub fn compile(source: &str, quoting: Quoting) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
            environment.set_syntax(syntax);
        }
        environment.add_template_owned(NAME, source.to_owned()).map_err(|error| describe(&error, quoting))?;
        Ok(Self { environment, quoting })
    }

    /// Renders the file for one agent.
    pub fn render(&self, agent: &Value) -> Result<String, TemplateError> {
        let context = Value::from(BTreeMap::from([("agent", agent.clone())]));
        let rendered = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|error| describe(&error, self.quoting))?;
        if rendered.len() > MAX_RENDERED {
            let fault = format!("it renders to {} bytes, the limit is {MAX_RENDERED}", rendered.len());
            return Err(TemplateError { line: None, fault });
        }
        Ok(rendered)
    }
}

/// What a template sees of an agent: `agent.uid` and `agent.attributes`, where an identifying attribute wins over
/// another of the same key.
#[must_use]
pub fn agent_value(uid: &InstanceUid, attributes: &Attributes) -> Value {
    let merged: BTreeMap<String, String> =
        attributes.non_identifying.iter().chain(&attributes.identifying).map(|(k, v)| (k.clone(), v.clone())).collect();
    Value::from(BTreeMap::from([("uid", Value::from(uid.to_string())), ("attributes", Value::from(merged))]))
}

/// The engine's words; its details name the expression that it stumbled over, unless that must not be shown.
fn describe(error: &minijinja::Error, quoting: Quoting) -> TemplateError {
    const LONGEST: usize = 300;
    let detail = match quoting {
        Quoting::Forbidden => None,
        Quoting::Allowed => error.detail(),
    };
    let fault = match detail {
        None => error.kind().to_string(),
        Some(detail) => {
            let detail = detail.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("{}: {detail}", error.kind()).chars().take(LONGEST).collect()
        }
    };
    TemplateError { line: error.line().filter(|line| *line > 0), fault }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn agent() -> Value {
        let attributes = Attributes {
            identifying: BTreeMap::from([("service.name".into(), "otelcol".into())]),
            non_identifying: BTreeMap::from([
                ("service.name".into(), "hidden".into()),
                ("host.name".into(), "web-1".into()),
            ]),
        };
        agent_value(&InstanceUid::from_wire(&[1; 16]).unwrap(), &attributes)
    }

    fn render(source: &str) -> Result<String, TemplateError> {
        Template::compile(source, Quoting::Allowed)?.render(&agent())
    }

    #[test]
    fn the_samples_render_for_an_agent_that_says_no_more_than_the_one_of_the_readme() {
        let said = [("service.name", "otelcol"), ("os.type", "linux"), ("host.name", "host-0")];
        let readme = include_str!("../../README.md");
        for (key, value) in said {
            assert!(readme.contains(&format!("identifying {key}={}", value.replace("-0", "-{index}"))), "{key}");
        }
        let attributes = said.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let agent = Attributes { identifying: BTreeMap::new(), non_identifying: attributes };
        let agent = agent_value(&InstanceUid::from_wire(&[1; 16]).unwrap(), &agent);
        let sample = include_str!("../../config/samples/30-own-telemetry.yaml");
        let rendered = Template::compile(sample, Quoting::Allowed).unwrap().render(&agent).unwrap();
        assert!(rendered.contains("level: info"), "{rendered}");
        assert!(rendered.contains(r#"host.name: "host-0""#), "{rendered}");
    }

    #[test]
    fn a_template_sees_the_uid_and_the_attributes() {
        for (source, expected) in [
            ("host: {{ agent.attributes[\"host.name\"] }}\n", "host: web-1\n"),
            ("{{ agent.attributes['service.name'] }}", "otelcol"),
            ("{{ agent.uid }}", "01010101-0101-0101-0101-010101010101"),
            ("{{ agent.attributes['os.type'] | default('linux') }}", "linux"),
            ("{% if agent.attributes['os.type'] is defined %}a{% else %}b{% endif %}", "b"),
            ("{% for key in agent.attributes %}{{ key }};{% endfor %}", "host.name;service.name;"),
            ("<{{ '<&>' }}>\r\n", "<<&>>\r\n"),
        ] {
            assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn a_template_fails_at_its_line() {
        for (case, source, line, fault) in [
            (
                "undefined attribute",
                "a\n{{ agent.attributes['gpu'] }}",
                2,
                "undefined value: `agent.attributes['gpu']` is",
            ),
            ("undefined variable", "\n\n{{ nothing }}", 3, "undefined value: `nothing` is"),
            ("syntax", "a\n{{ agent. }}", 2, "syntax error"),
            ("unclosed block", "{% if true %}\na", 1, "syntax error"),
            ("include", "\n{% include 'file' %}", 2, "syntax error"),
            ("macro", "{% macro a() %}{% endmacro %}", 1, "syntax error"),
            ("unknown filter", "{{ 1 | nothing }}", 1, "unknown filter"),
        ] {
            let error = render(source).unwrap_err();
            assert_eq!(error.line, Some(line), "{case}: {error}");
            assert!(error.fault.starts_with(fault), "{case}: {error}");
        }
    }

    #[test]
    fn a_template_from_a_secret_is_never_quoted() {
        for source in [
            "{{ canary }}",
            "{{ agent.attributes['canary'] }}",
            "{{ 1 | canary }}",
            "{{ canary canary }}",
            "{% canary %}",
            "{{ canary() }}",
            "{{ 'canary' + 1 }}",
            "{{ agent.canary }}",
        ] {
            let error = Template::compile(source, Quoting::Forbidden).and_then(|template| template.render(&agent()));
            let error = error.unwrap_err();
            assert!(!format!("{error} {error:?}").contains("canary"), "{source}: {error}");
        }
    }

    #[test]
    fn greedy_templates_end_within_a_moment() {
        let doubling = "{% set a = a ~ a %}".repeat(60);
        for (case, source) in [
            ("loops", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned()),
            ("doubling", format!("{{% set a = 'aaaaaaaa' %}}{doubling}{{{{ a }}}}")),
            ("repetition", "{{ 'a' * 99999999 }}".to_owned()),
            ("output", "{% for a in range(20000) %}{{ 'a' * 100 }}{% endfor %}".to_owned()),
            ("nesting", "(".repeat(100_000)),
            ("nested expression", format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000))),
            ("nested blocks", "{% if true %}".repeat(10_000)),
        ] {
            let begun = Instant::now();
            let result = render(&source);
            assert!(begun.elapsed() < Duration::from_secs(5), "{case}: {:?}", begun.elapsed());
            assert!(result.is_err() || case == "nesting", "{case}");
        }
    }

    proptest! {
        #[test]
        fn no_source_makes_it_panic(source in "([{}% ]|agent|\\.uid|attributes|\\['a'\\]|\\||if|end|for|in|set|[a-z0-9\n'\"~*()\\[\\]-]){0,40}") {
            let _ = render(&source);
            let _ = render(&format!("{{{{ {source} }}}}"));
            let _ = render(&format!("{{% {source} %}}"));
        }
    }
}
