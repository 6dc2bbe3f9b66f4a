//! Whether the values that connection settings refer to are there, and are what they must be: pure.
//!
//! Values that belong together are judged together: a certificate with its key and its CA. No message holds a value.

mod pem;

use std::collections::BTreeMap;

use bytes::Bytes;

use self::pem::{Unusable, check_authorities, check_certificate, check_pair, is_self_signed};
use crate::{
    api::reasons::ConnectionSettingsReason,
    catalog::{
        Credentials,
        credentials::{Credential, CredentialKind},
        settings::{AUTHORITY_KEY, CERTIFICATE_KEY, CredentialReference, PRIVATE_KEY_KEY, Settings, Use},
    },
};

/// The longest value of a header; a literal one has the same limit.
const LONGEST_HEADER: usize = 8_192;

/// Why a reference leads to no value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NotFound {
    /// The object does not exist.
    Object,
    /// The object has no such key.
    Key,
    /// The object exists, and could not be read: this is what the API server says.
    Unreadable(String),
}

/// What references led to. A reference that is not in it counts as a missing object.
pub type Found = BTreeMap<CredentialReference, Result<Credential, NotFound>>;

/// What is to be kept of a reference.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Verdict {
    /// The value that was found.
    Take,
    /// The value that was good before, if there is one: what is there now cannot be used.
    Keep,
    /// None: it is gone, and whoever deleted it does not want it to be offered any more.
    Drop,
}

/// The judgement of all values of some settings.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Judgement {
    /// One for each reference.
    pub verdicts: BTreeMap<CredentialReference, Verdict>,
    /// What is to be said of the `ConnectionSettings`, most important first.
    pub faults: Vec<(ConnectionSettingsReason, String)>,
}

/// Judges every value that these settings refer to.
#[must_use]
pub fn judge(settings: &Settings, found: &Found) -> Judgement {
    let mut judgement = Judgement::default();
    for it in settings.uses() {
        let (verdict, fault) = match check(&it, found) {
            Ok(()) => (Verdict::Take, None),
            Err((verdict, reason, fault)) => (verdict, Some((reason, format!("{}: {fault}", title(&it))))),
        };
        for reference in it.references() {
            let worst = judgement.verdicts.entry(reference).or_insert(Verdict::Take);
            *worst = verdict.max(*worst);
        }
        judgement.faults.extend(fault);
    }
    judgement.faults.dedup();
    judgement
}

fn title(it: &Use<'_>) -> String {
    match it {
        Use::Header(name, _) => format!("header {name}"),
        Use::Authorities(_) => "caFrom".into(),
        Use::Certificate(_) => "certificate".into(),
    }
}

type Fault = (Verdict, ConnectionSettingsReason, String);

fn check(it: &Use<'_>, found: &Found) -> Result<(), Fault> {
    match it {
        Use::Header(_, reference) => {
            let value = value(reference, found)?;
            check_header(value).map_err(|unusable| invalid(reference, &unusable))
        }
        Use::Authorities(reference) => {
            let value = value(reference, found)?;
            check_authorities(value).map_err(|unusable| invalid(reference, &unusable))
        }
        Use::Certificate(secret) => check_client_certificate(secret, found),
    }
}

fn check_client_certificate(secret: &str, found: &Found) -> Result<(), Fault> {
    let reference = |key| CredentialReference::secret(secret, key);
    let (certificate, key, authority) =
        (reference(CERTIFICATE_KEY), reference(PRIVATE_KEY_KEY), reference(AUTHORITY_KEY));
    let (pem, key_pem) = (value(&certificate, found)?, value(&key, found)?);
    let chain = check_certificate(pem).map_err(|unusable| invalid(&certificate, &unusable))?;
    check_pair(&chain, key_pem).map_err(|unusable| invalid(&key, &unusable))?;
    match value(&authority, found) {
        Ok(pem) => check_authorities(pem).map_err(|unusable| invalid(&authority, &unusable)),
        Err(_) if is_self_signed(&chain) && is_no_key(&authority, found) => Ok(()),
        Err(fault) => Err(fault),
    }
}

fn is_no_key(reference: &CredentialReference, found: &Found) -> bool {
    matches!(found.get(reference), Some(Err(NotFound::Key)))
}

fn value<'a>(reference: &CredentialReference, found: &'a Found) -> Result<&'a [u8], Fault> {
    let CredentialReference { kind, name, key } = reference;
    let missing = |message| Err((Verdict::Drop, ConnectionSettingsReason::ReferenceNotFound, message));
    match found.get(reference) {
        Some(Ok(credential)) => Ok(&credential.value),
        Some(Err(NotFound::Key)) => missing(format!("{kind} {name} has no key {key}")),
        Some(Err(NotFound::Object)) | None => missing(format!("{kind} {name} does not exist")),
        // Whether it is gone is not known: what was good before stays.
        Some(Err(NotFound::Unreadable(why))) => Err((
            Verdict::Keep,
            ConnectionSettingsReason::ReferenceNotFound,
            format!("{kind} {name} could not be read: {why}"),
        )),
    }
}

fn invalid(reference: &CredentialReference, unusable: &Unusable) -> Fault {
    (Verdict::Keep, ConnectionSettingsReason::InvalidReference, format!("{reference} {unusable}"))
}

fn check_header(value: &[u8]) -> Result<(), Unusable> {
    if value.is_empty() {
        return Err(Unusable::Empty);
    }
    if value.len() > LONGEST_HEADER {
        return Err(Unusable::TooLong(LONGEST_HEADER));
    }
    let text = std::str::from_utf8(value).map_err(|_| Unusable::NotText)?;
    if text.chars().any(char::is_control) { Err(Unusable::ControlCharacters) } else { Ok(()) }
}

/// What is kept of the values that these settings refer to, given what was kept before.
///
/// A value that cannot be used leaves the former one in force. A value that is gone is gone here too; of an enrollment
/// token it is remembered that it was one, so that agents with a certificate go on without it.
#[must_use]
pub fn keep<'a>(
    settings: impl IntoIterator<Item = &'a Settings>,
    found: &Found,
    former: Option<&Credentials>,
) -> BTreeMap<CredentialReference, Credential> {
    let mut verdicts: BTreeMap<CredentialReference, Verdict> = BTreeMap::new();
    for settings in settings {
        for (reference, verdict) in judge(settings, found).verdicts {
            let worst = verdicts.get(&reference).copied().map_or(verdict, |former| former.max(verdict));
            verdicts.insert(reference, worst);
        }
    }
    let kept = verdicts.into_iter().filter_map(|(reference, verdict)| {
        let before = former.and_then(|former| former.credential(&reference));
        let credential = match verdict {
            Verdict::Take => found.get(&reference).and_then(|found| found.as_ref().ok()).cloned(),
            Verdict::Keep => before.cloned(),
            Verdict::Drop => before
                .filter(|before| before.kind == CredentialKind::EnrollmentToken)
                .map(|before| Credential { value: Bytes::new(), ..before.clone() }),
        };
        Some((reference, credential?))
    });
    kept.collect()
}

#[cfg(test)]
mod tests;
