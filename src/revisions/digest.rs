//! The digest of a revision's inputs.

use sha2::{Digest, Sha256};

use crate::{
    api::{
        remote_config::{ConfigFormat, TemplateMode},
        selector::{AttributeOperator, AttributeSelector},
    },
    catalog::{
        InputsDigest, Origin, Revision, RevisionEntry, Settings, SourceKind,
        settings::{
            CredentialReference, FrozenCertificate, FrozenHeader, FrozenProxy, FrozenSystemAuthorities, FrozenTls,
            FrozenVerification, HeaderValue,
        },
    },
};

/// Digests everything that a revision was made from. It is written out by hand and never changes: another version of
/// the operator, with another canonical form, finds the same digest for the same inputs and leaves agents in peace.
pub(super) fn digest_of(revision: &Revision) -> InputsDigest {
    let mut digest = Sha256::new();
    absorb(&mut digest, &[b"opamp.dev/inputs/v1"]);
    for entry in &revision.entries {
        absorb(&mut digest, &[b"entry", entry.name.as_bytes(), template(entry), format(entry)]);
        if let Some(selector) = &entry.selector {
            absorb_selector(&mut digest, selector);
        }
        for file in &entry.files {
            let origin: &[u8] = match file.origin {
                Origin::Inline => b"Inline",
                Origin::ConfigMap => b"ConfigMap",
                Origin::Secret => b"Secret",
            };
            absorb(&mut digest, &[b"file", file.name.as_bytes(), file.content_type.as_bytes(), origin, &file.body]);
        }
    }
    if let Some(settings) = &revision.opamp {
        absorb_settings(&mut digest, settings);
    }
    InputsDigest::from_digest(digest.finalize().into())
}

fn absorb_settings(digest: &mut Sha256, settings: &Settings) {
    let Settings { name, endpoint, headers, certificate, tls, proxy, heartbeat_seconds } = settings;
    let heartbeat = heartbeat_seconds.to_string();
    absorb(digest, &[b"opamp", name.as_bytes(), endpoint.as_bytes(), heartbeat.as_bytes()]);
    absorb_headers(digest, b"header", headers);
    match certificate {
        FrozenCertificate::None => absorb(digest, &[b"certificate", b"None"]),
        FrozenCertificate::Issued => absorb(digest, &[b"certificate", b"Issued"]),
        FrozenCertificate::Secret(secret) => absorb(digest, &[b"certificate", b"Secret", secret.as_bytes()]),
    }
    if let Some(tls) = tls {
        absorb_tls(digest, tls);
    }
    if let Some(FrozenProxy { url, connect_headers }) = proxy {
        absorb(digest, &[b"proxy", url.as_bytes()]);
        absorb_headers(digest, b"connect header", connect_headers);
    }
}

fn absorb_headers(digest: &mut Sha256, word: &[u8], headers: &[FrozenHeader]) {
    for FrozenHeader { name, value } in headers {
        match value {
            HeaderValue::Literal(value) => absorb(digest, &[word, name.as_bytes(), b"value", value.as_bytes()]),
            HeaderValue::Reference(reference) => {
                absorb(digest, &[word, name.as_bytes(), b"reference"]);
                absorb_reference(digest, reference);
            }
        }
    }
}

fn absorb_tls(digest: &mut Sha256, tls: &FrozenTls) {
    let FrozenTls { authorities, system_authorities, min_version, max_version, cipher_suites, verification } = tls;
    let system: &[u8] = match system_authorities {
        FrozenSystemAuthorities::Ignored => b"Ignored",
        FrozenSystemAuthorities::Trusted => b"Trusted",
    };
    let verification: &[u8] = match verification {
        FrozenVerification::Required => b"Required",
        FrozenVerification::Skipped => b"Skipped",
    };
    let version = |version: &Option<String>| version.clone().unwrap_or_default().into_bytes();
    absorb(digest, &[b"tls", system, verification, &version(min_version), &version(max_version)]);
    for suite in cipher_suites {
        absorb(digest, &[b"cipher suite", suite.as_bytes()]);
    }
    if let Some(reference) = authorities {
        absorb_reference(digest, reference);
    }
}

fn absorb_reference(digest: &mut Sha256, reference: &CredentialReference) {
    let CredentialReference { kind, name, key } = reference;
    let kind: &[u8] = match kind {
        SourceKind::ConfigMap => b"ConfigMap",
        SourceKind::Secret => b"Secret",
    };
    absorb(digest, &[b"from", kind, name.as_bytes(), key.as_bytes()]);
}

fn template(entry: &RevisionEntry) -> &'static [u8] {
    match entry.template {
        TemplateMode::Disabled => b"Disabled",
        TemplateMode::Jinja => b"Jinja",
    }
}

