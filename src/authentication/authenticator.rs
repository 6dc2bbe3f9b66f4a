//! The decision: who is this, and may it come in at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use arc_swap::ArcSwap;
use http::{HeaderMap, header::AUTHORIZATION};
use jiff::Timestamp;
use kube::Client;
use rustls::DistinguishedName;
use rustls_pki_types::CertificateDer;
use tokio::sync::{mpsc, watch};

use super::{
    audit::Journal,
    claims::{Claims, looks_like_jwt},
    client_cas::ClientCas,
    credential::{Credential, shown},
    failures::{Failures, Source},
    fault::Fault,
    feed::Feed,
    metrics::{Method, Metrics},
    notices::{About, NOTICES_WAITING, Notice},
    refusals::Failure,
    reviews::{Question, Reviews},
    table::{Row, Table},
};
use crate::{
    api::enrollment::EnrollmentMethod,
    catalog::{Catalog, CatalogHandle, Claimant},
    credentials::{
        anchors::{ChainError, ClientCertificate},
        certificates::Certificates,
        key::KeyId,
        trust::Trust,
    },
    kubernetes::{ObjectKey, Scope},
    opamp::{
        InstanceUid,
        identity::{Audience, Digest, Identity, Principal, Proof},
        now::Now,
    },
    server::{Peer, Refusal},
};

/// The audience of tokens for fleets of the account's own namespace, and the beginning of all others.
const AUDIENCE: &str = "opamp.dev";
/// Audiences of one token that are asked about.
const MOST_AUDIENCES: usize = 32;

/// What an authenticator works with.
#[derive(Clone)]
pub struct Surroundings {
    /// For `TokenReviews`; without retries of its own.
    pub client: Client,
    /// The fleets.
    pub catalog: Arc<CatalogHandle>,
    /// The operator's own CA, and what it has taken back.
    pub trust: Trust,
    /// The certificates that agents were given, whoever has signed them.
    pub certificates: Certificates,
    /// Where Secrets are read.
    pub scope: Scope,
}

/// What Secrets hold at this moment.
#[derive(Debug, Default)]
pub(super) struct Believed {
    pub tokens: Table,
    pub users: Table,
    pub authorities: ClientCas,
}

/// Finds out who somebody is. One for each replica; nothing in it waits but for the API server's word on a token of a
/// `ServiceAccount`.
pub struct Authenticator {
    catalog: Arc<CatalogHandle>,
    trust: Trust,
    certificates: Certificates,
    believed: ArcSwap<Believed>,
    /// Locked for the time of a look-up only.
    failures: Mutex<Failures>,
    reviews: Reviews,
    journal: Journal,
    pub(super) metrics: Metrics,
    changed: watch::Sender<u64>,
    synced: watch::Sender<bool>,
    pub(super) notices: mpsc::Sender<Notice>,
    unusable_cas: watch::Sender<BTreeMap<ObjectKey, String>>,
    /// The CAs that are named to clients: none.
    pub(super) no_hints: Arc<[DistinguishedName]>,
}

impl Authenticator {
    /// An authenticator that believes nobody until the [`Feed`] runs.
    #[must_use]
    pub fn new(surroundings: Surroundings, metrics: Metrics) -> (Arc<Self>, Feed) {
        let Surroundings { client, catalog, trust, certificates, scope } = surroundings;
        let (notices, waiting) = mpsc::channel(NOTICES_WAITING);
        let authenticator = Arc::new(Self {
            catalog,
            trust,
            certificates,
            believed: ArcSwap::default(),
            failures: Mutex::default(),
            reviews: Reviews::new(client, metrics.clone()),
            journal: Journal::default(),
            metrics,
            changed: watch::Sender::new(0),
            synced: watch::Sender::new(false),
            notices,
            unusable_cas: watch::Sender::default(),
            no_hints: Arc::new([]),
        });
        (Arc::clone(&authenticator), Feed::new(authenticator, scope, waiting))
    }

