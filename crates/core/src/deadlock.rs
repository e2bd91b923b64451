//! Would this wait close a circle of tokens that wait for each other?
//!
//! A depth-first search in the graph of who waits for whom, run before somebody joins a line; it costs nothing while
//! nobody waits. Who holds another resource is not known here: the search asks for it by name and is told.
//!
//! A waiter for an exclusive or shared hold waits for every holder; a waiter for a permit is only stuck when all the
//! holders are. Whoever stands ahead in the line is waited for too.

use std::collections::{HashMap, HashSet};

use crate::lock::{Lock, Mode};
use crate::queue::{Name, Rank, Waiter, Waiting};
use crate::units::{Instant, Token};

/// What the search has come to.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// From the token that would wait, over those it would wait for, back to itself.
    Circle(Vec<Token>),
    /// Tell it who holds this ([`Search::learn`]), then go on.
    Ask(Name<'static>),
}

/// One search, for one token that is about to wait.
pub struct Search {
    start: Token,
    name: Name<'static>,
    rank: Rank,
    known: HashMap<Name<'static>, Holders>,
}

struct Holders {
    tokens: Vec<Token>,
    /// Any one of them leaving would do.
    permits: bool,
}

/// So many resources are looked at, at the most: the search runs inside a command, and what it gives up on is still
/// ended by leases and time limits.
const MOST_NAMES: usize = 256;