fn format(entry: &RevisionEntry) -> &'static [u8] {
    match entry.format {
        ConfigFormat::Opaque => b"Opaque",
        ConfigFormat::OpenTelemetryCollector => b"OpenTelemetryCollector",
    }
}

fn absorb_selector(digest: &mut Sha256, selector: &AttributeSelector) {
    absorb(digest, &[b"selector"]);
    for (key, value) in &selector.match_attributes {
        absorb(digest, &[b"attribute", key.as_bytes(), value.as_bytes()]);
    }
    for requirement in &selector.match_expressions {
        let operator: &[u8] = match requirement.operator {
            AttributeOperator::In => b"In",
            AttributeOperator::NotIn => b"NotIn",
            AttributeOperator::Exists => b"Exists",
            AttributeOperator::DoesNotExist => b"DoesNotExist",
        };
        let values = requirement.values.iter().map(String::as_bytes);
        absorb(
            digest,
            &[&b"expression"[..], requirement.key.as_bytes(), operator].into_iter().chain(values).collect::<Vec<_>>(),
        );
    }
}

/// A record: the number of its parts, then each part after its length.
fn absorb(digest: &mut Sha256, parts: &[&[u8]]) {
    let length = |length: usize| u64::try_from(length).unwrap_or(u64::MAX).to_be_bytes();
    digest.update(length(parts.len()));
    for part in parts {
        digest.update(length(part.len()));
        digest.update(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record, as the digest has had it from the first version on.
    fn write(into: &mut Vec<u8>, parts: &[&str]) {
        into.extend_from_slice(&(parts.len() as u64).to_be_bytes());
        for part in parts {
            into.extend_from_slice(&(part.len() as u64).to_be_bytes());
            into.extend_from_slice(part.as_bytes());
        }
    }

    #[test]
    fn the_digest_of_the_same_inputs_is_this_for_ever() {
        let mut expected = Vec::new();
        let mut record = |parts: &[&str]| write(&mut expected, parts);
        record(&["opamp.dev/inputs/v1"]);
        record(&["entry", "base", "Jinja", "Opaque"]);
        record(&["selector"]);
        record(&["attribute", "os.type", "linux"]);
        record(&["expression", "ring", "NotIn", "a", "b"]);
        record(&["file", "x.yaml", "text/yaml", "Secret", "body"]);
        let entry: RevisionEntry = serde_json::from_value(serde_json::json!({
            "name": "base", "template": "Jinja", "format": "Opaque",
            "selector": {
                "matchAttributes": {"os.type": "linux"},
                "matchExpressions": [{"key": "ring", "operator": "NotIn", "values": ["a", "b"]}],
            },
            "files": [{"name": "x.yaml", "contentType": "text/yaml", "origin": "Secret", "body": "Ym9keQ=="}],
        }))
        .unwrap();
        let expected = InputsDigest::from_digest(Sha256::digest(&expected).into());
        assert_eq!(digest_of(&Revision { entries: vec![entry], ..Revision::default() }), expected);
    }

    #[test]
    fn the_digest_of_the_same_settings_is_this_for_ever() {
        let mut expected = Vec::new();
        let mut record = |parts: &[&str]| write(&mut expected, parts);
        record(&["opamp.dev/inputs/v1"]);
        record(&["opamp", "edge", "wss://a", "30"]);
        record(&["header", "X", "value", "1"]);
        record(&["header", "Authorization", "reference"]);
        record(&["from", "Secret", "edge-token", "header"]);
        record(&["certificate", "Secret", "client"]);
        record(&["tls", "Trusted", "Required", "1.2", ""]);
        record(&["cipher suite", "A"]);
        record(&["from", "ConfigMap", "corp-ca", "ca.crt"]);
        record(&["proxy", "127.0.0.1:8443"]);
        record(&["connect header", "Y", "value", "2"]);
        let settings: Settings = serde_json::from_value(serde_json::json!({
            "name": "edge", "endpoint": "wss://a",
            "headers": [{"name": "X", "literal": "1"},
                {"name": "Authorization", "reference": {"kind": "Secret", "name": "edge-token", "key": "header"}}],
            "certificate": {"secret": "client"},
            "tls": {"authorities": {"kind": "ConfigMap", "name": "corp-ca", "key": "ca.crt"},
                "systemAuthorities": "Trusted", "minVersion": "1.2", "cipherSuites": ["A"], "verification": "Required"},
            "proxy": {"url": "127.0.0.1:8443", "connectHeaders": [{"name": "Y", "literal": "2"}]},
            "heartbeatSeconds": 30,
        }))
        .unwrap();
        let expected = InputsDigest::from_digest(Sha256::digest(&expected).into());
        assert_eq!(digest_of(&Revision { opamp: Some(settings), ..Revision::default() }), expected);
    }
}
