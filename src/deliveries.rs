//! Grants whose answers are on their way to those who waited, and those handed to a connection in this turn of the event
//! loop.
//!
//! A turn ends with writing to the sockets. So a connection that is gone before the next one begins has not been told,
//! whatever was said to it: the server throws away what it has for one that it had condemned already (a deleted user, an
//! output buffer that is too long, a peer that has hung up).

use std::collections::HashMap;

use dlock_core::{ClientId, Name, Token, WaiterId};

#[derive(Default)]
pub struct Deliveries {
    on_their_way: HashMap<WaiterId, Delivery>,
    this_turn: HashMap<ClientId, (WaiterId, Delivery)>,
}

/// A grant to a waiter.
pub struct Delivery {
    pub name: Name<'static>,
    pub token: Token,
    pub client: ClientId,
}

/// The room for so many is kept.
const CROWD: usize = 1_000;

impl Deliveries {
    pub fn sent(&mut self, waiter: WaiterId, delivery: Delivery) {
        self.on_their_way.insert(waiter, delivery);
    }

    /// Its connection has taken the answer, to be written before the turn ends.
    pub fn handed_over(&mut self, waiter: WaiterId) {
        if let Some(delivery) = self.on_their_way.remove(&waiter) {
            self.this_turn.insert(delivery.client, (waiter, delivery));
        }
    }

    /// There was nobody to take it.
    pub fn came_back(&mut self, waiter: WaiterId) -> Option<Delivery> {
        self.on_their_way.remove(&waiter)
    }

    /// The connection is gone: what it was to be told in this turn.
    pub fn gone(&mut self, client: ClientId) -> Option<(WaiterId, Delivery)> {
        if self.this_turn.is_empty() { None } else { self.this_turn.remove(&client) }
    }

    /// What was handed over has been written.
    pub fn next_turn(&mut self) {
        self.this_turn.clear();
        if self.this_turn.capacity() > CROWD {
            self.this_turn = HashMap::new();
        }
        if self.on_their_way.is_empty() && self.on_their_way.capacity() > CROWD {
            self.on_their_way = HashMap::new();
        }
    }

    pub fn is_empty(&self) -> bool {
        self.on_their_way.is_empty() && self.this_turn.is_empty()
    }

    /// The resources: a hold moves with its database.
    pub fn names(&mut self) -> impl Iterator<Item = &mut Name<'static>> {
        let handed_over = self.this_turn.values_mut().map(|(_, delivery)| delivery);
        self.on_their_way.values_mut().chain(handed_over).map(|delivery| &mut delivery.name)
    }
}
