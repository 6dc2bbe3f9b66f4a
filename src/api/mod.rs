//! The custom resources, as people write and read them: group `opamp.dev`, version `v1alpha1`.
//!
//! One file a kind; [`condition`] has what all statuses share, [`reasons`] every reason a condition can have. Nothing
//! here reads or writes the API server.

pub mod agent;
pub mod agent_fleet;
pub mod condition;
pub mod connection_settings;
pub mod crds;
pub mod duration;
pub mod enrollment;
pub mod reasons;
pub mod remote_config;
pub mod selector;
#[cfg(test)]
mod tests;

/// The API group of all kinds, and the prefix of labels and annotations.
pub const GROUP: &str = "opamp.dev";
/// Label of an Agent: the fleet it belongs to, or last belonged to.
pub const FLEET_LABEL: &str = "opamp.dev/fleet";
/// Field manager of every write.
pub const FIELD_MANAGER: &str = "opamp-operator";
