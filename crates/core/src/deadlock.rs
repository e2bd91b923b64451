//! Would this wait close a circle of tokens that wait for each other?
//!
//! Run before somebody joins a line; it costs nothing while nobody waits. Who holds another resource is not known here:
//! the search asks for it by name and is told.
//!
//! A token is stuck when it waits, by whatever way, for the one that is about to wait. A waiter for an exclusive or
//! shared hold waits for every holder; a waiter for a permit is stuck only when all the holders are. Whoever stands
//! ahead in the line is waited for too. So the search first collects the tokens that could be stuck, and then lets it
//! spread among them: a walk from token to token, though shorter, would need answers that it is still looking for.

use std::collections::{HashMap, HashSet};

use crate::lock::{Lock, Mode};
use crate::queue::{Name, Place, Rank, Waiter, WaiterId, Waiting};
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
    /// Where it would stand: behind everybody of its rank.
    place: Place,
    mode: Mode,
    known: HashMap<Name<'static>, Holders>,
    /// What has to be looked at, the resource of the wait itself first, and how much of it has been.
    names: Vec<Name<'static>>,
    looked_at: usize,
    met_names: HashSet<Name<'static>>,
    /// Who could be stuck, and of how many it has been looked at what they wait for.
    tokens: Vec<Token>,
    followed: usize,
    met: HashSet<Token>,
}

struct Holders {
    tokens: Vec<Token>,
    /// To a waiter for a permit, any one of them leaving would do.
    permits: bool,
}

/// Each token that is stuck, with the one it waits for, which is stuck or is the start.
type Stuck<'a> = HashMap<&'a Token, &'a Token>;

