//! YAML as the OpenTelemetry Collector reads it, reduced to what is checked: structure, keys and text.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Error as ParserError, Spanned};

/// Most bytes of a file that is parsed: what a ConfigMap or a Secret holds.
pub const MAX_BYTES: usize = 1 << 20;

/// A document, without the values of numbers and booleans, which no check asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// Nothing.
    Null,
    /// A string.
    Text(String),
    /// A number or a boolean.
    Other,
    /// A list; each item with the line on which it stands, counted from 1.
    List(Vec<(u64, Self)>),
    /// A map with the keys as text, merge keys resolved.
    Map(Vec<(String, Self)>),
}

impl Node {
    /// The value of a key of a map.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The entries of a map; none of anything else.
    #[must_use]
    pub fn entries(&self) -> &[(String, Self)] {
        match self {
            Self::Map(entries) => entries,
            Self::Null | Self::Text(_) | Self::Other | Self::List(_) => &[],
        }
    }
}

/// Whether the text of a document may stand in an error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Quoting {
    /// It may.
    Allowed,
    /// It came from a Secret: the error names the kind of fault and the place alone.
    Forbidden,
}

/// A document that does not parse, and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct YamlError {
    /// Line and column, counted from 1, as far as they are known.
    pub place: Option<(u64, u64)>,
    /// What is wrong.
    pub fault: String,
}

impl fmt::Display for YamlError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(formatter, "line {line}, column {column}: ")?;
        }
        formatter.write_str(&self.fault)
    }
}

impl std::error::Error for YamlError {}

/// Parses one document by the rules of the collector's YAML library: `yes` and `on` are text, `010` is octal, a key
/// occurs once, merge keys are resolved. Work is bounded whatever the document says.
pub fn parse(text: &str, quoting: Quoting) -> Result<Node, YamlError> {
    if text.len() > MAX_BYTES {
        return Err(YamlError { place: None, fault: format!("it has {} bytes, the limit is {MAX_BYTES}", text.len()) });
    }
    let options = serde_saphyr::options! {
        strict_booleans: true,
        legacy_octal_numbers: true,
        with_snippet: false,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
        budget: serde_saphyr::budget! {
            max_nodes: 100_000,
            max_depth: 64,
            max_anchors: 1_000,
            max_buffered_comment_events: 10_000,
            enforce_alias_anchor_ratio: false,
        },
    };
    match serde_saphyr::from_str_with_options::<Option<Node>>(text, options) {
        Ok(node) => Ok(node.unwrap_or(Node::Null)),
        Err(error) => Err(describe(&error, quoting)),
    }
}

fn describe(error: &ParserError, quoting: Quoting) -> YamlError {
    let place = error.location().map(|location| (location.line(), location.column())).filter(|(line, _)| *line > 0);
    let fault = match (quoting, error) {
        (Quoting::Allowed, ParserError::DuplicateMappingKey { key: Some(key), .. }) => {
            one_line(&format!("the key {key:?} occurs twice in one map"))
        }
        (Quoting::Allowed | Quoting::Forbidden, _) => match (known_fault(error), quoting) {
            (Some(fault), _) => fault.into(),
            (None, Quoting::Allowed) => one_line(&error.to_string()),
            (None, Quoting::Forbidden) => "it is not valid YAML".into(),
        },
    };
    YamlError { place, fault }
}

/// The parser's text without its own account of the place, on one line and bounded.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 300;
    let text = text.rsplit_once(" at line ").map_or(text, |(fault, _)| fault);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LONGEST).collect()
}

