//! Deadlock detection: a search of the wait-for graph before a client waits.
//!
//! The nodes are parties: a token, or an owner with all its tokens. A party waits for the holders of the lock
//! that it asks for and for the waiters ahead of it; a sharer does not wait for other sharers. A party waits
//! until all of these have left, so every cycle is a deadlock. Three kinds of waits add no edge:
//!
//! - a wait for permits, because any of the holders may leave first
//! - a second wait of a token for the same lock, because one grant may answer both
//! - a wait that has timed out
//!
//! The search cannot read locks: it asks its caller for their holders, lock by lock. It runs inside a
//! command, so its work is bounded. A deadlock that needs more work is missed, until a lease or a wait
//! timeout ends it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;

use dlock_protocol::request::MAX_COUNT;
use dlock_protocol::{Instant, LockRequestRef, Mode, Token};

use crate::lock::Lock;
use crate::queue::{Name, Party, Position, Rank, Waiter, WaiterId, Waiting};

/// The state of a search after [`Search::run`].
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// The parties of a cycle, as messages show them. The newcomer is the first and the last one.
    Cycle(Vec<Token>),
    /// The search needs the holders of this lock: call [`Search::learn`], then run it again.
    Ask(Name<'static>),
}

/// The bound of a search. One step is one holder or waiter, 0.1 to 0.2 µs.
pub const MAX_STEPS: usize = 2_048;

/// The cost in steps of storing a party.
const STEPS_PER_PARTY: usize = 4;

/// The cost in steps of asking for the holders of a lock: the caller opens a key.
const STEPS_PER_LOCK: usize = 8;

/// One search, for one client that is about to wait.
pub struct Search {
    /// The newcomer first, then each party that it waits for, directly or not. Each is stored with the index
    /// of a party that waits for it directly.
    parties: Vec<(Party, usize)>,
    /// The parties in `parties`.
    seen: HashSet<Party>,
    /// All waits of the newcomer's party. The last one is the wait that is about to begin.
    own: Vec<Wait>,
    /// The waits that are still to be followed.
    to_follow: VecDeque<Wait>,
    locks: HashMap<Name<'static>, KnownLock>,
    steps: usize,
    now: Instant,
}

/// A wait that adds edges to the graph.
#[derive(Clone)]
struct Wait {
    name: Name<'static>,
    position: Position,
    token: Token,
    mode: Mode,
    /// The index of its party in [`Search::parties`].
    party: usize,
}

/// A lock for which the search has asked.
#[derive(Default)]
struct KnownLock {
    mode: Option<Mode>,
    /// The holders that are still to be followed. Contains only holders of the newcomer's party and of
    /// parties that wait for a lock, because no cycle goes through other holders.
    holders: Vec<(Token, Party)>,
    /// Holders with the maximum hold count. If such a holder waits for this lock again, the waiters behind it
    /// add no edge to its wait: this wait may be refused at the head of the queue, and then blocks none of
    /// them.
    full: Vec<Token>,
    /// The waiters ahead of this position have been followed.
    followed: Option<Position>,
}

impl Search {
    /// A search for a client that is about to wait for `name`, behind the waiters of its rank.
    pub fn new(
        request: &LockRequestRef<'_>,
        name: &Name<'_>,
        rank: Rank,
        now: Instant,
        waiting: &Waiting,
    ) -> Search {
        let mut search = Search {
            parties: Vec::new(),
            seen: HashSet::new(),
            own: Vec::new(),
            to_follow: VecDeque::new(),
            locks: HashMap::new(),
            steps: 0,
            now,
        };
        // If no other client waits, the only possible cycle is an owner that waits for itself.
        let no_cycle = waiting.is_empty() && request.owner.is_none();
        let position = (rank, WaiterId(u64::MAX));
        let waits_already = waiting.positions(request.token.as_bytes(), name).any(|other| other < position);
        if no_cycle || waits_already || is_permits(request.mode) {
            return search;
        }
        let request = request.to_owned();
        let start = Party::new(&request.token, request.owner.as_ref());
        let wait =
            Wait { name: name.to_owned(), position, token: request.token, mode: request.mode, party: START };
        // At most a quarter of the steps, so that most are left for the search.
        for waiter in waiting.of_party(&start).take(MAX_STEPS / 4) {
            search.steps += 1;
            search.own.extend(search.wait_of(waiter, START, waiting));
        }
        search.seen.insert(start.clone());
        search.parties.push((start, START));
        search.own.push(wait.clone());
        search.to_follow.push_back(wait);
        search
    }

