//! The spec of `ConnectionSettings` → the settings that a revision holds.

use crate::{
    api::connection_settings::{
        CaSource, CertificateSource, ClientCertificate, OpampConnection, ProxySettings, SettingsHeader, SystemCas,
        TlsSettings, TlsVersion,
    },
    catalog::settings::{
        CredentialReference, FrozenCertificate, FrozenHeader, FrozenProxy, FrozenSystemAuthorities, FrozenTls,
        FrozenVerification, HeaderValue, Settings, SourceKind,
    },
};

/// Why a spec says nothing that could be offered. The rules of the resource forbid all of these; an object from before
/// they were in force may still be so.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Incomplete {
    /// A header has no value and does not say where one is.
    #[error("header {0} has neither value nor valueFrom")]
    Header(String),
    /// The certificate is to come from a Secret that is not named.
    #[error("the certificate has the source Secret and no secretRef")]
    Certificate,
    /// It is not said where the CAs are.
    #[error("caFrom has neither configMapKeyRef nor secretKeyRef")]
    Authorities,
}

/// Takes over everything that agents are told, with the defaults filled in.
pub fn freeze(name: &str, spec: &OpampConnection) -> Result<Settings, Incomplete> {
    Ok(Settings {
        name: name.into(),
        endpoint: spec.endpoint.clone(),
        headers: spec.headers.iter().map(header).collect::<Result<_, _>>()?,
        certificate: spec.certificate.as_ref().map_or(Ok(FrozenCertificate::None), certificate)?,
        tls: spec.tls.as_ref().map(tls).transpose()?,
        proxy: spec.proxy.as_ref().map(proxy).transpose()?,
        heartbeat_seconds: spec.heartbeat_interval().as_secs(),
    })
}

fn header(header: &SettingsHeader) -> Result<FrozenHeader, Incomplete> {
    let referenced = header.value_from.as_ref().map(|source| {
        let key = &source.secret_key_ref;
        HeaderValue::Reference(CredentialReference::secret(&key.name, &key.key))
    });
    let value = referenced.or_else(|| header.value.clone().map(HeaderValue::Literal));
    let value = value.ok_or_else(|| Incomplete::Header(header.name.clone()))?;
    Ok(FrozenHeader { name: header.name.clone(), value })
}

fn certificate(certificate: &ClientCertificate) -> Result<FrozenCertificate, Incomplete> {
    match certificate.source {
        CertificateSource::None => Ok(FrozenCertificate::None),
        CertificateSource::Issued => Ok(FrozenCertificate::Issued),
        CertificateSource::Secret => {
            let secret = certificate.secret_ref.as_ref().ok_or(Incomplete::Certificate)?;
            Ok(FrozenCertificate::Secret(secret.name.clone()))
        }
    }
}

fn tls(tls: &TlsSettings) -> Result<FrozenTls, Incomplete> {
    let TlsSettings { ca_from, system_cas, min_version, max_version, cipher_suites, insecure_skip_verify } = tls;
    let default = if ca_from.is_some() { SystemCas::Ignored } else { SystemCas::Trusted };
    let version = |version: TlsVersion| version.as_str().to_owned();
    Ok(FrozenTls {
        authorities: ca_from.as_ref().map(authorities).transpose()?,
        system_authorities: match system_cas.unwrap_or(default) {
            SystemCas::Ignored => FrozenSystemAuthorities::Ignored,
            SystemCas::Trusted => FrozenSystemAuthorities::Trusted,
        },
        min_version: min_version.map(version),
        max_version: max_version.map(version),
        cipher_suites: cipher_suites.clone(),
        verification: if *insecure_skip_verify { FrozenVerification::Skipped } else { FrozenVerification::Required },
    })
}

fn authorities(source: &CaSource) -> Result<CredentialReference, Incomplete> {
    let CaSource { config_map_key_ref, secret_key_ref } = source;
    let secret = secret_key_ref.as_ref().map(|reference| (SourceKind::Secret, reference));
    let found = secret.or_else(|| config_map_key_ref.as_ref().map(|reference| (SourceKind::ConfigMap, reference)));
    let (kind, reference) = found.ok_or(Incomplete::Authorities)?;
    Ok(CredentialReference { kind, name: reference.name.clone(), key: reference.key.clone() })
}

