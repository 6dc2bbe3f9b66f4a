//! What is shown of configurations, and that no secret survives.

use proptest::prelude::*;

use super::redact;

/// Without Secrets of a fleet.
fn redacted(text: &str) -> String {
    redact(text, std::iter::empty())
}

#[test]
fn values_under_names_of_secrets_go_and_the_rest_stays_as_it_was() {
    for (case, text, expected) in [
        ("a value", "user: me # who\npassword:   s3cr3t # why\n", "user: me # who\npassword:   \"[redacted]\" # why\n"),
        ("single quotes", "token: 'it''s'\na: 'it''s'", "token: \"[redacted]\"\na: 'it''s'"),
        ("double quotes", "api_key: \"a\\\"b\"\nb: c", "api_key: \"[redacted]\"\nb: c"),
        ("a number", "pin: 1234\nport: 4317", "pin: \"[redacted]\"\nport: 4317"),
        ("a block", "a:\n  secret: |\n    one\n\n    two\n  b: c\n", "a:\n  secret: |\n    [redacted]\n  b: c\n"),
        ("a folded block at the end", "secret: >-\n  one\n  two", "secret: >-\n  [redacted]"),
        ("an indented block", "secret: |2\n    one\nb: c", "secret: |2\n  [redacted]\nb: c"),
        ("a plain text of two lines", "secret: one\n  two\nb: c", "secret: \"[redacted]\"\nb: c"),
        ("a quoted text of two lines", "secret: \"one\n  two\"\nb: c", "secret: \"[redacted]\"\nb: c"),
        ("a flow map", "{password: x, b: [c, d]}", "{password: \"[redacted]\", b: [c, d]}"),
        ("JSON", "{\"a\":{\"clientSecret\":\"x\"},\n \"b\":1}", "{\"a\":{\"clientSecret\":\"[redacted]\"},\n \"b\":1}"),
        ("JSON's number", "{\"token\": 12345, \"b\": null}", "{\"token\": \"[redacted]\", \"b\": null}"),
        (
            "a tree",
            "credentials:\n  user: x\n  list: [y, 1]\nb: c",
            "credentials:\n  user: \"[redacted]\"\n  list: [\"[redacted]\", \"[redacted]\"]\nb: c",
        ),
        ("a list", "tokens:\n- x\n- y\nb: c", "tokens:\n- \"[redacted]\"\n- \"[redacted]\"\nb: c"),
        ("a header", "headers: {X-Team: x}\nb: c", "headers: {X-Team: \"[redacted]\"}\nb: c"),
        (
            "a name of its own",
            "env:\n- name: DB_PASSWORD\n  value: x\n- value: y\n  name: HOME\n",
            "env:\n- name: DB_PASSWORD\n  value: \"[redacted]\"\n- value: y\n  name: HOME\n",
        ),
        (
            "the value first",
            "- value: x\n  key: api-key\n  action: insert",
            "- value: \"[redacted]\"\n  key: api-key\n  action: insert",
        ),
        (
            "a value that is a map",
            "[{key: token, value: {stringValue: x}}]",
            "[{key: token, value: {stringValue: \"[redacted]\"}}]",
        ),
        ("an alias", "a: &a s3cr3t\nb: &b {c: d}\npassword: *a", "a: &a \"[redacted]\"\nb: &b {c: d}\npassword: *a"),
        (
            "an alias of an alias",
            "a: &a x\nb: &b {c: *a}\ntokens: *b",
            "a: &a \"[redacted]\"\nb: &b {c: *a}\ntokens: *b",
        ),
        ("a tag", "password: !!str x\nb: !c d", "password: !!str \"[redacted]\"\nb: !c d"),
        ("a complex name", "? password\n: - x\n? [a, b]\n: c", "? password\n: - \"[redacted]\"\n? [a, b]\n: c"),
        ("two documents", "password: x\n---\ntoken: y\n", "password: \"[redacted]\"\n---\ntoken: \"[redacted]\"\n"),
        ("a comment", "a: b # password: x\n# token=y\nc: d", "a: b # password: [redacted]\n# token=[redacted]\nc: d"),
        (
            "arguments",
            "args: [--token, x, --verbose, y, \"--password=z\"]",
            "args: [--token, \"[redacted]\", --verbose, y, \"--password=[redacted]\"]",
        ),
        (
            "a text in a value",
            "dsn_of: {a: \"host=h password=x\"}\nb: user=u pwd=x\n",
            "dsn_of: {a: \"[redacted]\"}\nb: user=u pwd=[redacted]\n",
        ),
        ("an escaped text in a value", "a: \"x\\npassword: y\"\nb: \"x\\ty\"", "a: \"[redacted]\"\nb: \"x\\ty\""),
        (
            "a file in a file",
            "data:\n  a.yaml: |\n    token: x\n    b: c\n  d: e",
            "data:\n  a.yaml: |\n    token: [redacted]\n    b: c\n  d: e",
        ),
        (
            "a private key",
            "a: |\n  -----BEGIN PRIVATE KEY-----\n  x\n  -----END PRIVATE KEY-----\nb: c",
            "a: |\n  [redacted]\nb: c",
        ),
        ("a URL", "endpoint: https://u:p@host/x\n", "endpoint: https://[redacted]@host/x\n"),
        (
            "harmless",
            "password: \"\"\ntoken: ${env:TOKEN}\nauth_token: null\nsecret: true",
            "password: \"\"\ntoken: ${env:TOKEN}\nauth_token: null\nsecret: true",
        ),
        (
            "a component",
            "bearertokenauth/a:\n  scheme: Bearer\n  token: x",
            "bearertokenauth/a:\n  scheme: Bearer\n  token: \"[redacted]\"",
        ),
        (
            "Windows lines",
            "a: b\r\npassword: x\r\nsecret: |\r\n  y\r\nc: d\r\n",
            "a: b\r\npassword: \"[redacted]\"\r\nsecret: |\r\n  [redacted]\r\nc: d\r\n",
        ),
        ("other letters", "größe: ü\npassword: ü\nä: ö", "größe: ü\npassword: \"[redacted]\"\nä: ö"),
        ("nothing", "", ""),
    ] {
        assert_eq!(redacted(text), expected, "{case}");
    }
}

