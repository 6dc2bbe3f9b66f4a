//! `AgentFleet` is to telemetry agents what `Deployment` is to pods.
//!
//! The map of the house. Data flows one way: what people write becomes revisions, revisions become offers, and what
//! agents report becomes status.
//!
//! | module | its work |
//! |---|---|
//! | [`api`] | the custom resources: fields, conditions, reasons |
//! | [`opamp`] | the protocol: messages, framing, hashes, and the sans-IO session |
//! | [`catalog`] | revisions and fleets → the offer for one agent |
//! | [`server`] | sockets: WebSocket and HTTP, limits, admission, drain |
//! | [`agents`] | what the API server says of all Agents, in a compact index; on the leader: orphans and retention |
//! | [`status`] | agent record → `Agent.status`, written within the API server's budget |
//! | [`credentials`] | the CA, certificates of agents and their Secrets, rotation, revocation |
//! | [`authentication`] | who somebody is, by its credential; the limit on failures; the audit line |
//! | [`effective_configs`] | what agents report as running, redacted and kept in Secrets |
//! | [`bridge`] | ties sessions to sockets, catalog and status; runs in every replica |
//! | [`kubernetes`] | clients, namespaces in scope, pace of retries, errors without object text |
//! | [`events`] | events on objects that people write, on transitions only |
//! | [`controllers`] | everything that runs on the leader only, started and stopped with the lead |
//! | [`journal`] | lines of the log that others bring about: one of a kind in ten seconds, with a count |
//! | [`lease`] | the leader's election and each replica's sign of life |
//! | [`revisions`] | inputs → validated, immutable revisions; leader only |
//! | [`fleets`] | the fleet's controller: plan, apply, counters, conditions; leader only |
//! | [`remote_configs`] | the status of RemoteConfigs; leader only |
//! | [`connection_settings`] | the status of ConnectionSettings; leader only |

pub mod agents;
pub mod api;
pub mod authentication;
pub mod bridge;
pub mod catalog;
pub mod connection_settings;
pub mod controllers;
pub mod credentials;
pub mod effective_configs;
pub mod events;
pub mod fleets;
pub mod journal;
pub mod kubernetes;
pub mod lease;
pub mod opamp;
pub mod remote_configs;
pub mod revisions;
pub mod server;
pub mod status;

#[cfg(test)]
mod documentation;
#[cfg(test)]
mod module_rules;
