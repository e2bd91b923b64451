//! Symmetry reduction: states that differ only in how clients and masters are numbered count as one.

use super::client::{Client, Holding, Phase};
use super::world::{Behaviour, MASTERS, State, World};
use std::cmp::Ordering;

impl World {
    /// Returns the smallest of the states that equal `state` up to the numbering of clients and masters.
    pub fn normal_form(&self, mut state: State) -> State {
        // The masters before this index cannot be exchanged: see `first_interchangeable_master`.
        let first_interchangeable = self.first_interchangeable_master();
        let mut smallest: Option<State> = None;
        // The first permutation changes nothing. `state` itself stands for it.
        for permutation in &self.client_permutations[1..] {
            let mut renumbered = state.clone();
            renumbered.renumber_clients(permutation);
            renumbered.sort_masters(first_interchangeable);
            if smallest.as_ref().is_none_or(|smallest| renumbered < *smallest) {
                smallest = Some(renumbered);
            }
        }
        state.sort_masters(first_interchangeable);
        smallest.filter(|smallest| *smallest < state).unwrap_or(state)
    }
}

impl State {
    /// Gives the client `permutation[i]` the number `i`.
    fn renumber_clients(&mut self, permutation: &[usize]) {
        let renumber = |client: &mut u8| {
            *client = permutation.iter().position(|&old| old == usize::from(*client)).unwrap_or(0) as u8;
        };
        for master in &mut self.masters {
            master.hold.iter_mut().for_each(|hold| renumber(&mut hold.token.client));
            master.queue.iter_mut().for_each(|waiter| renumber(&mut waiter.client));
            master.wire.iter_mut().for_each(|message| renumber(&mut message.token.client));
            master.wire.sort_unstable();
        }
        self.clients = permutation.iter().map(|&old| self.clients[old].clone()).collect();
        self.history.at_least.iter_mut().for_each(|at_least| renumber(&mut at_least.token.client));
        self.clients
            .iter_mut()
            .flat_map(|client| &mut client.waiters_before)
            .for_each(|token| renumber(&mut token.client));
    }

    /// Sorts the masters with an index of at least `first_interchangeable`: by their state, then by what each
    /// client stores about them.
    fn sort_masters(&mut self, first_interchangeable: usize) {
        let mut order: [usize; MASTERS] = std::array::from_fn(|index| index);
        order[first_interchangeable..].sort_by(|&one, &other| {
            let clients = self.clients.iter().map(|client| client.compare_masters(one, other));
            clients.fold(self.masters[one].cmp(&self.masters[other]), |so_far, next| so_far.then(next))
        });
        if order.is_sorted() {
            return;
        }
        self.masters = order.map(|old| self.masters[old].clone());
        self.clients.iter_mut().for_each(|client| client.renumber_masters(order));
    }
}

impl Client {
    fn compare_masters(&self, one: usize, other: usize) -> Ordering {
        match &self.phase {
            Phase::Acquiring { round, asked, .. } => {
                let states = round.member_state(one).cmp(&round.member_state(other));
                states.then(asked[one].cmp(&asked[other]))
            }
            Phase::Holding(Holding { extension: Some(extension), .. }) => {
                extension.member_state(one).cmp(&extension.member_state(other))
            }
            _ => Ordering::Equal,
        }
    }

    fn renumber_masters(&mut self, order: [usize; MASTERS]) {
        match &mut self.phase {
            Phase::Acquiring { round, asked, .. } => {
                round.relabel(&order);
                *asked = order.map(|old| asked[old]);
            }
            Phase::Holding(Holding { extension: Some(extension), .. }) => extension.relabel(&order),
            _ => {}
        }
    }
}

/// Returns the permutations that exchange clients with equal behaviours. The first one changes nothing.
pub fn client_permutations(behaviours: &[Behaviour]) -> Vec<Vec<usize>> {
    let mut permutations = vec![vec![]];
    for client in 0..behaviours.len() {
        let longer = permutations.iter().flat_map(|shorter: &Vec<usize>| {
            (0..=shorter.len()).rev().map(|index| {
                let mut permutation = shorter.clone();
                permutation.insert(index, client);
                permutation
            })
        });
        permutations = longer.collect();
    }
    let is_allowed = |(new, &old): (usize, &usize)| behaviours[new] == behaviours[old];
    permutations.retain(|permutation| permutation.iter().enumerate().all(is_allowed));
    permutations
}
