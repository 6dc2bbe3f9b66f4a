//! Which agents each WebSocket carries, and how somebody else's message reaches it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use super::{MAX_AGENTS_PER_CONNECTION, lock};
use crate::{
    opamp::{
        InstanceUid,
        session::{ConnectionId, Outbound},
    },
    server::{CloseReason, Connection},
};

/// Messages that wait for one connection; each agent on it has at most a few, and a peer that reads nothing is closed.
const OUTBOX_LIMIT: usize = 4 * MAX_AGENTS_PER_CONNECTION;

/// The WebSockets that have spoken.
#[derive(Default)]
pub(super) struct Connections {
    open: Mutex<HashMap<ConnectionId, Carrier>>,
}

/// One WebSocket. Most carry one agent, to which nothing is due.
struct Carrier {
    connection: Arc<Connection>,
    /// Whoever speaks here, in order.
    agents: Vec<InstanceUid>,
    /// The generation of the catalog for which all of them were looked at.
    generation: u64,
    due: Option<Box<Due>>,
}

/// What is due to a connection unprompted.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Messages that others have left.
    pub(super) outbox: Vec<Outbound>,
    /// Agents that have to be looked at.
    pub(super) agents: BTreeSet<InstanceUid>,
}

/// Whether a connection may carry an agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Carried {
    /// It did already.
    Already,
    /// It does now.
    Newly,
    /// It carries too many already.
    TooMany,
}

impl Connections {
    /// Notes that an agent speaks through a connection.
    pub(super) fn carry(&self, connection: &Arc<Connection>, uid: InstanceUid) -> Carried {
        let mut open = lock(&self.open);
        let carrier = open.entry(connection.id).or_insert_with(|| Carrier {
            connection: Arc::clone(connection),
            agents: Vec::new(),
            generation: 0,
            due: None,
        });
        match carrier.agents.binary_search(&uid) {
            Ok(_) => Carried::Already,
            Err(_) if carrier.agents.len() >= MAX_AGENTS_PER_CONNECTION => Carried::TooMany,
            Err(place) => {
                if carrier.agents.is_empty() {
                    carrier.agents.reserve_exact(1);
                }
                carrier.agents.insert(place, uid);
                Carried::Newly
            }
        }
    }

    /// An agent speaks here no longer: its place is another's.
    pub(super) fn leave(&self, connection: ConnectionId, uid: InstanceUid) {
        if let Some(carrier) = lock(&self.open).get_mut(&connection) {
            carrier.remove(uid);
        }
    }

    /// The only agent of a connection, if it has exactly one (AMB-17).
    pub(super) fn only_agent(&self, connection: ConnectionId) -> Option<InstanceUid> {
        match lock(&self.open).get(&connection)?.agents.as_slice() {
            [uid] => Some(*uid),
            _ => None,
        }
    }

    /// All agents of a connection.
    pub(super) fn agents(&self, connection: ConnectionId) -> Vec<InstanceUid> {
        lock(&self.open).get(&connection).map(|carrier| carrier.agents.clone()).unwrap_or_default()
    }

    /// All connections.
    pub(super) fn all(&self) -> Vec<Arc<Connection>> {
        lock(&self.open).values().map(|carrier| Arc::clone(&carrier.connection)).collect()
    }

    /// The connection itself.
    pub(super) fn find(&self, connection: ConnectionId) -> Option<Arc<Connection>> {
        lock(&self.open).get(&connection).map(|carrier| Arc::clone(&carrier.connection))
    }

    /// Puts a message where the connection's own task takes it.
    pub(super) fn deliver(&self, connection: ConnectionId, outbound: Outbound) {
        if let Some(carrier) = lock(&self.open).get_mut(&connection) {
            carrier.deliver(outbound);
        }
    }

    /// Has a connection ask what is due to one of its agents.
    pub(super) fn wake(&self, connection: ConnectionId, uid: InstanceUid) {
        if let Some(carrier) = lock(&self.open).get_mut(&connection) {
            carrier.due.get_or_insert_default().agents.insert(uid);
            carrier.connection.wake();
        }
    }

    /// Takes what is due to a connection. With a new generation of the catalog all its agents are to be looked at, and
    /// otherwise only those that were woken: a gateway is woken for each of a thousand.
    pub(super) fn take_due(&self, connection: ConnectionId, generation: u64) -> Due {
        let mut open = lock(&self.open);
        let Some(carrier) = open.get_mut(&connection) else { return Due::default() };
        let mut due = carrier.due.take().map(|due| *due).unwrap_or_default();
        if carrier.generation != generation {
            carrier.generation = generation;
            due.agents = carrier.agents.iter().copied().collect();
        }
        due
    }

    /// Asks a connection for a sign of life.
    pub(super) fn ping(&self, connection: ConnectionId) {
        if let Some(carrier) = lock(&self.open).get(&connection) {
            carrier.connection.ping();
        }
    }

    /// An agent has left a dead connection for another; one that carries nobody else is closed (AMB-15).
    pub(super) fn release(&self, connection: ConnectionId, uid: InstanceUid) {
        if let Some(carrier) = lock(&self.open).get_mut(&connection) {
            carrier.remove(uid);
            if carrier.agents.is_empty() {
                carrier.connection.close(CloseReason::Superseded);
            }
        }
    }

