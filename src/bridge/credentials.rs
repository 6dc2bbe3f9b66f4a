//! What the bridge asks about credentials: who somebody is, and whether what was checked before still counts.

use std::sync::Arc;

use futures::{FutureExt as _, future::BoxFuture};
use http::HeaderMap;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::{
    authentication::Authenticator,
    opamp::{
        InstanceUid,
        identity::{Identity, Principal},
        now::Now,
    },
    server::{Peer, Refusal},
};

/// The credentials that count now.
pub trait Credentials: Send + Sync + 'static {
    /// Who sends a request with these headers.
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        peer: &'a Peer,
        now: Now,
    ) -> BoxFuture<'a, Result<Arc<Principal>, Refusal>>;

    /// Whether a principal that was admitted once would be admitted again. Called for each message; must return at once.
    fn is_valid(&self, principal: &Principal, now: Timestamp) -> bool;

    /// An agent of this fleet, by namespace and name, whose certificate had ended has enrolled with this identity.
    fn enrolled_anew(&self, fleet: (&str, &str), uid: InstanceUid, identity: &Identity);

    /// Moves whenever a credential may have gone.
    fn changed(&self) -> watch::Receiver<u64>;
}

impl Credentials for Authenticator {
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        peer: &'a Peer,
        now: Now,
    ) -> BoxFuture<'a, Result<Arc<Principal>, Refusal>> {
        self.authenticate(headers, peer, now).boxed()
    }

    fn is_valid(&self, principal: &Principal, now: Timestamp) -> bool {
        self.is_valid(principal, now)
    }

    fn enrolled_anew(&self, fleet: (&str, &str), uid: InstanceUid, identity: &Identity) {
        self.enrolled_anew(fleet, uid, identity);
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.changed()
    }
}
