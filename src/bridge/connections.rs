//! Which agents each WebSocket carries, and how somebody else's message reaches it.

use std::{
    collections::HashMap,
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

/// One WebSocket.
struct Carrier {
    connection: Arc<Connection>,
    agents: Vec<InstanceUid>,
    outbox: Vec<Outbound>,
}

/// Whether a connection may carry an agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Carried {
    /// It does now.
    Yes,
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
            outbox: Vec::new(),
        });
        match carrier.agents.binary_search(&uid) {
            Ok(_) => Carried::Yes,
            Err(_) if carrier.agents.len() >= MAX_AGENTS_PER_CONNECTION => Carried::TooMany,
            Err(place) => {
                carrier.agents.reserve_exact(1);
                carrier.agents.insert(place, uid);
                Carried::Yes
            }
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

    /// The connection itself.
    pub(super) fn find(&self, connection: ConnectionId) -> Option<Arc<Connection>> {
        lock(&self.open).get(&connection).map(|carrier| Arc::clone(&carrier.connection))
    }

    /// Puts a message where the connection's own task takes it.
    pub(super) fn deliver(&self, connection: ConnectionId, outbound: Outbound) {
        if let Some(carrier) = lock(&self.open).get_mut(&connection)
            && carrier.outbox.len() < OUTBOX_LIMIT
        {
            carrier.outbox.push(outbound);
            carrier.connection.wake();
        }
    }

    /// Takes what others have left for a connection.
    pub(super) fn collect(&self, connection: ConnectionId) -> Vec<Outbound> {
        lock(&self.open).get_mut(&connection).map(|carrier| std::mem::take(&mut carrier.outbox)).unwrap_or_default()
    }

    /// Asks a connection for a sign of life.
    pub(super) fn ping(&self, connection: ConnectionId) {
        if let Some(carrier) = lock(&self.open).get(&connection) {
            carrier.connection.ping();
        }
    }

    /// Has a connection ask what is due to its agents.
    pub(super) fn wake(&self, connection: ConnectionId) {
        if let Some(carrier) = lock(&self.open).get(&connection) {
            carrier.connection.wake();
        }
    }

    /// An agent has left a dead connection for another; one that carries nobody else is closed (AMB-15).
    pub(super) fn release(&self, connection: ConnectionId, uid: InstanceUid) {
        let mut open = lock(&self.open);
        let Some(carrier) = open.get_mut(&connection) else { return };
        if let Ok(place) = carrier.agents.binary_search(&uid) {
            carrier.agents.remove(place);
        }
        if carrier.agents.is_empty() {
            carrier.connection.close(CloseReason::Superseded);
        }
    }

    /// The connection has ended; whom it carried.
    pub(super) fn end(&self, connection: ConnectionId) -> Vec<InstanceUid> {
        lock(&self.open).remove(&connection).map(|carrier| carrier.agents).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{opamp::identity::Identity, server::Transport};

    fn connection(number: u64) -> Arc<Connection> {
        let remote = ([127, 0, 0, 1], 9).into();
        Arc::new(Connection::new(ConnectionId::new(number), Transport::WebSocket, Identity::Anonymous, remote))
    }

    #[test]
    fn a_connection_carries_a_thousand_agents_and_not_one_more() {
        // AMB-15
        let connections = Connections::default();
        let gateway = connection(1);
        let uids: Vec<_> = (0..MAX_AGENTS_PER_CONNECTION).map(|_| InstanceUid::generate()).collect();
        for uid in &uids {
            assert_eq!(connections.carry(&gateway, *uid), Carried::Yes);
        }
        assert_eq!(connections.carry(&gateway, InstanceUid::generate()), Carried::TooMany);
        assert_eq!(connections.carry(&gateway, uids[0]), Carried::Yes, "those that are there go on");
    }

    #[test]
    fn what_others_leave_is_taken_once_and_ends_with_the_connection() {
        let connections = Connections::default();
        let socket = connection(1);
        let uid = InstanceUid::generate();
        let outbound = || Outbound { head: Bytes::from_static(b"x"), tail: None };
        connections.deliver(socket.id, outbound());
        assert_eq!(connections.collect(socket.id).len(), 0, "not before it has spoken");
        let _ = connections.carry(&socket, uid);
        assert_eq!(connections.only_agent(socket.id), Some(uid));
        connections.deliver(socket.id, outbound());
        assert_eq!(connections.collect(socket.id).len(), 1);
        assert_eq!(connections.collect(socket.id).len(), 0);
        assert_eq!(connections.end(socket.id), [uid]);
        assert!(connections.find(socket.id).is_none());
    }
}
