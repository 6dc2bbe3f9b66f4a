//! Takes secrets out of a configuration that an agent reports, so that it may be shown to whoever may read Secrets of
//! the fleet's namespace for other reasons.
//!
//! Four nets, each for what slips through the others: what came from Secrets of the agent's fleet, whatever it is called
//! there ([`FleetEntry::scrub`]); what stands under the name of a secret, in YAML and JSON ([`document`]) or in any other
//! text ([`assignments`]); and what looks like a secret ([`patterns`]). Each rather takes too much than too little. The
//! rest of the text stays as the agent wrote it, with its comments and in its layout.

mod assignments;
mod document;
mod names;
mod patterns;

use std::borrow::Cow;

use self::{assignments::Wording, document::Redacted};
use crate::catalog::FleetEntry;
pub use crate::catalog::scrub::MARK;

/// The text without secrets. The fleets are those whose Secrets may be in it. It takes time in proportion to the text.
#[must_use]
pub fn redact<'f>(text: &str, fleets: impl Iterator<Item = &'f FleetEntry> + Clone) -> String {
    let text = patterns::remove_private_keys(text);
    let is_known = |value: &str| matches!(scrub(value, fleets.clone()), Cow::Owned(_));
    let text = match document::redact(&text, is_known) {
        Redacted::Whole(text) => text,
        Redacted::Beginning(text) => redact_lines(&text),
    };
    let text = scrub(&text, fleets.clone());
    patterns::remove_credentials(&text).into_owned()
}

/// The text without what came from Secrets of the fleets.
pub(super) fn scrub<'t, 'f>(text: &'t str, fleets: impl Iterator<Item = &'f FleetEntry>) -> Cow<'t, str> {
    fleets.fold(Cow::Borrowed(text), |text, fleet| match text {
        Cow::Borrowed(text) => fleet.scrub(text),
        Cow::Owned(text) => Cow::Owned(fleet.scrub(&text).into_owned()),
    })
}

/// For text that is neither YAML nor JSON, or is broken somewhere.
fn redact_lines(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut position = 0;
    for value in assignments::values(text, Wording::Lines) {
        redacted.push_str(&text[position..value.start]);
        redacted.push_str(MARK);
        position = value.end;
    }
    redacted.push_str(&text[position..]);
    redacted
}

#[cfg(test)]
mod tests;