    /// An agent may not speak any more. A connection that carries nobody else is closed; on any other it is told so (AMB-15).
    pub(super) fn expel(&self, connection: ConnectionId, uid: InstanceUid, told: Outbound, reason: CloseReason) {
        if let Some(carrier) = lock(&self.open).get_mut(&connection) {
            carrier.remove(uid);
            if carrier.agents.is_empty() {
                carrier.connection.close(reason);
            } else {
                carrier.deliver(told);
            }
        }
    }

    /// The connection has ended; whom it carried.
    pub(super) fn end(&self, connection: ConnectionId) -> Vec<InstanceUid> {
        let mut open = lock(&self.open);
        let ended = open.remove(&connection).map(|carrier| carrier.agents).unwrap_or_default();
        if open.capacity() > 4 * (open.len() + 64) {
            let half = open.len() * 2;
            open.shrink_to(half);
        }
        ended
    }
}

impl Carrier {
    fn deliver(&mut self, outbound: Outbound) {
        let due = self.due.get_or_insert_default();
        if due.outbox.len() < OUTBOX_LIMIT {
            due.outbox.push(outbound);
            self.connection.wake();
        }
    }

    fn remove(&mut self, uid: InstanceUid) {
        if let Ok(place) = self.agents.binary_search(&uid) {
            self.agents.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        opamp::identity::Principal,
        server::{Protection, Transport},
    };

    fn connection(number: u64) -> Arc<Connection> {
        let remote = ([127, 0, 0, 1], 9).into();
        Arc::new(Connection::new(
            ConnectionId::new(number),
            Transport::WebSocket,
            Principal::anonymous().into(),
            remote,
            Protection::Plain,
        ))
    }

    #[test]
    fn a_connection_carries_a_thousand_agents_and_not_one_more() {
        // AMB-15
        let connections = Connections::default();
        let gateway = connection(1);
        let uids: Vec<_> = (0..MAX_AGENTS_PER_CONNECTION).map(|_| InstanceUid::generate()).collect();
        for uid in &uids {
            assert_eq!(connections.carry(&gateway, *uid), Carried::Newly);
        }
        assert_eq!(connections.carry(&gateway, InstanceUid::generate()), Carried::TooMany);
        assert_eq!(connections.carry(&gateway, uids[0]), Carried::Already, "those that are there go on");
    }

    #[test]
    fn what_is_due_is_taken_once_and_ends_with_the_connection() {
        let connections = Connections::default();
        let socket = connection(1);
        let uid = InstanceUid::generate();
        let outbound = || Outbound { head: Bytes::from_static(b"x"), tail: None };
        connections.deliver(socket.id, outbound());
        assert_eq!(connections.take_due(socket.id, 0).outbox.len(), 0, "not before it has spoken");
        let _ = connections.carry(&socket, uid);
        assert_eq!(connections.only_agent(socket.id), Some(uid));
        connections.deliver(socket.id, outbound());
        assert_eq!(connections.take_due(socket.id, 0).outbox.len(), 1);
        assert_eq!(connections.take_due(socket.id, 0).outbox.len(), 0);
        assert_eq!(connections.end(socket.id), [uid]);
        assert!(connections.find(socket.id).is_none());
    }

    #[test]
    fn a_gateway_looks_at_whom_it_was_woken_for_and_at_all_when_the_catalog_moves() {
        let connections = Connections::default();
        let gateway = connection(1);
        let mut uids: Vec<_> = (0..10).map(|_| InstanceUid::generate()).collect();
        uids.sort_unstable();
        for uid in &uids {
            let _ = connections.carry(&gateway, *uid);
        }
        let due = |generation| Vec::from_iter(connections.take_due(gateway.id, generation).agents);
        assert_eq!(due(1), uids, "the first look");
        assert_eq!(due(1), []);
        for uid in [uids[7], uids[2], uids[7]] {
            connections.wake(gateway.id, uid);
        }
        assert_eq!(due(1), [uids[2], uids[7]]);
        connections.wake(gateway.id, uids[3]);
        assert_eq!(due(2), uids, "each once");
        assert_eq!(due(2), []);
    }

    #[test]
    fn a_place_that_was_left_is_free() {
        // AMB-15
        let connections = Connections::default();
        let gateway = connection(1);
        let uids: Vec<_> = (0..=MAX_AGENTS_PER_CONNECTION).map(|_| InstanceUid::generate()).collect();
        let results: Vec<_> = uids.iter().map(|uid| connections.carry(&gateway, *uid)).collect();
        assert_eq!(results[MAX_AGENTS_PER_CONNECTION], Carried::TooMany);
        connections.leave(gateway.id, uids[MAX_AGENTS_PER_CONNECTION]);
        assert_eq!(connections.carry(&gateway, uids[MAX_AGENTS_PER_CONNECTION]), Carried::TooMany, "it had none");
        connections.leave(gateway.id, uids[0]);
        assert_eq!(connections.carry(&gateway, uids[MAX_AGENTS_PER_CONNECTION]), Carried::Newly);
    }

    /// Fifteen thousand of these, with the number of each, stay below 3 MB.
    #[test]
    fn an_idle_socket_costs_little() {
        assert!(size_of::<Carrier>() <= 48, "{} bytes", size_of::<Carrier>());
    }
}
