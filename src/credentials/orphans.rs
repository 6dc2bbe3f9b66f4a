//! Certificates of agents that have no object: since when that is so.
//!
//! Nothing that is stored tells it, and the age of a Secret does not: that of an agent whose object somebody has deleted by
//! mistake may be a week old. Another leader counts anew.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::{roll::Roll, stored::AgentCertificate};
use crate::kubernetes::ObjectKey;

/// The places where objects of Agents are missing.
#[derive(Clone, Debug, Default)]
pub struct Orphans(BTreeMap<ObjectKey, Timestamp>);

impl Orphans {
    /// Looks which certificates belong to nobody.
    pub fn look(&mut self, roll: &Roll, certificates: &[Arc<AgentCertificate>], now: Timestamp) {
        let former = std::mem::take(&mut self.0);
        let places = certificates.iter().map(|certificate| Roll::place(&certificate.key.namespace, &certificate.agent));
        let missing = places.filter(|place| !roll.members.contains_key(place));
        self.0 = missing.map(|place| (place.clone(), former.get(&place).copied().unwrap_or(now))).collect();
    }

    /// Since when the object of this place is missing.
    #[must_use]
    pub fn since(&self, place: &ObjectKey) -> Option<Timestamp> {
        self.0.get(place).copied()
    }
}
