//! Offers that were computed, kept within bounds.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
};

use super::offers::OfferResult;

/// Most bytes of encoded offers that one cache keeps. Agents choose their attributes, so that the number of different
/// offers is theirs to choose too.
const CACHED_BYTES: usize = 64 << 20;
/// Most offers that one cache keeps, whatever their size.
const CACHED_OFFERS: usize = 16_384;

/// Offers by what decides them.
pub(super) struct OfferCache<K> {
    known: HashMap<K, OfferResult>,
    bytes: usize,
}

impl<K> Default for OfferCache<K> {
    fn default() -> Self {
        Self { known: HashMap::new(), bytes: 0 }
    }
}

impl<K: Eq + Hash> OfferCache<K> {
    /// Forgets everything when full: what is still needed is back after one computation each.
    fn keep(&mut self, key: K, offer: &OfferResult) {
        let size = match offer {
            Ok(Some(offer)) => offer.encoded.len(),
            Ok(None) | Err(_) => 0,
        };
        if size > CACHED_BYTES {
            return;
        }
        if self.bytes + size > CACHED_BYTES || self.known.len() >= CACHED_OFFERS {
            self.known.clear();
            self.bytes = 0;
        }
        if self.known.insert(key, offer.clone()).is_none() {
            self.bytes += size;
        }
    }
}

/// Computes without holding the lock: two sessions may compute the same at once, and none waits for another's template.
pub(super) fn cached<K: Copy + Eq + Hash>(
    cache: &Mutex<OfferCache<K>>,
    key: K,
    compute: impl FnOnce() -> OfferResult,
) -> OfferResult {
    let lock = || cache.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(offer) = lock().known.get(&key) {
        return offer.clone();
    }
    let offer = compute();
    lock().keep(key, &offer);
    offer
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::opamp::offer::{ConfigHash, RemoteConfigOffer};

    #[test]
    fn a_cache_never_grows_beyond_its_bounds() {
        let mut cache = OfferCache::default();
        let offer =
            Ok(Some(Arc::new(RemoteConfigOffer { hash: ConfigHash::of(b""), encoded: vec![0; 1 << 20].into() })));
        for key in 0..200 {
            cache.keep(key, &offer);
            assert!(cache.known.len() <= 64 && cache.bytes <= CACHED_BYTES);
        }
        for key in 0..20_000 {
            cache.keep(key, &Ok(None));
            assert!(cache.known.len() <= CACHED_OFFERS);
        }
    }
}
