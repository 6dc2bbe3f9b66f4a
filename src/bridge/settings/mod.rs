//! How agents are to connect: what they are offered of their fleet's settings, and what becomes of their requests for
//! certificates.
//!
//! [`offer::join`] makes the offer of one agent, a function of values. [`terms::Terms`] holds it for as long as nothing
//! changes, with what the agent has asked for. A request that was found good goes through [`applications::Applications`]
//! to the API server; the answer, whoever gave it, comes with the index of certificates.

mod applications;
mod certificates;
mod offer;
mod terms;

pub(super) use applications::Applications;
pub use applications::{Application, RequestDesk};
pub(super) use terms::{Issuance, KeptRequest, Party, Ripe, SharedOffers, Terms, Wanted};

use super::{Bridge, entry::Entry};
use crate::{opamp::now::Now, status::queue::Urgency};

impl Bridge {
    /// Takes over what the agent's fleet says of its connection now, and decides on what had to wait for that.
    pub(super) fn settle(&self, entry: &mut Entry, now: Now) {
        if entry.settle(self.issuance(), now) {
            self.touch(entry, Some(Urgency::Configuration));
        }
        self.take_up(entry, now);
    }

    fn issuance(&self) -> Issuance<'_> {
        Issuance { certificates: &self.certificates, trust: &self.trust, offers: &self.shared_offers }
    }
}
