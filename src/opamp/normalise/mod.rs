//! From what agents send to what is kept of it: text for people, bounded in size, whatever a peer puts in.
//!
//! Depth is bounded by the protobuf decoder (100 levels), width by the size of a message; what is *kept* is bounded
//! here. Nothing here refuses a report: what is too much is cut.

mod attributes;
mod components;
mod effective_config;
mod health;

pub use attributes::attributes;
pub use components::count;
pub use effective_config::{EffectiveConfigText, summarise};
pub use health::health;

/// What a cut text ends with.
const MARK: &str = "…";

/// The beginning of a text, at most so many bytes, ending between two characters.
#[must_use]
pub fn cut(text: &str, limit: usize) -> &str {
    let longest = limit.min(text.len());
    let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A text for people: whole if it fits, else its beginning and a mark.
#[must_use]
pub fn shorten(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.into();
    }
    let mut short = String::from(cut(text, limit.saturating_sub(MARK.len())));
    short.push_str(MARK);
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_never_splits_a_character() {
        for (text, limit, expected) in
            [("abc", 3, "abc"), ("abc", 2, "ab"), ("aé", 2, "a"), ("é", 1, ""), ("日本", 5, "日"), ("", 0, "")]
        {
            assert_eq!(cut(text, limit), expected, "{text} at {limit}");
        }
    }

    #[test]
    fn a_shortened_text_shows_that_it_was_shortened_and_keeps_the_limit() {
        assert_eq!(shorten("abcdef", 6), "abcdef");
        assert_eq!(shorten("abcdefg", 6), "abc…");
    }
}
