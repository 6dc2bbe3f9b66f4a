//! Revisions and fleets → the offer for one agent.
