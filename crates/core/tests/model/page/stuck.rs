//! Who waits for whom.

use super::{KEYS, Page, TOKENS, Token, Waiter, Whose};
use dlock_core::ReleaseCount;

impl Page {
    /// Whether this wait, the last in `waiters`, would close a cycle: whether its turn never comes though all
    /// others give back what they hold once they wait for nothing. Played through, command by command.
    pub(super) fn closes_a_cycle(&self, waiter: &Waiter) -> bool {
        let mut page = self.clone();
        // Time ends the waits, the lock-delays and the grace; it is not what a cycle is made of.
        (page.grants_from, page.last_fence) = (0, 0);
        // In however many turns.
        (page.most_served, page.may_serve) = (usize::MAX, usize::MAX);
        let is_over = |page: &Page, end: u64| page.is_over(end);
        // One whose time is over already is never granted.
        let over = |w: &&Waiter| w.until.is_some_and(|u| is_over(&page, u));
        let in_queue = page.waiters.iter().filter(|w| !over(w) && !matches!(w.whose, Whose::Beside(_)));
        let waits: Vec<_> = in_queue.cloned().collect();
        page.waiters = waits;
        page.waiters.iter_mut().for_each(|waiter| waiter.until = None);
        let held: Vec<_> = page.holds.iter().filter(|hold| !is_over(&page, hold.end)).cloned().collect();
        page.holds = held;
        page.delays.clear();
        (0..KEYS).for_each(|key| page.serve(key));
        while page.waits(waiter) {
            let waits = |token: &Token| page.waiters.iter().any(|other| other.asked.token == *token);
            let holds = |token: &Token| page.holds.iter().any(|hold| hold.token == *token);
            let Some(leaves) = (0..TOKENS).find(|token| holds(token) && !waits(token)) else {
                return page.waits_for_itself(waiter.asked.token);
            };
            for key in 0..KEYS {
                page.release(key, leaves, ReleaseCount::All);
            }
        }
        false
    }

    /// By way of others. If it does not, those wait for each other without it, as they can when a wait that
    /// would have answered another one of its token has timed out.
    fn waits_for_itself(&self, start: Token) -> bool {
        let (mut to_follow, mut met) = (vec![start], vec![]);
        while let Some(token) = to_follow.pop() {
            for other in (0..TOKENS).filter(|other| *other != token && self.waits_for(token, *other)) {
                if other == start {
                    return true;
                }
                if !met.contains(&other) {
                    met.push(other);
                    to_follow.push(other);
                }
            }
        }
        false
    }

    fn waits(&self, waiter: &Waiter) -> bool {
        self.waiters.iter().any(|other| other.number == waiter.number)
    }

    /// Whether `token` waits for `other` at some key.
    pub fn waits_for(&self, token: Token, other: Token) -> bool {
        self.waiters.iter().filter(|waiter| waiter.asked.token == token).any(|waiter| {
            let queue = self.queue(waiter.asked.key);
            let mut ahead = queue.iter().take_while(|ahead| ahead.number != waiter.number);
            self.hold(waiter.asked.key, other).is_some() || ahead.any(|ahead| ahead.asked.token == other)
        })
    }
}
