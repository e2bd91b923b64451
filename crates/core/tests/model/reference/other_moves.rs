//! The moves of the model that are not commands of dlock: background work, closed connections, removed keys,
//! and changes of the server's state. `marks` names the situations that occur in a move.

use super::*;

impl Model {
    /// The background job ends the expired holds of a key, and serves the queue.
    pub fn run_job(&mut self, key: Key) {
        self.turn(key, |_| ());
    }

    /// The background job ends a client's blocked wait that has timed out.
    pub fn time_out(&mut self, client: Client) {
        if let Some(waiter) = self.blocked(client).filter(|waiter| self.has_timed_out(waiter)) {
            self.marks.push("a wait times out");
            self.leave_all(&waiter, WaitOutcome::TimedOut);
            self.turn(waiter.request.key, |_| ());
        }
    }

    /// The background job removes a QUEUE position that has timed out.
    pub fn time_out_token(&mut self, key: Key, token: Token) {
        if let Some(waiter) = self.position(key, token).filter(|waiter| self.has_timed_out(waiter)) {
            self.marks.push("a position times out");
            self.leave_all(&waiter, WaitOutcome::TimedOut);
            self.turn(key, |_| ());
        }
    }

    /// A connection closes. This ends its EPHEMERAL positions, its blocked wait, and the holds bound to it.
    pub fn client_gone(&mut self, client: Client) {
        self.closed = Some(client);
        while let Some(waiter) = self.waiters.iter().find(|waiter| self.is_closing(waiter)).cloned() {
            self.marks.push("a position ends with its connection");
            self.leave_all(&waiter, WaitOutcome::Cancelled);
            self.turn(waiter.request.key, |_| ());
        }
        self.closed = None;
        if let Some(waiter) = self.blocked(client) {
            self.marks.push("a waiter's connection closes");
            self.leave_all(&waiter, WaitOutcome::Cancelled);
            self.turn(waiter.request.key, |_| ());
        }
        let bound = self.holds.iter().filter(|hold| hold.bond == Bond::To(client));
        let mut bound: Vec<_> = bound.cloned().collect();
        // The module ends the holds of a closed connection in this order.
        bound.sort_by_key(|hold| (hold.key, hold.token));
        for Hold { key, token, .. } in bound {
            let own = |hold: &Hold| hold.key == key && hold.token == token && hold.bond == Bond::To(client);
            self.turn(key, |model| model.end_holds(End::Disconnected, own));
        }
    }

    /// A command such as DEL removes the key, which ends its holds. The server itself announces the removal,
    /// so the model announces no end of a hold. The queue is served. If no waiter is granted the lock, the
    /// model announces that the lock is free.
    pub fn delete(&mut self, key: Key) {
        if self.holds_of(key).next().is_some() && !self.queue(key).is_empty() {
            self.marks.push("a key with waiters is removed");
        }
        let existed = self.exists(key);
        self.holds.retain(|hold| hold.key != key);
        self.delays.retain(|(of, _)| *of != key);
        self.turn(key, |_| ());
        if existed && !self.exists(key) {
            self.events.push((key, KeyEvent::Freed));
        }
    }

    /// The server has lost holds: a grace period begins.
    pub fn begin_grace(&mut self, ms: u64) {
        // `grants_from` is in microseconds.
        self.grants_from = self.grants_from.max(self.in_ms(ms) * 1000);
    }

    /// The server becomes a replica: all waits end, and no grant counts as unconfirmed.
    pub fn demote(&mut self) {
        if !self.waiters.is_empty() {
            self.marks.push("a demotion with waiters");
        }
        self.waiters.clear();
        self.sent_grants.clear();
        self.holds.iter_mut().for_each(|hold| hold.unconfirmed = None);
    }
}