#[test]
fn text_that_is_no_yaml_is_redacted_by_lines() {
    for (case, text, expected) in [
        ("properties", "a=b\npassword=x y\nc=d\n", "a=b\npassword=[redacted]\nc=d\n"),
        (
            "Fluent Bit",
            "[OUTPUT]\n    Name http\n    HTTP_Passwd x\n    Port 1\n",
            "[OUTPUT]\n    Name http\n    HTTP_Passwd [redacted]\n    Port 1\n",
        ),
        (
            "TOML",
            "[[outputs.x]]\n  token = \"x\"\n  bucket = \"b\"\n",
            "[[outputs.x]]\n  token = [redacted]\n  bucket = \"b\"\n",
        ),
        ("broken YAML", "a: ]\npassword: x\nb: c", "a: ]\npassword: [redacted]\nb: c"),
        ("JSON that was cut off", "{\"password\": \"x\", \"b\": \"c\"", "{\"password\": [redacted]"),
    ] {
        assert_eq!(redacted(text), expected, "{case}");
    }
}

/// The shapes in which a secret is written; `%` stands for it.
const SHAPES: &[&str] = &[
    "password: %",
    "password: '%'",
    "password: \"%\"",
    "a: {token: %}",
    "a: [{secret: {b: [c, %]}}]",
    "secret: |\n  x\n  %\n",
    "secret:\n  >-\n  x\n  %\n",
    "secret:\n\n   x\n   %\n",
    "{\"apiKey\": \"%\"}",
    "{\"apiKey\"\n:\n\"x %\"}",
    "- {name: token, value: '%'}",
    "headers:\n  x-team: %",
    "# password: %\na: b",
    "a: --password %",
    "a: [--password, %]",
    "a: 'x password=%'",
    "a: \"{\\\"password\\\": \\\"%\\\"}\"",
    "a: |\n  [x]\n  HTTP_Passwd %\n",
    "a: |\n  -----BEGIN RSA PRIVATE KEY-----\n  %\n  -----END RSA PRIVATE KEY-----\n",
    "a: \"-----BEGIN PRIVATE KEY-----\\n%\\n-----END PRIVATE KEY-----\"",
    "a: https://u:%@host",
    "a: https://host/?api_key=%",
    "a: 'Authorization: Bearer %'",
    "[section]\npassword = \"%\"\n",
    "[section]\npassword = '''\n%'''\n",
    "<config><password>%</password></config>",
    "a: [\npassword: |\n  %\n",
    "export TOKEN=%",
    "a=b\ntoken %\n",
];

/// Those that are understood only where the text is YAML up to there.
const SHAPES_OF_YAML: &[&str] = &["? token\n: - %", "x: &a %\ntoken: *a", "x: &a {b: [%]}\ntoken: {c: *a}"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_secret_survives(secret in "[a-zA-Z0-9]{6,24}", before in "[a-z: \\n#-]{0,12}", after in "[a-z: \\n#-]{0,12}") {
        let alone = SHAPES.iter().chain(SHAPES_OF_YAML).map(|shape| (*shape).to_owned());
        let between = SHAPES.iter().map(|shape| format!("{before}\n{shape}\n{after}"));
        for text in alone.chain(between).map(|shape| shape.replace('%', &secret)) {
            let redacted = redacted(&text);
            prop_assert!(!redacted.contains(&secret), "{text:?} became {redacted:?}");
        }
    }

    #[test]
    fn nothing_panics(text in "[a-z\":'|>&*!#%@`{}\\[\\],?=<ä \\n\\t\\-]{0,80}") {
        let _ = redacted(&format!("password: {text}"));
        let _ = redacted(&text);
    }
}

/// A hostile agent may make texts that take long to parse. A debug build has to be done with 32 KiB in a second, where
/// work that grows with the square of the text takes minutes.
#[test]
fn the_time_is_in_proportion_to_the_text() {
    let long = 32 << 10;
    for unit in [
        "a: b\n",
        "password: x\n",
        "[",
        "{a: ",
        "- ",
        "? ",
        "&a x: *a\n",
        "token: ",
        "#\n",
        "eyJ",
        "://",
        "-----BEGIN ",
        "pwd ",
        "\"",
        "a b ",
        "- {name: token, value: x}\n",
        "  ",
    ] {
        let text = unit.repeat(long / unit.len());
        let start = std::time::Instant::now();
        let _ = redacted(&text);
        assert!(start.elapsed().as_secs() < 1, "{unit:?}: {:?}", start.elapsed());
    }
    let aliases: String = (0..2_000).map(|number| format!("a{number}: &a{number} x\n")).collect();
    let tokens: String = (0..2_000).map(|number| format!("- *a{number}\n")).collect();
    let start = std::time::Instant::now();
    let text = redacted(&format!("{aliases}tokens:\n{tokens}"));
    assert!(start.elapsed().as_secs() < 1 && !text.contains(" x\n"));
}
