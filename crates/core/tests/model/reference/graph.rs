//! The wait-for graph: which party waits for which, and which wait closes a cycle.

use dlock_core::{End, Mode};

use super::{GREATEST_COUNT, Hold, KEYS, Model, Request, Token, Waiter, WaitsBy};

/// An index into [`OWNERS`].
pub type Owner = u8;

/// A node of the graph: a token without an owner, or 100 plus an owner.
pub type Party = u8;

/// The owners of the requests. The first stands for no owner. The slash has no meaning: owners are compared
/// whole.
pub const OWNERS: [&str; 4] = ["", "o", "o/p", "q"];

impl Hold {
    pub fn party(&self) -> Party {
        party(self.token, self.owner)
    }
}

impl Request {
    pub fn party(&self) -> Party {
        party(self.token, self.owner)
    }
}

fn party(token: Token, owner: Owner) -> Party {
    if owner == 0 { token } else { 100 + owner }
}

impl Model {
    /// Returns whether this wait, which is in `waiters`, closes a cycle: its party can be reached from
    /// itself.
    pub(super) fn closes_a_cycle(&self, waiter: &Waiter) -> bool {
        let (start, mut visited) = (waiter.request.party(), vec![]);
        let mut to_follow = self.blockers(waiter);
        while let Some(party) = to_follow.pop() {
            if party == start {
                assert!(self.is_never_granted(waiter), "a false deadlock: {waiter:?}");
                return true;
            }
            if !visited.contains(&party) {
                visited.push(party);
                let waits = self.waiters.iter().filter(|waiter| waiter.request.party() == party);
                to_follow.extend(waits.flat_map(|waiter| self.blockers(waiter)));
            }
        }
        false
    }

    /// The edges of the graph.
    pub fn edges(&self) -> Vec<(Party, Party)> {
        let edges = |waiter| self.blockers(waiter).into_iter().map(|party| (waiter.request.party(), party));
        self.waiters.iter().flat_map(edges).collect()
    }

    /// The parties that a waiter waits for.
    fn blockers(&self, waiter: &Waiter) -> Vec<Party> {
        if !self.adds_edges(waiter) {
            return vec![];
        }
        let request = waiter.request;
        let excludes = |token: Token, mode: Mode| {
            let both_share = (mode, request.mode) == (Mode::Shared, Mode::Shared);
            token != request.token && !both_share && !matches!(mode, Mode::Permits(_))
        };
        let holds = self.holds_of(request.key).filter(|hold| excludes(hold.token, hold.mode));
        let queue = self.queue(request.key);
        let ahead = queue.iter().take_while(|ahead| ahead.number != waiter.number);
        let ahead = ahead.filter(|w| self.adds_edges(w) && excludes(w.request.token, w.request.mode));
        // The server adds no edge to a waiter ahead whose token holds this lock with the greatest count. The
        // count cannot rise, so the server may refuse that waiter at the head of the queue. A refused waiter
        // blocks no other.
        let is_full = |token| self.hold(request.key, token).is_some_and(|hold| hold.count == GREATEST_COUNT);
        let ahead = ahead.filter(|ahead| !is_full(ahead.request.token));
        holds.map(Hold::party).chain(ahead.map(|ahead| ahead.request.party())).collect()
    }

    /// Returns whether a wait adds edges. These add none: a wait for permits, a wait that has timed out or
    /// that ends with a closing connection, and a second wait of a token for the same key.
    fn adds_edges(&self, waiter: &Waiter) -> bool {
        let (queue, token) = (self.queue(waiter.request.key), waiter.request.token);
        let first = queue.iter().find(|other| other.request.token == token);
        first.is_some_and(|first| first.number == waiter.number)
            && !matches!(waiter.request.mode, Mode::Permits(_))
            && !self.has_timed_out(waiter)
            && !self.is_closing(waiter)
    }

    /// Returns whether this waiter is never granted the lock, even if every party that does not wait releases
    /// its holds. Simulates the releases, command by command.
    fn is_never_granted(&self, waiter: &Waiter) -> bool {
        let mut model = self.clone();
        // The copy has no leases, delays, timeouts and grace period, because their ends would end every
        // deadlock. Its fences begin anew, so that no grant fails because fences are used up.
        (model.grants_from, model.last_fence) = (0, 0);
        (model.max_grants_per_turn, model.grants_left) = (usize::MAX, usize::MAX);
        // If a connection waits together with a QUEUE position, the model has a waiter for each. The copy
        // drops the waiter of the connection (`Both`), and retains that of the position.
        model.waiters.retain(|w| !self.has_timed_out(w) && !matches!(w.by, WaitsBy::BlockAndQueue(_)));
        model.waiters.iter_mut().for_each(|waiter| waiter.until = None);
        model.holds.retain(|hold| !self.has_passed(hold.end));
        model.delays.clear();
        (0..KEYS).for_each(|key| model.serve(key));
        while model.waiters.iter().any(|other| other.number == waiter.number) {
            let waits = |party: &Party| model.waiters.iter().any(|w| w.request.party() == *party);
            let mut holders = model.holds.iter().map(Hold::party);
            let Some(leaving) = holders.find(|party| !waits(party)) else { return true };
            for key in 0..KEYS {
                model.turn(key, |model| {
                    model.end_holds(End::Released, |hold| hold.key == key && hold.party() == leaving)
                });
            }
        }
        false
    }
}
