//! Which names announce a secret, and which values are none.

/// What stands in a name of a secret, wherever and however it is spelt: `client_secret`, `clientSecret`, `X-API-Key`.
const WORDS: &[&str] = &[
    "accesskey",
    "accountkey",
    "apikey",
    "authkey",
    "authorization",
    "bearer",
    "community",
    "connectionstring",
    "cookie",
    "credential",
    "dsn",
    "encryptionkey",
    "honeycombteam",
    "ingestionkey",
    "ingestkey",
    "instrumentationkey",
    "jwt",
    "keypem",
    "licensekey",
    "masterkey",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "pwd",
    "secret",
    "servicekey",
    "sharedkey",
    "signingkey",
    "sshkey",
    "subscriptionkey",
    "token",
    "writekey",
];
/// Too common within other words: they count only as the whole name, and only for a value that is one scalar.
const WHOLE_NAMES: &[&str] = &["auth", "pass", "pin", "psk"];
/// Names that end so are of a place where a secret is, and that is shown.
const PLACES: &[&str] = &["file", "filename", "path", "dir"];
/// Components of the collector whose names sound like secrets; what is in them speaks for itself.
const COMPONENTS: &[&str] = &["bearertokenauth"];
/// Names of what belongs to a name beside it: `{name: Authorization, value: …}`.
pub(super) const NAMED: &[&str] = &["value", "values", "content", "default"];

/// How far the announcement of a secret reaches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reach {
    /// Nothing is announced.
    Nothing,
    /// The value, if it is one scalar.
    Scalar,
    /// All that stands under the name.
    Tree,
}

/// What a name announces; `parent` is the name under which it stands, [`plain`].
pub(super) fn reach(name: &str, parent: &str) -> Reach {
    let plain_name = plain(name);
    let component = plain(name.split('/').next().unwrap_or_default());
    let is_place = PLACES.iter().any(|place| plain_name.ends_with(place)) && !plain_name.ends_with("profile");
    if is_place || COMPONENTS.contains(&component.as_str()) {
        return Reach::Nothing;
    }
    // `api: {key: …}` is as good as `api_key: …`.
    let announces = |name: &str| WORDS.iter().any(|word| name.contains(word));
    if announces(&plain_name) || (plain_name == "key" && announces(&format!("{parent}key"))) {
        return Reach::Tree;
    }
    // The collector itself takes every value of a header for a secret.
    if plain_name.ends_with("headers") {
        return Reach::Tree;
    }
    if WHOLE_NAMES.contains(&plain_name.as_str()) { Reach::Scalar } else { Reach::Nothing }
}

/// A name without what its spellings differ in.
pub(super) fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Whether the value of a name that announces a secret is none: nothing, yes or no, a reference to a variable, or
/// what somebody has put in place of the secret already.
pub(super) fn is_harmless(value: &str) -> bool {
    const WORDS: &[&str] = &["", "~", "null", "true", "false", "yes", "no", "on", "off", "[redacted]", "<redacted>"];
    let value = value.trim();
    let is_word = WORDS.iter().any(|word| value.eq_ignore_ascii_case(word));
    is_word || value.chars().all(|letter| letter == '*') || is_variable(value)
}

/// `${NAME}` or `${env:NAME}`; one with a default may hold the secret in that.
fn is_variable(value: &str) -> bool {
    let Some(inner) = value.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) else { return false };
    let name = inner.strip_prefix("env:").unwrap_or(inner);
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_in_every_spelling() {
        for (name, parent, expected) in [
            ("password", "", Reach::Tree),
            ("clientSecret", "", Reach::Tree),
            ("client_secret", "", Reach::Tree),
            ("CLIENT-SECRET", "", Reach::Tree),
            ("dbpassword", "", Reach::Tree),
            ("X-API-Key", "", Reach::Tree),
            ("api.key", "", Reach::Tree),
            ("DD_API_KEY", "", Reach::Tree),
            ("Authorization", "", Reach::Tree),
            ("proxy-authorization", "", Reach::Tree),
            ("AWS_SECRET_ACCESS_KEY", "", Reach::Tree),
            ("key_pem", "", Reach::Tree),
            ("headers", "", Reach::Tree),
            ("proxy_connect_headers", "", Reach::Tree),
            ("key", "api", Reach::Tree),
            ("key", "", Reach::Nothing),
            ("key", "attributes", Reach::Nothing),
            ("auth", "", Reach::Scalar),
            ("authenticator", "auth", Reach::Nothing),
            ("password_file", "", Reach::Nothing),
            ("bearer_token_path", "", Reach::Nothing),
            ("token_profile", "", Reach::Tree),
            ("bearertokenauth/backend", "", Reach::Nothing),
            ("endpoint", "", Reach::Nothing),
            ("username", "", Reach::Nothing),
            ("", "", Reach::Nothing),
        ] {
            assert_eq!(reach(name, parent), expected, "{parent}.{name}");
        }
    }

    #[test]
    fn only_what_cannot_be_a_secret_is_harmless() {
        for value in ["", "~", "true", "${TOKEN}", "${env:API_TOKEN}", "[REDACTED]", "****", " null "] {
            assert!(is_harmless(value), "{value}");
        }
        for value in ["x", "0", "${env:TOKEN:-s3cr3t}", "$TOKEN", "${file:/x}", "true!", "${}"] {
            assert!(!is_harmless(value), "{value}");
        }
    }
}
