//! What is told of an agent's connection settings and of its certificate.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{BRIEF_LIMIT, cut};
use crate::{
    agents::written,
    api::agent::{AgentStatus, CertificateStatus, ConnectionSettingsStatus, FailedConfigStatus, SecretName},
    opamp::{
        messages::AgentCapabilities as Capability,
        record::{AgentRecord, FailedOffer, OfferState},
    },
    status::view::{AgentView, IssuedView, SettingsView},
};

/// What the agent was offered, and what became of it.
pub(super) fn connection_settings(
    view: &AgentView,
    record: &AgentRecord,
    previous: &AgentStatus,
) -> Option<ConnectionSettingsStatus> {
    let former = previous.connection_settings.as_ref();
    let report = record.connection_settings.as_deref();
    let status = ConnectionSettingsStatus {
        offered: offered(view, record, former),
        last_reported: report.filter(|report| !report.hash.is_empty()).map(|report| written::hex(&report.hash)),
        status: report.map(|report| written::state(report.state)),
        error: report.map(|report| cut(&report.error, BRIEF_LIMIT)).unwrap_or_default(),
        failed: failed(record, former.and_then(|former| former.failed.as_ref())),
        withheld: match &view.connection_settings {
            SettingsView::Unsettled => former.map(|former| former.withheld.clone()).unwrap_or_default(),
            SettingsView::Withheld(why) => cut(why, BRIEF_LIMIT),
            SettingsView::Nothing | SettingsView::Offered(_) => String::new(),
        },
    };
    (status != ConnectionSettingsStatus::default()).then_some(status)
}

/// The hash of what it is to have. Of an agent that reports no status, what it has presumably taken: the next process
/// spares it the offer of that, and of nothing else.
fn offered(view: &AgentView, record: &AgentRecord, former: Option<&ConnectionSettingsStatus>) -> Option<String> {
    if !record.capabilities.has(Capability::ReportsConnectionSettingsStatus) {
        return view.settings_taken.map(|hash| hash.to_string());
    }
    match &view.connection_settings {
        SettingsView::Offered(hash) => Some(hash.to_string()),
        // It keeps what it has.
        SettingsView::Unsettled | SettingsView::Withheld(_) => former.and_then(|former| former.offered.clone()),
        SettingsView::Nothing => None,
    }
}

/// What failed stays until those very settings are in use, also when the session has begun anew.
fn failed(record: &AgentRecord, former: Option<&FailedConfigStatus>) -> Option<FailedConfigStatus> {
    if let Some(FailedOffer { hash, error, at }) = record.failed_connection_settings.as_deref() {
        return Some(FailedConfigStatus { hash: written::hex(hash), error: cut(error, BRIEF_LIMIT), at: Time(*at) });
    }
    let report = record.connection_settings.as_ref();
    let applied = report.filter(|report| report.state == OfferState::Applied);
    former.filter(|failed| applied.is_none_or(|report| written::hex(&report.hash) != failed.hash)).cloned()
}

