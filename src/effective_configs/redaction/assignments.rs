//! Assignments of secrets in text of any kind: `token=…`, `"apiKey": …`, `--password …`, `HTTP_Passwd …`.
//!
//! Where a value ends depends on a language that is not known here. So everything to the end of the line goes, and the
//! lines below that are indented deeper.

use std::ops::Range;

use super::{
    MARK,
    names::{NAMED, Reach, is_harmless, plain, reach},
};

/// What kind of text is looked through.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Wording {
    /// Part of a line: a name takes a sign such as `=` to its value.
    Phrase,
    /// Lines of their own: the first word of a line may be a name without any sign.
    Lines,
}

/// Where the values of names that announce secrets stand, in order.
pub(super) fn values(text: &str, wording: Wording) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut begun: Option<Begun> = None;
    let mut named = Named::default();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let content = start + (line.len() - line.trim_start().len());
        let end = (start + line.trim_end().len()).max(content);
        let goes_on = begun.take().and_then(|begun| begun.next(&text[start..end]));
        if let Some(still) = goes_on {
            begun = Some(still);
            push(&mut found, content..end);
        } else if let Some(value) = value_in(&text[content..end], wording, &mut named) {
            let value = content + value..end;
            begun = Some(Begun::with(&text[value.clone()], content - start));
            push(&mut found, value);
        }
        start += line.len();
    }
    found
}

fn push(found: &mut Vec<Range<usize>>, value: Range<usize>) {
    if !value.is_empty() {
        found.push(value);
    }
}

/// A value that may go on in the next line.
struct Begun {
    /// Of the line with the name.
    indent: usize,
    rest: Rest,
}

/// What is to come of a value.
enum Rest {
    /// All of it: the line with the name ends with the name.
    Whole,
    /// The end of a quotation.
    Quoted(&'static str),
    /// What is indented deeper than the name.
    Deeper,
}

impl Begun {
    /// A value of which this stands in the line of its name.
    fn with(value: &str, indent: usize) -> Self {
        let quoted = open_quote(value).map_or(Rest::Deeper, Rest::Quoted);
        Self { indent, rest: if value.is_empty() { Rest::Whole } else { quoted } }
    }

    /// Whether the line belongs to the value; with what is to be expected of the one after it.
    fn next(self, line: &str) -> Option<Self> {
        let content = line.trim_start();
        if content.is_empty() {
            return Some(self);
        }
        let deeper = Self { indent: self.indent, rest: Rest::Deeper };
        match self.rest {
            Rest::Quoted(quote) => Some(if line.contains(quote) { deeper } else { self }),
            Rest::Whole => {
                let value = content.trim_start_matches(is_sign).trim_start();
                Some(Self::with(value, self.indent))
            }
            Rest::Deeper => (line.len() - content.len() > self.indent).then_some(deeper),
        }
    }
}

/// The quote that a value opens and does not close.
fn open_quote(value: &str) -> Option<&'static str> {
    let quote = ["\"\"\"", "'''", "\"", "'", "`"].into_iter().find(|quote| value.starts_with(quote))?;
    (!value[quote.len()..].contains(quote)).then_some(quote)
}

/// Whether a secret was named as one names things: `name: Authorization, value: …`, in one line or two.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Named {
    #[default]
    No,
    InLineBefore,
    InLine,
}

/// Where the first value of a secret begins in a line.
fn value_in(line: &str, wording: Wording, named: &mut Named) -> Option<usize> {
    *named = if *named == Named::InLine { Named::InLineBefore } else { Named::No };
    let mut position = 0;
    let mut first = true;
    while let Some(offset) = line.get(position..)?.find(is_of_a_name) {
        let start = position + offset;
        let name = &line[start..];
        let name = &name[..name.find(|letter| !is_of_a_name(letter)).unwrap_or(name.len())];
        let end = start + name.len();
        position = end;
        let announces = reach(name, "") != Reach::Nothing;
        let may_go_without_sign = announces && (name.starts_with('-') || (wording == Wording::Lines && first));
        first = false;
        if !announces && (*named == Named::No || !NAMED.contains(&plain(name).as_str())) {
            continue;
        }
        let is_tag = line[..start].ends_with('<');
        match gap_before_value(&line[end..], is_tag || may_go_without_sign) {
            Some(gap) if !is_harmless_here(&line[end + gap..]) => return Some(end + gap),
            Some(_) => {}
            None => *named = Named::InLine,
        }
    }
    None
}

fn is_of_a_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "_-.".contains(letter)
}

