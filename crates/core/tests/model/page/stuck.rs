//! Who waits for whom.

use super::{KEYS, Page, TOKENS, Token, Waiter};
use dlock_core::Counts;

impl Page {
    /// Whether this wait, the last in `waiters`, would close a cycle: whether its turn never comes though all others give
    /// back what they hold once they wait for nothing. Played through, command by command.
    pub(super) fn closes_a_circle(&self, waiter: &Waiter) -> bool {
        let mut page = self.clone();
        // Time ends the waits, the lock-delays and the grace; it is not what a cycle is made of.
        (page.grants_from, page.last_fence) = (0, 0);
        page.waiters.iter_mut().for_each(|waiter| waiter.until = None);
        let is_over = |page: &Page, end: u64| page.is_over(end);
        let held: Vec<_> = page.holds.iter().filter(|hold| !is_over(&page, hold.end)).cloned().collect();
        page.holds = held;
        page.delays.clear();
        (0..KEYS).for_each(|key| page.serve(key));
        while page.waits(waiter) {
            let waits = |token: &Token| page.waiters.iter().any(|other| other.wish.token == *token);
            let holds = |token: &Token| page.holds.iter().any(|hold| hold.token == *token);
            let Some(leaves) = (0..TOKENS).find(|token| holds(token) && !waits(token)) else { return true };
            for key in 0..KEYS {
                page.release(key, leaves, Counts::All);
            }
        }
        false
    }

    fn waits(&self, waiter: &Waiter) -> bool {
        self.waiters.iter().any(|other| other.number == waiter.number)
    }

    /// Whether `token` waits for `other` at some key.
    pub fn waits_for(&self, token: Token, other: Token) -> bool {
        self.waiters.iter().filter(|waiter| waiter.wish.token == token).any(|waiter| {
            let line = self.line(waiter.wish.key);
            let mut ahead = line.iter().take_while(|ahead| ahead.number != waiter.number);
            self.hold(waiter.wish.key, other).is_some() || ahead.any(|ahead| ahead.wish.token == other)
        })
    }
}
