//! What integration and end-to-end tests stand on: a real control plane, the operator's own binary, real agents, and
//! scripted ones that lie.
//!
//! A test begins a [`Scenario`], which has namespaces of its own; from it come the operator, the agents and the
//! objects. Nothing sleeps: [`wait_for`] looks until something holds and says what it saw last when it never does.
//! What a test starts ends with it, also when the test run is killed: see [`guardian`].

pub mod api_proxy;
pub mod caller;
pub mod cert_manager;
pub mod changes;
pub mod control_plane;
pub mod forge;
pub mod guardian;
pub mod http;
pub mod operator;
pub mod real_clients;
pub mod resources;
pub mod roles;
pub mod scenario;
pub mod scripted;
pub mod swarm;
pub mod system;
pub mod wait;

pub use cert_manager::CertManager;
pub use control_plane::ControlPlane;
pub use operator::Operator;
pub use resources::{Condition, Kind, fleet, remote_config};
pub use scenario::Scenario;
pub use swarm::{Reached, Swarm};
pub use wait::wait_for;
