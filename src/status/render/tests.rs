use jiff::ToSpan as _;

use super::{
    super::view::tests::{MORNING, capabilities, given, offered, revision, view},
    *,
};
use crate::{
    api::{
        agent::{CertificateStatus, NotStored},
        condition::find,
    },
    opamp::{
        capabilities::AgentCapabilities,
        messages::AgentCapabilities as Capability,
        offer::ConnectionSettingsHash,
        record::{Attributes, ComponentsSummary, EffectiveConfigSummary, OfferReport, OfferState, UnhealthyComponent},
    },
    status::{
        difference::difference,
        view::{CertificateInUse, Departure, IssuedCertificate, IssuedView, SettingsView, UnmatchedBecause},
    },
};

fn owner() -> Owner {
    Owner { replica: "opamp-operator-0".into(), incarnation: "a1b2c3d4e5".into() }
}

fn at(now: Timestamp, owner: &Owner) -> Stamp<'_> {
    Stamp { owner, epoch: 3, generation: 1, now }
}

fn rendered(view: &AgentView, previous: &AgentStatus) -> AgentStatus {
    render(view, previous, at(MORNING, &owner()))
}

fn report(state: OfferState) -> OfferReport {
    OfferReport { hash: offered().as_bytes().to_vec(), state, error: String::new(), since: MORNING }
}

/// An agent that has told all there is to tell.
fn talkative() -> AgentView {
    let mut view = view();
    let component = UnhealthyComponent {
        path: "pipeline:traces/exporter:otlp".into(),
        status: "StatusRecoverableError".into(),
        last_error: "rpc error: code = Unavailable".into(),
    };
    view.record = AgentRecord {
        capabilities: capabilities(&[
            Capability::ReportsStatus,
            Capability::AcceptsRemoteConfig,
            Capability::ReportsRemoteConfig,
            Capability::ReportsEffectiveConfig,
            Capability::ReportsHealth,
            Capability::ReportsAvailableComponents,
        ]),
        health: Some(Health {
            last_error: "out of memory".into(),
            started_at: Some(MORNING),
            unhealthy_components: vec![component; 7],
            unhealthy_left_out: 40,
            ..Health::default()
        }),
        remote_config: Some(report(OfferState::Failed)),
        failed_config: Some(FailedOffer { hash: offered().as_bytes().to_vec(), error: "bad".into(), at: MORNING }),
        effective_config: Some(EffectiveConfigSummary { hash: [7; 32], size: 5_120 }),
        available_components: Some(ComponentsSummary { hash: vec![9; 32], count: Some(87) }),
        custom_capabilities: (0..40).map(|number| format!("io.example.capability-{number}")).collect(),
        ..view.record
    };
    view
}

#[test]
fn a_certificate_is_in_use_since_it_was_first_seen_and_until_another_is() {
    let used = |serial: &str, since| {
        let not_after = MORNING + 168.hours();
        AgentView { certificate: Some(CertificateInUse { serial: serial.into(), not_after, since }), ..view() }
    };
    let told = |status: &AgentStatus| {
        let certificate = status.certificate.clone().expect("a certificate");
        (certificate.serial, certificate.in_use_since, certificate.secret_ref.map(|secret| secret.name))
    };
    let secret = SecretName { name: "opamp-cert-1".into() };
    let issued = CertificateStatus {
        serial: "0a".into(),
        not_after: Time(MORNING + 168.hours()),
        secret_ref: Some(secret),
        in_use_since: None,
    };
    let issued = AgentStatus { certificate: Some(issued), ..AgentStatus::default() };
    assert_eq!(rendered(&view(), &issued).certificate, issued.certificate, "it still comes with something else");
    let first = rendered(&used("0a", MORNING), &issued);
    assert_eq!(told(&first), ("0a".into(), Some(Time(MORNING)), Some("opamp-cert-1".into())));
    let later = MORNING + 1.hour();
    assert_eq!(rendered(&used("0a", later), &first).certificate, first.certificate);
    let renewed = rendered(&used("0b", later), &first);
    assert_eq!(told(&renewed), ("0b".into(), Some(Time(later)), None));
    assert_eq!(rendered(&view(), &renewed).certificate, renewed.certificate, "an end is not forgotten");
}

#[test]
fn lists_end_with_how_many_were_left_out() {
    let status = rendered(&talkative(), &AgentStatus::default());
    let health = status.health.expect("health");
    assert_eq!((health.unhealthy_components.len(), health.unhealthy_left_out), (3, Some(44)));
    assert_eq!(status.custom_capabilities.len(), 16);
    assert_eq!(status.custom_capabilities[15], "… 25 more");
}

