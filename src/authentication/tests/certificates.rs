//! CAs of tests, and the certificates that they sign.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;

use super::UID;
use crate::{
    credentials::{
        authority::Authority,
        facts::CertificateFacts,
        key::PrivateKey,
        published::{PublishedAuthorities, PublishedRevocations},
        revocations::{HolderId, Revocation, Revocations},
    },
    opamp::InstanceUid,
};

/// A CA.
pub(super) struct Ca {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) pem: String,
    issuer: Issuer<'static, KeyPair>,
    key: String,
}

/// So many seconds from now.
pub(super) fn date(seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(Timestamp::now().as_second() + seconds).unwrap()
}

impl Ca {
    pub(super) fn new(name: &str) -> Self {
        Self::signed(name, None)
    }

    /// A CA below another one.
    pub(super) fn below(&self, name: &str) -> Self {
        Self::signed(name, Some(&self.issuer))
    }

    fn signed(name: &str, by: Option<&Issuer<'static, KeyPair>>) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = match by {
            Some(issuer) => parameters.signed_by(&key, issuer).unwrap(),
            None => parameters.self_signed(&key).unwrap(),
        };
        let (pem, pkcs8) = (certificate.pem(), key.serialize_pem());
        let issuer = Issuer::new(parameters, key);
        Self { certificate: certificate.der().clone(), pem, issuer, key: pkcs8 }
    }

    /// A certificate for a client, changed so.
    pub(super) fn client(&self, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut parameters = CertificateParams::default();
        (parameters.not_before, parameters.not_after) = (date(-60), date(3_600));
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut parameters);
        parameters.signed_by(&KeyPair::generate().unwrap(), &self.issuer).unwrap().der().clone()
    }

    /// The certificate of the agent of [`UID`] in the cluster `c`, changed so.
    pub(super) fn agent(&self, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        self.client(|parameters| {
            parameters.subject_alt_names = vec![uri(&format!("opamp://c/telemetry/edge/{UID}"))];
            change(parameters);
        })
    }

    /// What the leader publishes when this is the operator's CA.
    pub(super) fn published(&self) -> ConfigMap {
        let issuers = BTreeSet::from([CertificateFacts::read(&self.certificate).unwrap().key]);
        let bundle = vec![self.certificate.clone()];
        PublishedAuthorities { cluster: "c".into(), bundle, issuers }.to_config_map("opamp-system")
    }

    /// What the leader publishes when this certificate was taken back.
    pub(super) fn revoking(&self, certificate: &CertificateDer<'_>) -> ConfigMap {
        let now = Timestamp::now();
        let key = CertificateFacts::read(&self.certificate).unwrap().key;
        let authority = Authority::load(self.pem.as_bytes(), &PrivateKey::from_pem(self.key.clone())).unwrap();
        let mut revocations = Revocations::default();
        let holder = HolderId::of("telemetry", &InstanceUid::generate());
        let revocation = Revocation { holder, at: now, not_after: now + Duration::from_secs(3_600) };
        revocations.revoke(key, CertificateFacts::read(certificate).unwrap().serial, revocation);
        let list = revocations.sign(&authority, 1, now).unwrap();
        PublishedRevocations { number: 1, signed_at: now, signed_by: key, revocations, list }
            .to_config_map("opamp-system")
    }
}

pub(super) fn uri(text: &str) -> SanType {
    SanType::URI(text.to_owned().try_into().unwrap())
}