    /// Says who sends this request, or why it is refused (AUTH-02, AUTH-03). Whoever is let in is taken by some fleet.
    pub async fn authenticate(&self, headers: &HeaderMap, peer: &Peer, now: Now) -> Result<Arc<Principal>, Refusal> {
        let (method, outcome) = self.identify(headers, peer, now).await;
        match outcome.and_then(|principal| self.admit(principal)) {
            Ok(principal) => {
                self.metrics.granted(method);
                Ok(Arc::new(principal))
            }
            Err(failure) => Err(self.refuse(method, failure, peer, now)),
        }
    }

    /// Whether what somebody was let in by still counts. To be asked of every session when [`Self::changed`] moves, when
    /// [`Principal::expires`] has passed, and once when a session has begun: it may have been taken away while the
    /// session was being opened.
    ///
    /// Of a `ServiceAccount` only the end of its token is known: that the account was deleted shows when the token is shown
    /// again.
    #[must_use]
    pub fn is_valid(&self, principal: &Principal, now: Timestamp) -> bool {
        let is_current = || principal.expires.is_none_or(|expires| now < expires);
        match &principal.proof {
            Proof::None => true,
            // The Secret says until when, and may have been changed since.
            Proof::Secret { digest, .. } => {
                let believed = self.believed.load();
                let identity = &principal.identity;
                believed.tokens.holds(*digest, identity, now) || believed.users.holds(*digest, identity, now)
            }
            Proof::Certificate { issuer, serial: _ } => is_current() && self.is_trusted(principal, KeyId(*issuer)),
            Proof::Reviewed => is_current(),
        }
    }

    fn is_trusted(&self, principal: &Principal, issuer: KeyId) -> bool {
        match &principal.identity {
            Identity::Certificate { .. } => self.certificates.still_counts(&self.trust.snapshot(), principal),
            Identity::ClientCa { namespace, fleet, .. } => {
                self.believed.load().authorities.lists(namespace, fleet, issuer)
            }
            Identity::Anonymous
            | Identity::EnrollmentToken { .. }
            | Identity::Basic { .. }
            | Identity::ServiceAccount { .. } => false,
        }
    }

    /// Moves whenever something was taken away, or has expired, by which somebody may have been let in.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// True once all Secrets that admit agents are known. It stays true.
    #[must_use]
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// The Secrets with CAs that fleets name and that vouch for nobody, each with the reason in words for people.
    #[must_use]
    pub fn unusable_cas(&self) -> watch::Receiver<BTreeMap<ObjectKey, String>> {
        self.unusable_cas.subscribe()
    }

    pub(super) fn note_unusable_cas(&self, unusable: BTreeMap<ObjectKey, String>) {
        self.unusable_cas.send_if_modified(|known| {
            let is_news = *known != unusable;
            *known = unusable;
            is_news
        });
    }

    /// An agent whose certificate had ended has enrolled with this identity: its fleet is told.
    pub fn enrolled_anew(&self, fleet: (&str, &str), uid: InstanceUid, identity: &Identity) {
        let about = About::EnrolledAnew { uid, method: identity.method() };
        let (namespace, fleet) = (fleet.0.to_owned(), fleet.1.to_owned());
        // With many waiting already this one is told of in the log only.
        let _ = self.notices.try_send(Notice { namespace, fleet, about });
    }

