//! What the tests of this module share, and the stories that concern more than one part.

mod api_server;
mod convergence;
mod external;
mod generations;
mod neighbours;
mod registrar;
mod requests;
pub(super) mod stored;
mod superseded;
mod world;

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls_pki_types::CertificateDer;

use super::{
    authority::{Authority, AuthorityError, Issued, common_name},
    key::PrivateKey,
    name::AgentName,
    pem::write_certificates,
    request::PublicKey,
};
use crate::opamp::InstanceUid;

/// How long certificates of agents count in tests, in seconds.
pub(super) const AGENT_LIFETIME: i64 = 604_800;

/// So many seconds after the moment at which tests begin.
pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_764_500_000 + seconds).unwrap()
}

pub(super) fn uid(number: u8) -> InstanceUid {
    InstanceUid::from_name(&format!("0190a5c4-7e2f-7cc0-8000-0000000000{number:02x}")).unwrap()
}

pub(super) fn name(number: u8) -> AgentName {
    AgentName { cluster: "c".into(), namespace: "telemetry".into(), fleet: "edge".into(), uid: uid(number) }
}

pub(super) fn authority() -> Authority {
    Authority::generate("c", at(0)).unwrap().0
}

/// A certificate for agent 1.
pub(super) fn issue(authority: &Authority, seconds: i64) -> Result<Issued, AuthorityError> {
    let key = PublicKey::of(&KeyPair::generate().unwrap()).unwrap();
    authority.issue_agent(&name(1), &key, Duration::from_secs(604_800), at(seconds))
}

/// An intermediate as people put it there, and the root above it.
pub(super) fn intermediate(now: Timestamp) -> (Authority, CertificateDer<'static>) {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = common_name("Corporate root");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters.not_before = super::facts::date(now).unwrap();
    let root_key = KeyPair::generate().unwrap();
    let root = parameters.self_signed(&root_key).unwrap().der().clone();
    let issuer = Issuer::from_params(&parameters, root_key);
    let mut below = parameters.clone();
    below.distinguished_name = common_name("Corporate OpAMP");
    let pair = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let certificate = below.signed_by(&pair, &issuer).unwrap().der().clone();
    let key = PrivateKey::from_pem(pair.serialize_pem());
    let chain = write_certificates([&certificate, &root]);
    (Authority::load(chain.as_bytes(), &key).unwrap(), root)
}
