//! Takes content that came from Secrets out of text that agents report: an agent may quote its configuration in an
//! error, and what it says is shown to people who may not read that Secret.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    fmt,
};

use super::{
    revision::{Origin, Revision},
    yaml::{self, Node, Quoting},
};

/// What stands in place of what was taken out.
pub const MARK: &str = "[redacted]";
/// Shorter scalars are too likely to be ordinary words, and too short to be much of a secret.
const SHORTEST: usize = 8;

/// The scalars of a revision's files from Secrets.
#[derive(Default)]
pub struct Scrubber {
    /// By their first bytes; of several the longest first.
    scalars: HashMap<[u8; SHORTEST], Vec<String>>,
}

impl fmt::Debug for Scrubber {
    /// It consists of secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Scrubber")
    }
}

impl Scrubber {
    /// Whether it knows nothing that it would take out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scalars.is_empty()
    }

    /// Knows every scalar of 8 bytes and more in the files of a revision that came from a Secret.
    #[must_use]
    pub fn of(revision: &Revision) -> Self {
        let files = revision.entries.iter().flat_map(|entry| &entry.files).filter(|file| file.origin == Origin::Secret);
        Self::of_texts(files.map(|file| &file.body[..]))
    }

    /// Knows every scalar of 8 bytes and more in these texts.
    #[must_use]
    pub fn of_texts<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut scalars = BTreeSet::new();
        for text in texts {
            for chunk in text.utf8_chunks() {
                collect(chunk.valid(), &mut scalars);
            }
        }
        let mut scrubber = Self::default();
        for scalar in scalars {
            if let Some(head) = scalar.as_bytes().first_chunk() {
                scrubber.scalars.entry(*head).or_default().push(scalar);
            }
        }
        for scalars in scrubber.scalars.values_mut() {
            scalars.sort_by_key(|scalar| std::cmp::Reverse(scalar.len()));
        }
        scrubber
    }

    /// The text without them. It takes one pass over the text, however many there are.
    #[must_use]
    pub fn scrub<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut scrubbed = String::new();
        let (mut kept, mut position) = (0, 0);
        while let Some(rest) = text.get(position..).filter(|rest| !rest.is_empty() && !self.scalars.is_empty()) {
            if let Some(found) = self.found_at_the_start(rest) {
                scrubbed.push_str(&text[kept..position]);
                scrubbed.push_str(MARK);
                position += found.len();
                kept = position;
            } else {
                position += rest.chars().next().map_or(1, char::len_utf8);
            }
        }
        if kept == 0 && scrubbed.is_empty() {
            return Cow::Borrowed(text);
        }
        scrubbed.push_str(&text[kept..]);
        Cow::Owned(scrubbed)
    }

    fn found_at_the_start(&self, rest: &str) -> Option<&str> {
        let candidates = self.scalars.get(rest.as_bytes().first_chunk::<SHORTEST>()?)?;
        candidates.iter().map(String::as_str).find(|scalar| rest.starts_with(scalar))
    }
}

/// The scalars of YAML as they are meant and all words as they are written; where it is not YAML, whole lines too.
fn collect(text: &str, scalars: &mut BTreeSet<String>) {
    let mut keep = |scalar: &str| {
        let scalar = scalar.trim();
        if scalar.len() >= SHORTEST {
            scalars.insert(scalar.to_owned());
        }
    };
    let is_structured = match yaml::parse(text, Quoting::Forbidden) {
        Ok(node) => {
            visit(&node, &mut keep);
            matches!(node, Node::List(_) | Node::Map(_))
        }
        Err(_) => false,
    };
    if !is_structured {
        text.lines().for_each(&mut keep);
    }
    let ends_a_word = |character: char| character.is_whitespace() || "\"'`,;=[]{}()<>|".contains(character);
    for word in text.split(ends_a_word) {
        keep(word);
        keep(word.trim_end_matches(':'));
    }
}

fn visit(node: &Node, keep: &mut impl FnMut(&str)) {
    match node {
        Node::Null | Node::Other => {}
        Node::Text(text) => {
            keep(text);
            for line in text.lines() {
                keep(line);
            }
        }
        Node::List(items) => {
            for (_, item) in items {
                visit(item, keep);
            }
        }
        Node::Map(entries) => {
            for (key, value) in entries {
                keep(key);
                visit(value, keep);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        api::remote_config::{ConfigFormat, TemplateMode},
        catalog::revision::{RevisionEntry, RevisionFile},
    };

    fn scrubber(origin: Origin, body: &[u8]) -> Scrubber {
        let file =
            RevisionFile { name: "a".into(), content_type: String::new(), origin, body: Bytes::copy_from_slice(body) };
        Scrubber::of(&Revision {
            entries: vec![RevisionEntry {
                name: "base".into(),
                selector: None,
                template: TemplateMode::Disabled,
                format: ConfigFormat::Opaque,
                files: vec![file],
            }],
            ..Revision::default()
        })
    }

    #[test]
    fn what_came_from_a_secret_is_taken_out() {
        for (case, body, reported, expected) in [
            ("a bare token", "s3cr3t-t0ken\n", "bad token s3cr3t-t0ken!", "bad token [redacted]!"),
            ("a value", "password: s3cr3t-t0ken", "s3cr3t-t0ken refused", "[redacted] refused"),
            ("a value with spaces", "a: correct horse battery", "'correct horse battery'", "'[redacted]'"),
            ("an escaped value", r#"a: "tab\there and more""#, "tab\there and more", "[redacted]"),
            ("a number", "pin: 1234567890", "pin 1234567890", "pin [redacted]"),
            ("a key", "s3cr3t-t0ken: 1", "unknown s3cr3t-t0ken", "unknown [redacted]"),
            ("an environment file", "TOKEN=s3cr3t-t0ken\nX={", "s3cr3t-t0ken", "[redacted]"),
            ("a line of a block", "key: |\n  -----BEGIN-----\n  abcdefghij\n", "at abcdefghij", "at [redacted]"),
            ("a template", "a: {{ x }}\nb: s3cr3t-t0ken", "s3cr3t-t0ken", "[redacted]"),
            ("twice", "s3cr3t-t0ken", "s3cr3t-t0kens3cr3t-t0ken", "[redacted][redacted]"),
            ("the longest", "a: s3cr3t-t0ken\nb: s3cr3t-t0ken-of-all", "s3cr3t-t0ken-of-all", "[redacted]"),
            ("beside other letters", "schlüssel", "falscher schlüssel ü", "falscher [redacted] ü"),
            ("too short", "a: short12", "short12", "short12"),
            ("nothing of it", "s3cr3t-t0ken", "s3cr3t", "s3cr3t"),
        ] {
            assert_eq!(scrubber(Origin::Secret, body.as_bytes()).scrub(reported), expected, "{case}");
        }
        assert_eq!(scrubber(Origin::Secret, b"\xff\xfes3cr3t-t0ken\xff").scrub("s3cr3t-t0ken"), MARK, "among bytes");
        assert_eq!(scrubber(Origin::ConfigMap, b"no-s3cr3t-at-all").scrub("no-s3cr3t-at-all"), "no-s3cr3t-at-all");
    }

    proptest! {
        #[test]
        fn no_scalar_survives_and_nothing_panics(secret in "[a-zäöü0-9]{8,20}", before in "\\PC{0,20}", after in "\\PC{0,20}") {
            let scrubbed = scrubber(Origin::Secret, secret.as_bytes()).scrub(&format!("{before}{secret}{after}")).into_owned();
            prop_assert!(!scrubbed.contains(&secret));
            prop_assert!(scrubbed.contains(MARK));
        }
    }
}
