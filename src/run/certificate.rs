//! Keeps the certificate of the listener what its Secret says.

use std::sync::Arc;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, ResourceExt as _, runtime::watcher::Event};
use opamp_operator::{
    kubernetes::{ObjectKey, WatchClient, watch_config},
    server::{Metrics, ServerCertificate, ServerCertificateError},
};

/// The type of Secrets with a certificate and its key.
const TYPE: &str = "kubernetes.io/tls";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// The certificate of the listener, and where it comes from.
pub struct ListenerCertificate {
    secret: ObjectKey,
    shown: Arc<ServerCertificate>,
    metrics: Metrics,
    /// The resourceVersion that was looked at last: a Secret that is listed anew is no news.
    version: Option<String>,
}

/// Why a Secret gives no certificate.
#[derive(Debug, PartialEq, thiserror::Error)]
enum SecretError {
    /// cert-manager and `kubectl create secret tls` make the right one.
    #[error("it is of the type {0:?}, not {TYPE}")]
    Type(String),
    /// A key is missing.
    #[error("it has no {0}")]
    Missing(&'static str),
    /// The content is no use.
    #[error(transparent)]
    Certificate(#[from] ServerCertificateError),
}

impl ListenerCertificate {
    /// A certificate that is to be read from this Secret.
    pub fn new(secret: ObjectKey, metrics: Metrics) -> Self {
        Self { secret, shown: Arc::default(), metrics, version: None }
    }

    /// What the listener shows.
    pub fn shown(&self) -> &Arc<ServerCertificate> {
        &self.shown
    }

    /// Follows the Secret, without an end. Nothing but this one Secret is read.
    pub async fn run(mut self, watches: WatchClient) {
        let api: Api<Secret> = Api::namespaced(watches.client().clone(), &self.secret.namespace);
        let config = watch_config().fields(&format!("metadata.name={}", self.secret.name));
        let mut events = watches.watch(api, config);
        while let Some(event) = events.next().await {
            if let Some(event) = event {
                self.follow(event, Timestamp::now());
            }
        }
    }

    fn follow(&mut self, event: Event<Secret>, now: Timestamp) {
        match event {
            Event::Init => {}
            Event::InitApply(secret) | Event::Apply(secret) => self.look(&secret, now),
            Event::InitDone if self.version.is_some() || self.shown.not_after().is_some() => {}
            Event::InitDone => tracing::warn!(
                secret = %self.secret,
                "the certificate of the listener is not there yet, and no agent is served before; the replica that leads \
                 makes it within seconds, unless --tls-secret names it: make that Secret, of the type {TYPE}"
            ),
            Event::Delete(_) => {
                self.version = None;
                tracing::warn!(
                    secret = %self.secret,
                    "the certificate of the listener was deleted; it is shown until this replica ends"
                );
            }
        }
    }

    fn look(&mut self, secret: &Secret, now: Timestamp) {
        if self.version.is_some() && self.version == secret.resource_version() {
            return;
        }
        self.version = secret.resource_version();
        match self.take(secret, now) {
            Ok(()) => {
                let not_after = self.shown.not_after().unwrap_or(now);
                self.metrics.server_certificate_not_after.set(not_after.as_second());
                tracing::info!(secret = %self.secret, %not_after, "the certificate of the listener is shown");
            }
            Err(error) => {
                self.metrics.server_certificate_failures.inc();
                tracing::error!(
                    secret = %self.secret,
                    %error,
                    "the certificate of the listener is no use, and what was shown before stays; put {CERTIFICATE} and {KEY} that \
                     belong together into the Secret, or delete it if something makes it anew"
                );
            }
        }
    }

    fn take(&self, secret: &Secret, now: Timestamp) -> Result<(), SecretError> {
        let kind = secret.type_.as_deref().unwrap_or_default();
        if kind != TYPE {
            return Err(SecretError::Type(kind.to_owned()));
        }
        let value = |key| {
            let found = secret.data.as_ref().and_then(|data| data.get(key));
            found.map(|ByteString(value)| value.as_slice()).ok_or(SecretError::Missing(key))
        };
        Ok(self.shown.replace(value(CERTIFICATE)?, value(KEY)?, now)?)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn pair(until: i32) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(["opamp.example.com".to_owned()]).unwrap();
        parameters.not_after = date_time_ymd(until, 1, 1);
        [parameters.self_signed(&key).unwrap().pem(), key.serialize_pem()]
    }

    fn secret(version: &str, kind: &str, data: &[(&str, &str)]) -> Secret {
        let mut secret = Secret { type_: Some(kind.into()), ..Secret::default() };
        secret.metadata.resource_version = Some(version.into());
        secret.data = Some(data.iter().map(|(key, text)| ((*key).into(), ByteString((*text).into()))).collect());
        secret
    }

    fn now() -> Timestamp {
        "2026-11-30T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_secret_that_is_no_use_leaves_the_former_certificate_and_is_counted() {
        let [[certificate, key], [other, other_key]] = [pair(2040), pair(2041)];
        let mut listener = ListenerCertificate::new(ObjectKey::new("opamp-system", "tls"), Metrics::default());
        let good = secret("1", TYPE, &[(CERTIFICATE, &certificate), (KEY, &key)]);
        listener.follow(Event::InitApply(good.clone()), now());
        let until = listener.shown.not_after();
        assert_eq!(until, Some("2040-01-01T00:00:00Z".parse().unwrap()));
        let bad = [
            ("another type", secret("2", "Opaque", &[(CERTIFICATE, &other), (KEY, &other_key)])),
            ("no key", secret("3", TYPE, &[(CERTIFICATE, &other)])),
            ("no certificate", secret("4", TYPE, &[(KEY, &other_key)])),
            ("another's key", secret("5", TYPE, &[(CERTIFICATE, &other), (KEY, &key)])),
            ("nothing in it", secret("6", TYPE, &[])),
        ];
        for (index, (case, secret)) in (1..).zip(bad) {
            listener.follow(Event::Apply(secret.clone()), now());
            listener.follow(Event::InitApply(secret), now());
            assert_eq!(listener.shown.not_after(), until, "{case}");
            assert_eq!(listener.metrics.server_certificate_failures.get(), index, "{case}: told once");
        }
        listener.follow(Event::Delete(good), now());
        assert_eq!(listener.shown.not_after(), until, "it is shown until the replica ends");
        listener.follow(Event::Apply(secret("8", TYPE, &[(CERTIFICATE, &other), (KEY, &other_key)])), now());
        assert_eq!(listener.shown.not_after(), Some("2041-01-01T00:00:00Z".parse().unwrap()));
        let seconds: Timestamp = "2041-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(listener.metrics.server_certificate_not_after.get(), seconds.as_second());
    }
}
