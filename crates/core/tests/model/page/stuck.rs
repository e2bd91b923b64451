//! Who waits for whom.

use super::{Page, Token, Waiter};
use dlock_core::Mode;

impl Page {
    /// Whether this wait, the last in `waiters`, would close a circle.
    pub(super) fn closes_a_circle(&self, waiter: &Waiter) -> bool {
        let mut stuck = vec![waiter.wish.token];
        loop {
            let more = self
                .waiters
                .iter()
                .find(|other| !stuck.contains(&other.wish.token) && self.is_stuck(other, &stuck));
            match more {
                Some(other) => stuck.push(other.wish.token),
                None => return self.is_stuck(waiter, &stuck),
            }
        }
    }

    /// Whether it waits for some that are stuck.
    fn is_stuck(&self, waiter: &Waiter, stuck: &[Token]) -> bool {
        let holders = self.holds_of(waiter.wish.key).filter(|hold| hold.token != waiter.wish.token);
        let (held_by, free): (Vec<_>, Vec<_>) = holders.partition(|hold| stuck.contains(&hold.token));
        let permits = |mode: Mode| matches!(mode, Mode::Permits(_));
        let one_will_do = permits(waiter.wish.mode) && free.iter().any(|hold| permits(hold.mode));
        let ahead = self.ahead_of(waiter);
        !held_by.is_empty() && !one_will_do || ahead.iter().any(|token| stuck.contains(token))
    }

    /// The tokens ahead in the line. A token stands where its first wait does, which answers the others.
    fn ahead_of(&self, waiter: &Waiter) -> Vec<Token> {
        let line = self.line(waiter.wish.key);
        line.iter().map(|other| other.wish.token).take_while(|token| *token != waiter.wish.token).collect()
    }

    /// Whether `token` waits for `other` at some key.
    pub fn waits_for(&self, token: Token, other: Token) -> bool {
        self.waiters.iter().filter(|waiter| waiter.wish.token == token).any(|waiter| {
            self.hold(waiter.wish.key, other).is_some() || self.ahead_of(waiter).contains(&other)
        })
    }
}
