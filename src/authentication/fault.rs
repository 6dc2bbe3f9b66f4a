//! Why somebody is not let in.

use std::time::Duration;

/// Why a credential does not open anything. For the log and the metrics; the peer is told none of it, because whoever
/// guesses would learn from it which part was right.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Fault {
    /// No credential was shown, and no fleet takes agents without one.
    #[error("no credential was shown")]
    NoCredential,
    /// `Authorization` is there more than once, too long, not visible ASCII, of an unknown scheme or not well-formed.
    #[error("the Authorization header is malformed")]
    Malformed,
    /// No Secret holds this token, and it is no token of a `ServiceAccount`.
    #[error("the token is not known")]
    UnknownToken,
    /// No Secret holds this pair of user and password.
    #[error("user and password are not known")]
    UnknownPassword,
    /// Secrets that bind it differently hold the same token or password: none of them is believed.
    #[error("several Secrets hold it, and bind it differently")]
    Ambiguous,
    /// Its time is over.
    #[error("it has expired")]
    Expired,
    /// The token is meant for nobody here.
    #[error("the token is for another audience")]
    WrongAudience,
    /// The token is of a user, or of whatever is no `ServiceAccount`.
    #[error("the token is not of a ServiceAccount")]
    NotServiceAccount,
    /// The API server does not know the token.
    #[error("the API server does not know the token")]
    ReviewRefused,
    /// No CA that is trusted has signed the certificate, or not for a client of this cluster.
    #[error("the certificate is not trusted")]
    UntrustedCertificate,
    /// The certificate was taken back.
    #[error("the certificate has been revoked")]
    RevokedCertificate,
    /// The agent has used a later certificate.
    #[error("the agent has used a later certificate")]
    SupersededCertificate,
    /// The credential is good, and no fleet takes its holder.
    #[error("no fleet takes this identity")]
    NotAdmitted,
    /// Too many credentials of this address did not count.
    #[error("too many failed attempts")]
    TooManyFailures {
        /// When the next one is looked at.
        retry_after: Duration,
    },
    /// The API server, which would have to be asked, does not answer or is asked too often.
    #[error("the API server cannot be asked")]
    Unavailable,
}

impl Fault {
    /// One fixed word a variant, for the audit line and events.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::NoCredential => "NoCredential",
            Self::Malformed => "Malformed",
            Self::UnknownToken => "UnknownToken",
            Self::UnknownPassword => "UnknownPassword",
            Self::Ambiguous => "Ambiguous",
            Self::Expired => "Expired",
            Self::WrongAudience => "WrongAudience",
            Self::NotServiceAccount => "NotServiceAccount",
            Self::ReviewRefused => "ReviewRefused",
            Self::UntrustedCertificate => "UntrustedCertificate",
            Self::RevokedCertificate => "RevokedCertificate",
            Self::SupersededCertificate => "SupersededCertificate",
            Self::NotAdmitted => "NotAdmitted",
            Self::TooManyFailures { .. } => "TooManyFailures",
            Self::Unavailable => "Unavailable",
        }
    }

    /// Whether it may be a guess, and counts against the address. What is not looked at is none, nor is a credential
    /// that is good but opens nothing, nor none at all.
    pub(super) fn may_be_a_guess(self) -> bool {
        match self {
            Self::Malformed
            | Self::UnknownToken
            | Self::UnknownPassword
            | Self::Ambiguous
            | Self::Expired
            | Self::WrongAudience
            | Self::NotServiceAccount
            | Self::ReviewRefused
            | Self::UntrustedCertificate
            | Self::RevokedCertificate
            | Self::SupersededCertificate => true,
            Self::NoCredential | Self::NotAdmitted | Self::TooManyFailures { .. } | Self::Unavailable => false,
        }
    }
}
