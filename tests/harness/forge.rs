//! Makes certificates as a forger would, with and without the key of the operator's own CA.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use serde_json::Value;
use time::{Duration, OffsetDateTime};

use super::Scenario;

/// A certificate with what leads to a root, and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate first.
    pub chain: String,
    /// Its key.
    pub key: String,
}

/// A CA whose key is at hand.
pub struct Forge {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Forge {
    /// The operator's own CA, its key stolen from the Secret.
    pub fn stolen(scenario: &Scenario) -> Self {
        let [certificate, key] = secret(scenario, "opamp-ca", ["tls.crt", "tls.key"]);
        let key = KeyPair::from_pem(&key).expect("the CA's key");
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).expect("a CA");
        Self { issuer, certificate }
    }

    /// A CA of nobody, with this common name.
    pub fn foreign(name: &str) -> Self {
        let (key, mut profile) = (KeyPair::generate().expect("a key"), CertificateParams::default());
        profile.distinguished_name.push(DnType::CommonName, name);
        profile.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        profile.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = profile.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(profile, key), certificate }
    }

    /// The certificate of the CA.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Signs the certificate of a client with this URI, changed as a forger likes.
    pub fn client(&self, uri: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let (key, mut profile) = (KeyPair::generate().expect("a key"), client(uri));
        change(&mut profile);
        let certificate = profile.signed_by(&key, &self.issuer).expect("a certificate");
        Identity { chain: certificate.pem(), key: key.serialize_pem() }
    }

    /// Signs with the holder of a certificate that this CA has signed, whatever that is meant for.
    pub fn below(&self, uri: &str, is_ca: IsCa) -> Identity {
        let (key, mut profile) = (KeyPair::generate().expect("a key"), client(uri));
        profile.is_ca = is_ca;
        let between = profile.signed_by(&key, &self.issuer).expect("a certificate").pem();
        let leaf = Self { issuer: Issuer::new(profile, key), certificate: between.clone() }.client(uri, |_| {});
        Identity { chain: leaf.chain + &between, ..leaf }
    }
}

/// The certificate of a client that vouches for itself.
pub fn self_signed(uri: &str) -> Identity {
    let key = KeyPair::generate().expect("a key");
    let certificate = client(uri).self_signed(&key).expect("a certificate");
    Identity { chain: certificate.pem(), key: key.serialize_pem() }
}

fn client(uri: &str) -> CertificateParams {
    let mut profile = CertificateParams::default();
    profile.subject_alt_names = vec![self::uri(uri)];
    profile.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    profile.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    (profile.not_before, profile.not_after) = (days_from_now(-1), days_from_now(1));
    profile
}

/// A name in a certificate.
pub fn uri(uri: &str) -> SanType {
    SanType::URI(uri.try_into().expect("a URI is ASCII"))
}

/// A moment so many days away.
pub fn days_from_now(days: i64) -> OffsetDateTime {
    OffsetDateTime::now_utc() + Duration::days(days)
}

/// Values of a Secret in the operator's own namespace.
pub fn secret<const COUNT: usize>(scenario: &Scenario, name: &str, keys: [&str; COUNT]) -> [String; COUNT] {
    let shown = scenario.cluster.kubectl(&["-n", &scenario.system, "get", "secret", name, "-o", "json"], "");
    let shown: Value = serde_json::from_str(&shown).expect("kubectl prints JSON");
    keys.map(|key| {
        let value = shown["data"][key].as_str().expect("it is in the Secret");
        String::from_utf8(BASE64_STANDARD.decode(value).expect("base64")).expect("PEM is text")
    })
}

/// The name of the cluster, as it stands in certificates.
pub fn cluster_name(scenario: &Scenario) -> String {
    let path = r"jsonpath={.metadata.annotations.opamp\.dev/cluster-name}";
    scenario.cluster.kubectl(&["-n", &scenario.system, "get", "secret", "opamp-ca", "-o", path], "")
}
