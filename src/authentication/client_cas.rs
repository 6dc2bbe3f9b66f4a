//! Certificates of the CAs that fleets name: who holds one may join that fleet. Names in them are not believed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::fault::Fault;
use crate::{
    catalog::FleetEntry,
    credentials::{
        facts::{CertificateFacts, Role},
        key::KeyId,
        pem::{PemError, read_certificates},
        trust::TrustSnapshot,
    },
    opamp::identity::{Identity, Principal, Proof},
};

/// The key of a Secret that holds CAs.
const CA_KEY: &str = "ca.crt";
/// Certificates between that of the client and that of the CA. More are not needed, and each costs time.
const LONGEST_WAY: usize = 8;
/// Keys of one name among them: one, and another one while a CA goes over to that. With many each order of them would be
/// a way to be tried, by anybody, before it is known who that is: eight make twenty-eight thousand.
const KEYS_OF_A_NAME: usize = 2;

/// Why a Secret vouches for nobody.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum NoAuthority {
    #[error("it does not exist")]
    NotFound,
    #[error("the CAs of {0} other Secrets are read, which is the limit")]
    OneTooMany(usize),
    #[error("it has no key {CA_KEY}")]
    Missing,
    #[error("{CA_KEY}: {0}")]
    Pem(#[from] PemError),
    #[error("{CA_KEY} has no certificate that may certify others")]
    NotAuthority,
}

/// A CA that somebody trusts.
#[derive(Clone, Debug)]
pub(super) struct Authority {
    facts: CertificateFacts,
    anchor: TrustAnchor<'static>,
}

/// The CAs of one Secret.
pub(super) type Authorities = Arc<[Authority]>;

/// Reads the CAs of a Secret.
pub(super) fn read(secret: &Secret) -> Result<Authorities, NoAuthority> {
    let pem = secret.data.as_ref().and_then(|data| data.get(CA_KEY)).ok_or(NoAuthority::Missing)?;
    let authority = |certificate: CertificateDer<'static>| {
        let facts = CertificateFacts::read(&certificate).ok().filter(|facts| facts.role == Role::Authority)?;
        Some(Authority { facts, anchor: anchor_from_trusted_cert(&certificate).ok()?.to_owned() })
    };
    let authorities: Authorities = read_certificates(&pem.0)?.into_iter().filter_map(authority).collect();
    if authorities.is_empty() { Err(NoAuthority::NotAuthority) } else { Ok(authorities) }
}

/// The CAs that one fleet names.
#[derive(Clone, Debug)]
struct Vouched {
    namespace: String,
    fleet: String,
    authorities: Vec<Authorities>,
}

impl Vouched {
    fn authorities(&self) -> impl Iterator<Item = &Authority> {
        self.authorities.iter().flat_map(|authorities| authorities.iter())
    }

    fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.authorities().map(|authority| authority.facts.key)
    }

    fn is_of(&self, namespace: &str, fleet: &str) -> bool {
        self.namespace == namespace && self.fleet == fleet
    }
}

/// The CAs of all fleets. Never changed: a newer one takes its place.
#[derive(Debug, Default)]
pub(super) struct ClientCas {
    /// Oldest fleet first.
    fleets: Vec<Vouched>,
}

impl ClientCas {
    /// Of these fleets, each with what its Secrets hold.
    pub(super) fn new(mut fleets: Vec<(&FleetEntry, Vec<Authorities>)>) -> Self {
        fleets.sort_by_key(|(fleet, _)| (fleet.created, fleet.namespace.clone(), fleet.name.clone()));
        let vouched = |(fleet, authorities): (&FleetEntry, Vec<Authorities>)| Vouched {
            namespace: fleet.namespace.clone(),
            fleet: fleet.name.clone(),
            authorities,
        };
        Self { fleets: fleets.into_iter().map(vouched).collect() }
    }

    /// Who holds this certificate, the first of the chain, which its holder has proved to own in a handshake.
    ///
    /// An identity has one fleet. Of several fleets of a namespace that name the same CA it is the oldest, so that a
    /// later fleet changes nobody's identity. If fleets of several namespaces do, none is believed: otherwise a tenant
    /// could take over the agents of another one by naming its CA, which is no secret.
    pub(super) fn identify(
        &self,
        chain: &[CertificateDer<'_>],
        own: &TrustSnapshot,
        now: Timestamp,
    ) -> Result<Principal, Fault> {
        let (certificate, way) = chain.split_first().ok_or(Fault::UntrustedCertificate)?;
        let facts = CertificateFacts::read(certificate).map_err(|_| Fault::UntrustedCertificate)?;
        let shown = Shown::read(certificate, way).ok_or(Fault::UntrustedCertificate)?;
        let mut found: Option<(&Vouched, Path)> = None;
        let mut fault = Fault::UntrustedCertificate;
        for vouched in &self.fleets {
            if found.as_ref().is_some_and(|(first, _)| first.namespace == vouched.namespace) {
                continue;
            }
            match (lead(&shown, vouched, own, now), &found) {
                (Ok(_), Some(_)) => return Err(Fault::Ambiguous),
                (Ok(path), None) => found = Some((vouched, path)),
                (Err(Fault::UntrustedCertificate), _) => {}
                (Err(other), _) => fault = other,
            }
        }
        let (Vouched { namespace, fleet, .. }, path) = found.ok_or(fault)?;
        let expires = path.not_after.min(facts.not_after);
        // The path was checked to the second: whoever was let in within the last one would be closed at once.
        if expires <= now {
            return Err(Fault::Expired);
        }
        Ok(Principal {
            identity: Identity::ClientCa { namespace: namespace.clone(), fleet: fleet.clone(), key: facts.key.0 },
            audiences: BTreeSet::new(),
            proof: Proof::Certificate { issuer: path.authority.0, serial: facts.serial.as_bytes().into() },
            expires: Some(expires),
        })
    }

    /// Whether a fleet still names the CA with this key.
    pub(super) fn lists(&self, namespace: &str, fleet: &str, key: KeyId) -> bool {
        self.fleets.iter().filter(|vouched| vouched.is_of(namespace, fleet)).any(|it| it.keys().any(|it| it == key))
    }

    /// Whether a CA counts here that does not count there.
    pub(super) fn has_more_than(&self, newer: &Self) -> bool {
        self.fleets.iter().any(|vouched| {
            let Vouched { namespace, fleet, .. } = vouched;
            vouched.keys().any(|key| !newer.lists(namespace, fleet, key))
        })
    }

    /// How many CAs there are, each as often as it is named.
    pub(super) fn len(&self) -> usize {
        self.fleets.iter().map(|vouched| vouched.authorities().count()).sum()
    }
}

/// A way from a certificate to a CA.
struct Path {
    authority: KeyId,
    /// The first of its certificates ends then.
    not_after: Timestamp,
}

/// What a client has shown, as far as it is looked at.
struct Shown<'a> {
    certificate: EndEntityCert<'a>,
    /// In the order in which it was sent.
    way: Vec<CertificateDer<'a>>,
    /// The names of whoever has signed one of them: no other CA is at the end of a way.
    issuers: BTreeSet<Box<[u8]>>,
}

