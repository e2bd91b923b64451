//! What happens when a connection closes: its waits and EPHEMERAL holds end, and replies to it are lost. Also
//! the demotion of the server to a replica, which ends all waits.

use dlock_core::deliveries::Deliveries;

use super::*;

impl System {
    pub(super) fn client_gone(&mut self, client: Client) {
        // The EPHEMERAL queue positions of the client end first, then its wait with BLOCK.
        self.waiting.client_gone(ClientId(client));
        while let Some((waiter, Outcome::Cancelled)) = self.waiting.next_over(self.instant()) {
            let (key, id) = (key_of(&waiter.name), waiter.id);
            self.turn(key, |turn| turn.dismiss(&[id], Outcome::Cancelled));
        }
        if let Some(waiter) = self.waiting.of_client(ClientId(client)) {
            let (key, id) = (key_of(&waiter.name), waiter.id);
            self.turn(key, |turn| turn.dismiss(&[id], Outcome::Cancelled));
        }
        // The EPHEMERAL holds of the client. The end of one hold also ends expired holds on the same key,
        // which are then skipped.
        let bonds: Vec<_> = self.bonds.iter().filter(|(of, ..)| *of == client).copied().collect();
        for (_, key, who) in bonds {
            self.bonds.remove(&(client, key, who));
            if self.bound_holds().contains(&(client, key, who)) {
                self.turn(key, |turn| turn.disconnect([&token(who)[..]], ClientId(client)));
            }
        }
    }

    /// The stored holds that end with a connection.
    pub fn bound_holds(&self) -> BTreeSet<(Client, Key, Token)> {
        let holds = self.locks.iter().flat_map(|(key, lock)| lock.stored().map(|hold| (*key, hold)));
        let bound = holds.filter_map(|(key, hold)| match hold.ephemeral() {
            dlock_core::Ephemeral::Bound(client) => Some((client.0, key, token_of(hold.token().as_bytes()))),
            _ => None,
        });
        bound.collect()
    }

    pub(super) fn undelivered(&mut self, nth: usize) {
        let SentGrant { number, client, key, token: who, .. } = self.sent_grants.remove(nth);
        // Ends expired holds first, so that any difference from `before` is due to the lost reply.
        self.turn(key, |turn| turn.advance());
        let held = |system: &System| {
            let view = system.locks.get(&key)?.at(system.instant());
            view.hold_of(&token(who)).map(|hold| (hold.fence(), view.mode()))
        };
        let before = held(self);
        let [others_received, others_received_exclusive] = [&mut self.received, &mut self.received_exclusive]
            .map(|map| {
                let clients = map.entry((key, who)).or_default();
                clients.remove(&client);
                !clients.is_empty()
            });
        // The server calls the module back with the reply that it could not deliver.
        assert!(self.waiting.deliveries.reply_reclaimed(WaiterId(number)).is_some());
        self.turn(key, |turn| turn.undelivered(&token(who), WaiterId(number)));
        let (fence, mode) = (before.map(|hold| hold.0), before.and_then(|hold| hold.1));
        if others_received {
            assert_eq!(held(self).map(|hold| hold.0), fence, "a client keeps a hold that it received");
        }
        if others_received_exclusive && mode == Some(Mode::Exclusive) {
            assert_eq!(held(self), before, "a client that received an exclusive grant is still alone");
        }
    }

    /// The server becomes a replica: all waits end, and no grant counts as unconfirmed.
    pub(in super::super) fn demote(&mut self) {
        let all: Vec<WaiterId> = self.unanswered.iter().copied().collect();
        for id in all {
            self.waiting.leave(id).expect("the client waits");
        }
        self.waiting.deliveries = Deliveries::default();
        self.unanswered.clear();
        self.unserved.clear();
        self.sent_grants.clear();
    }
}
