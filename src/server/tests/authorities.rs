//! Authorities, what they issue, and who trusts them.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    SerialNumber, date_time_ymd,
};
use rustls::{
    ClientConfig, DistinguishedName, RootCertStore, SupportedProtocolVersion,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime},
    version::{TLS12, TLS13},
};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::server::{CertificateFault, ClientCertificates, ServerCertificate};

/// The name by which clients reach the server.
pub const NAME: &str = "opamp.example.com";

/// An authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub struct Issued {
    pub certificate: Certificate,
    pub key: KeyPair,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn certificate(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    fn issue(&self, change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut parameters = CertificateParams::new([NAME.to_owned()]).unwrap();
        change(&mut parameters);
        let key = KeyPair::generate().unwrap();
        Issued { certificate: parameters.signed_by(&key, &self.0).unwrap(), key }
    }

    /// For a server of [`NAME`].
    pub fn for_server(&self) -> Issued {
        self.issue(|parameters| parameters.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth))
    }

    /// For a client, with this serial number.
    pub fn for_client(&self, serial: u64) -> Issued {
        self.issue(|parameters| {
            parameters.serial_number = Some(SerialNumber::from(serial));
            parameters.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        })
    }

    /// For a client, long ago.
    pub fn expired(&self) -> Issued {
        self.issue(|parameters| {
            parameters.not_before = date_time_ymd(2020, 1, 1);
            parameters.not_after = date_time_ymd(2021, 1, 1);
            parameters.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        })
    }

    /// A client that trusts servers of this authority.
    pub fn client(&self, version: &'static SupportedProtocolVersion, own: Option<&Issued>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match own {
            Some(own) => builder.with_client_auth_cert(vec![own.certificate.der().clone()], own.private_key()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

/// Both versions of TLS that are served.
pub fn versions() -> [&'static SupportedProtocolVersion; 2] {
    [&TLS12, &TLS13]
}

impl Issued {
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).unwrap()
    }

    /// Has a server show it.
    pub fn show(&self, shown: &ServerCertificate) {
        let (certificate, key) = (self.certificate.pem(), self.key.serialize_pem());
        shown.replace(certificate.as_bytes(), key.as_bytes(), Timestamp::now()).unwrap();
    }
}

/// Trust that can be moved to another authority, and withdrawn from single certificates.
#[derive(Debug)]
pub struct Trust {
    roots: Mutex<CertificateDer<'static>>,
    names: Mutex<Arc<[DistinguishedName]>>,
    pub revoked: Mutex<Vec<u8>>,
    /// How often it was asked.
    pub asked: AtomicUsize,
    /// About whom.
    pub remotes: Mutex<BTreeSet<SocketAddr>>,
}

impl Trust {
    pub fn in_certificates_of(authority: &Authority) -> Arc<Self> {
        let trust = Self {
            roots: Mutex::new(authority.certificate()),
            names: Mutex::default(),
            revoked: Mutex::default(),
            asked: AtomicUsize::default(),
            remotes: Mutex::default(),
        };
        trust.move_to(authority);
        Arc::new(trust)
    }

    pub fn move_to(&self, authority: &Authority) {
        let certificate = authority.certificate();
        let anchor = anchor_from_trusted_cert(&certificate).unwrap().to_owned();
        *self.names.lock().unwrap() = [DistinguishedName::in_sequence(&anchor.subject)].into();
        *self.roots.lock().unwrap() = certificate;
    }
}

impl ClientCertificates for Trust {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        remote: SocketAddr,
        now: UnixTime,
    ) -> Result<(), CertificateFault> {
        self.remotes.lock().unwrap().insert(remote);
        self.asked.fetch_add(1, Ordering::Relaxed);
        let root = self.roots.lock().unwrap().clone();
        let anchors = [anchor_from_trusted_cert(&root).unwrap()];
        let certificate = EndEntityCert::try_from(end_entity).map_err(|error| CertificateFault::from(&error))?;
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
        certificate
            .verify_for_usage(algorithms, &anchors, intermediates, now, KeyUsage::client_auth(), None, None)
            .map_err(|error| CertificateFault::from(&error))?;
        if self.revoked.lock().unwrap().as_slice() == certificate.serial() {
            return Err(CertificateFault::Revoked);
        }
        Ok(())
    }

    fn authorities(&self) -> Arc<[DistinguishedName]> {
        Arc::clone(&self.names.lock().unwrap())
    }
}
