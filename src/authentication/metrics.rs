//! What is measured of authentication.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::fault::Fault;

/// Metrics of the authenticator.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    authentications: Family<AuthenticationLabels, Counter>,
    reviews: Family<ReviewLabels, Counter>,
    credentials: Family<CredentialLabels, Gauge>,
}

/// By what somebody wanted in.
#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
pub(super) enum Method {
    Anonymous,
    EnrollmentToken,
    Basic,
    ServiceAccount,
    ClientCertificate,
    /// What was shown is of no method, or was not looked at.
    Unknown,
}

impl Method {
    /// As in `enrollment.methods`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "Anonymous",
            Self::EnrollmentToken => "EnrollmentToken",
            Self::Basic => "Basic",
            Self::ServiceAccount => "ServiceAccount",
            Self::ClientCertificate => "ClientCertificate",
            Self::Unknown => "Unknown",
        }
    }
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct AuthenticationLabels {
    method: Method,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
enum Outcome {
    Granted,
    Refused,
    NotAdmitted,
    TooManyFailures,
    Unavailable,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct ReviewLabels {
    outcome: ReviewOutcome,
}

/// What became of a `TokenReview`.
#[derive(Clone, Copy, Debug, EncodeLabelValue, Eq, Hash, PartialEq)]
pub(super) enum ReviewOutcome {
    Accepted,
    Refused,
    Failed,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct CredentialLabels {
    method: Method,
}

impl Metrics {
    /// Makes them known.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "authentications",
            "Connections and HTTP requests by what was shown and what came of it",
            metrics.authentications.clone(),
        );
        registry.register(
            "token_reviews",
            "Questions to the API server about tokens of ServiceAccounts by outcome",
            metrics.reviews.clone(),
        );
        registry.register("credentials", "Secrets and CAs that admit agents by method", metrics.credentials.clone());
        metrics
    }

    pub(super) fn granted(&self, method: Method) {
        self.count(method, Outcome::Granted);
    }

    pub(super) fn refused(&self, method: Method, fault: Fault) {
        let outcome = match fault {
            Fault::NoCredential | Fault::NotAdmitted => Outcome::NotAdmitted,
            Fault::TooManyFailures { .. } => Outcome::TooManyFailures,
            Fault::Unavailable => Outcome::Unavailable,
            Fault::Malformed
            | Fault::UnknownToken
            | Fault::UnknownPassword
            | Fault::Ambiguous
            | Fault::Expired
            | Fault::WrongAudience
            | Fault::NotServiceAccount
            | Fault::ReviewRefused
            | Fault::UntrustedCertificate
            | Fault::RevokedCertificate
            | Fault::SupersededCertificate => Outcome::Refused,
        };
        self.count(method, outcome);
    }

    fn count(&self, method: Method, outcome: Outcome) {
        self.authentications.get_or_create(&AuthenticationLabels { method, outcome }).inc();
    }

    pub(super) fn reviewed(&self, outcome: ReviewOutcome) {
        self.reviews.get_or_create(&ReviewLabels { outcome }).inc();
    }

    pub(super) fn show(&self, method: Method, credentials: usize) {
        let gauge = self.credentials.get_or_create(&CredentialLabels { method });
        gauge.set(i64::try_from(credentials).unwrap_or(i64::MAX));
    }
}
