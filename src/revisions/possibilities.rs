//! What a template may define: for certain that is known only when it is rendered, but most templates spell their keys
//! out.

use std::ops::Range;

/// Keys whose value is a map of components: an expression there may render to any.
const SECTIONS: [&str; 5] = ["receivers", "processors", "exporters", "connectors", "extensions"];

/// The keys that a template may render to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Possibilities {
    /// Those that stand in its source.
    Spelled(Box<str>),
    /// Any: some are computed.
    Anything,
}

impl Possibilities {
    /// Of a template's source.
    pub(super) fn of(source: &str) -> Self {
        if source.lines().any(computes_keys) { Self::Anything } else { Self::Spelled(source.into()) }
    }

    /// Whether the template may render to a map with this key.
    pub(super) fn contain(&self, key: &str) -> bool {
        match self {
            Self::Anything => true,
            Self::Spelled(source) => source.match_indices(key).any(|(at, _)| is_key(source, at..at + key.len())),
        }
    }
}

/// Whether the text at this place is the key of a map, quoted or not.
fn is_key(source: &str, place: Range<usize>) -> bool {
    let before = source[..place.start].chars().next_back();
    let after = source[place.end..].trim_start_matches(['"', '\'', ' ']);
    after.starts_with(':') && !before.is_some_and(|letter| letter.is_alphanumeric() || "/_-.".contains(letter))
}

/// Whether a line prints an expression elsewhere than in the value of a key that is no section of components.
fn computes_keys(line: &str) -> bool {
    line.match_indices("{{").any(|(at, _)| {
        let before = without_tags(&line[..at]);
        match before.rsplit_once(": ").or_else(|| before.rsplit_once(':')) {
            None => true,
            Some((key, _)) => {
                let key = key.trim().trim_matches(['"', '\'']);
                key.contains(['{', '[']) || SECTIONS.contains(&key)
            }
        }
    })
}

/// The text without `{% … %}` and `{{ … }}` that are complete in it.
fn without_tags(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some(begin) = [rest.find("{%"), rest.find("{{")].into_iter().flatten().min() {
        let close = if rest[begin..].starts_with("{%") { "%}" } else { "}}" };
        kept.push_str(&rest[..begin]);
        match rest[begin..].find(close) {
            Some(end) => rest = &rest[begin + end + close.len()..],
            None => return kept,
        }
    }
    kept.push_str(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_spelled_out_are_known() {
        let source = "exporters:\n  otlp/a:\n    endpoint: \"{{ agent.attributes['x'] }}\"\n  'debug' : {}\n\
                      {% if agent.attributes.gpu %}\n  count: \n{% endif %}\nservice:\n  pipelines: {logs: {exporters: [kafka]}}\n";
        let possibilities = Possibilities::of(source);
        for (key, expected) in
            [("otlp/a", true), ("debug", true), ("count", true), ("kafka", false), ("otlp", false), ("a", false)]
        {
            assert_eq!(possibilities.contain(key), expected, "{key}");
        }
    }

    #[test]
    fn keys_that_are_computed_may_be_any() {
        for (source, expected) in [
            ("  otlp/{{ n }}: {}", true),
            ("{{ agent.attributes['extra'] }}", true),
            ("{% for n in [1, 2] %}{{ n }}: {% endfor %}", true),
            ("exporters: {{ agent.attributes['exporters'] }}", true),
            ("exporters: {otlp: {}, {{ name }}: {}}", true),
            ("host.name: \"{{ agent.attributes['host.name'] }}\"", false),
            ("endpoint: https://{{ a }}:{{ b }}/x", false),
            ("level: {% if a %}debug{% else %}{{ level }}{% endif %}", false),
            ("plain: text", false),
        ] {
            assert_eq!(Possibilities::of(source) == Possibilities::Anything, expected, "{source}");
        }
    }
}
