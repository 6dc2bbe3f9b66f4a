//! What failed at the agent and is not offered again by itself (AMB-24, CON-07): the same for a configuration as for
//! connection settings.

use jiff::Timestamp;

use crate::opamp::record::{FailedOffer, OfferReport, OfferState};

/// What counts as failed once the agent has said this. A failure is remembered until the agent says that it applied the
/// very same: a supervisor goes back by itself and reports the former hash as applied.
pub(super) fn after(report: &OfferReport, former: Option<FailedOffer>, now: Timestamp) -> Option<FailedOffer> {
    let is_same = former.as_ref().is_some_and(|failed| failed.hash == report.hash);
    match report.state {
        OfferState::Failed if !report.hash.is_empty() => {
            let at = former.filter(|_| is_same).map_or(now, |failed| failed.at);
            Some(FailedOffer { hash: report.hash.clone(), error: report.error.clone(), at })
        }
        OfferState::Applied if is_same => None,
        OfferState::Unset
        | OfferState::Applied
        | OfferState::Applying
        | OfferState::Failed
        | OfferState::Unknown(_) => former,
    }
}

/// What counts as failed once an earlier process is heard, which knew of this failure. The agent's own word, if it has
/// reported to this process, is newer.
pub(super) fn with_remembered(
    own: Option<FailedOffer>,
    remembered: Option<FailedOffer>,
    word: Option<&OfferReport>,
) -> Option<FailedOffer> {
    let Some(remembered) = remembered else { return own };
    let Some(word) = word else { return Some(remembered) };
    match own {
        // What was known before tells since when, and why if the agent has not said so again.
        Some(own) if own.hash == remembered.hash => {
            let error = if own.error.is_empty() { remembered.error } else { own.error };
            Some(FailedOffer { error, at: remembered.at, ..own })
        }
        Some(own) => Some(own),
        // It reports what it went back to: that does not undo the failure.
        None if word.state != OfferState::Applied || word.hash != remembered.hash => Some(remembered),
        None => None,
    }
}

/// Whether the agent's last word is that something failed.
pub(super) fn is_the_last_word(failed: Option<&FailedOffer>, word: Option<&OfferReport>) -> bool {
    failed.is_some() || word.is_some_and(|report| report.state == OfferState::Failed)
}
