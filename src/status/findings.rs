//! The conditions of an agent: what is found, for which reason, in which words.

use super::{
    render::cut,
    view::{AgentView, AssignmentView, Departure, FleetView, GivenView, IssuedView, LivenessView, UnmatchedBecause},
};
use crate::{
    agents::{
        summary::Acceptance,
        written::{DENIED, REVOKED, approving},
    },
    api::{
        condition::Finding,
        reasons::{AgentReason, agent_ready},
    },
    opamp::{
        messages::AgentCapabilities as Capability,
        offer::ConfigHash,
        record::{AgentRecord, OfferState},
    },
};

/// Bytes of a condition's message. `Ready` repeats the message of what stands in its way.
const MESSAGE_LIMIT: usize = 160;

/// `Ready` first, then what it follows from, most important first. The record is the view's, filled up with what was
/// known before.
pub(super) fn findings(view: &AgentView, record: &AgentRecord) -> Vec<Finding> {
    let reported = [
        Some(matched(&view.assignment)),
        Some(connected(view.connection.liveness)),
        certificate_issued(view),
        Some(config_applied(view, record)),
        Some(healthy(record)),
    ];
    let reported = reported.into_iter().flatten().map(|(reason, message)| (reason, cut(&message, MESSAGE_LIMIT)));
    // Not cut: half a command is none.
    let found: Vec<(AgentReason, String)> = std::iter::once(accepted(view)).chain(reported).collect();
    let ready = agent_ready(&found);
    let others = found.into_iter().map(|(reason, message)| reason.finding(message));
    std::iter::once(ready).chain(others).collect()
}

fn accepted(view: &AgentView) -> (AgentReason, String) {
    match view.acceptance {
        Acceptance::Admitted => (AgentReason::Admitted, String::new()),
        Acceptance::Pending => (AgentReason::PendingApproval, approving(&view.namespace, &view.uid)),
        Acceptance::Denied => (AgentReason::Denied, DENIED.into()),
        Acceptance::Revoked => (AgentReason::Revoked, REVOKED.into()),
    }
}

fn matched(assignment: &AssignmentView) -> (AgentReason, String) {
    match assignment {
        AssignmentView::Matched(_) => (AgentReason::FleetSelects, String::new()),
        AssignmentView::Unmatched(UnmatchedBecause::NoFleetSelects) => (
            AgentReason::NoFleetSelects,
            "no fleet that admits the agent selects its attributes; it keeps what it runs".into(),
        ),
        AssignmentView::Unmatched(UnmatchedBecause::DescriptionMissing) => {
            (AgentReason::DescriptionMissing, "the agent has not described itself".into())
        }
        AssignmentView::Unmatched(UnmatchedBecause::KeptOut) => {
            (AgentReason::NoFleetSelects, "an agent that is denied or revoked belongs to no fleet".into())
        }
    }
}

fn connected(liveness: LivenessView) -> (AgentReason, String) {
    match liveness {
        LivenessView::Connected => (AgentReason::SessionOpen, String::new()),
        LivenessView::Disconnected { how: Departure::Goodbye, .. } => {
            (AgentReason::AgentDisconnected, "the agent said goodbye".into())
        }
        LivenessView::Disconnected { how: Departure::ConnectionClosed, .. } => {
            (AgentReason::ConnectionClosed, "the connection was closed, and the agent has not returned".into())
        }
        LivenessView::Disconnected { how: Departure::Silent, .. } => {
            (AgentReason::HeartbeatMissing, "nothing was heard of the agent for too long".into())
        }
    }
}

