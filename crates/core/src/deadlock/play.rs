//! The releases played through: whose turn comes, if everybody gives back what it holds once it has all it
//! waits for.

use dlock_protocol::{Mode, Reentry};

use super::{PLAYING, START, Search, WANTED, Waits};
use crate::queue::{Position, Waiting};

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
        for resource in &mut self.resources {
            if !resource.learned {
                // Not looked at: whoever waits there will be served.
                resource.queue.clear();
            }
            resource.queue.sort_unstable_by_key(|waits| waits.position);
            for waits in &resource.queue {
                self.tokens[waits.token].waits += 1;
            }
        }
        let leaves = |token: &usize| *token != START && self.tokens[*token].waits == 0;
        let mut leaving: Vec<usize> = (0..self.tokens.len()).filter(leaves).collect();
        let mut to_serve: Vec<usize> = (0..self.resources.len()).collect();
        // Each hold ends once and each position is passed once, so this is a matter of adding up; but the
        // waiters that are not known, whom nobody has counted.
        while self.left() > 0 {
            while let Some(token) = leaving.pop() {
                for at in std::mem::take(&mut self.tokens[token].holds) {
                    self.steps += PLAYING;
                    self.resources[at].holders.remove(&token);
                    to_serve.push(at);
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
            let (position, token, mode) = (next.position, next.token, next.mode);
            let (reentry, answered) = (next.reentry, next.answered);
            if !self.pass(at, position, mode, waiting) {
                return false;
            }
            if !answered {
                match self.turn(at, token, mode, reentry) {
                    Turn::NotYet => return false,
                    Turn::Refused => self.answer(at, position, leaving),
                    Turn::Granted(mode) => {
                        self.resources[at].mode = Some(mode);
                        self.enter(at, token, reentry);
                        self.answer(at, position, leaving);
                        self.answer_others(at, token, waiting, leaving);
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
                if let Some(token) = self.meet(&waiter.request.token, waiting) {
                    self.tokens[token].waits += 1;
                    let resource = &mut self.resources[at];
                    resource.queue.insert(resource.served, Waits::new(token, waiter));
                }
                return false;
            }
            resource.passed = Some(waiter.position());
        }
        true
    }

    fn turn(&self, at: usize, token: usize, asked: Mode, reentry: Reentry) -> Turn {
        let resource = &self.resources[at];
        let holders = resource.holders.len();
        let room = holders < self.most_holders;
        if let (Some(count), Some(held_as)) = (resource.holders.get(&token), resource.mode) {
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
    fn enter(&mut self, at: usize, token: usize, reentry: Reentry) {
        let holders = &mut self.resources[at].holders;
        let Some(count) = reentry.count(holders.get(&token).copied()) else { return };
        if holders.insert(token, count).is_none() {
            self.tokens[token].holds.push(at);
        }
    }

    /// A grant to a token answers each of its waits there that asks for no more.
    fn answer_others(&mut self, at: usize, token: usize, waiting: &Waiting, leaving: &mut Vec<usize>) {
        let resource = &self.resources[at];
        let here = waiting.positions(self.tokens[token].token.as_bytes(), &resource.name);
        let own = resource.queue.iter().rev().find(|waits| at == WANTED && waits.token == START);
        let positions: Vec<Position> =
            here.chain(own.filter(|_| token == START).map(|own| own.position)).collect();
        for position in positions {
            self.steps += 1;
            let resource = &self.resources[at];
            let Ok(index) = resource.queue.binary_search_by_key(&position, |waits| waits.position) else {
                continue;
            };
            let waits = &resource.queue[index];
            if !waits.answered && resource.mode.is_some_and(|held_as| asks_no_more(held_as, waits.mode)) {
                self.enter(at, token, waits.reentry);
                self.answer(at, position, leaving);
            }
        }
    }

    fn answer(&mut self, at: usize, position: Position, leaving: &mut Vec<usize>) {
        let queue = &mut self.resources[at].queue;
        let Ok(index) = queue.binary_search_by_key(&position, |waits| waits.position) else { return };
        queue[index].answered = true;
        let token = queue[index].token;
        self.tokens[token].waits -= 1;
        if self.tokens[token].waits == 0 && token != START {
            leaving.push(token);
        }
    }

    fn newcomer_is_answered(&self) -> bool {
        let newcomer = |waits: &&Waits| waits.token == START && waits.position.1.0 == u64::MAX;
        self.resources[WANTED].queue.iter().rev().find(newcomer).is_some_and(|waits| waits.answered)
    }
}

/// Whether who holds in one mode has what it asks for in another.
fn asks_no_more(held_as: Mode, asked: Mode) -> bool {
    held_as == asked || (held_as, asked) == (Mode::Exclusive, Mode::Shared)
}
