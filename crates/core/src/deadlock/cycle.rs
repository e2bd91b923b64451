//! Who waits for whom, of those whose turn never comes.

use std::collections::VecDeque;

use dlock_protocol::Token;
use smallvec::SmallVec;

use super::{Resource, START, Search};

impl Search {
    /// The shortest way from the newcomer over those it waits for back to itself. None where there is none:
    /// then others wait for each other, and would without the newcomer.
    pub(super) fn cycle(&self) -> Option<Vec<Token>> {
        let mut waits = vec![Vec::new(); self.parties.len()];
        let of_start: Vec<_> = self.resources.iter().map(Resource::of_start).collect();
        // The newcomer may wait for itself, by another token. That is told where nothing else is to be told.
        let mut by_itself = None;
        for (at, resource) in self.resources.iter().enumerate() {
            for (index, here) in resource.queue.iter().enumerate().filter(|(_, here)| !here.answered) {
                waits[here.party].push((at, index));
                self.parties[here.party].around.iter().for_each(|around| waits[*around].push((at, index)));
            }
        }
        // Of each resource the holders are looked at once, and each position in its queue.
        let mut seen = vec![None; self.resources.len()];
        let mut met_by: Vec<Option<usize>> = vec![None; self.parties.len()];
        let mut to_follow = VecDeque::from([START]);
        while let Some(party) = to_follow.pop_front() {
            for &(at, index) in &waits[party] {
                let resource = &self.resources[at];
                let here = &resource.queue[index];
                if of_start[at].iter().any(|(first, token)| *first <= index && **token != here.token) {
                    if party != START {
                        return Some(self.way(party, &met_by));
                    }
                    by_itself = Some(START);
                }
                let holders = resource.holders.values().filter(|_| seen[at].is_none());
                let holders = holders.map(|holder| holder.party);
                let from = seen[at].unwrap_or(0).min(index);
                let ahead = resource.queue[from..index].iter().filter(|ahead| !ahead.answered);
                for other in holders.chain(ahead.map(|ahead| ahead.party)) {
                    if other != START && other != party && met_by[other].is_none() {
                        met_by[other] = Some(party);
                        to_follow.push_back(other);
                    }
                }
                seen[at] = seen[at].max(Some(index));
            }
        }
        by_itself.map(|start| self.way(start, &met_by))
    }

    fn way(&self, last: usize, met_by: &[Option<usize>]) -> Vec<Token> {
        let mut way = vec![START, last];
        while let Some(before) = way.last().and_then(|party| met_by[*party]) {
            way.push(before);
        }
        way.iter().rev().map(|party| self.parties[*party].party.shown().clone()).collect()
    }
}

impl Resource {
    /// By which tokens the newcomer's party keeps others waiting, each from a place in the queue on. Of more
    /// than two the rest keep nobody waiting whom these do not.
    fn of_start(&self) -> SmallVec<[(usize, &Token); 2]> {
        let holds =
            self.holders.iter().filter(|(_, holder)| holder.party == START).map(|(token, _)| (0, token));
        let waits =
            self.queue.iter().enumerate().filter(|(_, waits)| waits.party == START && !waits.answered);
        let waits = waits.map(|(index, waits)| (index + 1, &waits.token));
        let mut first_two = SmallVec::<[(usize, &Token); 2]>::new();
        for (from, token) in holds.chain(waits) {
            if first_two.iter().all(|(_, other)| *other != token) {
                first_two.push((from, token));
            }
            if first_two.len() == 2 {
                break;
            }
        }
        first_two
    }
}