#[test]
fn a_restarted_operator_blanks_nothing_that_is_about_to_be_told_again() {
    let before = rendered(&talkative(), &AgentStatus::default());
    let mut quiet = talkative();
    quiet.record = AgentRecord {
        capabilities: quiet.record.capabilities,
        failed_config: quiet.record.failed_config,
        ..AgentRecord::default()
    };
    assert_eq!(rendered(&quiet, &before), before);
}

#[test]
fn what_an_agent_is_not_able_to_report_any_more_is_dropped() {
    let before = rendered(&talkative(), &AgentStatus::default());
    let mut changed = view();
    changed.record.capabilities = capabilities(&[Capability::ReportsStatus]);
    let after = rendered(&changed, &before);
    assert_eq!(after.health, None);
    assert_eq!(after.effective_config, None);
    assert_eq!(after.available_components, None);
    assert_eq!(after.custom_capabilities, Vec::<String>::new());
}

#[test]
fn a_lost_fleet_withdraws_nothing_and_its_return_restores_the_status() {
    let mut view = view();
    view.record.remote_config = Some(report(OfferState::Applied));
    let before = rendered(&view, &AgentStatus::default());
    let matched = view.assignment.clone();
    view.assignment = AssignmentView::Unmatched(UnmatchedBecause::NoFleetSelects);
    let lost = rendered(&view, &before);
    assert_eq!((lost.fleet.as_deref(), &lost.revision), (None, &before.revision));
    assert_eq!(lost.remote_config, before.remote_config);
    assert_eq!(find(&lost.conditions, ConditionType::Matched).map(|condition| &*condition.status), Some("False"));
    view.assignment = matched;
    assert_eq!(rendered(&view, &lost), before);
}

#[test]
fn what_failed_is_kept_until_it_is_applied() {
    let failed = rendered(&talkative(), &AgentStatus::default());
    let kept = |status: &AgentStatus| status.remote_config.as_ref().is_some_and(|config| config.failed.is_some());
    let mut view = view();
    for (state, expected) in [(OfferState::Applying, true), (OfferState::Applied, false)] {
        view.record.remote_config = Some(report(state));
        assert_eq!(kept(&rendered(&view, &failed)), expected, "{state:?}");
    }
    view.record.remote_config = Some(OfferReport { hash: b"another".to_vec(), ..report(OfferState::Applied) });
    assert!(kept(&rendered(&view, &failed)), "another was applied");
}

#[test]
fn a_fleet_that_gives_nothing_new_leaves_the_former_offer() {
    let before = rendered(&view(), &AgentStatus::default());
    let offered = |status: &AgentStatus| status.remote_config.as_ref().and_then(|config| config.offered.clone());
    let mut view = view();
    for (remaining, expected) in [
        (GivenView::NoRevision, offered(&before)),
        (GivenView::TemplateFailed { revision: revision(), message: "x".into() }, offered(&before)),
        (GivenView::Offer { revision: revision(), remote_config: None }, None),
    ] {
        view.assignment = given(remaining);
        assert_eq!(offered(&rendered(&view, &before)), expected);
    }
}

#[test]
fn an_agent_is_gone_since_it_went_not_since_that_was_written() {
    let before = rendered(&view(), &AgentStatus::default());
    let mut view = view();
    let went = MORNING + 10.minutes();
    view.connection.liveness = LivenessView::Disconnected { since: went, how: Departure::Silent };
    let owner = owner();
    let after = render(&view, &before, at(went + 5.minutes(), &owner));
    let connected = find(&after.conditions, ConditionType::Connected).expect("the condition");
    assert_eq!((&*connected.status, &*connected.reason), ("False", "HeartbeatMissing"));
    assert_eq!(connected.last_transition_time, Time(went));
}

#[test]
fn the_same_view_later_makes_the_same_status() {
    let owner = owner();
    for mut view in [view(), talkative()] {
        view.connection.since = "2027-01-15T08:00:00.123456789Z".parse().expect("a time");
        let status = render(&view, &AgentStatus::default(), at(MORNING, &owner));
        let acknowledged = serde_json::to_value(&status).expect("JSON");
        let read: AgentStatus = serde_json::from_value(acknowledged.clone()).expect("a status");
        let again = render(&view, &read, at(MORNING + 1.hour(), &owner));
        assert_eq!(difference(&acknowledged, &serde_json::to_value(&again).expect("JSON")), None);
    }
}