/// The certificate that holds the agent: the one with which it connects, or was last seen to while that counts. One that
/// was issued after that is told when it is seen in use, so that what is in use is never forgotten.
pub(super) fn certificate(view: &AgentView, previous: &AgentStatus, now: Timestamp) -> Option<CertificateStatus> {
    let former = previous.certificate.as_ref();
    let issued = match &view.issued {
        IssuedView::Valid(issued) => Some(issued),
        IssuedView::NotIssued | IssuedView::Pending | IssuedView::Refused(_) | IssuedView::Expired(_) => None,
    };
    let secret_of = |serial: &str| {
        let issued = issued.filter(|issued| issued.serial == serial);
        issued.map(|issued| SecretName { name: issued.secret.clone() })
    };
    if let Some(used) = &view.certificate {
        let same = former.filter(|former| former.serial == used.serial);
        return Some(CertificateStatus {
            serial: used.serial.clone(),
            not_after: Time(used.not_after),
            secret_ref: secret_of(&used.serial).or_else(|| same.and_then(|former| former.secret_ref.clone())),
            in_use_since: same.and_then(|former| former.in_use_since.clone()).or(Some(Time(used.since))),
        });
    }
    let holds = |former: &&CertificateStatus| former.in_use_since.is_some() && now < former.not_after.0;
    if let Some(holding) = former.filter(holds) {
        let secret_ref = secret_of(&holding.serial).or_else(|| holding.secret_ref.clone());
        return Some(CertificateStatus { secret_ref, ..holding.clone() });
    }
    let given = issued.map(|issued| CertificateStatus {
        serial: issued.serial.clone(),
        not_after: Time(issued.not_after),
        secret_ref: Some(SecretName { name: issued.secret.clone() }),
        in_use_since: None,
    });
    given.or_else(|| former.cloned())
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan as _;

    use super::*;
    use crate::{
        opamp::{offer::ConnectionSettingsHash, record::OfferReport},
        status::view::{
            CertificateInUse, IssuedCertificate,
            tests::{MORNING, capabilities, view},
        },
    };

    fn hash() -> ConnectionSettingsHash {
        ConnectionSettingsHash::of(b"settings")
    }

    fn reporting(connection_settings: SettingsView) -> AgentView {
        let mut view = AgentView { connection_settings, ..view() };
        view.record.capabilities = capabilities(&[Capability::ReportsConnectionSettingsStatus]);
        view
    }

    fn shown(view: &AgentView, former: Option<&ConnectionSettingsStatus>) -> Option<ConnectionSettingsStatus> {
        let previous = AgentStatus { connection_settings: former.cloned(), ..AgentStatus::default() };
        connection_settings(view, &view.record, &previous)
    }

    fn failed_status() -> FailedConfigStatus {
        FailedConfigStatus { hash: hash().to_string(), error: "401".into(), at: Time(MORNING) }
    }

    #[test]
    fn what_is_offered_follows_the_fleet_and_stays_while_nobody_can_say() {
        let offered = shown(&reporting(SettingsView::Offered(hash())), None).expect("settings");
        assert_eq!(offered.offered, Some(hash().to_string()));
        let withheld = shown(&reporting(SettingsView::Withheld("a value is missing".into())), Some(&offered));
        let withheld = withheld.expect("settings");
        assert_eq!((&withheld.offered, withheld.withheld.as_str()), (&offered.offered, "a value is missing"));
        assert_eq!(shown(&reporting(SettingsView::Unsettled), Some(&withheld)).as_ref(), Some(&withheld));
        assert_eq!(shown(&reporting(SettingsView::Offered(hash())), Some(&withheld)).as_ref(), Some(&offered));
        assert_eq!(shown(&reporting(SettingsView::Nothing), Some(&withheld)), None);
    }

    #[test]
    fn of_an_agent_that_reports_nothing_only_what_it_has_taken_is_told() {
        let sent = AgentView { connection_settings: SettingsView::Offered(hash()), ..view() };
        assert_eq!(shown(&sent, None), None, "nobody knows whether it has arrived");
        let taken = AgentView { settings_taken: Some(hash()), ..sent.clone() };
        let taken = shown(&taken, None).expect("settings");
        assert_eq!(taken.offered, Some(hash().to_string()));
        assert_eq!(shown(&sent, Some(&taken)), None, "it is offered others, and has not taken those");
    }

    #[test]
    fn what_failed_stays_until_it_is_in_use() {
        let mut view = reporting(SettingsView::Offered(hash()));
        let former = ConnectionSettingsStatus { failed: Some(failed_status()), ..ConnectionSettingsStatus::default() };
        let report = |hash: &[u8], state| {
            Some(Box::new(OfferReport { hash: hash.into(), state, error: "e".repeat(999), since: MORNING }))
        };
        for (hash, state, stays) in [
            (&b"another"[..], OfferState::Applied, true),
            (hash().as_bytes(), OfferState::Failed, true),
            (hash().as_bytes(), OfferState::Applied, false),
        ] {
            view.record.connection_settings = report(hash, state);
            let status = shown(&view, Some(&former)).expect("settings");
            assert_eq!(status.failed.is_some(), stays, "{state:?}");
            assert_eq!(status.last_reported, Some(written::hex(hash)));
            assert!(status.error.len() <= BRIEF_LIMIT);
        }
        let error = "bad".to_owned();
        let failed = FailedOffer { hash: hash().as_bytes().to_vec(), error, at: MORNING };
        view.record.failed_connection_settings = Some(Box::new(failed));
        let status = shown(&view, None).expect("settings");
        assert_eq!(status.failed, Some(FailedConfigStatus { error: "bad".into(), ..failed_status() }));
    }

    #[test]
    fn the_certificate_that_holds_the_agent_is_told_until_the_next_is_seen_in_use() {
        let issued = |serial: &str| {
            let not_after = MORNING + 168.hours();
            IssuedView::Valid(IssuedCertificate {
                serial: serial.into(),
                not_after,
                secret: format!("secret-{serial}"),
            })
        };
        let used = |serial: &str| {
            Some(CertificateInUse { serial: serial.into(), not_after: MORNING + 168.hours(), since: MORNING })
        };
        let told = |view: &AgentView, former: Option<CertificateStatus>, now| {
            let previous = AgentStatus { certificate: former, ..AgentStatus::default() };
            certificate(view, &previous, now)
        };
        let gist = |status: &Option<CertificateStatus>| {
            let status = status.as_ref().expect("a certificate");
            let secret = status.secret_ref.as_ref().expect("its Secret").name.clone();
            (status.serial.clone(), secret, status.in_use_since.is_some())
        };
        let first = told(&AgentView { issued: issued("0a"), ..view() }, None, MORNING);
        assert_eq!(gist(&first), ("0a".into(), "secret-0a".into(), false));
        let first = told(&AgentView { issued: issued("0a"), certificate: used("0a"), ..view() }, first, MORNING);
        assert_eq!(gist(&first), ("0a".into(), "secret-0a".into(), true));
        let renewed = AgentView { issued: issued("0b"), ..view() };
        assert_eq!(told(&renewed, first.clone(), MORNING), first, "the new one was not seen yet");
        assert_eq!(gist(&told(&renewed, first.clone(), MORNING + 168.hours())).0, "0b", "the old one has ended");
        assert_eq!(told(&view(), first.clone(), MORNING + 168.hours()), first, "there is nothing else to tell");
        let second = told(&AgentView { certificate: used("0b"), ..renewed }, first, MORNING);
        assert_eq!(gist(&second), ("0b".into(), "secret-0b".into(), true));
    }
}
