//! The releases played through: whose turn comes, if everybody gives back what it holds once it has all it
//! waits for.

use dlock_protocol::{Mode, Reentry, Token};

use super::{Holder, Known, PLAYING, Party, START, Search, WANTED, Waits};
use crate::queue::{Position, WaiterId, Waiting};

/// What becomes of a waiter at the head of its queue.
enum Turn {
    /// It holds from now on, or holds already, in this mode.
    Granted(Mode),
    /// It waits no longer, and holds what it held.
    Refused,
    NotYet,
}

impl Search {
    /// Whether the newcomer's turn comes, though it gives nothing back before. As well where that takes too
    /// long to say.
    pub(super) fn turn_comes(&mut self, waiting: &Waiting) -> bool {
        for party in START + 1..self.parties.len() {
            self.look_around(party);
            if self.left() == 0 {
                return true;
            }
        }
        for resource in &mut self.resources {
            if !resource.learned {
                // Not looked at: whoever waits there will be served.
                resource.queue.clear();
            }
            resource.queue.sort_unstable_by_key(|waits| waits.position);
            for waits in &resource.queue {
                count_wait(&mut self.parties, waits.party);
            }
        }
        let leaves = |party: &usize| *party != START && self.parties[*party].waits == 0;
        let mut leaving: Vec<usize> = (0..self.parties.len()).filter(leaves).collect();
        let mut to_serve: Vec<usize> = (0..self.resources.len()).collect();
        // Each hold ends once and each position is passed once, so this is a matter of adding up; but the
        // waiters that are not known, whom nobody has counted.
        while self.left() > 0 {
            while let Some(party) = leaving.pop() {
                for (at, token) in std::mem::take(&mut self.parties[party].holds) {
                    self.steps += PLAYING;
                    let holders = &mut self.resources[at].holders;
                    // It may be another party's by now.
                    if holders.get(&token).is_some_and(|holder| holder.party == party) {
                        holders.remove(&token);
                        to_serve.push(at);
                    }
                }
            }
            let Some(at) = to_serve.pop() else { return false };
            if self.serve(at, waiting, &mut leaving) {
                return true;
            }
        }
        true
    }

    /// Serves a queue as far as that goes. True where the newcomer gets what it wants.
    fn serve(&mut self, at: usize, waiting: &Waiting, leaving: &mut Vec<usize>) -> bool {
        while let Some(next) = self.resources[at].queue.get(self.resources[at].served) {
            self.steps += PLAYING;
            let (position, party, token) = (next.position, next.party, next.token.clone());
            let (mode, reentry, answered) = (next.mode, next.reentry, next.answered);
            if !self.pass(at, position, mode, waiting) {
                return false;
            }
            if !answered {
                match self.turn(at, &token, mode, reentry) {
                    Turn::NotYet => return false,
                    Turn::Refused => self.answer(at, position, leaving),
                    Turn::Granted(mode) => {
                        self.resources[at].mode = Some(mode);
                        self.enter(at, party, &token, reentry);
                        self.answer(at, position, leaving);
                        self.answer_others(at, &token, waiting, leaving);
                    }
                }
            }
            let resource = &mut self.resources[at];
            (resource.served, resource.passed) = (resource.served + 1, Some(position));
            if at == WANTED && self.newcomer_is_answered() {
                return true;
            }
        }
        false
    }

    /// Lets those pass who are not known and stand before this position. Where nobody holds the resource they
    /// are all served, one after the other, and only a waiter for a permit has to know by whom. One who is
    /// not served is known from now on, and no more.
    fn pass(&mut self, at: usize, position: Position, mode: Mode, waiting: &Waiting) -> bool {
        let (most, now) = (self.most_holders, self.now);
        let resource = &mut self.resources[at];
        while (!resource.holders.is_empty() || matches!(mode, Mode::Permits(_)))
            && self.steps < self.most
            && let Some(waiter) = waiting.next_in_queue(&resource.name, resource.passed)
            && waiter.position() < position
        {
            self.steps += 1;
            let holders = resource.holders.len();
            let over = waiter.until.is_some_and(|until| until.passed(now));
            let served = match (resource.mode, waiter.request.mode) {
                _ if over => true,
                (Some(Mode::Permits(n)), Mode::Permits(m)) => n != m || holders < most.min(n.get() as usize),
                (Some(Mode::Shared), Mode::Shared) => holders < most,
                (_, asked) if holders == 0 => {
                    resource.mode = Some(asked);
                    true
                }
                _ => false,
            };
            if !served {
                if let Some(party) = self.meet(Party::of(&waiter.request), waiting) {
                    self.look_around(party);
                    count_wait(&mut self.parties, party);
                    let resource = &mut self.resources[at];
                    resource.queue.insert(resource.served, Waits::new(party, waiter));
                }
                return false;
            }
            resource.passed = Some(waiter.position());
        }
        true
    }