    /// Where refusals are written down, for those who refuse for other reasons.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(super) fn catalog(&self) -> &CatalogHandle {
        &self.catalog
    }

    pub(super) fn trust(&self) -> &Trust {
        &self.trust
    }

    pub(super) fn believed(&self) -> Arc<Believed> {
        self.believed.load_full()
    }

    /// Takes what Secrets hold now. Those who were let in by what is gone are to be asked about again.
    pub(super) fn believe(&self, believed: Believed, now: Timestamp) {
        self.metrics.show(Method::EnrollmentToken, believed.tokens.len());
        self.metrics.show(Method::Basic, believed.users.len());
        self.metrics.show(Method::ClientCertificate, believed.authorities.len());
        let before = self.believed();
        let is_less = before.tokens.has_more_than(&believed.tokens, now)
            || before.users.has_more_than(&believed.users, now)
            || before.authorities.has_more_than(&believed.authorities);
        self.believed.store(Arc::new(believed));
        if is_less {
            self.tell();
        }
    }

    /// Those who were let in are to be asked about again.
    pub(super) fn tell(&self) {
        self.changed.send_modify(|times| *times += 1);
    }

    pub(super) fn mark_synced(&self) {
        self.synced.send_replace(true);
    }

    /// A certificate that the operator issued decides if its fleet takes it, whatever else is shown: an agent that has one
    /// may still send the token that it came with, which may be gone. Otherwise `Authorization` decides if it is there:
    /// that is how an agent comes back whose certificate has ended. Then any other certificate. Only who shows nothing
    /// at all is anonymous.
    async fn identify(&self, headers: &HeaderMap, peer: &Peer, now: Now) -> (Method, Result<Principal, Failure>) {
        let chain = peer.certificates.as_deref().filter(|chain| !chain.is_empty());
        let own = chain.and_then(<[_]>::first).map(|certificate| self.own_certificate(certificate, now.wall));
        let has_authorization = headers.contains_key(AUTHORIZATION);
        match own {
            Some(Ok(principal)) if !has_authorization || self.is_admitted(&principal) => {
                return (Method::ClientCertificate, Ok(principal));
            }
            None if !has_authorization => return (Method::Anonymous, Ok(Principal::anonymous())),
            Some(Ok(_) | Err(_)) | None => {}
        }
        let source = Source::of(peer.address);
        if let Err(fault) = self.check(source, now.instant) {
            return (Method::Unknown, Err(fault.into()));
        }
        match (shown(headers), chain) {
            (Err(fault), _) => (Method::Unknown, Err(fault.into())),
            (Ok(Some(credential)), _) => self.by_authorization(&credential, source, now).await,
            (Ok(None), Some(chain)) => (Method::ClientCertificate, self.by_certificate(chain, own, now.wall)),
            (Ok(None), None) => (Method::Anonymous, Ok(Principal::anonymous())),
        }
    }

    /// Who was given this certificate, by the operator's CA or by an issuer that the operator has asked for it.
    pub(super) fn own_certificate(
        &self,
        certificate: &CertificateDer<'_>,
        now: Timestamp,
    ) -> Result<Principal, ChainError> {
        self.certificates.identify(&self.trust.snapshot(), certificate, now).map(principal_of_certificate)
    }

    /// Who holds a certificate of a CA that a fleet names.
    pub(super) fn of_client_ca(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<Principal, Fault> {
        self.believed.load().authorities.identify(chain, &self.trust.snapshot(), now)
    }

    /// What the operator's own CA has signed and does not count opens nothing, whichever CAs fleets name.
    fn by_certificate(
        &self,
        chain: &[CertificateDer<'_>],
        own: Option<Result<Principal, ChainError>>,
        now: Timestamp,
    ) -> Result<Principal, Failure> {
        let fault = match own {
            Some(Ok(principal)) => return Ok(principal),
            None | Some(Err(ChainError::Untrusted | ChainError::Unreadable | ChainError::Missing)) => {
                return Ok(self.of_client_ca(chain, now)?);
            }
            Some(Err(ChainError::Expired)) => Fault::Expired,
            Some(Err(ChainError::Superseded)) => Fault::SupersededCertificate,
            Some(Err(ChainError::Revoked)) => Fault::RevokedCertificate,
            Some(Err(
                ChainError::Usage | ChainError::NotYetValid | ChainError::NoName | ChainError::AnotherCluster,
            )) => Fault::UntrustedCertificate,
        };
        Err(fault.into())
    }

    async fn by_authorization(
        &self,
        credential: &Credential<'_>,
        source: Source,
        now: Now,
    ) -> (Method, Result<Principal, Failure>) {
        let digest = credential.digest();
        let believed = self.believed();
        match credential {
            Credential::Password(_) => {
                let found = believed.users.find(digest, now.wall);
                let unknown = |fault| if fault == Fault::UnknownToken { Fault::UnknownPassword } else { fault };
                let found = found.map_err(|(fault, identity)| Failure { fault: unknown(fault), identity });
                (Method::Basic, found.map(principal_of))
            }
            Credential::Token(token) => match believed.tokens.find(digest, now.wall) {
                Ok(row) => (Method::EnrollmentToken, Ok(principal_of(row))),
                Err((Fault::UnknownToken, _)) if looks_like_jwt(token) => {
                    (Method::ServiceAccount, self.by_review(token, digest, source, now).await)
                }
                Err((fault, identity)) => (Method::EnrollmentToken, Err(Failure { fault, identity })),
            },
        }
    }

    /// The API server is asked only about tokens that would open something if they were genuine.
    async fn by_review(&self, token: &str, digest: Digest, source: Source, now: Now) -> Result<Principal, Failure> {
        let claims = Claims::read(token)?;
        if claims.expires <= now.wall {
            return Err(Fault::Expired.into());
        }
        let catalog = self.catalog.load();
        let audiences = audiences(&claims, &catalog);
        if audiences.is_empty() {
            return Err(Fault::WrongAudience.into());
        }
        let claimed = audiences.iter().map(|text| audience(text)).collect();
        if !catalog.admits(Claimant { identity: &claims.account, audiences: Some(&claimed) }) {
            return Err(Fault::NotAdmitted.into());
        }
        let question = Question { token, digest, audiences: &audiences };
        let mut patience = Patience { authenticator: self, source, is_over: false };
        let reviewed = self.reviews.review(question, || self.check(source, super::clock())).await;
        patience.is_over = true;
        let reviewed = reviewed?;
        Ok(Principal {
            identity: reviewed.account,
            audiences: reviewed.audiences.iter().map(|text| audience(text)).collect(),
            proof: Proof::Reviewed,
            expires: Some(claims.expires),
        })
    }

    /// An identity that no fleet takes is refused before anything is opened.
    fn admit(&self, principal: Principal) -> Result<Principal, Failure> {
        if self.is_admitted(&principal) {
            return Ok(principal);
        }
        match principal.proof {
            Proof::None => Err(Fault::NoCredential.into()),
            Proof::Secret { .. } | Proof::Certificate { .. } | Proof::Reviewed => {
                Err(Failure { fault: Fault::NotAdmitted, identity: Some(principal.identity) })
            }
        }
    }

    fn is_admitted(&self, principal: &Principal) -> bool {
        self.catalog.load().admits(Claimant::present(principal))
    }

    fn check(&self, source: Source, now: Instant) -> Result<(), Fault> {
        match self.failures().wait(source, now) {
            Some(retry_after) => Err(Fault::TooManyFailures { retry_after }),
            None => Ok(()),
        }
    }

    pub(super) fn failures(&self) -> MutexGuard<'_, Failures> {
        // No holder can leave half a change behind.
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody waits for the API server's word. Who goes away meanwhile is taken for one who guesses: else the limit on
/// failures would not hold for those who do not wait to hear of them.
struct Patience<'a> {
    authenticator: &'a Authenticator,
    source: Source,
    is_over: bool,
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.authenticator.failures().note(self.source, super::clock());
        }
    }
}

