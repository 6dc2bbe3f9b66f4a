//! The CA's Secret: which CA signs, which former ones are still trusted, and what follows for what is stored.
//!
//! The Secret is made when there is none, and never made anew while its content cannot be read: whoever loses a CA by a
//! slip loses every agent. What has once been trusted stays so until it expires or people take it out of the bundle.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt as _;
use rustls_pki_types::CertificateDer;

use super::{
    authority::{Authority, AuthorityError},
    facts::CertificateFacts,
    key::{KeyId, PrivateKey},
    name::is_plain,
    pem::{MOST, PemError, read_certificates, write_certificates},
    published::{
        AUTHORITY_NAME, BUNDLE_KEY, CLUSTER_ANNOTATION, ISSUERS_ANNOTATION, PublishedAuthorities, read_keys, write_keys,
    },
};

/// Annotation by which people ask for a new CA: each new text asks once. The former one stays trusted.
pub const ROTATE_ANNOTATION: &str = "opamp.dev/rotate";
/// Annotation with the wish that was granted last.
pub const ROTATED_ANNOTATION: &str = "opamp.dev/rotated";
const CERTIFICATE_KEY: &str = "tls.crt";
const PRIVATE_KEY: &str = "tls.key";
const TLS_TYPE: &str = "kubernetes.io/tls";

/// The CA cannot be used, and people must say what is to be done. No variant holds a key.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum GenerationError {
    /// The Secret is there, and no CA can be read from it.
    #[error(
        "the Secret {AUTHORITY_NAME} holds no CA that can be used ({0}); nothing is issued. Put the CA back from a backup; \
         or empty its key tls.crt, and a new CA is made, while the former stays trusted through ca.crt"
    )]
    Unusable(#[source] AuthorityError),
    /// The bundle cannot be read.
    #[error(
        "the key ca.crt of the Secret {AUTHORITY_NAME} cannot be read ({0}); nothing is issued. Put the certificates of \
         the CAs that are trusted there, or remove the key: then those of the ConfigMap {AUTHORITY_NAME} stay trusted"
    )]
    Bundle(#[source] PemError),
    /// With one more CA the bundle could not be read any more.
    #[error(
        "the key ca.crt of the Secret {AUTHORITY_NAME} would have more than {MOST} certificates; nothing is issued. Take \
         CAs out of it that nobody needs any more, or take back the wish for another"
    )]
    Full,
    /// The name of the cluster cannot be part of a URI.
    #[error(
        "the annotation {CLUSTER_ANNOTATION} of the Secret {AUTHORITY_NAME} is no name of letters, digits, '-' and '.'; \
         nothing is issued. Correct it, or set --cluster-name"
    )]
    Cluster,
    /// A new CA could not be made.
    #[error("a CA could not be made")]
    Making(#[source] AuthorityError),
}

/// What is stored, or is to be stored.
#[derive(Debug)]
pub struct Generations {
    /// The CA that signs.
    pub authority: Authority,
    /// The CA that has signed until now, if people have asked for another.
    pub outgoing: Option<Authority>,
    /// The private key of the one that signs.
    key: PrivateKey,
    /// All that is trusted.
    pub published: PublishedAuthorities,
    /// The wish for a new CA that was granted last.
    granted: Option<String>,
    /// The Secret that must be written for this to hold.
    pub secret: Option<Secret>,
}

impl Generations {
    /// Reads Secret and ConfigMap as they are, and says what is to hold. `cluster` is the name that was given by flag;
    /// `None` keeps the one that is stored, or makes one up.
    pub fn settle(
        secret: Option<&Secret>,
        config_map: Option<&ConfigMap>,
        cluster: Option<&str>,
        namespace: &str,
        now: Timestamp,
    ) -> Result<Self, GenerationError> {
        let stored = Stored { secret, published: config_map.and_then(|it| PublishedAuthorities::read(it).ok()) };
        let cluster = stored.cluster(cluster)?;
        let wish = stored.annotation(ROTATE_ANNOTATION).map(str::to_owned);
        let is_asked = wish.is_some() && wish.as_deref() != stored.annotation(ROTATED_ANNOTATION);
        let active = stored.active()?;
        let former = active.as_ref().map(|(authority, _)| authority.certificate().clone());
        let make = || Authority::generate(&cluster, now).map_err(GenerationError::Making);
        let (outgoing, (authority, key)) = match active {
            Some((outgoing, _)) if is_asked => (Some(outgoing), make()?),
            Some(active) => (None, active),
            None => (None, make()?),
        };
        let published = stored.trusted(&authority, former, cluster, now)?;
        let granted = if is_asked { wish } else { stored.annotation(ROTATED_ANNOTATION).map(str::to_owned) };
        let mut settled = Self { authority, outgoing, key, published, granted, secret: None };
        settled.secret = settled.missing(secret, namespace);
        Ok(settled)
    }

