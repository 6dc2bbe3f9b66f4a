//! Which of two revisions an agent gets: a pure function of its uid and one number.

use std::{fmt, str::FromStr};

use sha2::{Digest, Sha256};

use crate::opamp::InstanceUid;

/// The place of an agent in the order in which members of a fleet are updated to a revision.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Bucket(u64);

impl Bucket {
    /// The first eight bytes, big-endian, of SHA-256 over the fleet's uid, the short hash of the update revision as it
    /// stands in `status.updateRevision`, a zero byte, and the 16 bytes of the agent's uid. The revision is part of
    /// it so that it is not the same agents that go first each time.
    #[must_use]
    pub fn of(uid: &InstanceUid, fleet_uid: &str, update_revision: &str) -> Self {
        let digest: [u8; 32] = Sha256::new()
            .chain_update(fleet_uid)
            .chain_update(update_revision)
            .chain_update([0])
            .chain_update(uid.as_bytes())
            .finalize()
            .into();
        Self(digest.first_chunk().map_or(0, |head| u64::from_be_bytes(*head)))
    }
}

/// How far an update has come: members whose bucket is admitted get the update revision.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Threshold {
    /// Every member.
    #[default]
    All,
    /// Members whose bucket is below it; 0: nobody.
    Below(u64),
}

impl Threshold {
    /// Whether a member in this bucket gets the update.
    #[must_use]
    pub fn admits(self, bucket: Bucket) -> bool {
        match self {
            Self::All => true,
            Self::Below(limit) => bucket.0 < limit,
        }
    }

    /// The lowest threshold that admits this bucket.
    #[must_use]
    pub fn admitting(bucket: Bucket) -> Self {
        bucket.0.checked_add(1).map_or(Self::All, Self::Below)
    }
}

impl fmt::Display for Threshold {
    /// As in `status.rollout.threshold`: a JSON number would not hold 64 bits.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => formatter.write_str("All"),
            Self::Below(limit) => write!(formatter, "{limit:#x}"),
        }
    }
}

/// The text is neither `All` nor `0x` and hexadecimal digits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a threshold is `All` or 0x and at most 16 hexadecimal digits")]
pub struct NoThreshold;

impl FromStr for Threshold {
    type Err = NoThreshold;

    fn from_str(text: &str) -> Result<Self, NoThreshold> {
        if text == "All" {
            return Ok(Self::All);
        }
        let digits = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+')).ok_or(NoThreshold)?;
        u64::from_str_radix(digits, 16).map(Self::Below).map_err(|_| NoThreshold)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bucket_is_the_head_of_a_sha256_over_salt_zero_and_uid() {
        // printf 'fleet-uid77aa0e1944\0\1\1…' | sha256sum
        let uid = InstanceUid::from_wire(&[1; 16]).unwrap();
        let mut bytes = b"fleet-uid77aa0e1944\0".to_vec();
        bytes.extend_from_slice(&[1; 16]);
        let expected = Sha256::digest(&bytes);
        let bucket = Bucket::of(&uid, "fleet-uid", "77aa0e1944");
        assert_eq!(bucket.0.to_be_bytes(), expected[..8]);
    }

    #[test]
    fn only_buckets_below_the_threshold_get_the_update() {
        for (case, bucket, threshold, expected) in [
            ("nobody", 0, Threshold::Below(0), false),
            ("just below", 41, Threshold::Below(42), true),
            ("exactly at the threshold", 42, Threshold::Below(42), false),
            ("the last bucket", u64::MAX, Threshold::Below(u64::MAX), false),
            ("the last bucket of all", u64::MAX, Threshold::All, true),
        ] {
            assert_eq!(threshold.admits(Bucket(bucket)), expected, "{case}");
        }
    }

    #[test]
    fn only_all_and_hexadecimal_numbers_are_thresholds() {
        for (text, expected) in [
            ("All", Ok(Threshold::All)),
            ("0x0", Ok(Threshold::Below(0))),
            ("0xffffffffffffffff", Ok(Threshold::Below(u64::MAX))),
            ("0x10000000000000000", Err(NoThreshold)),
            ("0x", Err(NoThreshold)),
            ("0x+1", Err(NoThreshold)),
            ("-0x1", Err(NoThreshold)),
            ("all", Err(NoThreshold)),
            ("42", Err(NoThreshold)),
            ("", Err(NoThreshold)),
        ] {
            assert_eq!(text.parse::<Threshold>(), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_threshold_reads_back(limit: u64) {
            let threshold = Threshold::Below(limit);
            prop_assert_eq!(threshold.to_string().parse(), Ok(threshold));
        }

        #[test]
        fn a_higher_threshold_takes_the_update_from_nobody(bucket: u64, low: u64, high: u64) {
            let (low, high) = (low.min(high), low.max(high));
            if Threshold::Below(low).admits(Bucket(bucket)) {
                prop_assert!(Threshold::Below(high).admits(Bucket(bucket)));
                prop_assert!(Threshold::All.admits(Bucket(bucket)));
            }
        }

        #[test]
        fn the_threshold_of_the_kth_bucket_admits_exactly_k(buckets in prop::collection::btree_set(any::<u64>(), 1..50), pick: prop::sample::Index) {
            let place = pick.index(buckets.len());
            let bucket = *buckets.iter().nth(place).unwrap();
            let threshold = Threshold::admitting(Bucket(bucket));
            prop_assert_eq!(buckets.iter().filter(|b| threshold.admits(Bucket(**b))).count(), place + 1);
        }
    }
}
