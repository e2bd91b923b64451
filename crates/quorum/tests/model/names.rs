//! Symmetry reduction: states that differ only in the numbers of clients and masters count as one.

use super::client::{Client, Phase};
use super::world::{MASTERS, Script, State, World};
use std::cmp::Ordering;

impl World {
    /// Returns the least of the states that differ from `state` only in the numbers of clients and masters.
    pub fn normal_form(&self, mut state: State) -> State {
        let alike = self.first_alike();
        let mut least: Option<State> = None;
        for order in &self.client_orders[1..] {
            let mut renumbered = state.clone();
            renumbered.renumber_clients(order);
            renumbered.sort_masters(alike);
            if least.as_ref().is_none_or(|least| renumbered < *least) {
                least = Some(renumbered);
            }
        }
        state.sort_masters(alike);
        least.filter(|least| *least < state).unwrap_or(state)
    }
}

impl State {
    fn renumber_clients(&mut self, order: &[usize]) {
        let renumber = |client: &mut u8| {
            *client = order.iter().position(|&from| from == usize::from(*client)).unwrap_or(0) as u8;
        };
        for master in &mut self.masters {
            master.hold.iter_mut().for_each(|hold| renumber(&mut hold.token.client));
            master.queue.iter_mut().for_each(|waiter| renumber(&mut waiter.client));
            master.wire.iter_mut().for_each(|message| renumber(&mut message.token.client));
            master.wire.sort_unstable();
        }
        self.clients = order.iter().map(|&from| self.clients[from].clone()).collect();
        self.clients
            .iter_mut()
            .flat_map(|client| &mut client.ahead)
            .for_each(|token| renumber(&mut token.client));
    }

    fn sort_masters(&mut self, from: usize) {
        let mut order: [usize; MASTERS] = std::array::from_fn(|index| index);
        order[from..].sort_by(|&one, &other| {
            let clients = self.clients.iter().map(|client| client.compare_members(one, other));
            clients.fold(self.masters[one].cmp(&self.masters[other]), |so_far, next| so_far.then(next))
        });
        if order.is_sorted() {
            return;
        }
        self.masters = order.map(|from| self.masters[from].clone());
        self.clients.iter_mut().for_each(|client| client.renumber_masters(order));
    }
}

impl Client {
    fn compare_members(&self, one: usize, other: usize) -> Ordering {
        match &self.phase {
            Phase::Acquiring { machine, asked, .. } => {
                let members = machine.member_state(one).cmp(&machine.member_state(other));
                members.then(asked[one].cmp(&asked[other]))
            }
            Phase::Holding { extension: Some(extension), .. } => {
                extension.member_state(one).cmp(&extension.member_state(other))
            }
            _ => Ordering::Equal,
        }
    }

    fn renumber_masters(&mut self, order: [usize; MASTERS]) {
        match &mut self.phase {
            Phase::Acquiring { machine, asked, .. } => {
                machine.relabel(&order);
                *asked = order.map(|from| asked[from]);
            }
            Phase::Holding { extension: Some(extension), .. } => extension.relabel(&order),
            _ => {}
        }
    }
}

/// Returns the permutations that exchange clients with equal scripts, the identity first.
pub fn client_orders(scripts: &[Script]) -> Vec<Vec<usize>> {
    let mut orders = vec![vec![]];
    for client in 0..scripts.len() {
        let longer = orders.iter().flat_map(|order: &Vec<usize>| {
            (0..=order.len()).rev().map(|index| {
                let mut order = order.clone();
                order.insert(index, client);
                order
            })
        });
        orders = longer.collect();
    }
    orders.retain(|order| order.iter().enumerate().all(|(to, &from)| scripts[to] == scripts[from]));
    orders
}