    /// The steps that the search has taken.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Stores the holders of `name`; `lock` is `None` if its key does not exist.
    pub fn learn(&mut self, name: &Name<'_>, lock: Option<&Lock>, waiting: &Waiting) {
        self.steps += STEPS_PER_LOCK;
        let mut known = KnownLock::default();
        if let Some(view) = lock.map(|lock| lock.at(self.now)) {
            known.mode = view.mode();
            for hold in view.holds().take(MAX_STEPS.saturating_sub(self.steps)) {
                self.steps += 1;
                if hold.count() == MAX_COUNT {
                    known.full.push(hold.token().clone());
                }
                let party = Party::new(hold.token(), hold.owner());
                if party == self.parties[START].0 || waiting.of_party(&party).next().is_some() {
                    known.holders.push((hold.token().clone(), party));
                }
            }
        }
        self.locks.insert(name.to_owned(), known);
    }

    /// Continues the search.
    pub fn run(&mut self, waiting: &Waiting) -> Found {
        while let Some(wait) = self.to_follow.pop_front() {
            if self.steps >= MAX_STEPS {
                break;
            }
            if !self.locks.contains_key(&wait.name) {
                let name = wait.name.clone();
                self.to_follow.push_front(wait);
                return Found::Ask(name);
            }
            if self.follow(&wait, waiting) {
                return Found::Cycle(self.path(wait.party));
            }
        }
        Found::Nothing
    }

    /// Follows the edges of one wait: to the waits of the newcomer's party ahead of it, to the holders, and
    /// to the other waiters ahead of it. Returns whether an edge leads back to the newcomer.
    fn follow(&mut self, wait: &Wait, waiting: &Waiting) -> bool {
        let is_ahead = |own: &Wait| own.name == wait.name && own.position < wait.position;
        let keeps_out = |own: &Wait| own.token != wait.token && excludes(own.mode, wait.mode);
        if self.own.iter().any(|own| is_ahead(own) && keeps_out(own) && !self.is_full(&own.name, &own.token))
        {
            return true;
        }
        self.follow_holders(wait, waiting)
            || match wait.mode {
                Mode::Exclusive => self.follow_waiters(wait, waiting),
                _ => self.follow_nearest_exclusive(wait, waiting),
            }
    }

    fn follow_holders(&mut self, wait: &Wait, waiting: &Waiting) -> bool {
        let Some(lock) = self.locks.get_mut(&wait.name) else { return false };
        if !lock.mode.is_some_and(|held_as| excludes(held_as, wait.mode)) {
            return false;
        }
        // A token does not wait for its own hold. The hold stays in the list, for the waits of other tokens.
        let (own, others) = mem::take(&mut lock.holders).into_iter().partition(|(t, _)| *t == wait.token);
        lock.holders = own;
        let others: Vec<(Token, Party)> = others;
        others.into_iter().any(|(_, party)| self.add_party(party, wait.party, waiting))
    }

