//! The search for a deadlock is bounded, for any number of waiters.

use dlock_core::deadlock::MAX_STEPS;

use super::*;

fn key(n: usize) -> Name<'static> {
    Name { db: 0, key: format!("key {n}").into_bytes().into() }
}

fn token(n: usize) -> Vec<u8> {
    format!("holder {n:08}").into_bytes()
}

impl World {
    fn holds(&mut self, name: Name<'static>, token: &[u8], mode: Mode) {
        assert!(matches!(self.acquire(&name, &request(token, mode)), Acquired::Held(_)));
    }

    fn waits(&mut self, name: Name<'static>, token: &[u8]) {
        self.join(name, request(token, Mode::Exclusive), Rank::Newcomer);
    }

    /// Searches for a cycle through one more waiter.
    fn search_for_newcomer(&self) -> (Found, usize) {
        self.search(&key(0), &request(b"newcomer", Mode::Exclusive), Rank::Newcomer)
    }
}

/// One token holds the first key and waits for all the others, whose holders wait as well.
fn a_fan(n: usize) -> World {
    let mut world = World::default();
    world.holds(key(0), b"fan", Mode::Exclusive);
    for n in 1..=n {
        world.holds(key(n), &token(n), Mode::Exclusive);
        world.waits(key(n), b"fan");
        world.waits(Name::new(0, b"elsewhere").to_owned(), &token(n));
    }
    world
}

/// A chain of keys. All sharers of a key wait for the next key.
fn a_chain(keys: usize, sharers: usize) -> World {
    with_chain(World::default(), keys, sharers)
}

fn with_chain(mut world: World, keys: usize, sharers: usize) -> World {
    let all =
        (0..keys).flat_map(|at| (0..sharers).map(move |n| (at, format!("sharer {n} of {at}").into_bytes())));
    for (at, token) in all.clone() {
        world.holds(key(at), &token, Mode::Shared);
    }
    for (at, token) in all {
        world.waits(key(at + 1), &token);
    }
    world
}

/// An earlier version took seconds, because it searched two things again and again: a token that waits for
/// many keys, and a chain of keys with many sharers. After `MAX_STEPS` a search follows no further wait, but
/// it finishes the wait that it is following. The lock of that wait can have many holders, hence
/// `3 * MAX_STEPS` below.
#[test]
fn the_work_of_a_search_is_bounded() {
    let scale = if cfg!(miri) { 100 } else { 1 };
    let worlds = [
        ("a fan", a_fan(9_000 / scale)),
        ("a chain of sharers", a_chain(100 / scale, 300 / scale)),
        ("a long chain", a_chain(3_000 / scale, 1)),
        ("one key with many sharers", a_chain(1, 30_000 / scale)),
    ];
    for (what, world) in worlds {
        let (found, steps) = world.search_for_newcomer();
        println!("{what}: {steps} steps");
        assert_eq!(found, Found::Nothing);
        assert!(steps <= 3 * MAX_STEPS, "{what}: {steps} steps");
    }
}

/// A graph of twice the size takes about twice the steps. At both sizes, the search stays below its bound.
#[test]
fn a_search_examines_each_node_once() {
    for world in [a_fan, |n| a_chain(n / 4, 4), |n| a_chain(1, n)] {
        let [steps_of_50, steps_of_100] = [50, 100].map(|n| world(n).search_for_newcomer().1);
        assert!(
            steps_of_50 > 50 && steps_of_100 <= 2 * steps_of_50 + 100,
            "{steps_of_50}, {steps_of_100} steps"
        );
    }
}

/// The sizes that docs/commands.md names.
#[test]
fn a_long_cycle_is_found() {
    for (keys, sharers) in if cfg!(miri) { [(5, 3), (8, 1)] } else { [(60, 3), (100, 1)] } {
        let mut world = World::default();
        world.holds(key(keys), b"newcomer", Mode::Exclusive);
        let (found, steps) = with_chain(world, keys, sharers).search_for_newcomer();
        let Found::Cycle(cycle) = found else { panic!("{keys} keys: {found:?} after {steps} steps") };
        assert_eq!(cycle.len(), keys + 2);
    }
}

#[test]
fn a_cycle_through_the_last_of_many_waits_is_found() {
    let n = if cfg!(miri) { 30 } else { 70 };
    let mut world = a_fan(n);
    world.holds(Name::new(0, b"mine").to_owned(), b"newcomer", Mode::Exclusive);
    world.waits(Name::new(0, b"mine").to_owned(), &token(n));
    let (found, steps) = world.search_for_newcomer();
    let Found::Cycle(cycle) = found else { panic!("{found:?} after {steps} steps") };
    let [newcomer, fan, last] =
        [&b"newcomer"[..], b"fan", &token(n)].map(|token| Token::new(token).expect("a token"));
    assert_eq!(cycle, [newcomer.clone(), fan, last, newcomer]);
}
