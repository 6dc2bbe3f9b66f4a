//! Secrets that are known by their own looks, wherever they stand.

use std::borrow::Cow;

use super::MARK;

/// Fewer characters after `Bearer` or `Basic` are likely to be a word.
const SHORTEST_CREDENTIAL: usize = 8;

/// Takes credentials in URLs and after `Bearer` or `Basic`, and JSON Web Tokens out of a text.
pub(super) fn remove_credentials(text: &str) -> Cow<'_, str> {
    [credentials_in_urls, credentials_in_headers, web_tokens].into_iter().fold(Cow::Borrowed(text), |text, step| {
        match text {
            Cow::Borrowed(text) => step(text),
            Cow::Owned(text) => Cow::Owned(step(&text).into_owned()),
        }
    })
}

/// Takes private keys out of a text, each from its first line to its last; one without a last line goes to the end of the
/// text.
pub(super) fn remove_private_keys(text: &str) -> Cow<'_, str> {
    const BEGIN: &str = "-----BEGIN ";
    const END: &str = "-----END ";
    const KIND: &str = "PRIVATE KEY";
    const DASHES: &str = "-----";
    replace(text, BEGIN, |rest| {
        let label = rest[BEGIN.len()..].find(DASHES)?;
        if !rest[BEGIN.len()..][..label].contains(KIND) {
            return None;
        }
        let end = rest.find(END).map(|end| end + END.len());
        let length =
            end.map_or(rest.len(), |end| rest[end..].find(DASHES).map_or(rest.len(), |at| end + at + DASHES.len()));
        Some((0, length))
    })
}

/// `://user:password@host` without what stands before the `@`.
fn credentials_in_urls(text: &str) -> Cow<'_, str> {
    const SCHEME_END: &str = "://";
    replace(text, SCHEME_END, |rest| {
        let authority = &rest[SCHEME_END.len()..];
        let end = authority.find(|letter: char| letter.is_whitespace() || "/?#\"'`<>".contains(letter));
        let length = authority[..end.unwrap_or(authority.len())].rfind('@')?;
        (length > 0).then_some((SCHEME_END.len(), length))
    })
}

fn credentials_in_headers(text: &str) -> Cow<'_, str> {
    ["Bearer ", "Basic "].into_iter().fold(Cow::Borrowed(text), |text, scheme| {
        let credential = |rest: &str| {
            let credential = &rest[scheme.len()..];
            let is_of_it = |letter: char| letter.is_ascii_alphanumeric() || "-._~+/=".contains(letter);
            let length = credential.find(|letter| !is_of_it(letter)).unwrap_or(credential.len());
            (length >= SHORTEST_CREDENTIAL).then_some((scheme.len(), length))
        };
        match text {
            Cow::Borrowed(text) => replace(text, scheme, credential),
            Cow::Owned(text) => Cow::Owned(replace(&text, scheme, credential).into_owned()),
        }
    })
}

/// Their header is a JSON object, which begins so in base64.
fn web_tokens(text: &str) -> Cow<'_, str> {
    const OBJECT: &str = "eyJ";
    const SHORTEST: usize = 20;
    replace(text, OBJECT, |rest| {
        let is_of_it = |letter: char| letter.is_ascii_alphanumeric() || "-_.=".contains(letter);
        let length = rest.find(|letter| !is_of_it(letter)).unwrap_or(rest.len());
        (length >= SHORTEST).then_some((0, length))
    })
}

/// Puts the mark in place of what `secret` finds in the text that begins with `head`: where it begins, and its length.
fn replace<'t>(text: &'t str, head: &str, secret: impl Fn(&str) -> Option<(usize, usize)>) -> Cow<'t, str> {
    let mut replaced = String::new();
    let (mut kept, mut position) = (0, 0);
    while let Some(at) = text[position..].find(head).map(|offset| position + offset) {
        if let Some((start, length)) = secret(&text[at..]) {
            replaced.push_str(&text[kept..at + start]);
            replaced.push_str(MARK);
            kept = at + start + length;
            position = kept;
        } else {
            position = at + head.len();
        }
    }
    if kept == 0 {
        return Cow::Borrowed(text);
    }
    replaced.push_str(&text[kept..]);
    Cow::Owned(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_looks() {
        for (case, text, expected) in [
            ("a key", "a -----BEGIN RSA PRIVATE KEY-----\nx\n-----END RSA PRIVATE KEY----- b", "a [redacted] b"),
            ("a key without an end", "a -----BEGIN PRIVATE KEY-----\nx\ny", "a [redacted]"),
            (
                "two keys",
                "-----BEGIN PRIVATE KEY-----x-----END PRIVATE KEY----- -----BEGIN EC PRIVATE KEY-----y-----END EC PRIVATE KEY-----",
                "[redacted] [redacted]",
            ),
            ("a certificate", "-----BEGIN CERTIFICATE-----\nx", "-----BEGIN CERTIFICATE-----\nx"),
            ("a URL", "postgres://u:p@host:5432/db", "postgres://[redacted]@host:5432/db"),
            ("a URL with an @ in its password", "amqp://u:p@q@host/", "amqp://[redacted]@host/"),
            ("a token in a URL", "https://ghp_x@host", "https://[redacted]@host"),
            ("a URL without", "https://host/a@b?c=d@e", "https://host/a@b?c=d@e"),
            ("a header", "Bearer abcdefgh123, Basic dTpwYXNzd29yZA==", "Bearer [redacted], Basic [redacted]"),
            ("a word", "Basic auth, Bearer token", "Basic auth, Bearer token"),
            ("a web token", "x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.c2ln y", "x [redacted] y"),
            ("nothing", "eyJ and schlüssel://", "eyJ and schlüssel://"),
        ] {
            assert_eq!(remove_credentials(&remove_private_keys(text)), expected, "{case}");
        }
    }
}