fn proxy(proxy: &ProxySettings) -> Result<FrozenProxy, Incomplete> {
    let connect_headers = proxy.connect_headers.iter().map(header).collect::<Result<_, _>>()?;
    Ok(FrozenProxy { url: proxy.url.clone(), connect_headers })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn frozen(spec: Value) -> Result<Settings, Incomplete> {
        freeze("edge", &serde_json::from_value(spec).expect("a spec"))
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let settings = frozen(json!({"endpoint": "wss://a"})).expect("it is complete");
        let expected = Settings {
            name: "edge".into(),
            endpoint: "wss://a".into(),
            headers: Vec::new(),
            certificate: FrozenCertificate::None,
            tls: None,
            proxy: None,
            heartbeat_seconds: 30,
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn everything_that_is_said_is_taken_over() {
        let reference = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
        let header = json!({"name": "Authorization", "valueFrom": reference("edge-token", "header")});
        let settings = frozen(json!({
            "endpoint": "wss://a",
            "headers": [{"name": "X", "value": "1"}, header],
            "certificate": {"source": "Secret", "secretRef": {"name": "client"}},
            "tls": {"caFrom": reference("corp-ca", "ca.crt"), "minVersion": "1.2", "maxVersion": "1.3",
                "cipherSuites": ["TLS_AES_128_GCM_SHA256"], "insecureSkipVerify": true},
            "proxy": {"url": "127.0.0.1:8443", "connectHeaders": [{"name": "Y", "value": "2"}]},
            "heartbeatInterval": "1m30s",
        }))
        .expect("it is complete");
        let literal =
            |name: &str, value: &str| FrozenHeader { name: name.into(), value: HeaderValue::Literal(value.into()) };
        let token = CredentialReference::secret("edge-token", "header");
        let expected = Settings {
            name: "edge".into(),
            endpoint: "wss://a".into(),
            headers: vec![
                literal("X", "1"),
                FrozenHeader { name: "Authorization".into(), value: HeaderValue::Reference(token) },
            ],
            certificate: FrozenCertificate::Secret("client".into()),
            tls: Some(FrozenTls {
                authorities: Some(CredentialReference::secret("corp-ca", "ca.crt")),
                system_authorities: FrozenSystemAuthorities::Ignored,
                min_version: Some("1.2".into()),
                max_version: Some("1.3".into()),
                cipher_suites: vec!["TLS_AES_128_GCM_SHA256".into()],
                verification: FrozenVerification::Skipped,
            }),
            proxy: Some(FrozenProxy { url: "127.0.0.1:8443".into(), connect_headers: vec![literal("Y", "2")] }),
            heartbeat_seconds: 90,
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn the_cas_of_the_system_count_unless_others_are_named() {
        use FrozenSystemAuthorities::{Ignored, Trusted};
        let config_map = json!({"configMapKeyRef": {"name": "corp-ca", "key": "ca.crt"}});
        for (case, tls, expected) in [
            ("nothing named", json!({}), Trusted),
            ("others named", json!({"caFrom": config_map}), Ignored),
            ("both wanted", json!({"caFrom": config_map, "systemCas": "Trusted"}), Trusted),
            ("none wanted", json!({"systemCas": "Ignored"}), Ignored),
        ] {
            let settings = frozen(json!({"endpoint": "wss://a", "tls": tls})).expect("it is complete");
            assert_eq!(settings.tls.map(|tls| tls.system_authorities), Some(expected), "{case}");
        }
    }

    #[test]
    fn what_the_rules_would_refuse_is_no_settings() {
        for (fields, expected) in [
            (json!({"headers": [{"name": "X"}]}), Incomplete::Header("X".into())),
            (json!({"certificate": {"source": "Secret"}}), Incomplete::Certificate),
            (json!({"tls": {"caFrom": {}}}), Incomplete::Authorities),
        ] {
            let mut spec = json!({"endpoint": "wss://a"});
            spec.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
            assert_eq!(frozen(spec), Err(expected));
        }
    }
}
