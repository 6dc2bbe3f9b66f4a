//! What an agent runs: hash and size are kept, the text is handed on.

use std::{collections::BTreeMap, fmt};

use sha2::{Digest, Sha256};

use crate::opamp::{messages::AgentConfigFile, record::EffectiveConfigSummary};

/// The text of an effective configuration, handed on once. It may hold secrets and is never shown.
///
/// Bodies are slices of the agent's message; whoever keeps one keeps the message.
#[derive(Clone, Default, PartialEq)]
pub struct EffectiveConfigText {
    /// The files by name; the only one may have an empty name (CFG-13).
    pub files: BTreeMap<String, AgentConfigFile>,
}

impl fmt::Debug for EffectiveConfigText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EffectiveConfigText").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

/// Hash and size of the files, whose bodies are opaque bytes (CFG-14).
///
/// The hash is a SHA-256 over name, content type and body of each file in the order of the names, each preceded by its
/// length, so that no two sets of files run together into the same bytes.
#[must_use]
pub fn summarise(text: &EffectiveConfigText) -> EffectiveConfigSummary {
    let mut hasher = Sha256::new();
    let mut size = 0;
    for (name, file) in &text.files {
        for part in [name.as_bytes(), file.content_type.as_bytes(), &file.body] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        size += file.body.len();
    }
    EffectiveConfigSummary { hash: hasher.finalize().into(), size }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(files: &[(&str, &str, &[u8])]) -> EffectiveConfigText {
        let files = files.iter().map(|(name, content_type, body)| {
            let file = AgentConfigFile { body: body.to_vec().into(), content_type: (*content_type).into() };
            ((*name).into(), file)
        });
        EffectiveConfigText { files: files.collect() }
    }

    #[test]
    fn the_size_is_of_all_bodies_and_the_hash_is_of_every_part() {
        // CFG-13, CFG-14
        let all = [
            text(&[]),
            text(&[("", "", b"")]),
            text(&[("a", "", b"b")]),
            text(&[("", "a", b"b")]),
            text(&[("a", "", b"\0\xff")]),
            text(&[("a", "", b"b"), ("c", "", b"d")]),
            text(&[("a", "", b"bc"), ("d", "", b"")]),
        ];
        assert_eq!(all.clone().map(|text| summarise(&text).size), [0, 0, 1, 1, 2, 2, 2]);
        let hashes: std::collections::BTreeSet<_> = all.iter().map(|text| summarise(text).hash).collect();
        assert_eq!(hashes.len(), all.len());
    }

    #[test]
    fn the_hash_of_nothing_is_the_sha256_of_no_bytes() {
        let hash = summarise(&text(&[])).hash;
        assert_eq!(hash[..4], [0xe3, 0xb0, 0xc4, 0x42]);
    }

    #[test]
    fn the_text_is_never_shown() {
        let shown = format!("{:?}", text(&[("name", "", b"secret")]));
        assert_eq!(shown, "EffectiveConfigText { files: 1, .. }");
    }
}