/// Only of an agent whose fleet's settings ask for a certificate.
fn certificate_issued(view: &AgentView) -> Option<(AgentReason, String)> {
    Some(match &view.issued {
        IssuedView::NotIssued => return None,
        IssuedView::Valid(_) => (AgentReason::CertificateValid, String::new()),
        IssuedView::Pending if view.acceptance != Acceptance::Admitted => {
            (AgentReason::CertificatePending, "no certificate is made before the agent is approved".into())
        }
        IssuedView::Pending => (AgentReason::CertificatePending, "the certificate is being made".into()),
        IssuedView::Refused(why) => (AgentReason::CertificateRefused, why.clone()),
        IssuedView::Expired(at) => (AgentReason::CertificateExpired, format!("the certificate has ended at {at}")),
    })
}

fn healthy(record: &AgentRecord) -> (AgentReason, String) {
    match &record.health {
        Some(health) if health.healthy => (AgentReason::ReportedHealthy, String::new()),
        Some(health) => {
            let own_words = [&health.last_error, &health.status].into_iter().find(|text| !text.is_empty());
            let component = || {
                let component = health.unhealthy_components.first()?;
                Some(format!("{}: {}", component.path, component.last_error))
            };
            let message = own_words.cloned().or_else(component).unwrap_or_else(|| "the agent gives no cause".into());
            (AgentReason::ReportedUnhealthy, message)
        }
        None if record.capabilities.has(Capability::ReportsHealth) => {
            (AgentReason::HealthPending, "the agent has not reported its health yet".into())
        }
        None => (AgentReason::HealthUnsupported, "the agent does not report its health".into()),
    }
}

fn config_applied(view: &AgentView, record: &AgentRecord) -> (AgentReason, String) {
    let AssignmentView::Matched(FleetView { name, given, .. }) = &view.assignment else {
        return (AgentReason::NotMatched, "no fleet takes the agent".into());
    };
    if view.acceptance != Acceptance::Admitted {
        return (AgentReason::NotAccepted, "nothing is offered before the agent is approved".into());
    }
    if !record.capabilities.has(Capability::AcceptsRemoteConfig) {
        return (AgentReason::Unsupported, "the agent does not accept remote configuration".into());
    }
    match given {
        GivenView::NoRevision => {
            (AgentReason::NoRevision, format!("fleet {name} has no revision yet; its conditions tell why"))
        }
        GivenView::TemplateFailed { message, .. } => (AgentReason::TemplateFailed, message.clone()),
        GivenView::Offer { remote_config: None, .. } => (AgentReason::NothingToApply, String::new()),
        GivenView::Offer { remote_config: Some(offered), .. } => outcome(record, *offered),
    }
}

/// What became of the configuration that is offered. Reports about another one do not count.
fn outcome(record: &AgentRecord, offered: ConfigHash) -> (AgentReason, String) {
    let concerns = |hash: &[u8]| hash == offered.as_bytes();
    let report = record.remote_config.as_ref().filter(|report| concerns(&report.hash));
    let failed = record.failed_config.as_ref().filter(|failed| concerns(&failed.hash));
    match report.map(|report| (report.state, &report.error)) {
        Some((OfferState::Applied, _)) => (AgentReason::Applied, String::new()),
        Some((OfferState::Failed, error)) => (AgentReason::ConfigFailed, or_silent(error)),
        Some((OfferState::Applying, _)) => (AgentReason::Applying, "the agent is applying it".into()),
        Some((OfferState::Unset | OfferState::Unknown(_), _)) | None => match failed {
            Some(failed) => (AgentReason::ConfigFailed, or_silent(&failed.error)),
            None if record.capabilities.has(Capability::ReportsRemoteConfig) => {
                (AgentReason::Pending, "the agent has not answered to it yet".into())
            }
            None => (AgentReason::ReportUnsupported, "the agent does not report what became of it".into()),
        },
    }
}

