//! The search for a deadlock is bounded, for any number of waiters.

use std::collections::HashMap;

use dlock_core::Token;
use dlock_core::deadlock::MAX_STEPS;

use super::*;

/// Locks by name, and their waiters.
#[derive(Default)]
struct Town {
    fences: Fences,
    waiting: Waiting,
    locks: HashMap<Name<'static>, Lock>,
}

fn key(n: usize) -> Name<'static> {
    Name { db: 0, key: format!("key {n}").into_bytes().into() }
}

impl Town {
    fn holds(&mut self, name: Name<'static>, token: &[u8], mode: Mode) {
        let lock = self.locks.entry(name.clone()).or_default();
        let (waiting, step) = (&mut self.waiting, &mut Step::default());
        Turn::new(NOW, TERMS, &name, &mut self.fences, waiting, lock, step)
            .acquire(&request(token, mode), ClientId(0));
    }

    fn waits(&mut self, name: Name<'static>, token: &[u8], mode: Mode) {
        let client = ClientId(self.waiting.len() as u64);
        let request = request(token, mode);
        let owner = Owner::Client(client);
        let newcomer = Newcomer { name, rank: Rank::Newcomer, request, owner, since: NOW, until: None };
        self.waiting.join(newcomer).expect("it can join");
    }

    /// Searches for a cycle through one more waiter. Returns the result and the number of steps.
    fn search(&self, name: Name<'static>, token: &[u8]) -> (Found, usize) {
        let mut search =
            Search::new(&request(token, Mode::Exclusive), &name, Rank::Newcomer, NOW, &self.waiting);
        loop {
            match search.run(&self.waiting) {
                Found::Ask(name) => search.learn(&name, self.locks.get(&name), &self.waiting),
                found => return (found, search.steps()),
            }
        }
    }
}

/// One token holds the first key and waits for all the others, whose holders wait as well.
fn a_fan(n: usize) -> Town {
    let mut town = Town::default();
    town.holds(key(0), b"fan", Mode::Exclusive);
    for n in 1..=n {
        town.holds(key(n), &token(n), Mode::Exclusive);
        town.waits(key(n), b"fan", Mode::Exclusive);
        town.waits(Name::new(0, b"elsewhere").to_owned(), &token(n), Mode::Exclusive);
    }
    town
}

/// A chain of keys. All sharers of a key wait for the next key.
fn a_chain(keys: usize, sharers: usize) -> Town {
    longer_by_a_chain(Town::default(), keys, sharers)
}

fn longer_by_a_chain(mut town: Town, keys: usize, sharers: usize) -> Town {
    let all =
        (0..keys).flat_map(|at| (0..sharers).map(move |n| (at, format!("sharer {n} of {at}").into_bytes())));
    for (at, token) in all.clone() {
        town.holds(key(at), &token, Mode::Shared);
    }
    for (at, token) in all {
        town.waits(key(at + 1), &token, Mode::Exclusive);
    }
    town
}

/// Found: a token that waits for many keys, and a chain of keys with many sharers, were searched repeatedly,
/// for seconds.
#[test]
fn the_work_of_a_search_is_bounded() {
    let scale = if cfg!(miri) { 100 } else { 1 };
    let towns = [
        ("a fan", a_fan(9_000 / scale)),
        ("a chain of sharers", a_chain(100 / scale, 300 / scale)),
        ("a long chain", a_chain(3_000 / scale, 1)),
        ("a crowd", a_chain(1, 30_000 / scale)),
    ];
    for (what, town) in towns {
        let (found, steps) = town.search(key(0), b"newcomer");
        println!("{what}: {steps} steps");
        assert_eq!(found, Found::Nothing);
        assert!(steps <= 3 * MAX_STEPS, "{what}: {steps} steps");
    }
}

/// A graph of twice the size takes twice the steps, up to the bound.
#[test]
fn a_search_examines_each_node_once() {
    for town in [a_fan, |n| a_chain(n / 4, 4), |n| a_chain(1, n)] {
        let [once, twice] = [50, 100].map(|n| town(n).search(key(0), b"newcomer").1);
        assert!(once > 50 && twice <= 2 * once + 100, "{once} steps, then {twice}");
    }
}

/// The sizes that docs/commands.md names.
#[test]
fn a_long_cycle_is_found() {
    for (keys, sharers) in if cfg!(miri) { [(5, 3), (8, 1)] } else { [(60, 3), (100, 1)] } {
        let mut town = Town::default();
        town.holds(key(keys), b"newcomer", Mode::Exclusive);
        let (found, steps) = longer_by_a_chain(town, keys, sharers).search(key(0), b"newcomer");
        let Found::Cycle(cycle) = found else { panic!("{keys} keys: {found:?} after {steps} steps") };
        assert_eq!(cycle.len(), keys + 2);
    }
}

/// A cycle within the bound is found, whatever else exists.
#[test]
fn a_cycle_among_many_is_found() {
    let n = if cfg!(miri) { 30 } else { 70 };
    let mut town = a_fan(n);
    town.holds(Name::new(0, b"mine").to_owned(), b"newcomer", Mode::Exclusive);
    town.waits(Name::new(0, b"mine").to_owned(), &token(n), Mode::Exclusive);
    let (found, steps) = town.search(key(0), b"newcomer");
    let Found::Cycle(cycle) = found else { panic!("{found:?} after {steps} steps") };
    let [newcomer, fan, last] =
        [&b"newcomer"[..], b"fan", &token(n)].map(|token| Token::new(token).expect("a token"));
    assert_eq!(cycle, [newcomer.clone(), fan, last, newcomer]);
}