/// A fixed text for faults that people are likely to meet. The parser's own may quote keys and scalars, and speaks of
/// its options.
fn known_fault(error: &ParserError) -> Option<&'static str> {
    Some(match error {
        ParserError::DuplicateMappingKey { .. } => "a key occurs twice in one map",
        ParserError::UnknownAnchor { .. } => "an alias refers to an anchor that does not exist",
        ParserError::MultipleDocuments { .. } => "there is more than one document",
        ParserError::Budget { .. } => "it is larger or deeper than is accepted",
        ParserError::AliasReplayLimitExceeded { .. } | ParserError::AliasExpansionLimitExceeded { .. } => {
            "its aliases expand to more than is accepted"
        }
        ParserError::MergeValueNotMapOrSeqOfMaps { .. } => "the value of a merge key is not a map",
        _ => return None,
    })
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.into()))
    }

    fn visit_string<E>(self, text: String) -> Result<Node, E> {
        Ok(Node::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Node>>()? {
            list.push((item.referenced.line(), item.value));
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(Key(key)) = pairs.next_key()? {
            map.push((key, pairs.next_value()?));
        }
        Ok(Node::Map(map))
    }
}

/// A key as text. Numbers, booleans and null are keys too; which of them does not matter to any check.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Node::deserialize(deserializer)? {
            Node::Text(text) => Ok(Self(text)),
            Node::Null | Node::Other => Ok(Self(String::new())),
            Node::List(_) | Node::Map(_) => Err(D::Error::custom("a key is a list or a map")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn text(value: &str) -> Node {
        Node::Text(value.into())
    }

    #[test]
    fn scalars_are_read_as_the_collector_reads_them() {
        for (yaml, expected) in [
            ("", Node::Null),
            ("~", Node::Null),
            ("yes", text("yes")),
            ("on", text("on")),
            ("true", Node::Other),
            ("010", Node::Other),
            ("1e999", Node::Other),
            (".nan", Node::Other),
            ("18446744073709551616", Node::Other),
            ("'1'", text("1")),
            ("${env:HOME}", text("${env:HOME}")),
            ("[a, 1]", Node::List(vec![(1, text("a")), (1, Node::Other)])),
            ("- a\n- b", Node::List(vec![(1, text("a")), (2, text("b"))])),
            ("1: a", Node::Map(vec![(String::new(), text("a"))])),
            (
                "base: &b {x: y}\nmore: {<<: *b}",
                Node::Map(vec![
                    ("base".into(), Node::Map(vec![("x".into(), text("y"))])),
                    ("more".into(), Node::Map(vec![("x".into(), text("y"))])),
                ]),
            ),
        ] {
            assert_eq!(parse(yaml, Quoting::Allowed), Ok(expected), "{yaml:?}");
        }
    }

    #[test]
    fn what_people_write_is_accepted() {
        for (case, yaml) in [
            ("document markers", "---\r\na: 1\r\n...\r\n".to_owned()),
            ("comments alone", "# a\n# b\n".into()),
            ("a long comment", format!("a:\n{}  b: 1\n", "  # why\n".repeat(2_000))),
            ("a long comment in a list", format!("a:\n{}  - b\n", "  # why\n".repeat(2_000))),
            ("an anchor used often", format!("x: &x {{a: 1}}\nall:\n{}", "  - *x\n".repeat(500))),
            ("a merge key used often", format!("x: &x {{a: 1}}\nall:\n{}", "  - {<<: *x, b: 2}\n".repeat(500))),
            ("a long list", format!("all:\n{}", "  - name\n".repeat(50_000))),
            ("a tag", "a: !custom b".into()),
            ("a block", "a: |\n  b\n  c\nd: >-\n  e\n  f\n".into()),
        ] {
            assert!(parse(&yaml, Quoting::Allowed).is_ok(), "{case}: {:?}", parse(&yaml, Quoting::Allowed));
        }
    }

    const FAULTS: [(&str, &str, (u64, u64)); 7] = [
        ("indentation", "receivers:\n  canary:\n bad", (3, 1)),
        ("tab", "a:\n\tcanary: 1", (2, 1)),
        ("key twice", "canary: 1\nb: 2\ncanary: 3", (3, 1)),
        ("unknown anchor", "a: *canary", (1, 4)),
        ("open quote", "a: \"canary", (1, 4)),
        ("open bracket", "a: [canary", (2, 1)),
        ("two documents", "a: 1\n---\ncanary: 2", (2, 1)),
    ];

    #[test]
    fn a_fault_is_shown_with_its_line() {
        for (case, yaml, (line, _)) in FAULTS {
            let error = parse(yaml, Quoting::Allowed).unwrap_err();
            let found = error.place.unwrap().0;
            assert!(found.abs_diff(line) <= 1, "{case}: {error}");
            assert!(!error.fault.is_empty() && !error.fault.contains('\n'), "{case}: {error}");
            assert_eq!(error.to_string().matches("line").count(), 1, "{case}: {error}");
        }
    }

    #[test]
    fn a_fault_in_a_secret_never_quotes_it() {
        for (case, yaml, _) in FAULTS {
            let error = parse(yaml, Quoting::Forbidden).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("canary"), "{case}: {error}");
        }
    }

    #[test]
    fn bombs_end_within_a_moment() {
        let aliases = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |yaml, level| {
            format!("{yaml}a{level}: &a{level} [*a{0}, *a{0}]\n", level - 1)
        });
        for (case, yaml) in [
            ("aliases", aliases),
            ("depth", "[".repeat(100_000)),
            ("maps", "{a: ".repeat(100_000)),
            ("nodes", "- a\n".repeat(200_000)),
            ("size", "a".repeat(MAX_BYTES + 1)),
            ("long key", format!("? {}", "a".repeat(500_000))),
            ("quotes", "\"".repeat(500_001)),
        ] {
            let begun = Instant::now();
            let result = parse(&yaml, Quoting::Forbidden);
            // Generous, for a machine that does much else: without a limit each of these takes hours.
            assert!(begun.elapsed() < Duration::from_secs(60), "{case}: {:?}", begun.elapsed());
            assert!(result.is_err() || case == "long key" || case == "quotes", "{case}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(yaml in "[-\\[\\]{}:,&*!|>'\"%@`#?<~ab0. \n\t]{0,120}") {
            let _ = parse(&yaml, Quoting::Forbidden);
        }

        #[test]
        fn no_string_makes_it_panic(yaml in "\\PC{0,80}") {
            let _ = parse(&yaml, Quoting::Allowed);
        }
    }
}