    /// Follows the marked waiters ahead of an exclusive waiter: those whose token or owner waits more than
    /// once. The other waiters wait nowhere else, and the exclusive waiter itself waits for every party that
    /// they wait for.
    fn follow_waiters(&mut self, wait: &Wait, waiting: &Waiting) -> bool {
        let Some(lock) = self.locks.get_mut(&wait.name) else { return false };
        let from = lock.followed.unwrap_or((Rank::Upgrade, WaiterId(0)));
        if from >= wait.position {
            return false;
        }
        lock.followed = Some(wait.position);
        for waiter in waiting.marked_waiters(&wait.name, from..wait.position) {
            self.steps += 1;
            if self.steps >= MAX_STEPS {
                return false;
            }
            if self.is_waited_for(waiter, waiting) && self.add_party(waiter.party(), wait.party, waiting) {
                return true;
            }
        }
        false
    }

    /// Follows the nearest exclusive waiter ahead of a sharer. That waiter waits for all others ahead of it.
    fn follow_nearest_exclusive(&mut self, wait: &Wait, waiting: &Waiting) -> bool {
        for waiter in waiting.ahead(&wait.name, wait.position) {
            self.steps += 1;
            if self.steps >= MAX_STEPS {
                return false;
            }
            if waiter.request.mode == Mode::Exclusive && self.is_waited_for(waiter, waiting) {
                return self.add_party(waiter.party(), wait.party, waiting);
            }
        }
        false
    }

    /// Adds a party that the party `by` waits for. Returns true if it is the newcomer.
    fn add_party(&mut self, party: Party, by: usize, waiting: &Waiting) -> bool {
        if party == self.parties[START].0 {
            return true;
        }
        if self.seen.insert(party.clone()) {
            self.steps += STEPS_PER_PARTY;
            for waiter in waiting.of_party(&party).take(MAX_STEPS.saturating_sub(self.steps)) {
                self.steps += 1;
                self.to_follow.extend(self.wait_of(waiter, self.parties.len(), waiting));
            }
            self.parties.push((party, by));
        }
        false
    }

    /// Whether other waiters wait for this one.
    fn is_waited_for(&self, waiter: &Waiter, waiting: &Waiting) -> bool {
        self.wait_of(waiter, START, waiting).is_some() && !self.is_full(&waiter.name, &waiter.request.token)
    }

    fn is_full(&self, name: &Name<'_>, token: &Token) -> bool {
        self.locks.get(name).is_some_and(|lock| lock.full.contains(token))
    }

    /// The wait of a waiter, if it adds edges.
    fn wait_of(&self, waiter: &Waiter, party: usize, waiting: &Waiting) -> Option<Wait> {
        let (request, name, position) = (&waiter.request, &waiter.name, waiter.position());
        let first = waiting.positions(request.token.as_bytes(), name).min();
        // The newcomer has not joined its queue yet, so `waiting` does not have its position.
        let newcomer = self.own.last().filter(|own| own.token == request.token && own.name == *name);
        let first = first.into_iter().chain(newcomer.map(|own| own.position)).min();
        let adds_edges = !is_permits(request.mode)
            && waiting.outcome_if_over(waiter, self.now).is_none()
            && first == Some(position);
        adds_edges.then(|| Wait {
            name: name.clone(),
            position,
            token: request.token.clone(),
            mode: request.mode,
            party,
        })
    }

    /// The parties from the newcomer to this one, and the newcomer again.
    fn path(&self, last: usize) -> Vec<Token> {
        let mut path = vec![START, last];
        while let Some(at) = path.last().copied().filter(|at| *at != START) {
            path.push(self.parties[at].1);
        }
        path.iter().rev().map(|at| self.parties[*at].0.shown().clone()).collect()
    }
}

/// The index of the newcomer.
const START: usize = 0;

fn is_permits(mode: Mode) -> bool {
    matches!(mode, Mode::Permits(_))
}

/// Whether a holder or an earlier waiter in one mode keeps out a waiter in another. Permits add no edge.
fn excludes(held_as: Mode, asked: Mode) -> bool {
    (held_as, asked) != (Mode::Shared, Mode::Shared) && !is_permits(held_as) && !is_permits(asked)
}