impl<'a> Shown<'a> {
    /// Reads as much as one honest client sends.
    fn read(certificate: &'a CertificateDer<'a>, sent: &'a [CertificateDer<'a>]) -> Option<Self> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        let mut issuers = BTreeSet::from([certificate.issuer().into()]);
        let (mut way, mut keys) = (Vec::new(), BTreeMap::<Box<[u8]>, Vec<_>>::new());
        for der in sent.iter().take(LONGEST_WAY) {
            let Ok(between) = EndEntityCert::try_from(der) else { continue };
            let (key, of_the_name) =
                (between.subject_public_key_info(), keys.entry(between.subject().into()).or_default());
            if !of_the_name.contains(&key) {
                if of_the_name.len() == KEYS_OF_A_NAME {
                    continue;
                }
                of_the_name.push(key);
            }
            issuers.insert(between.issuer().into());
            way.push(der.clone());
        }
        Some(Self { certificate, way, issuers })
    }
}

/// Looks for a way to one of a fleet's CAs. The operator's own CA is none of them, whoever names it: what was revoked
/// would come back by it.
fn lead(shown: &Shown<'_>, vouched: &Vouched, own: &TrustSnapshot, now: Timestamp) -> Result<Path, Fault> {
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let Shown { certificate, way, issuers } = shown;
    let mut fault = Fault::UntrustedCertificate;
    let counts = |Authority { facts, anchor }: &&Authority| {
        issuers.contains(anchor.subject.as_ref()) && facts.is_valid_at(now) && !own.trusts(&facts.key)
    };
    for Authority { facts, anchor } in vouched.authorities().filter(counts) {
        let (anchors, usage) = (std::slice::from_ref(anchor), KeyUsage::client_auth());
        match certificate.verify_for_usage(ALL_VERIFICATION_ALGS, anchors, way, time, usage, None, None) {
            Ok(path) => {
                let ends = path.intermediate_certificates().filter_map(|it| CertificateFacts::read(&it.der()).ok());
                let not_after = ends.map(|facts| facts.not_after).fold(facts.not_after, Timestamp::min);
                return Ok(Path { authority: facts.key, not_after });
            }
            Err(webpki::Error::CertExpired { .. }) => fault = Fault::Expired,
            // The foreign enum has a variant for each fault of the encoding or the path.
            Err(_) => {}
        }
    }
    Err(fault)
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    struct Ca(Issuer<'static, KeyPair>);

    impl Ca {
        fn new(name: &str) -> Self {
            let mut parameters = CertificateParams::default();
            parameters.distinguished_name.push(DnType::CommonName, name);
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            Self(Issuer::new(parameters, KeyPair::generate().unwrap()))
        }

        /// A certificate for the key of a CA of this name.
        fn vouch(&self, name: &str, key: &KeyPair) -> CertificateDer<'static> {
            let mut parameters = CertificateParams::default();
            parameters.distinguished_name.push(DnType::CommonName, name);
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            parameters.signed_by(key, &self.0).unwrap().der().clone()
        }
    }

    #[test]
    fn a_maze_of_certificates_is_not_entered() {
        let (root, other) = (Ca::new("root"), Ca::new("other root"));
        let keys: Vec<_> = (0..9).map(|_| KeyPair::generate().unwrap()).collect();
        let way = |ca: &Ca, name: &str, key: usize| ca.vouch(name, &keys[key]);
        let maze = Ca::new("maze");
        let client = root.vouch("client", &keys[8]);
        for (case, sent, expected) in [
            ("none", vec![], 0),
            ("one after the other", vec![way(&root, "a", 0), way(&root, "b", 1), way(&root, "c", 2)], 3),
            ("one that two have signed", vec![way(&root, "a", 0), way(&other, "a", 0)], 2),
            ("one name and many keys", (0..8).map(|key| way(&maze, "maze", key)).collect(), 2),
            ("no certificates", vec![vec![0x30, 0].into(); 8], 0),
            ("more than are needed", (0..60).map(|_| way(&root, "a", 0)).collect(), LONGEST_WAY),
        ] {
            assert_eq!(Shown::read(&client, &sent).unwrap().way.len(), expected, "{case}");
        }
    }
}
