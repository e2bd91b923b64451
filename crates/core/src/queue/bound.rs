//! Positions that end with a connection.

use std::collections::{BTreeSet, HashMap};

use dlock_protocol::ClientId;

use super::WaiterId;

#[derive(Clone, Default)]
pub(super) struct Bound {
    positions: HashMap<ClientId, BTreeSet<WaiterId>>,
    /// Connections that have closed: what is bound to them is over, and leaves one after the other.
    closed: BTreeSet<ClientId>,
}

impl Bound {
    pub fn begin(&mut self, id: WaiterId, client: Option<ClientId>) {
        if let Some(client) = client {
            self.positions.entry(client).or_default().insert(id);
        }
    }

    pub fn end(&mut self, id: WaiterId, client: Option<ClientId>) {
        let Some(client) = client else { return };
        let Some(positions) = self.positions.get_mut(&client) else { return };
        positions.remove(&id);
        if positions.is_empty() {
            self.positions.remove(&client);
            self.closed.remove(&client);
        }
    }

    /// Whether anything was bound to it.
    pub fn close(&mut self, client: ClientId) -> bool {
        self.positions.contains_key(&client) && self.closed.insert(client)
    }

    pub fn is_closed(&self, client: ClientId) -> bool {
        self.closed.contains(&client)
    }

    /// A position whose connection has closed.
    pub fn first_over(&self) -> Option<WaiterId> {
        self.positions.get(self.closed.first()?)?.first().copied()
    }
}