fn principal_of_certificate(found: ClientCertificate) -> Principal {
    Principal {
        identity: found.identity,
        audiences: BTreeSet::new(),
        proof: Proof::Certificate { issuer: found.issuer.0, serial: found.serial.as_bytes().into() },
        expires: Some(found.not_after),
    }
}

fn principal_of(row: Row) -> Principal {
    Principal {
        identity: row.identity,
        audiences: BTreeSet::new(),
        proof: Proof::Secret { namespace: row.namespace, digest: row.digest },
        expires: row.expires,
    }
}

/// The audiences of a token that would do: the ones of fleets that take `ServiceAccounts`.
fn audiences(claims: &Claims, catalog: &Catalog) -> BTreeSet<String> {
    let mut fleets =
        catalog.fleets().filter(|fleet| fleet.enrollment.methods().contains(&EnrollmentMethod::ServiceAccount));
    let namespaces: BTreeSet<&str> = fleets.by_ref().map(|fleet| fleet.namespace.as_str()).collect();
    let would_do = |text: &&String| match audience(text) {
        Audience::OwnNamespace => *text == AUDIENCE && !namespaces.is_empty(),
        Audience::Namespace(namespace) => namespaces.contains(namespace.as_str()),
    };
    claims.audiences.iter().filter(would_do).take(MOST_AUDIENCES).cloned().collect()
}

fn audience(text: &str) -> Audience {
    match text.strip_prefix(AUDIENCE).and_then(|rest| rest.strip_prefix('/')) {
        Some(namespace) => Audience::Namespace(namespace.into()),
        None => Audience::OwnNamespace,
    }
}
