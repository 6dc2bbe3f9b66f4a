//! What is measured of certificates.

use jiff::Timestamp;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::roll::Issuer;

/// Metrics of the leader's work on certificates.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    issued: Family<IssuedLabels, Counter>,
    pending: Gauge,
    authority_end: Gauge,
    server_end: Gauge,
    revoked: Gauge,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct IssuedLabels {
    issuer: IssuerLabel,
    outcome: IssueOutcome,
}

#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
enum IssuerLabel {
    Internal,
    CertificateSigningRequest,
    CertManager,
}

/// What became of an attempt to give an agent a certificate.
#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
pub(super) enum IssueOutcome {
    /// It was written.
    Issued,
    /// There will be none for this request.
    Refused,
    /// It could not be made or written, and is tried again.
    Failed,
}

impl Metrics {
    /// Makes them known.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "certificates",
            "Certificates of agents that were due, by issuer and outcome",
            metrics.issued.clone(),
        );
        registry.register(
            "certificate_requests_pending",
            "Certificates of agents that are due or wait for approval; leader only",
            metrics.pending.clone(),
        );
        registry.register(
            "ca_not_after_timestamp_seconds",
            "End of the CA's certificate, since 1970; leader only",
            metrics.authority_end.clone(),
        );
        registry.register(
            "server_certificate_not_after_timestamp_seconds",
            "End of the server's certificate by the operator's CA, since 1970; leader only",
            metrics.server_end.clone(),
        );
        registry.register(
            "revoked_certificates",
            "Entries of the revocation list; leader only",
            metrics.revoked.clone(),
        );
        metrics
    }

    pub(super) fn issued(&self, issuer: &Issuer, outcome: IssueOutcome) {
        let issuer = match issuer {
            Issuer::Internal => IssuerLabel::Internal,
            Issuer::CertificateSigningRequest => IssuerLabel::CertificateSigningRequest,
            Issuer::CertManager { .. } => IssuerLabel::CertManager,
        };
        self.issued.get_or_create(&IssuedLabels { issuer, outcome }).inc();
    }

    pub(super) fn authority_ends(&self, at: Timestamp) {
        self.authority_end.set(at.as_second());
    }

    pub(super) fn server_ends(&self, at: Timestamp) {
        self.server_end.set(at.as_second());
    }

    pub(super) fn show(&self, pending: usize, revoked: usize) {
        self.pending.set(i64::try_from(pending).unwrap_or(i64::MAX));
        self.revoked.set(i64::try_from(revoked).unwrap_or(i64::MAX));
    }
}
