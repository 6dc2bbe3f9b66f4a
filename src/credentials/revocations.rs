//! The certificates that were taken back before their time.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use jiff::Timestamp;
use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevocationReason, RevokedCertParams, SerialNumber};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    authority::{Authority, AuthorityError},
    facts::{date, later},
    key::KeyId,
    serial::Serial,
};
use crate::opamp::InstanceUid;

/// How long a list counts. It is signed anew every day.
const VALIDITY: Duration = Duration::from_secs(7 * 86_400);
/// Most entries. An entry takes about 134 bytes of a ConfigMap, which has room for 1 MiB.
pub const MOST_REVOKED: usize = 7_500;

/// Why a list cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("it is no list of revoked certificates")]
pub struct ListError;

/// Whose certificate it was: the beginning of a digest over the namespace of its fleet and its `instance_uid`. So long that
/// nobody finds another agent with the same, and no longer, for there may be thousands in one object.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct HolderId([u8; 12]);

impl HolderId {
    /// That of an agent of this namespace.
    #[must_use]
    pub fn of(namespace: &str, agent: &InstanceUid) -> Self {
        let digest = Sha256::new().chain_update(namespace).chain_update([0]).chain_update(agent.as_bytes()).finalize();
        let mut beginning = [0; 12];
        beginning.copy_from_slice(&digest[..12]);
        Self(beginning)
    }

    /// A number that no certificate has, for an entry about all that the holder had been given.
    #[must_use]
    pub fn stand_in(&self) -> Option<Serial> {
        Serial::from_der(&self.0)
    }
}

/// When a certificate was taken back, and how long that matters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Revocation {
    /// Whose it was. What else this agent had been given until then is taken back with it: former certificates may not have
    /// ended, and no Secret tells of them.
    pub holder: HolderId,
    /// When it was taken back.
    pub at: Timestamp,
    /// When the certificate ends by itself; then it is dropped from the list.
    pub not_after: Timestamp,
}

/// Certificates by the key of their issuer and their number.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Revocations {
    entries: BTreeMap<KeyId, BTreeMap<Serial, Revocation>>,
}

/// An entry as it is stored: number, end, revocation, and holder; moments in seconds since 1970. Short, for there may be
/// thousands of them in one object.
#[derive(Deserialize, Serialize)]
struct StoredEntry(String, i64, i64, String);

impl Revocations {
    /// Takes a certificate back; one that was taken back before stays as it was.
    pub fn revoke(&mut self, issuer: KeyId, serial: Serial, revocation: Revocation) {
        self.entries.entry(issuer).or_default().entry(serial).or_insert(revocation);
    }

    /// Whether a certificate was taken back.
    #[must_use]
    pub fn contains(&self, issuer: &KeyId, serial: &Serial) -> bool {
        self.entries.get(issuer).is_some_and(|serials| serials.contains_key(serial))
    }

    /// When certificates of these agents were taken back, the last time.
    #[must_use]
    pub fn holders(&self) -> HashMap<HolderId, Timestamp> {
        let mut holders = HashMap::new();
        for (_, _, revocation) in self.iter() {
            let last = holders.entry(revocation.holder).or_insert(revocation.at);
            *last = revocation.at.max(*last);
        }
        holders
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.values().map(BTreeMap::len).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is no room for another. One that is in the list stays until it ends: nothing else may know of it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() >= MOST_REVOKED
    }

    /// Drops the certificates that have ended by themselves.
    pub fn tidy(&mut self, now: Timestamp) {
        self.entries.values_mut().for_each(|serials| serials.retain(|_, revocation| revocation.not_after > now));
        self.entries.retain(|_, serials| !serials.is_empty());
    }

