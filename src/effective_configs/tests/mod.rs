//! The store and its parts, with fleets and texts in the words of their domain.

mod api_server;
mod shelf;
mod store;
mod stored;

use std::{collections::BTreeMap, sync::Arc};

use serde_json::json;

use super::stored::Draft;
use crate::{
    api::{
        agent_fleet::AgentFleet,
        remote_config::{ConfigFormat, TemplateMode},
    },
    catalog::{
        FleetEntry, LoadedRevision, Origin, Revision, RevisionEntry, RevisionFile, Threshold,
        fleet::{Offering, Revisions},
    },
    opamp::{InstanceUid, messages::AgentConfigFile, normalise::EffectiveConfigText},
};

/// The first 8 hex digits of the fleet's uid are in the names of its Secrets.
pub(super) const PREFIX: &str = "opamp-effective-0123abcd-";

/// Fleet `edge` of namespace `telemetry`, which keeps texts.
pub(super) fn fleet() -> FleetEntry {
    fleet_offering(Offering::NoRevision)
}

/// The same, offering a file that came from a Secret with this content.
pub(super) fn fleet_with_secret(content: &'static str) -> FleetEntry {
    let file = RevisionFile {
        name: "token".into(),
        content_type: String::new(),
        origin: Origin::Secret,
        body: content.as_bytes().into(),
    };
    let entry = RevisionEntry {
        name: "base".into(),
        selector: None,
        template: TemplateMode::Disabled,
        format: ConfigFormat::Opaque,
        files: vec![file],
    };
    let revision = Revision { entries: vec![entry], ..Revision::default() };
    let loaded = Arc::new(LoadedRevision::new(revision.hash(), revision));
    fleet_offering(Offering::Revisions(Revisions {
        current: Some(Arc::clone(&loaded)),
        update: Some(loaded),
        threshold: Threshold::All,
        epoch: 1,
    }))
}

fn fleet_offering(offering: Offering) -> FleetEntry {
    let spec = json!({"selector": {}, "effectiveConfig": "Stored"});
    let mut fleet = AgentFleet::new("edge", serde_json::from_value(spec).expect("a spec"));
    fleet.metadata.namespace = Some("telemetry".into());
    fleet.metadata.uid = Some("0123abcd-ef01-4000-8000-000000000001".into());
    FleetEntry::new(&fleet, offering).expect("a fleet")
}

pub(super) fn text(files: &[(&str, &str)]) -> EffectiveConfigText {
    let files = files.iter().map(|(name, body)| {
        let file = AgentConfigFile { body: body.as_bytes().to_vec().into(), content_type: "text/yaml".into() };
        ((*name).to_owned(), file)
    });
    EffectiveConfigText { files: files.collect::<BTreeMap<_, _>>() }
}

/// A text that differs from others by its number.
pub(super) fn draft(number: usize) -> Draft {
    Draft::of(&text(&[("", &format!("number: {number}\n"))]), &fleet(), &std::iter::empty()).expect("a draft")
}

pub(super) fn agent(number: usize) -> InstanceUid {
    let mut bytes = [7; 16];
    bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
    InstanceUid::from_wire(&bytes).expect("16 bytes")
}
