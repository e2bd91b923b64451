//! Grants whose answers are on their way to those who waited, and those handed to a connection in this turn
//! of the event loop.
//!
//! A turn ends with writing to the sockets. So a connection that is gone before the next one begins has not
//! been told, whatever was said to it: the server throws away what it has for one that it had condemned
//! already (a deleted user, an output buffer that is too long, a peer that has hung up).

use std::collections::HashMap;

use dlock_protocol::{ClientId, Token};

use crate::queue::{Name, WaiterId};

#[derive(Debug, Default)]
pub struct Deliveries {
    on_their_way: HashMap<WaiterId, Delivery>,
    this_turn: HashMap<ClientId, (WaiterId, Delivery)>,
}

/// A grant to a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
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

#[cfg(test)]
mod tests {
    use super::*;

    const WAITER: WaiterId = WaiterId(3);

    fn delivery(client: u64) -> Delivery {
        let name = Name::new(0, b"k").to_owned();
        Delivery { name, token: Token::new(b"t").unwrap(), client: ClientId(client) }
    }

    #[test]
    fn a_grant_that_nobody_takes_comes_back_once() {
        let mut deliveries = Deliveries::default();
        deliveries.sent(WAITER, delivery(1));
        assert!(!deliveries.is_empty());
        assert_eq!(deliveries.gone(ClientId(1)), None, "no connection has it yet");
        assert_eq!(deliveries.came_back(WAITER), Some(delivery(1)));
        assert_eq!(deliveries.came_back(WAITER), None);
        assert!(deliveries.is_empty());
    }

    #[test]
    fn a_connection_that_goes_before_the_turn_ends_has_not_been_told() {
        let mut deliveries = Deliveries::default();
        deliveries.sent(WAITER, delivery(1));
        deliveries.handed_over(WAITER);
        assert_eq!(deliveries.came_back(WAITER), None, "it is the connection's");
        assert_eq!(deliveries.gone(ClientId(2)), None);
        assert_eq!(deliveries.gone(ClientId(1)), Some((WAITER, delivery(1))));
        assert_eq!(deliveries.gone(ClientId(1)), None);
    }

    #[test]
    fn what_was_handed_over_is_written_when_the_next_turn_begins() {
        let mut deliveries = Deliveries::default();
        deliveries.sent(WAITER, delivery(1));
        deliveries.sent(WaiterId(4), delivery(2));
        deliveries.handed_over(WAITER);
        deliveries.next_turn();
        assert_eq!(deliveries.gone(ClientId(1)), None);
        assert!(!deliveries.is_empty(), "the other is still on its way");
        assert_eq!(deliveries.came_back(WaiterId(4)), Some(delivery(2)));
    }

    #[test]
    fn every_name_is_found_wherever_its_grant_is() {
        let mut deliveries = Deliveries::default();
        deliveries.sent(WAITER, delivery(1));
        deliveries.sent(WaiterId(4), delivery(2));
        deliveries.handed_over(WAITER);
        deliveries.names().for_each(|name| name.db = 7);
        assert_eq!(deliveries.came_back(WaiterId(4)).unwrap().name.db, 7);
        assert_eq!(deliveries.gone(ClientId(1)).unwrap().1.name.db, 7);
    }
}
