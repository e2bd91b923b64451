//! Would this wait close a cycle of parties that wait for each other? A [`Party`] is a token, or an owner
//! with all its tokens.
//!
//! Run before somebody joins a wait queue; it costs nothing while nobody waits. Who holds another resource is
//! not known here: the search asks for it by name and is told.
//!
//! First it collects the parties that could keep the newcomer waiting, with what they hold and wait for. Then
//! it plays the releases through (`play`): whoever has all it waits for gives everything back, the queues are
//! served as [`crate::decide`] serves them, and so on; the newcomer alone gives nothing back. Where its turn
//! never comes, whoever is left waits for somebody else who is left, and the way from the newcomer back to
//! itself is the answer (`cycle`).
//!
//! It runs inside a command, so its work is bounded, and nothing is looked at twice. What lies beyond the
//! bound is taken for somebody who will leave: no cycle is reported that is not there, and one that is missed
//! is ended by leases and wait timeouts.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

use dlock_protocol::{Instant, LockRequestRef, Mode, Reentry, Token};

use crate::lock::Lock;
use crate::queue::{Name, Position, Rank, Waiter, WaiterId, Waiting};

mod cycle;
mod party;
mod play;

pub use party::Party;

/// What the search has come to.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// From the party that would wait, over those it would wait for, back to itself, each as it is shown.
    Cycle(Vec<Token>),
    /// Tell it who holds this ([`Search::learn`]), then go on.
    Ask(Name<'static>),
}

/// A step is to look at a holder or a waiter: a tenth of a microsecond or two. So many are made to collect
/// who is in the way, and as many again, at the most, to play the releases through.
pub const MOST_STEPS: usize = 2_048;

/// What takes longer, in steps: to note a party or a resource that was not known yet; to ask who holds a
/// resource, for which the server opens a key; to end a hold or a wait in the play.
const NOTING: usize = 4;
const ASKING: usize = 8;
const PLAYING: usize = 2;

/// One search, for one party that is about to wait with this token.
pub struct Search {
    token: Token,
    /// The newcomer first.
    parties: Vec<Known>,
    ids: HashMap<Party, usize>,
    /// The one the newcomer would wait for first.
    resources: Vec<Resource>,
    names: HashMap<Name<'static>, usize>,
    /// How many resources have been looked at, and of how many parties what they wait for.
    looked_at: usize,
    followed: usize,
    steps: usize,
    most: usize,
    /// Sharers or permits of one resource.
    most_holders: usize,
    now: Instant,
}

/// The newcomer, and what it would wait for.
const START: usize = 0;
const WANTED: usize = 0;

/// The newcomer, or a party that waits already and may hold what others wait for.
struct Known {
    party: Party,
    /// The resources it holds, of those that have been looked at, and by which tokens.
    holds: Vec<(usize, Token)>,
    /// How many of its waits, and of those within it, are not answered yet.
    waits: usize,
    /// The parties that it is within.
    around: Vec<usize>,
}

struct Resource {
    name: Name<'static>,
    learned: bool,
    /// How it is held, or was last.
    mode: Option<Mode>,
    /// Those that are known. All others will leave.
    holders: BTreeMap<Token, Holder>,
    /// Where known parties stand in its queue; in order once all have been collected.
    queue: Vec<Waits>,
    /// How many of them have been served, and which position in the queue, known or not.
    served: usize,
    passed: Option<Position>,
}

struct Holder {
    party: usize,
    count: NonZeroU32,
}

/// A known party in a queue.
struct Waits {
    position: Position,
    party: usize,
    token: Token,
    mode: Mode,
    reentry: Reentry,
    answered: bool,
}

impl Waits {
    fn new(party: usize, waiter: &Waiter) -> Waits {
        let (position, token) = (waiter.position(), waiter.request.token.clone());
        let (mode, reentry) = (waiter.request.mode, waiter.request.reentry);
        Waits { position, party, token, mode, reentry, answered: false }
    }
}

impl Search {
    /// This is about to wait for `name`, at the end of this rank.
    pub fn new(request: &LockRequestRef<'_>, name: &Name<'_>, rank: Rank, now: Instant) -> Search {
        let (token, party) = (request.token.to_owned(), Party::of(&request.to_owned()));
        let mut search = Search {
            token: token.clone(),
            parties: Vec::new(),
            ids: HashMap::new(),
            resources: Vec::new(),
            names: HashMap::new(),
            looked_at: 0,
            followed: START + 1,
            steps: 0,
            most: MOST_STEPS,
            most_holders: usize::MAX,
            now,
        };
        search.note(party);
        search.resource(name);
        // The search ends with its answer: what it counts then does not matter.
        let (position, reentry) = ((rank, WaiterId(u64::MAX)), Reentry::Keep);
        let wanted = Waits { position, party: START, token, mode: request.mode, reentry, answered: false };
        search.resources[WANTED].queue.push(wanted);
        search
    }

    /// So many may hold a resource at a time, whatever else would fit.
    pub fn with_at_most(mut self, holders: u32) -> Search {
        self.most_holders = holders as usize;
        self
    }