    fn iter(&self) -> impl Iterator<Item = (&KeyId, &Serial, &Revocation)> {
        self.entries
            .iter()
            .flat_map(|(issuer, serials)| serials.iter().map(move |(serial, revocation)| (issuer, serial, revocation)))
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Result<Self, ListError> {
        let stored: HashMap<String, Vec<StoredEntry>> = serde_json::from_str(text).map_err(|_| ListError)?;
        let mut list = Self::default();
        for (issuer, entries) in stored {
            let issuer = KeyId::parse(&issuer).ok_or(ListError)?;
            for StoredEntry(serial, not_after, at, holder) in entries {
                let holder = STANDARD_NO_PAD.decode(holder).ok().and_then(|bytes| bytes.try_into().ok());
                let holder = HolderId(holder.ok_or(ListError)?);
                let serial = STANDARD_NO_PAD.decode(serial).ok().and_then(|bytes| Serial::from_der(&bytes));
                let moment = |seconds| Timestamp::from_second(seconds).map_err(|_| ListError);
                let revocation = Revocation { holder, at: moment(at)?, not_after: moment(not_after)? };
                list.revoke(issuer, serial.ok_or(ListError)?, revocation);
            }
        }
        Ok(list)
    }

    /// The text form: by issuer, each entry with number and holder in base64.
    #[must_use]
    pub fn to_text(&self) -> String {
        let stored: BTreeMap<String, Vec<StoredEntry>> = self
            .entries
            .iter()
            .map(|(issuer, serials)| {
                let entry = |(serial, revocation): (&Serial, &Revocation)| {
                    let serial = STANDARD_NO_PAD.encode(serial.as_bytes());
                    let holder = STANDARD_NO_PAD.encode(revocation.holder.0);
                    StoredEntry(serial, revocation.not_after.as_second(), revocation.at.as_second(), holder)
                };
                (issuer.to_string(), serials.iter().map(entry).collect())
            })
            .collect();
        serde_json::json!(stored).to_string()
    }

    /// Signs it as a list that every TLS library reads (RFC 5280 §5), in PEM. The certificates of former CAs are in it
    /// too: a number of 126 random bits belongs to one certificate alone.
    pub fn sign(&self, authority: &Authority, number: u64, now: Timestamp) -> Result<String, AuthorityError> {
        authority.check_dates(now)?;
        let revoked = |(_, serial, revocation): (&KeyId, &Serial, &Revocation)| {
            Ok(RevokedCertParams {
                serial_number: SerialNumber::from_slice(serial.as_bytes()),
                revocation_time: date(revocation.at)?,
                reason_code: Some(RevocationReason::PrivilegeWithdrawn),
                invalidity_date: None,
            })
        };
        let list = CertificateRevocationListParams {
            this_update: date(now)?,
            next_update: date(later(now, VALIDITY))?,
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: self.iter().map(revoked).collect::<Result<_, rcgen::Error>>()?,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(list.signed_by(authority.issuer())?.pem()?)
    }
}

#[cfg(test)]
mod tests {
    use x509_parser::{prelude::FromDer as _, revocation_list::CertificateRevocationList};

    use super::*;
    use crate::credentials::tests::{at, authority, intermediate, uid};

    fn revocation(seconds: i64, not_after: i64) -> Revocation {
        Revocation { holder: HolderId::of("telemetry", &uid(1)), at: at(seconds), not_after: at(not_after) }
    }

    fn list(lifetimes: &[i64]) -> Revocations {
        let mut list = Revocations::default();
        for lifetime in lifetimes {
            list.revoke(KeyId([7; 32]), Serial::random(), revocation(0, *lifetime));
        }
        list
    }

    #[test]
    fn a_list_is_read_back_from_its_text() {
        let mut list = list(&[10, 20, 30]);
        list.revoke(KeyId([8; 32]), Serial::random(), revocation(5, 60));
        assert_eq!(Revocations::parse(&list.to_text()), Ok(list));
        assert_eq!(Revocations::parse("{}"), Ok(Revocations::default()));
        let digits = "5e".repeat(32);
        for text in [
            String::new(),
            "[]".into(),
            r#"{"5e":[]}"#.into(),
            format!(r#"{{"{digits}":[["~",1,1,"AAAAAAAAAAAAAAAA"]]}}"#),
            format!(r#"{{"{digits}":[["AAAA",1,1,"AAAAAAAAAAAAAAAA"]]}}"#),
            format!(r#"{{"{digits}":[["abcd",1,1]]}}"#),
            format!(r#"{{"{digits}":[["abcd",1,1,"AAAA"]]}}"#),
            format!(r#"{{"{digits}":[["abcd",9223372036854775807,1,"AAAAAAAAAAAAAAAA"]]}}"#),
        ] {
            assert_eq!(Revocations::parse(&text), Err(ListError), "{text}");
        }
    }

    #[test]
    fn the_last_revocation_of_a_holder_counts() {
        let mut list = list(&[60]);
        list.revoke(KeyId([7; 32]), Serial::random(), revocation(5, 60));
        list.revoke(KeyId([8; 32]), Serial::random(), revocation(3, 60));
        assert_eq!(list.holders(), HashMap::from([(HolderId::of("telemetry", &uid(1)), at(5))]));
        let [one, two] = [("a", 1), ("b", 1)].map(|(namespace, number)| HolderId::of(namespace, &uid(number)));
        assert!(one != two && one != HolderId::of("a", &uid(2)));
    }

    #[test]
    fn a_certificate_leaves_the_list_when_it_ends_by_itself() {
        let mut list = list(&[10, 20, 30]);
        for (seconds, left) in [(9, 3), (10, 2), (29, 1), (30, 0)] {
            list.tidy(at(seconds));
            assert_eq!(list.len(), left, "after {seconds} s");
        }
    }

    #[test]
    fn the_fullest_list_fits_into_one_object() {
        let mut list = list(&vec![604_800; MOST_REVOKED - 1]);
        assert!(!list.is_full());
        list.revoke(KeyId([7; 32]), Serial::random(), revocation(0, 604_800));
        assert!(list.is_full());
        let size = list.to_text().len() + list.sign(&authority(), 1, at(0)).unwrap().len();
        assert!(size < 1_040_000, "{size} bytes");
    }

    #[test]
    fn a_signed_list_is_read_by_others() {
        let list = list(&[10, 20]);
        for (case, authority) in [("own CA", authority()), ("intermediate", intermediate(at(0)).0)] {
            let pem = list.sign(&authority, 1_764_500_000, at(0)).unwrap();
            let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
            assert_eq!(block.label, "X509 CRL", "{case}");
            let (_, read) = CertificateRevocationList::from_der(&block.contents).unwrap();
            let (_, issuer) = x509_parser::parse_x509_certificate(authority.certificate()).unwrap();
            read.verify_signature(issuer.public_key()).unwrap();
            assert_eq!(read.issuer().as_raw(), issuer.subject().as_raw(), "{case}");
            assert_eq!(read.next_update().unwrap().timestamp(), at(604_800).as_second(), "{case}");
            assert_eq!(read.crl_number().unwrap().to_string(), "1764500000", "{case}");
            let listed: Vec<_> =
                read.iter_revoked_certificates().map(|one| Serial::from_der(one.raw_serial())).collect();
            let expected: Vec<_> = list.iter().map(|(_, serial, _)| Some(serial.clone())).collect();
            assert_eq!(listed, expected, "{case}");
        }
    }
}
