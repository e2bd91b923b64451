//! Who waits for whom.

use dlock_core::End;

use super::party::is_within;
use super::{KEYS, Page, Party, Waiter, Whose};

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
            let waits = |party: &Party| page.waiters.iter().any(|w| is_within(w.asked.party(), *party));
            let mut holders = page.holds.iter().map(|hold| hold.party());
            let Some(leaves) = holders.find(|party| !waits(party)) else {
                return page.waits_for_itself(waiter.asked.party());
            };
            for key in 0..KEYS {
                page.turn(key, |page| {
                    page.end(End::Released, |hold| hold.key == key && hold.party() == leaves)
                });
            }
        }
        false
    }

    /// By way of others, or by another token. If it does not, others wait for each other without it, as they
    /// can when a wait that would have answered another one of its token has timed out.
    fn waits_for_itself(&self, start: Party) -> bool {
        let (mut to_follow, mut met) = (vec![start], vec![]);
        while let Some(party) = to_follow.pop() {
            for other in self.parties().into_iter().filter(|other| self.waits_for(start, party, *other)) {
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

    pub fn parties(&self) -> Vec<Party> {
        let waits = self.waiters.iter().map(|waiter| waiter.asked.party());
        let mut all: Vec<Party> = self.holds.iter().map(|hold| hold.party()).chain(waits).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether `one` waits for `other` at some key, while `start` waits: what that is within gives nothing
    /// back meanwhile, as it does not itself.
    pub fn waits_for(&self, start: Party, one: Party, other: Party) -> bool {
        let seen = |party: Party| if is_within(start, party) { start } else { party };
        let stuck = |w: &&Waiter| {
            let party = w.asked.party();
            seen(party) == one || (one != start && is_within(party, one))
        };
        self.waiters.iter().filter(stuck).any(|waiter| {
            let asked = waiter.asked;
            // A token is in nobody's way that is the same.
            let blocks =
                |party: Party, token| seen(party) == other && (other != start || token != asked.token);
            let queue = self.queue(asked.key);
            let mut ahead = queue.iter().take_while(|ahead| ahead.number != waiter.number);
            (one != other || other == start)
                && (self.holds_of(asked.key).any(|hold| blocks(hold.party(), hold.token))
                    || ahead.any(|ahead| blocks(ahead.asked.party(), ahead.asked.token)))
        })
    }
}
