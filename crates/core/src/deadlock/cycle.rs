//! Who waits for whom, of those whose turn never comes.

use std::collections::VecDeque;

use dlock_protocol::Token;

use super::{START, Search};

impl Search {
    /// The shortest way from the newcomer over those it waits for back to itself. None where there is none:
    /// then others wait for each other, and would without the newcomer.
    pub(super) fn cycle(&self) -> Option<Vec<Token>> {
        let mut waits = vec![Vec::new(); self.tokens.len()];
        let mut first_of_start = vec![usize::MAX; self.resources.len()];
        for (at, resource) in self.resources.iter().enumerate() {
            for (index, here) in resource.queue.iter().enumerate().filter(|(_, here)| !here.answered) {
                waits[here.token].push((at, index));
                if here.token == START {
                    first_of_start[at] = first_of_start[at].min(index);
                }
            }
        }
        // Of each resource the holders are looked at once, and each position in its queue.
        let mut seen = vec![None; self.resources.len()];
        let mut met_by: Vec<Option<usize>> = vec![None; self.tokens.len()];
        let mut to_follow = VecDeque::from([START]);
        while let Some(token) = to_follow.pop_front() {
            for &(at, index) in &waits[token] {
                let resource = &self.resources[at];
                if token != START && (resource.holders.contains_key(&START) || first_of_start[at] < index) {
                    return Some(self.way(token, &met_by));
                }
                let holders = resource.holders.keys().filter(|_| seen[at].is_none()).copied();
                let from = seen[at].unwrap_or(0).min(index);
                let ahead = resource.queue[from..index].iter().filter(|ahead| !ahead.answered);
                for other in holders.chain(ahead.map(|ahead| ahead.token)) {
                    if other != START && other != token && met_by[other].is_none() {
                        met_by[other] = Some(token);
                        to_follow.push_back(other);
                    }
                }
                seen[at] = seen[at].max(Some(index));
            }
        }
        None
    }

    fn way(&self, last: usize, met_by: &[Option<usize>]) -> Vec<Token> {
        let mut way = vec![START, last];
        while let Some(before) = way.last().and_then(|token| met_by[*token]) {
            way.push(before);
        }
        way.iter().rev().map(|token| self.tokens[*token].token.clone()).collect()
    }
}
