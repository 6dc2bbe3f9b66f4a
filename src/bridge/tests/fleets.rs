//! Fleets as the catalog has them.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use crate::{
    api::{
        agent_fleet::EffectiveConfigDetail,
        enrollment::{Enrollment, EnrollmentMethod},
        remote_config::{ConfigFormat, TemplateMode},
        selector::AttributeSelector,
    },
    catalog::{
        FleetEntry, LoadedRevision, Origin, Revision, RevisionEntry, RevisionFile, Threshold,
        fleet::{Offering, Revisions},
        settings as frozen,
    },
};

/// A fleet that takes everybody and has no revision.
pub(super) fn fleet(namespace: &str, name: &str) -> FleetEntry {
    FleetEntry {
        namespace: namespace.into(),
        name: name.into(),
        uid: format!("uid-of-{namespace}-{name}"),
        priority: 0,
        created: Timestamp::UNIX_EPOCH,
        selector: AttributeSelector::default(),
        enrollment: Enrollment { methods: Some(vec![EnrollmentMethod::Anonymous]), ..Enrollment::default() },
        effective_config: EffectiveConfigDetail::Hash,
        offering: Offering::NoRevision,
        credentials: None,
    }
}

/// A revision that gives everybody a file of this text.
fn with_file(text: &str, origin: Origin) -> Revision {
    let file = RevisionFile {
        name: "collector.yaml".into(),
        content_type: "text/yaml".into(),
        origin,
        body: text.to_owned().into(),
    };
    Revision {
        entries: vec![RevisionEntry {
            name: "base".into(),
            selector: None,
            template: TemplateMode::Disabled,
            format: ConfigFormat::Opaque,
            files: vec![file],
        }],
        ..Revision::default()
    }
}

impl FleetEntry {
    /// The same, giving everybody a file of this text.
    pub(super) fn giving(self, text: &str) -> Self {
        self.giving_file(text, Origin::Inline)
    }

    /// The same, giving everybody a file of this text that came from a Secret.
    pub(super) fn giving_secret(self, text: &str) -> Self {
        self.giving_file(text, Origin::Secret)
    }

    /// The same, with these connection settings besides a file of this text.
    pub(super) fn connecting(self, text: &str, settings: frozen::Settings) -> Self {
        let revision = Revision { opamp: Some(settings), ..with_file(text, Origin::Inline) };
        self.giving_revision(revision)
    }

    fn giving_file(self, text: &str, origin: Origin) -> Self {
        self.giving_revision(with_file(text, origin))
    }

    fn giving_revision(self, revision: Revision) -> Self {
        let loaded = Arc::new(LoadedRevision::new(revision.hash(), revision));
        let epoch = match &self.offering {
            Offering::Revisions(revisions) => revisions.epoch + 1,
            Offering::NoRevision | Offering::NotLoaded => 1,
        };
        let revisions =
            Revisions { current: Some(Arc::clone(&loaded)), update: Some(loaded), threshold: Threshold::All, epoch };
        Self { offering: Offering::Revisions(revisions), ..self }
    }

    /// The same, for agents of this operating system only.
    pub(super) fn selecting(mut self, os: &str) -> Self {
        self.selector.match_attributes = BTreeMap::from([("os.type".into(), os.into())]);
        self
    }
}
