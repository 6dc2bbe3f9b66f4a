use std::collections::BTreeMap;

use super::*;
use crate::catalog::credentials::{Credential, CredentialKind};

fn secret(name: &str, key: &str) -> CredentialReference {
    CredentialReference::secret(name, key)
}

fn referring(name: &str, reference: CredentialReference) -> FrozenHeader {
    FrozenHeader { name: name.into(), value: HeaderValue::Reference(reference) }
}

fn literal(name: &str, value: &str) -> FrozenHeader {
    FrozenHeader { name: name.into(), value: HeaderValue::Literal(value.into()) }
}

/// Settings with something of everything, which refer to a token, a client certificate, a CA and a proxy's password.
fn settings(certificate: FrozenCertificate) -> Settings {
    Settings {
        name: "edge".into(),
        endpoint: "wss://opamp.example.com/v1/opamp".into(),
        headers: vec![
            literal("X-Site", "one"),
            referring("Authorization", secret("edge-token", "header")),
            literal("X-Site", "two"),
        ],
        certificate,
        tls: Some(FrozenTls {
            authorities: Some(CredentialReference {
                kind: SourceKind::ConfigMap,
                name: "corp-ca".into(),
                key: "ca.crt".into(),
            }),
            system_authorities: FrozenSystemAuthorities::Trusted,
            min_version: Some("1.3".into()),
            max_version: None,
            cipher_suites: vec!["TLS_AES_128_GCM_SHA256".into()],
            verification: FrozenVerification::Required,
        }),
        proxy: Some(FrozenProxy {
            url: "https://proxy.example.com:8443".into(),
            connect_headers: vec![referring("Proxy-Authorization", secret("proxy", "header"))],
        }),
        heartbeat_seconds: 45,
    }
}

fn values() -> BTreeMap<CredentialReference, Credential> {
    let value = |value: &'static str| Credential { kind: CredentialKind::Value, value: value.into() };
    let token = Credential { kind: CredentialKind::EnrollmentToken, value: "Bearer token-canary".into() };
    let authorities = CredentialReference { kind: SourceKind::ConfigMap, name: "corp-ca".into(), key: "ca.crt".into() };
    BTreeMap::from([
        (secret("edge-token", "header"), token),
        (secret("proxy", "header"), value("Basic proxy-canary")),
        (authorities, value("ca-of-the-server")),
        (secret("client", "tls.crt"), value("certificate")),
        (secret("client", "tls.key"), value("key-canary")),
    ])
}

fn connection(settings: Settings, values: &BTreeMap<CredentialReference, Credential>) -> Connection {
    let credentials = Some(Arc::new(Credentials::new("uid", values)));
    Connection { settings: Arc::new(settings), credentials, secrets: SecretContent::Offered }
}

fn whole(connection: &Connection) -> OpampSettings {
    match connection.values() {
        Ok(Values::Whole(settings)) => settings,
        other => panic!("{other:?}"),
    }
}

fn headers(settings: &OpampSettings) -> Vec<(&str, &str)> {
    settings.headers.iter().map(|header| (header.name.as_str(), header.value.expose())).collect()
}

#[test]
fn values_take_the_place_of_references_and_nothing_is_left_out() {
    let settings = whole(&connection(settings(FrozenCertificate::None), &values()));
    assert_eq!(settings.endpoint, "wss://opamp.example.com/v1/opamp");
    // CON-18: in their order, duplicates included.
    let expected = [("X-Site", "one"), ("Authorization", "Bearer token-canary"), ("X-Site", "two")];
    assert_eq!(headers(&settings), expected);
    assert_eq!((settings.certificate, settings.heartbeat_seconds), (None, 45));
    let tls = settings.tls.expect("TLS settings");
    assert_eq!(tls.authorities, "ca-of-the-server");
    assert_eq!((tls.system_authorities, tls.verification), (SystemAuthorities::Trusted, Verification::Required));
    assert_eq!((tls.min_version.as_str(), tls.max_version.as_str()), ("1.3", ""));
    assert_eq!(tls.cipher_suites, ["TLS_AES_128_GCM_SHA256"]);
    let proxy = settings.proxy.expect("a proxy");
    assert_eq!(proxy.url.expose(), "https://proxy.example.com:8443");
    assert_eq!(proxy.connect_headers[0].value.expose(), "Basic proxy-canary");
}