    fn turn(&self, at: usize, token: &Token, asked: Mode, reentry: Reentry) -> Turn {
        let resource = &self.resources[at];
        let holders = resource.holders.len();
        let room = holders < self.most_holders;
        if let (Some(Holder { count, .. }), Some(held_as)) = (resource.holders.get(token), resource.mode) {
            return match (held_as, asked) {
                (Mode::Shared, Mode::Exclusive) if holders > 1 => Turn::NotYet,
                // What cannot be counted once more is refused: a sharer stays one.
                _ if reentry.count(Some(*count)).is_none() => Turn::Refused,
                (Mode::Shared, Mode::Exclusive) => Turn::Granted(asked),
                _ if asks_no_more(held_as, asked) => Turn::Granted(held_as),
                _ => Turn::Refused,
            };
        }
        match (resource.mode, asked) {
            // Whoever had a permit last still has it when the next one is looked at.
            (Some(Mode::Permits(n)), Mode::Permits(asked)) if n != asked => Turn::Refused,
            (Some(Mode::Permits(n)), Mode::Permits(_)) if holders < n.get() as usize && room => {
                Turn::Granted(asked)
            }
            (Some(Mode::Shared), Mode::Shared) if room => Turn::Granted(asked),
            _ if holders == 0 => Turn::Granted(asked),
            _ => Turn::NotYet,
        }
    }

    /// Counts once more what the token holds there, if it can.
    fn enter(&mut self, at: usize, party: usize, token: &Token, reentry: Reentry) {
        let holders = &mut self.resources[at].holders;
        let before = holders.get(token);
        let Some(count) = reentry.count(before.map(|holder| holder.count)) else { return };
        let before = before.map(|holder| holder.party);
        // Who names no owner leaves the hold to the one it has.
        let named = matches!(self.parties[party].party, Party::Owner(_));
        let party = before.filter(|_| !named).unwrap_or(party);
        holders.insert(token.clone(), Holder { party, count });
        if before != Some(party) {
            self.parties[party].holds.push((at, token.clone()));
        }
    }

    /// A grant to a token answers each of its waits there that asks for no more.
    fn answer_others(&mut self, at: usize, token: &Token, waiting: &Waiting, leaving: &mut Vec<usize>) {
        let resource = &self.resources[at];
        let here = waiting.positions(token.as_bytes(), &resource.name);
        let own = resource.queue.iter().rev().find(|waits| at == WANTED && waits.is_newcomer());
        let positions: Vec<Position> =
            here.chain(own.filter(|own| own.token == *token).map(|own| own.position)).collect();
        for position in positions {
            self.steps += 1;
            let resource = &self.resources[at];
            let Ok(index) = resource.queue.binary_search_by_key(&position, |waits| waits.position) else {
                continue;
            };
            let waits = &resource.queue[index];
            if !waits.answered && resource.mode.is_some_and(|held_as| asks_no_more(held_as, waits.mode)) {
                let (party, reentry) = (waits.party, waits.reentry);
                self.enter(at, party, token, reentry);
                self.answer(at, position, leaving);
            }
        }
    }

    fn answer(&mut self, at: usize, position: Position, leaving: &mut Vec<usize>) {
        let queue = &mut self.resources[at].queue;
        let Ok(index) = queue.binary_search_by_key(&position, |waits| waits.position) else { return };
        queue[index].answered = true;
        let party = queue[index].party;
        let around = std::mem::take(&mut self.parties[party].around);
        for at in around.iter().chain([&party]) {
            self.parties[*at].waits -= 1;
            if self.parties[*at].waits == 0 && *at != START {
                leaving.push(*at);
            }
        }
        self.parties[party].around = around;
    }

    /// Finds the known parties that this one is within. The newcomer gives nothing back anyway.
    fn look_around(&mut self, party: usize) {
        let around = self.parties[party].party.around().inspect(|_| self.steps += 1);
        let around = around.filter_map(|around| self.ids.get(&around).copied());
        self.parties[party].around = around.filter(|around| *around != START).collect();
    }

    fn newcomer_is_answered(&self) -> bool {
        let mut queue = self.resources[WANTED].queue.iter().rev();
        queue.find(|waits| waits.is_newcomer()).is_some_and(|waits| waits.answered)
    }
}

impl Waits {
    fn is_newcomer(&self) -> bool {
        self.position.1 == WaiterId(u64::MAX)
    }
}

/// One more wait of a party, and of those that it is within.
fn count_wait(parties: &mut [Known], party: usize) {
    for at in 0..parties[party].around.len() {
        let around = parties[party].around[at];
        parties[around].waits += 1;
    }
    parties[party].waits += 1;
}

/// Whether who holds in one mode has what it asks for in another.
fn asks_no_more(held_as: Mode, asked: Mode) -> bool {
    held_as == asked || (held_as, asked) == (Mode::Exclusive, Mode::Shared)
}
