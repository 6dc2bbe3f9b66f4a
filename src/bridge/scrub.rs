//! What agents report, without what came from Secrets: agents quote their configuration when they complain of it.

use std::borrow::Cow;

use crate::{
    catalog::{FleetEntry, scrub::Scrubber},
    opamp::messages::{AgentToServer, ComponentHealth},
};

/// Takes the content of the fleets' Secrets, and the agent's own secrets, out of every text that is kept or shown of a
/// message.
pub(super) fn scrub(message: &mut AgentToServer, fleets: &[&FleetEntry], own: impl FnOnce() -> Scrubber) {
    if !has_texts(message) {
        return;
    }
    let own = own();
    let clean = |text: &mut String| {
        for fleet in fleets {
            if let Cow::Owned(cleaned) = fleet.scrub(text) {
                *text = cleaned;
            }
        }
        if let Cow::Owned(cleaned) = own.scrub(text) {
            *text = cleaned;
        }
    };
    if fleets.is_empty() && own.is_empty() {
        return;
    }
    if let Some(status) = &mut message.remote_config_status {
        clean(&mut status.error_message);
    }
    if let Some(status) = &mut message.connection_settings_status {
        clean(&mut status.error_message);
    }
    if let Some(health) = &mut message.health {
        scrub_health(health, &clean);
    }
}

fn has_texts(message: &AgentToServer) -> bool {
    let config = message.remote_config_status.as_ref().map(|status| &status.error_message);
    let settings = message.connection_settings_status.as_ref().map(|status| &status.error_message);
    message.health.is_some() || config.into_iter().chain(settings).any(|text| !text.is_empty())
}

/// As deep as the decoder lets messages nest.
fn scrub_health(health: &mut ComponentHealth, clean: &impl Fn(&mut String)) {
    clean(&mut health.status);
    clean(&mut health.last_error);
    health.component_health_map.values_mut().for_each(|component| scrub_health(component, clean));
}