/// Why a walk stopped early.
struct Missing(Name<'static>);

type Walk = Result<Option<Vec<Token>>, Missing>;

impl Search {
    pub fn new(start: Token, name: &Name<'_>, rank: Rank) -> Search {
        Search { start, name: name.to_owned(), rank, known: HashMap::new() }
    }

    /// Who holds `name` at `now`; None where there is no lock.
    pub fn learn(&mut self, name: Name<'static>, lock: Option<&Lock>, now: Instant) {
        let view = lock.map(|lock| lock.at(now));
        let tokens = view.map(|v| v.holds().map(|hold| hold.token().clone()).collect()).unwrap_or_default();
        let permits = matches!(view.and_then(|v| v.mode()), Some(Mode::Permits(_)));
        self.known.insert(name, Holders { tokens, permits });
    }

    pub fn run(&self, waiting: &Waiting) -> Found {
        let mut visited = HashSet::new();
        let ahead = waiting.line(&self.name).take_while(|waiter| waiter.rank <= self.rank);
        match self.blocked(waiting, &self.start, &self.name, ahead, &mut visited) {
            Ok(None) => Found::Nothing,
            Ok(Some(mut circle)) => {
                circle.push(self.start.clone());
                circle.reverse();
                Found::Circle(circle)
            }
            Err(Missing(_)) if self.known.len() >= MOST_NAMES => Found::Nothing,
            Err(Missing(name)) => Found::Ask(name),
        }
    }

    /// Whether `token`, waiting for `name` behind those `ahead`, waits for the start; the way there, last first.
    fn blocked<'a>(
        &self,
        waiting: &'a Waiting,
        token: &Token,
        name: &Name<'static>,
        ahead: impl Iterator<Item = &'a Waiter>,
        visited: &mut HashSet<Token>,
    ) -> Walk {
        let holders = self.known.get(name).ok_or_else(|| Missing(name.clone()))?;
        let mut stuck = None;
        for holder in holders.tokens.iter().filter(|holder| *holder != token) {
            match self.leads(waiting, holder, visited)? {
                Some(way) if holders.permits => stuck = stuck.or(Some(way)),
                Some(way) => return Ok(Some(way)),
                None if holders.permits => {
                    stuck = None;
                    break;
                }
                None => {}
            }
        }
        if stuck.is_none() && waiting.some_wait_in_several() {
            for waiter in ahead.filter(|waiter| waiter.token != *token && waiter.token != self.start) {
                if let Some(way) = self.leads(waiting, &waiter.token, visited)? {
                    return Ok(Some(way));
                }
            }
        }
        Ok(stuck)
    }

    /// Whether `token` waits, in the end, for the start.
    fn leads(&self, waiting: &Waiting, token: &Token, visited: &mut HashSet<Token>) -> Walk {
        if *token == self.start {
            return Ok(Some(vec![token.clone()]));
        }
        if !visited.insert(token.clone()) {
            return Ok(None);
        }
        for waiter in waiting.of_token(token.as_bytes()) {
            let ahead = waiting.line(&waiter.name).take_while(|other| other.id != waiter.id);
            if let Some(mut way) = self.blocked(waiting, token, &waiter.name, ahead, visited)? {
                way.push(token.clone());
                return Ok(Some(way));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::{Acquired, Turn};
    use crate::lock::{Count, Request};
    use crate::queue::Newcomer;
    use crate::units::{ClientId, Fences, Ttl};
    use std::num::NonZeroU32;

    #[derive(Default)]
    struct World {
        locks: HashMap<Name<'static>, Lock>,
        waiting: Waiting,
        fences: Fences,
    }

    const NOW: Instant = Instant::from_micros(1_000_000);

    impl World {
        /// Acquires or joins the line; the circle where that would close one.
        fn want(&mut self, key: &str, token: &str, mode: Mode) -> Option<Vec<Token>> {
            let name = Name::new(0, key.as_bytes()).to_owned();
            let ttl = Ttl::from_millis(1000).unwrap();
            let request = Request {
                token: token.as_bytes(),
                ttl,
                mode,
                count: Count::Keep,
                bound_to: None,
                delay: 0,
                label: b"",
            };
            let lock = self.locks.entry(name.clone()).or_default();
            let rank =
                match Turn::new(NOW, &name, &mut self.fences, &mut self.waiting, lock).acquire(&request) {
                    Acquired::NotNow(rank) => rank,
                    Acquired::Held(_) => return None,
                    other => panic!("{other:?}"),
                };
            let mut search = Search::new(Token::new(token.as_bytes()).unwrap(), &name, rank);
            loop {
                match search.run(&self.waiting) {
                    Found::Circle(circle) => return Some(circle),
                    Found::Ask(name) => search.learn(name.clone(), self.locks.get(&name), NOW),
                    Found::Nothing => break,
                }
            }
            let client = ClientId(self.waiting.len() as u64);
            let newcomer = Newcomer { name, rank, request, client, since: NOW, until: None };
            self.waiting.join(newcomer).unwrap();
            None
        }
    }

    fn tokens(names: &str) -> Option<Vec<Token>> {
        Some(names.split(' ').map(|name| Token::new(name.as_bytes()).unwrap()).collect())
    }

    #[test]
    fn three_in_a_circle() {
        let mut world = World::default();
        for (key, token) in [("x", "a"), ("y", "b"), ("z", "c"), ("y", "a"), ("z", "b")] {
            assert_eq!(world.want(key, token, Mode::Exclusive), None);
        }
        assert_eq!(world.want("x", "c", Mode::Exclusive), tokens("c a b c"));
        assert_eq!(world.want("x", "d", Mode::Exclusive), None, "a bystander may wait");
    }

    #[test]
    fn every_sharer_counts_but_a_permit_only_when_all_are_stuck() {
        let mut world = World::default();
        let two = Mode::Permits(NonZeroU32::new(2).unwrap());
        for (key, token, mode) in
            [("x", "t", Mode::Exclusive), ("s", "a", two), ("s", "b", two), ("x", "a", Mode::Exclusive)]
        {
            assert_eq!(world.want(key, token, mode), None);
        }
        assert_eq!(world.want("s", "t", two), None, "b may still leave");
        let mut world = World::default();
        for (key, token, mode) in [
            ("x", "t", Mode::Exclusive),
            ("r", "a", Mode::Shared),
            ("r", "b", Mode::Shared),
            ("x", "b", Mode::Exclusive),
        ] {
            assert_eq!(world.want(key, token, mode), None);
        }
        assert_eq!(world.want("r", "t", Mode::Exclusive), tokens("t b t"));
    }

    #[test]
    fn whoever_stands_ahead_is_waited_for() {
        let mut world = World::default();
        for (key, token) in [("x", "t"), ("k", "h"), ("k", "w"), ("x", "w")] {
            assert_eq!(world.want(key, token, Mode::Exclusive), None);
        }
        assert_eq!(world.want("k", "t", Mode::Exclusive), tokens("t w t"));
    }

    #[test]
    fn two_upgraders() {
        let mut world = World::default();
        assert_eq!(world.want("r", "a", Mode::Shared), None);
        assert_eq!(world.want("r", "b", Mode::Shared), None);
        assert_eq!(world.want("r", "a", Mode::Exclusive), None, "the first one waits");
    }
}