/// Who of those that are stuck is in the way at one resource.
#[derive(Default)]
struct Jam<'a> {
    /// Two holders: a sharer that is to be upgraded does not wait for itself.
    holders: [Option<&'a Token>; 2],
    /// Not one permit will be given back.
    all: bool,
    /// Who stands behind this place waits for this token.
    line: Option<(Place, &'a Token)>,
}

/// So many resources and tokens are looked at, at the most: the search runs inside a command, and what it gives up on is
/// still ended by leases and time limits.
const MOST_NAMES: usize = 256;
const MOST_TOKENS: usize = 1024;

impl Search {
    /// `start` is about to wait for `name`, in this mode and at the end of this rank.
    pub fn new(start: Token, name: &Name<'_>, rank: Rank, mode: Mode) -> Search {
        Search {
            start,
            place: (rank, WaiterId(u64::MAX)),
            mode,
            known: HashMap::new(),
            names: vec![name.to_owned()],
            looked_at: 0,
            met_names: HashSet::from([name.to_owned()]),
            tokens: Vec::new(),
            followed: 0,
            met: HashSet::new(),
        }
    }

    /// Who holds `name` at `now`; None where there is no lock.
    pub fn learn(&mut self, name: Name<'static>, lock: Option<&Lock>, now: Instant) {
        let view = lock.map(|lock| lock.at(now));
        let tokens = view.map(|v| v.holds().map(|hold| hold.token().clone()).collect()).unwrap_or_default();
        let permits = matches!(view.and_then(|v| v.mode()), Some(Mode::Permits(_)));
        self.known.insert(name, Holders { tokens, permits });
    }

    pub fn run(&mut self, waiting: &Waiting) -> Found {
        while let Some(name) = self.names.get(self.looked_at).filter(|_| self.looked_at < MOST_NAMES) {
            let Some(holders) = self.known.get(name) else { return Found::Ask(name.clone()) };
            // Who waits in this line alone is as stuck as its holders make it, and they are looked at anyway.
            let in_line = waiting.elsewhere_too(name);
            let in_the_way =
                holders.tokens.iter().chain(in_line).filter(|token| {
                    **token != self.start && waiting.of_token(token.as_bytes()).next().is_some()
                });
            for token in in_the_way.take(MOST_TOKENS.saturating_sub(self.tokens.len())) {
                if self.met.insert(token.clone()) {
                    self.tokens.push(token.clone());
                }
            }
            self.looked_at += 1;
            while let Some(token) = self.tokens.get(self.followed) {
                for waiter in waiting.of_token(token.as_bytes()) {
                    if self.met_names.insert(waiter.name.clone()) {
                        self.names.push(waiter.name.clone());
                    }
                }
                self.followed += 1;
            }
        }
        self.spread(waiting).map_or(Found::Nothing, Found::Circle)
    }

    /// Finds more and more tokens that are stuck, until the start is one of them or nothing more is found.
    fn spread<'a>(&'a self, waiting: &'a Waiting) -> Option<Vec<Token>> {
        let mut stuck = Stuck::new();
        let mut left: Vec<&Token> = self.tokens.iter().collect();
        loop {
            let jams = self.jams(waiting, &stuck);
            let own = self.place.min(waiting.place(&self.start, &self.names[0]).unwrap_or(self.place));
            if let Some(by) = self.in_the_way(&jams, &self.start, &self.names[0], own, self.mode) {
                return Some(self.circle(by, &stuck));
            }
            let before = left.len();
            left.retain(|token| {
                let by = waiting.of_token(token.as_bytes()).find_map(|waiter| {
                    let place = waiting.place(token, &waiter.name)?;
                    self.in_the_way(&jams, token, &waiter.name, place, waiter.mode)
                });
                by.is_none_or(|by| stuck.insert(*token, by).is_some())
            });
            if left.len() == before {
                return None;
            }
        }
    }

    /// Who keeps `token` from getting `name`, of those that are stuck.
    fn in_the_way<'a>(
        &self,
        jams: &HashMap<&Name<'static>, Jam<'a>>,
        token: &Token,
        name: &Name<'static>,
        place: Place,
        mode: Mode,
    ) -> Option<&'a Token> {
        let jam = jams.get(name)?;
        let one_will_do = matches!(mode, Mode::Permits(_)) && !jam.all;
        let holder = jam.holders.into_iter().flatten().find(|holder| !one_will_do && *holder != token);
        holder.or_else(|| jam.line.filter(|(jammed, _)| *jammed < place).map(|(_, by)| by))
    }

    fn jams<'a>(&'a self, waiting: &'a Waiting, stuck: &Stuck<'a>) -> HashMap<&'a Name<'static>, Jam<'a>> {
        let is_stuck = |token: &Token| *token == self.start || stuck.contains_key(token);
        let mut jams: HashMap<&Name<'static>, Jam<'a>> = HashMap::new();
        for (name, holders) in &self.known {
            let mut jammed = holders.tokens.iter().filter(|token| is_stuck(token));
            let jam = Jam { holders: [jammed.next(), jammed.next()], ..Jam::default() };
            let rest = holders.tokens.len() - jam.holders.iter().flatten().count() - jammed.count();
            let all = !holders.permits || rest == 0;
            // A waiter that needs every permit back holds up those behind it as well.
            let needs_all = |waiter: &&Waiter| !matches!(waiter.mode, Mode::Permits(_));
            let line = jam.holders[0].filter(|_| !all).and_then(|by| {
                let waiter = waiting.line(name).find(needs_all)?;
                Some(((waiter.rank, waiter.id), by))
            });
            jams.insert(name, Jam { all, line, ..jam });
        }
        for token in stuck.keys().copied().chain([&self.start]) {
            for waiter in waiting.of_token(token.as_bytes()) {
                let jam = jams.entry(&waiter.name).or_default();
                let here = ((waiter.rank, waiter.id), token);
                jam.line = Some(jam.line.map_or(here, |line| line.min(here)));
            }
        }
        jams
    }

    fn circle<'a>(&self, mut by: &'a Token, stuck: &Stuck<'a>) -> Vec<Token> {
        let mut circle = vec![self.start.clone()];
        while let Some(next) = stuck.get(by) {
            circle.push(by.clone());
            by = next;
        }
        circle.push(self.start.clone());
        circle
    }
}