    /// The Secret as it must be, unless it is so already. What people have added stays.
    fn missing(&self, found: Option<&Secret>, namespace: &str) -> Option<Secret> {
        let mut secret = found.cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta {
                name: Some(AUTHORITY_NAME.into()),
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            },
            type_: Some(TLS_TYPE.into()),
            ..Secret::default()
        });
        let annotations = secret.annotations_mut();
        annotations.insert(CLUSTER_ANNOTATION.into(), self.published.cluster.clone());
        annotations.insert(ISSUERS_ANNOTATION.into(), write_keys(&self.published.issuers));
        if let Some(granted) = &self.granted {
            annotations.insert(ROTATED_ANNOTATION.into(), granted.clone());
        }
        let data = secret.data.get_or_insert_default();
        let mut put = |key: &str, text: &str| data.insert(key.into(), ByteString(text.as_bytes().to_vec()));
        put(BUNDLE_KEY, &write_certificates(&self.published.bundle));
        if Stored::of(found).certificates() != self.authority.chain_der() {
            put(CERTIFICATE_KEY, &self.authority.chain());
            put(PRIVATE_KEY, self.key.expose());
        }
        (found != Some(&secret)).then_some(secret)
    }
}

/// Secret and ConfigMap as they are.
struct Stored<'a> {
    secret: Option<&'a Secret>,
    published: Option<PublishedAuthorities>,
}

impl<'a> Stored<'a> {
    fn of(secret: Option<&'a Secret>) -> Self {
        Self { secret, published: None }
    }

    fn value(&self, key: &str) -> Option<&'a [u8]> {
        let value = self.secret?.data.as_ref()?.get(key)?.0.as_slice();
        Some(value).filter(|value| !value.iter().all(u8::is_ascii_whitespace))
    }

    fn annotation(&self, name: &str) -> Option<&'a str> {
        self.secret?.annotations().get(name).map(String::as_str)
    }

    fn certificates(&self) -> Vec<CertificateDer<'static>> {
        self.value(CERTIFICATE_KEY).and_then(|pem| read_certificates(pem).ok()).unwrap_or_default()
    }

    fn cluster(&self, flag: Option<&str>) -> Result<String, GenerationError> {
        let published = || self.published.as_ref().map(|published| published.cluster.as_str());
        match flag.or_else(|| self.annotation(CLUSTER_ANNOTATION)).or_else(published) {
            Some(name) if is_plain(name) => Ok(name.to_owned()),
            Some(_) => Err(GenerationError::Cluster),
            None => Ok(format!("{:010x}", rand::random::<u64>() >> 24)),
        }
    }

    /// The CA in the Secret; `None` if people have left it to us to make one: no Secret, or `tls.crt` is empty.
    fn active(&self) -> Result<Option<(Authority, PrivateKey)>, GenerationError> {
        let Some(certificates) = self.value(CERTIFICATE_KEY) else { return Ok(None) };
        let key = self.value(PRIVATE_KEY).unwrap_or_default().to_vec();
        let key = PrivateKey::from_pem(String::from_utf8(key).unwrap_or_default());
        let authority = Authority::load(certificates, &key).map_err(GenerationError::Unusable)?;
        Ok(Some((authority, key)))
    }

    /// What is trusted with this CA: at a change of the CA all that was trusted before; later what people have left in
    /// the Secret's bundle. In either case without what has expired.
    fn trusted(
        &self,
        authority: &Authority,
        former: Option<CertificateDer<'static>>,
        cluster: String,
        now: Timestamp,
    ) -> Result<PublishedAuthorities, GenerationError> {
        let active = authority.facts().key;
        let mut issuers = self.issuers();
        let is_change = !issuers.contains(&active);
        let own = self.value(BUNDLE_KEY).map(read_certificates).transpose().map_err(GenerationError::Bundle)?;
        let others = match (&own, is_change) {
            (Some(_), false) => None,
            (None, _) | (_, true) => self.published.as_ref().map(|published| published.bundle.clone()),
        };
        let mut bundle = authority.chain_der().to_vec();
        bundle.extend(former.iter().cloned().chain(own.into_iter().flatten()).chain(others.into_iter().flatten()));
        issuers.insert(active);
        issuers.extend(former.and_then(|former| CertificateFacts::read(&former).ok()).map(|facts| facts.key));
        let mut seen = BTreeMap::new();
        bundle.retain(|certificate| {
            let Ok(facts) = CertificateFacts::read(certificate) else { return false };
            let is_needed = facts.key == active || now < facts.not_after;
            is_needed && seen.insert(certificate.to_vec(), facts.key).is_none()
        });
        if bundle.len() > MOST {
            return Err(GenerationError::Full);
        }
        issuers.retain(|key| seen.values().any(|present| present == key));
        Ok(PublishedAuthorities { cluster, bundle, issuers })
    }

    /// The CAs that have issued certificates here, as far as is known.
    fn issuers(&self) -> BTreeSet<KeyId> {
        let own = self.annotation(ISSUERS_ANNOTATION).and_then(read_keys).unwrap_or_default();
        let published = self.published.as_ref().map(|published| published.issuers.clone());
        own.into_iter().chain(published.into_iter().flatten()).collect()
    }
}