#[test]
fn the_status_stays_small() {
    let metadata = 600; // name, namespace, uid, version, times, six labels
    let mut talkative = talkative();
    talkative.record.health.as_mut().expect("health").last_error = "x".repeat(10_000);
    talkative.record.custom_capabilities.truncate(4);
    talkative.record.description = Some(Attributes {
        identifying: (0..4).map(|n| (format!("service.key{n}"), "v".repeat(36))).collect(),
        non_identifying: (0..8).map(|n| (format!("host.key{n}"), "v".repeat(24))).collect(),
    });
    let status = rendered(&talkative, &AgentStatus::default());
    let size = serde_json::to_vec(&status).expect("JSON").len();
    assert!(size + metadata < 4_096, "{size} bytes");
}

#[test]
fn with_settings_and_a_certificate_the_status_of_most_agents_stays_small_as_well() {
    let mut agent = talkative();
    agent.record.health = Some(Health { healthy: true, started_at: Some(MORNING), ..Health::default() });
    agent.record.custom_capabilities.truncate(4);
    agent.record.description = Some(Attributes {
        identifying: (0..4).map(|n| (format!("service.key{n}"), "v".repeat(36))).collect(),
        non_identifying: (0..8).map(|n| (format!("host.key{n}"), "v".repeat(24))).collect(),
    });
    let settings = ConnectionSettingsHash::of(b"settings");
    agent.connection_settings = SettingsView::Offered(settings);
    agent.issued = IssuedView::Valid(IssuedCertificate {
        serial: "ab".repeat(16),
        not_after: MORNING + 168.hours(),
        secret: format!("opamp-cert-{}-{}", agent.uid, "ab".repeat(8)),
    });
    let bits = [Capability::AcceptsOpAmpConnectionSettings, Capability::ReportsConnectionSettingsStatus];
    let more = capabilities(&bits).bits();
    agent.record.capabilities = AgentCapabilities::from_bits(agent.record.capabilities.bits() | more);
    agent.record.connection_settings = Some(Box::new(OfferReport {
        hash: settings.as_bytes().to_vec(),
        state: OfferState::Applied,
        error: String::new(),
        since: MORNING,
    }));
    let not_after = MORNING + 168.hours();
    agent.certificate = Some(CertificateInUse { serial: "ab".repeat(16), not_after, since: MORNING });
    let size = serde_json::to_vec(&rendered(&agent, &AgentStatus::default())).expect("JSON").len();
    assert!(size + 600 < 4_096, "{size} bytes, and the metadata");
}

#[test]
fn the_secret_of_a_configuration_stays_until_another_is_reported_or_the_fleet_is_another() {
    let secret = |name: &str| TextView::Kept { secret: name.into() };
    let named = |status: &AgentStatus| {
        let config = status.effective_config.clone().expect("a configuration");
        (config.secret_ref.map(|secret| secret.name), config.not_stored)
    };
    let mut view = talkative();
    view.effective_config = EffectiveConfigView::Stored(secret("opamp-effective-1"));
    let before = rendered(&view, &AgentStatus::default());
    let kept = Some("opamp-effective-1".to_owned());
    assert_eq!(named(&before), (kept.clone(), None));
    let summary = |hash| Some(EffectiveConfigSummary { hash: [hash; 32], size: 5_120 });
    let fleet = |name: &str| {
        AssignmentView::Matched(FleetView { name: name.into(), uid: "uid".into(), given: GivenView::NoRevision })
    };
    let unknown = TextView::Unknown;
    for (case, text, reported, assignment, expected) in [
        ("a restarted operator", unknown.clone(), None, fleet("edge"), (kept.clone(), None)),
        ("the same is reported again", unknown.clone(), summary(7), fleet("edge"), (kept, None)),
        ("another is reported", unknown.clone(), summary(8), fleet("edge"), (None, None)),
        ("another fleet", unknown, summary(7), fleet("core"), (None, None)),
        ("kept elsewhere", secret("b"), summary(7), fleet("core"), (Some("b".to_owned()), None)),
        ("not kept", TextView::Not(NotStored::TooMany), summary(7), fleet("edge"), (None, Some(NotStored::TooMany))),
    ] {
        view.effective_config = EffectiveConfigView::Stored(text);
        view.record.effective_config = reported;
        view.assignment = assignment;
        assert_eq!(named(&rendered(&view, &before)), expected, "{case}");
    }
    view.effective_config = EffectiveConfigView::Hash;
    assert_eq!(named(&rendered(&view, &before)), (None, None));
    view.effective_config = EffectiveConfigView::None;
    assert_eq!(rendered(&view, &before).effective_config, None);
}

#[test]
fn texts_are_cut_at_a_character_with_a_mark() {
    for (text, limit, expected) in [("short", 5, "short"), ("longer", 5, "lo…"), ("ääää", 7, "ää…"), ("ääää", 6, "ä…")]
    {
        assert_eq!(cut(text, limit), expected);
        assert!(cut(text, limit).len() <= limit);
    }
}