/// The bytes between a name and its value; `None`: no value follows.
fn gap_before_value(rest: &str, without_sign: bool) -> Option<usize> {
    let closing = rest.len() - rest.trim_start_matches(|letter| "\\\"'`]".contains(letter)).len();
    let spaces = |from: usize| rest[from..].len() - rest[from..].trim_start().len();
    let sign_at = closing + spaces(closing);
    let signs = rest[sign_at..].len() - rest[sign_at..].trim_start_matches(is_sign).len();
    let ends_in_quotes = closing > 0 && sign_at == rest.len();
    if ends_in_quotes {
        return Some(sign_at);
    }
    if signs > 0 && (without_sign || !rest[sign_at..].starts_with('>')) {
        let value = sign_at + signs;
        return Some(value + spaces(value));
    }
    // `--password x`, or as items of a list.
    let value = rest.len() - rest.trim_start_matches(is_around).len();
    (without_sign && value > closing && value < rest.len()).then_some(value)
}

/// What may stand around a value.
fn is_around(letter: char) -> bool {
    letter.is_whitespace() || "\"'`,;\\".contains(letter)
}

fn is_sign(letter: char) -> bool {
    "=:>".contains(letter)
}

/// Whether the rest of a line is a harmless value and nothing else, or the value was taken out already. An empty one may
/// go on below, and counts as none.
fn is_harmless_here(rest: &str) -> bool {
    let is_taken_out = rest.trim_start_matches(is_around).starts_with(MARK);
    is_taken_out || (!rest.is_empty() && open_quote(rest).is_none() && is_harmless(rest.trim_matches(is_around)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_values(text: &str, wording: Wording) -> String {
        let mut left = String::new();
        let mut position = 0;
        for value in values(text, wording) {
            left.push_str(&text[position..value.start]);
            left.push('…');
            position = value.end;
        }
        left + &text[position..]
    }

    #[test]
    fn values_of_secrets_are_found_in_many_languages() {
        for (case, text, expected) in [
            ("properties", "user=a\nclient.secret = b c\nx=y\n", "user=a\nclient.secret = …\nx=y\n"),
            ("TOML", "[a]\n  token = \"x\" # y\n  b = 1", "[a]\n  token = …\n  b = 1"),
            ("TOML over lines", "token = \"\"\"\nx\ny\"\"\"\nb = 1", "token = …\n…\n…\nb = 1"),
            ("Fluent Bit", "[OUTPUT]\n  HTTP_Passwd x y\n  Host h", "[OUTPUT]\n  HTTP_Passwd …\n  Host h"),
            ("environment", "export API_KEY='x'", "export API_KEY=…"),
            ("JSON", "\"apiKey\" : \"x\", \"b\": 1", "\"apiKey\" : …"),
            ("JSON in a string", "{\\\"password\\\":\\\"x\\\"}", "{\\\"password\\\":…"),
            ("XML", "<password>x</password>\n<b>c</b>", "<password>…\n<b>c</b>"),
            ("XML attribute", "<a b=\"c\" password=\"x\"/>", "<a b=\"c\" password=…"),
            ("Lua", "token => 'x'", "token => …"),
            ("arguments", "run --verbose --password x", "run --verbose --password …"),
            ("YAML that is cut off", "a: {\npassword: |\n  x\n\n  y\nb: c", "a: {\npassword: …\n  …\n\n  …\nb: c"),
            (
                "a name of its own",
                "- name: token\n  value: x\n- name: b\n  value: c",
                "- name: token\n  value: …\n- name: b\n  value: c",
            ),
            ("a name of its own in one line", "{key: 'token', value: x}", "{key: 'token', value: …"),
            ("a value below its name", "\"token\"\n:\n\"x\"\n\"b\": c", "\"token\"\n…\n…\n\"b\": c"),
            ("a tree", "secrets:\n  a: x\n  b:\n    - y\nc: d", "secrets:\n  …\n  …\n    …\nc: d"),
            ("a query", "https://host/x?access_token=x&y=z", "https://host/x?access_token=…"),
            ("Windows lines", "token=x\r\nb=c\r\n", "token=…\r\nb=c\r\n"),
            (
                "harmless",
                "token=${env:TOKEN}\npassword: \"\"\nsecret=true",
                "token=${env:TOKEN}\npassword: \"\"\nsecret=true",
            ),
            ("a place", "token_file=/run/token", "token_file=/run/token"),
            ("beside other letters", "schlüssel token=ä", "schlüssel token=…"),
            ("a comparison of names", "attributes[\"token\"], \"x\"", "attributes[\"token\"], \"x\""),
        ] {
            assert_eq!(without_values(text, Wording::Lines), expected, "{case}");
        }
    }

    #[test]
    fn prose_in_a_phrase_is_left_alone() {
        for text in ["token bucket limiter", "the password is asked for", "a: b"] {
            assert_eq!(without_values(text, Wording::Phrase), text);
        }
        assert_eq!(without_values("Authorization: Bearer x", Wording::Phrase), "Authorization: …");
    }
}
