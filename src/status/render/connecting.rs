//! What is told of an agent's connection settings and of its certificate.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{BRIEF_LIMIT, cut};
use crate::{
    agents::written,
    api::agent::{AgentStatus, CertificateStatus, ConnectionSettingsStatus, FailedConfigStatus, SecretName},
    opamp::{
        messages::AgentCapabilities as Capability,
        record::{AgentRecord, ConnectionSettingsState, FailedConnectionSettings},
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
        status: report.map(|report| written::settings_state(report.state)),
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
    if let Some(FailedConnectionSettings { hash, error, at }) = record.failed_connection_settings.as_deref() {
        return Some(FailedConfigStatus { hash: written::hex(hash), error: cut(error, BRIEF_LIMIT), at: Time(*at) });
    }
    let report = record.connection_settings.as_ref();
    let applied = report.filter(|report| report.state == ConnectionSettingsState::Applied);
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