#[test]
fn a_shared_certificate_goes_with_its_key_and_its_ca_if_there_is_one() {
    let certificate =
        |values: &BTreeMap<_, _>| whole(&connection(settings(FrozenCertificate::Secret("client".into())), values));
    let mut values = values();
    let found = certificate(&values).certificate.expect("a certificate");
    assert_eq!((found.certificate.as_str(), found.authority), ("certificate", None));
    assert_eq!(found.private_key, Some(Confidential::new("key-canary")));
    values.insert(secret("client", "ca.crt"), Credential { kind: CredentialKind::Value, value: "ca".into() });
    assert_eq!(certificate(&values).certificate.and_then(|found| found.authority).as_deref(), Some("ca"));
}

#[test]
fn whoever_has_a_certificate_of_its_own_is_not_offered_the_token_it_enrolled_with() {
    let mut values = values();
    let issued = |values: &BTreeMap<_, _>| match connection(settings(FrozenCertificate::Issued), values).values() {
        Ok(Values::Personal(personal)) => {
            let own = Certificate { certificate: "own".into(), private_key: None, authority: None };
            personal.with(own)
        }
        other => panic!("{other:?}"),
    };
    let offered = issued(&values);
    assert_eq!(headers(&offered), [("X-Site", "one"), ("X-Site", "two")]);
    assert_eq!(offered.certificate.as_ref().map(|it| it.certificate.as_str()), Some("own"));
    // Its Secret was deleted.
    values.get_mut(&secret("edge-token", "header")).expect("the token").value = "".into();
    assert_eq!(issued(&values), offered);
    assert!(connection(settings(FrozenCertificate::None), &values).values().is_err(), "others need it");
}

#[test]
fn without_any_one_value_nothing_is_offered() {
    let certificate = || settings(FrozenCertificate::Secret("client".into()));
    for missing in values().into_keys() {
        let mut values = values();
        values.remove(&missing);
        let withheld = Withheld::Missing { settings: "edge".into(), reference: missing.clone() };
        assert_eq!(connection(certificate(), &values).values(), Err(withheld), "{missing}");
    }
    let unknown = Connection { credentials: None, ..connection(certificate(), &values()) };
    let withheld = unknown.values().expect_err("nothing is known").to_string();
    assert_eq!(withheld, "ConnectionSettings edge need key header of Secret proxy, which is missing or not usable");
    let literal =
        Settings { headers: vec![literal("a", "b")], tls: None, proxy: None, ..settings(FrozenCertificate::None) };
    assert!(Connection { settings: Arc::new(literal), ..unknown }.values().is_ok(), "it refers to nothing");
}

#[test]
fn values_from_secrets_are_withheld_where_agents_are_served_in_plain_text() {
    let plain = |settings| Connection { secrets: SecretContent::Withheld, ..connection(settings, &values()) };
    let withheld = plain(settings(FrozenCertificate::None)).values().expect_err("it would be readable on the way");
    assert!(matches!(withheld, Withheld::SecretsNeedTls { .. }));
    let public = Settings { headers: vec![literal("a", "b")], proxy: None, ..settings(FrozenCertificate::None) };
    assert!(plain(public).values().is_ok(), "a CA in a ConfigMap is no secret");
}

#[test]
fn no_value_is_ever_shown() {
    let connection = connection(settings(FrozenCertificate::Secret("client".into())), &values());
    let mut literal_token = settings(FrozenCertificate::None);
    literal_token.headers = vec![literal("Authorization", "Bearer literal-canary")];
    let shown = format!("{connection:?} {:?} {literal_token:?} {:?}", connection.values(), values());
    assert!(!shown.contains("canary"), "{shown}");
}