    /// How much it has looked at.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Who holds `name`; None where there is no lock.
    pub fn learn(&mut self, name: &Name<'_>, lock: Option<&Lock>, waiting: &Waiting) {
        self.steps += ASKING;
        let at = self.resource(name);
        self.resources[at].learned = true;
        let Some(view) = lock.map(|lock| lock.at(self.now)) else { return };
        self.resources[at].mode = view.mode();
        for hold in view.holds() {
            if self.left() == 0 {
                return;
            }
            self.steps += 1;
            if let Some(party) = self.meet(Party::new(hold.token(), hold.owner()), waiting) {
                let token = hold.token().clone();
                self.resources[at].holders.insert(token.clone(), Holder { party, count: hold.times() });
                self.parties[party].holds.push((at, token));
            }
        }
    }

    pub fn run(&mut self, waiting: &Waiting) -> Found {
        // Who has no owner cannot wait for itself.
        if waiting.is_empty() && matches!(self.parties[START].party, Party::Token(_)) {
            return Found::Nothing;
        }
        while self.left() > 0
            && let Some(resource) = self.resources.get(self.looked_at)
        {
            if !resource.learned {
                return Found::Ask(resource.name.clone());
            }
            let name = resource.name.clone();
            // Who waits here alone leaves as soon as it is served; behind the newcomer's own wait, never.
            let waiters: Box<dyn Iterator<Item = &Waiter>> =
                if self.looked_at == WANTED && self.waits_twice(waiting) {
                    Box::new(waiting.queue(&name))
                } else {
                    Box::new(waiting.also_elsewhere(&name))
                };
            for waiter in waiters {
                if self.left() == 0 {
                    break;
                }
                self.steps += 1;
                if self.still_waits(waiter) {
                    self.meet(Party::of(&waiter.request), waiting);
                }
            }
            self.looked_at += 1;
            self.follow(waiting);
        }
        // What else the newcomer waits for has to be served in its turn, but is no reason to look there.
        let start = self.parties[START].party.clone();
        for waiter in start.waits_or_around(waiting).take(MOST_STEPS / 4) {
            self.steps += 1;
            if let Some(at) = self.names.get(&waiter.name).filter(|_| self.still_waits(waiter)) {
                self.resources[*at].queue.push(Waits::new(START, waiter));
            }
        }
        let wanted = &self.resources[WANTED];
        if self.parties.len() == 1
            && wanted.queue.len() == 1
            && wanted.holders.keys().all(|token| *token == self.token)
        {
            return Found::Nothing;
        }
        self.most = self.steps + MOST_STEPS;
        if self.turn_comes(waiting) {
            Found::Nothing
        } else {
            self.cycle().map_or(Found::Nothing, Found::Cycle)
        }
    }

    /// Whether the newcomer waits already for what it wants.
    fn waits_twice(&self, waiting: &Waiting) -> bool {
        let (start, wanted) = (self.parties[START].party.clone(), &self.resources[WANTED].name);
        start.waits_or_around(waiting).take(MOST_STEPS / 4).any(|waiter| waiter.name == *wanted)
    }

    /// Looks at what the parties wait for that have been met.
    fn follow(&mut self, waiting: &Waiting) {
        while self.left() > 0
            && let Some(known) = self.parties.get(self.followed)
        {
            let party = known.party.clone();
            for waiter in party.waits(waiting) {
                if self.left() == 0 {
                    return;
                }
                self.steps += 1;
                if !self.still_waits(waiter) {
                    continue;
                }
                let waits = Party::of(&waiter.request);
                if waits == party {
                    let at = self.resource(&waiter.name);
                    self.resources[at].queue.push(Waits::new(self.followed, waiter));
                } else {
                    self.meet(waits, waiting);
                }
            }
            self.followed += 1;
        }
    }

    /// A waiter that has timed out is never granted, whether or not it has been told so.
    fn still_waits(&self, waiter: &Waiter) -> bool {
        waiter.until.is_none_or(|until| !until.passed(self.now))
    }

    fn left(&self) -> usize {
        self.most.saturating_sub(self.steps)
    }

    /// The number of a party that can keep others waiting for long: the newcomer, what that is within, or one
    /// that waits.
    fn meet(&mut self, party: Party, waiting: &Waiting) -> Option<usize> {
        if self.parties[START].party.is_within(&party) {
            return Some(START);
        }
        if let Some(known) = self.ids.get(&party) {
            return Some(*known);
        }
        // One step is counted with the noting, each other for a wait that has timed out.
        let looked_at = party.waits(waiting).take(self.left()).position(|waiter| self.still_waits(waiter));
        self.steps += looked_at? + NOTING;
        Some(self.note(party))
    }

    fn note(&mut self, party: Party) -> usize {
        self.ids.insert(party.clone(), self.parties.len());
        self.parties.push(Known { party, holds: Vec::new(), waits: 0, around: Vec::new() });
        self.parties.len() - 1
    }

    fn resource(&mut self, name: &Name<'_>) -> usize {
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        self.steps += NOTING;
        let name = name.to_owned();
        self.names.insert(name.clone(), self.resources.len());
        self.resources.push(Resource {
            name,
            learned: false,
            mode: None,
            holders: BTreeMap::new(),
            queue: Vec::new(),
            served: 0,
            passed: None,
        });
        self.resources.len() - 1
    }
}