fn or_silent(error: &str) -> String {
    if error.is_empty() { "the agent gives no cause".into() } else { error.into() }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::{
        super::view::tests::{capabilities, given, offered, revision, view},
        *,
    };
    use crate::opamp::record::{FailedOffer, Health, OfferReport, UnhealthyComponent};
    use crate::status::view::IssuedCertificate;

    fn report(hash: &[u8], state: OfferState, error: &str) -> OfferReport {
        OfferReport { hash: hash.into(), state, error: error.into(), since: Timestamp::UNIX_EPOCH }
    }

    fn reason(found: &(AgentReason, String)) -> (AgentReason, &str) {
        (found.0, &found.1)
    }

    #[test]
    fn config_applied_follows_what_is_given_first() {
        let offer = |remote_config| given(GivenView::Offer { revision: revision(), remote_config });
        let failing = given(GivenView::TemplateFailed { revision: revision(), message: "no host.name".into() });
        let able = view().record;
        let unable = AgentRecord { capabilities: capabilities(&[Capability::ReportsStatus]), ..able.clone() };
        for (assignment, record, expected) in [
            (AssignmentView::Unmatched(UnmatchedBecause::NoFleetSelects), &able, AgentReason::NotMatched),
            (offer(Some(offered())), &unable, AgentReason::Unsupported),
            (given(GivenView::NoRevision), &able, AgentReason::NoRevision),
            (failing, &able, AgentReason::TemplateFailed),
            (offer(None), &able, AgentReason::NothingToApply),
            (offer(Some(offered())), &able, AgentReason::Pending),
        ] {
            let view = AgentView { assignment, ..view() };
            assert_eq!(config_applied(&view, record).0, expected);
        }
        let pending = AgentView { acceptance: Acceptance::Pending, ..view() };
        assert_eq!(config_applied(&pending, &able).0, AgentReason::NotAccepted);
    }

    #[test]
    fn who_may_not_take_part_is_told_first_of_all_with_the_command_that_changes_it() {
        let command = r#"kubectl -n telemetry patch agent 01900000-0000-7000-8000-000000000001 --type=merge -p '{"spec":{"access":"Approved"}}'"#;
        for (acceptance, reason, message) in [
            (Acceptance::Admitted, "Admitted", ""),
            (Acceptance::Pending, "PendingApproval", command),
            (Acceptance::Denied, "Denied", "spec.access is Denied; Approved lets the agent in again"),
            (Acceptance::Revoked, "Revoked", "spec.access is Revoked; Approved lets the agent enrol anew"),
        ] {
            let found = findings(&AgentView { acceptance, ..view() }, &view().record);
            assert_eq!(
                (found[1].condition.as_str(), found[1].reason, &*found[1].message),
                ("Accepted", reason, message)
            );
            if acceptance != Acceptance::Admitted {
                assert_eq!(
                    (found[0].condition.as_str(), found[0].reason, &*found[0].message),
                    ("Ready", reason, message)
                );
            }
        }
    }

    #[test]
    fn a_certificate_is_told_of_where_one_is_asked_for() {
        let (end, not_after) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        let valid = IssuedCertificate { serial: "0a".into(), not_after, secret: "opamp-cert-1".into() };
        let told = |issued: IssuedView, acceptance| {
            let found = findings(&AgentView { acceptance, issued, ..view() }, &view().record);
            let found = found.iter().find(|finding| finding.condition.as_str() == "CertificateIssued");
            found.map(|finding| (finding.reason, finding.message.clone()))
        };
        for (issued, reason, message) in [
            (IssuedView::Valid(valid), "CertificateValid", ""),
            (IssuedView::Pending, "CertificatePending", "the certificate is being made"),
            (IssuedView::Refused("too weak".into()), "CertificateRefused", "too weak"),
            (IssuedView::Expired(end), "CertificateExpired", "the certificate has ended at 1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(told(issued, Acceptance::Admitted), Some((reason, message.into())));
        }
        assert_eq!(told(IssuedView::NotIssued, Acceptance::Admitted), None);
        let waits = "no certificate is made before the agent is approved";
        assert_eq!(told(IssuedView::Pending, Acceptance::Pending), Some(("CertificatePending", waits.into())));
    }

    #[test]
    fn the_command_is_whole_however_long_the_namespace_is() {
        let namespace = "n".repeat(63);
        let found = findings(&AgentView { acceptance: Acceptance::Pending, namespace, ..view() }, &view().record);
        assert!(found[1].message.ends_with(r#"{"spec":{"access":"Approved"}}'"#));
    }

    #[test]
    fn config_applied_counts_reports_about_exactly_what_is_offered() {
        use OfferState::{Applied, Applying, Failed, Unknown, Unset};
        const SILENT: &str = "the agent has not answered to it yet";
        let this = *offered().as_bytes();
        let failed = |hash: &[u8]| {
            Some(FailedOffer { hash: hash.into(), error: "no such exporter".into(), at: Timestamp::UNIX_EPOCH })
        };
        for (case, remote_config, failed_config, expected) in [
            ("applied", report(&this, Applied, ""), None, (AgentReason::Applied, "")),
            ("applied at last", report(&this, Applied, ""), failed(&this), (AgentReason::Applied, "")),
            ("applying", report(&this, Applying, ""), None, (AgentReason::Applying, "the agent is applying it")),
            ("failed", report(&this, Failed, "bad"), None, (AgentReason::ConfigFailed, "bad")),
            ("no cause", report(&this, Failed, ""), None, (AgentReason::ConfigFailed, "the agent gives no cause")),
            (
                "failed before",
                report(b"x", Applied, ""),
                failed(&this),
                (AgentReason::ConfigFailed, "no such exporter"),
            ),
            ("another failed", report(b"x", Failed, "bad"), failed(b"x"), (AgentReason::Pending, SILENT)),
            ("unset", report(&this, Unset, ""), None, (AgentReason::Pending, SILENT)),
            ("a state of the future", report(&this, Unknown(9), ""), None, (AgentReason::Pending, SILENT)),
        ] {
            let record = AgentRecord { remote_config: Some(remote_config), failed_config, ..view().record };
            assert_eq!(reason(&outcome(&record, offered())), expected, "{case}");
        }
    }

    #[test]
    fn health_is_told_in_the_agents_own_words() {
        let component =
            UnhealthyComponent { path: "exporter:otlp".into(), last_error: "refused".into(), ..Default::default() };
        let components = Health { unhealthy_components: vec![component], ..Health::default() };
        let words = Health { last_error: "disk full".into(), status: "degraded".into(), ..components.clone() };
        for (health, bits, expected) in [
            (Some(Health { healthy: true, ..Health::default() }), &[][..], (AgentReason::ReportedHealthy, "")),
            (Some(words), &[], (AgentReason::ReportedUnhealthy, "disk full")),
            (Some(components), &[], (AgentReason::ReportedUnhealthy, "exporter:otlp: refused")),
            (Some(Health::default()), &[], (AgentReason::ReportedUnhealthy, "the agent gives no cause")),
            (
                None,
                &[Capability::ReportsHealth],
                (AgentReason::HealthPending, "the agent has not reported its health yet"),
            ),
            (None, &[], (AgentReason::HealthUnsupported, "the agent does not report its health")),
        ] {
            let record = AgentRecord { health, capabilities: capabilities(bits), ..AgentRecord::default() };
            assert_eq!(reason(&healthy(&record)), expected);
        }
    }

    #[test]
    fn conditions_that_are_true_say_nothing_and_texts_are_cut() {
        let mut view = view();
        view.record.remote_config = Some(report(offered().as_bytes(), OfferState::Applied, ""));
        for finding in findings(&view, &view.record) {
            if finding.verdict == crate::api::condition::Verdict::True {
                assert_eq!(finding.message, "", "{:?}", finding.condition);
            }
        }
        view.record.remote_config = Some(report(offered().as_bytes(), OfferState::Failed, &"ä".repeat(5_000)));
        let longest = findings(&view, &view.record).into_iter().map(|finding| finding.message.len()).max();
        assert!(longest.is_some_and(|longest| longest <= MESSAGE_LIMIT && longest > MESSAGE_LIMIT - 4));
    }
}
